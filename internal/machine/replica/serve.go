package replica

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// Other nodes ask this one for what it has on its disk:
//
//	GET /snapshots/<id>                             its record, without names of pieces
//	GET /snapshots/<id>?file=<name>&from=<n>&size=<n>   that part of a file; 204 where it is all zero
//	…&as=s2                                         likewise; packed, which Content-Encoding tells, where that makes it smaller
//	GET /images/<digest>, /engines/<hash>           likewise
//
// 404 means that it is not here, or not any more.
const (
	servedAtOnce = 24      // parts
	servedMost   = 4 << 20 // bytes of one
	servedWait   = time.Second
	servedWrite  = 30 * time.Second // for a part that is read slowly
	listedFor    = 10 * time.Second // a record of what is being read is not read anew for each part
	listedMost   = 64
)

// serving is what a node serves to others. Its zero value is ready.
type serving struct {
	once   sync.Once
	turns  chan struct{}
	mu     sync.Mutex
	listed map[string]listed // by path
}

// listed is what there is below a path.
type listed struct {
	dir   string
	in    record
	until time.Time
}

// parts are buffers for parts of files.
var parts = sync.Pool{New: func() any { return new([]byte) }}

// partOf is a buffer of so many bytes. It goes back to parts.
func partOf(size int64) *[]byte {
	b := parts.Get().(*[]byte)
	*b = slices.Grow((*b)[:0], int(size))[:size]
	return b
}

// ServeHTTP answers another node of the cluster. The caller has made sure that it is one.
func (r *Replica) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	s := &r.serving
	s.once.Do(func() { s.turns = make(chan struct{}, servedAtOnce) })
	late := time.NewTimer(servedWait)
	defer late.Stop()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-late.C:
		http.Error(w, "too many ask at once", http.StatusServiceUnavailable)
		return
	case <-q.Context().Done():
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(servedWrite))
	err := r.answer(w, q)
	switch {
	case err == nil:
	case cay.KindOf(err) == cay.NotFound, errors.Is(err, fs.ErrNotExist):
		http.Error(w, "not here", http.StatusNotFound)
	case cay.KindOf(err) == cay.Invalid:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (r *Replica) answer(w http.ResponseWriter, q *http.Request) error {
	if q.Method != http.MethodGet {
		return cay.Errorf(cay.Invalid, "%s is no question", q.Method)
	}
	in, err := r.list(q.URL.Path)
	if err != nil {
		return err
	}
	asked, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "the question cannot be read")
	}
	if len(asked) == 0 {
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(in.in)
	}
	i := slices.IndexFunc(in.in.Files, func(f file) bool { return f.Name == asked.Get("file") })
	if i < 0 {
		return cay.Errorf(cay.NotFound, "no such file")
	}
	from, err1 := strconv.ParseInt(asked.Get("from"), 10, 64)
	size, err2 := strconv.ParseInt(asked.Get("size"), 10, 64)
	f := in.in.Files[i]
	if err := errors.Join(err1, err2); err != nil || from < 0 || size <= 0 || size > servedMost || from > f.Size-size {
		return cay.Errorf(cay.Invalid, "no such part of a file of %d bytes", f.Size)
	}
	if s := in.in.Snapshot; s != nil { // as a start from it here does
		if err := r.dir.CheckOnce(q.Context(), *s, s.Files[i:i+1]); err != nil {
			return err
		}
	}
	return send(w, filepath.Join(in.dir, f.Name), from, size, asked.Get(asParam) == packing)
}

// send answers with a part of a file, packed where that is asked for and of use.
func send(w http.ResponseWriter, path string, from, size int64, packs bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	part := partOf(size)
	defer parts.Put(part)
	if _, err := f.ReadAt(*part, from); err != nil {
		return err
	}
	if zero(*part) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	body := *part
	if packs {
		room := partOf(packRoom(body))
		defer parts.Put(room)
		if packed := pack(*room, body); packed != nil {
			body = packed
			w.Header().Set("Content-Encoding", packing)
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the other node sees that it lacks some
	return nil
}

var zeros [4 << 10]byte

// zero reports whether all bytes are zero.
func zero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

// list finds what this machine has below a path.
func (r *Replica) list(path string) (listed, error) {
	s := &r.serving
	s.mu.Lock()
	out, known := s.listed[path]
	s.mu.Unlock()
	if known && time.Now().Before(out.until) {
		return out, nil
	}
	out, err := r.listNow(path)
	if err != nil {
		return out, err
	}
	out.until = time.Now().Add(listedFor)
	s.mu.Lock()
	defer s.mu.Unlock()
	for old, l := range s.listed {
		if len(s.listed) >= listedMost || !time.Now().Before(l.until) {
			delete(s.listed, old)
		}
	}
	if s.listed == nil {
		s.listed = map[string]listed{}
	}
	s.listed[path] = out
	return out, nil
}

func (r *Replica) listNow(path string) (out listed, err error) {
	kind, name, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	out.in.Format = format
	switch kind + "/" {
	case snapshots:
		var s cay.Snapshot
		if out.dir, s, err = r.dir.Get(cay.SnapshotID(name)); err != nil {
			return out, err
		}
		out.in.Snapshot, out.in.Piece, out.in.Files = &s, r.piece, filesOf(s)
	case images:
		var path string
		if path, err = r.dir.Image(name); err != nil {
			return out, err
		}
		info, err := os.Stat(path)
		if err != nil {
			return out, err
		}
		out.dir, out.in.Piece, out.in.Files = path, r.otherPiece, []file{{Size: info.Size()}}
	case engines:
		dir, ok := r.engineDir(name)
		if !ok {
			return out, cay.Errorf(cay.NotFound, "no engine %q", name)
		}
		programs, err := programsOf(dir)
		if err != nil {
			return out, err
		}
		out.dir, out.in.Piece = dir, r.otherPiece
		for _, program := range programs {
			info, err := os.Stat(filepath.Join(dir, program))
			if err != nil {
				return out, err
			}
			out.in.Files = append(out.in.Files, file{Name: program, Size: info.Size()})
		}
	default:
		return out, cay.Errorf(cay.NotFound, "no %q", kind)
	}
	return out, nil
}

// filesOf are the files of a snapshot without the names of pieces.
func filesOf(s cay.Snapshot) (out []file) {
	for _, f := range s.Files {
		out = append(out, file{Name: f.Name, Size: f.Size})
	}
	return out
}

var _ http.Handler = (*Replica)(nil)
