package pkgcache

import (
	"bufio"
	"bytes"
	"cmp"
	"container/list"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	maxHeadLine = 32 << 10
	newPrefix   = "new-"    // of files that are not whole
	touchEvery  = time.Hour // use is remembered on the disk
)

// head is the first line of a kept file; the body follows it.
type head struct {
	URL    string            `json:"url"`
	Header map[string]string `json:"header"`
	Final  bool              `json:"final,omitempty"`
}

// entry is an answer on the disk. Its file never changes: another answer is
// another file in its place.
type entry struct {
	head
	key    string
	offset int64 // where the body begins
	size   int64 // of the file

	used  time.Time
	fresh time.Time // until when it is believed
	place *list.Element
}

// store keeps answers on the disk, within a bound; those that were not used
// for longest go first.
type store struct {
	dir   string
	limit int64

	mu      sync.Mutex
	entries map[string]*entry
	order   *list.List // the latest used first
	used    int64      // bytes, with those that are on their way
}

// openStore reads the files that are there, and removes those that are not whole.
func openStore(dir string, limit int64) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the package cache cannot be made in %s", dir)
	}
	s := &store{dir: dir, limit: limit, entries: map[string]*entry{}, order: list.New()}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the package cache in %s cannot be read", dir)
	}
	var found []*entry
	for _, f := range files {
		e, err := readEntry(filepath.Join(dir, f.Name()))
		if err != nil {
			_ = os.Remove(filepath.Join(dir, f.Name()))
			continue
		}
		found = append(found, e)
	}
	slices.SortFunc(found, func(a, b *entry) int { return cmp.Compare(a.used.UnixNano(), b.used.UnixNano()) })
	for _, e := range found {
		s.add(e)
	}
	s.evict()
	return s, nil
}

func readEntry(path string) (*entry, error) {
	if len(filepath.Base(path)) != 64 {
		return nil, errors.New("not a kept answer")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a file"))
	}
	line, err := bufio.NewReaderSize(io.LimitReader(f, maxHeadLine), maxHeadLine).ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	e := &entry{key: filepath.Base(path), offset: int64(len(line)), size: info.Size(), used: info.ModTime()}
	return e, json.Unmarshal(line, &e.head)
}

// add must be called with the lock held, or before there are others.
func (s *store) add(e *entry) {
	if old := s.entries[e.key]; old != nil {
		s.forget(old)
	}
	e.place = s.order.PushFront(e)
	s.entries[e.key] = e
	s.used += e.size
}

func (s *store) forget(e *entry) {
	s.order.Remove(e.place)
	delete(s.entries, e.key)
	s.used -= e.size
}

// evict removes what was not used for longest, until the rest fits.
func (s *store) evict() {
	for s.used > s.limit {
		last := s.order.Back()
		if last == nil {
			return
		}
		e := last.Value.(*entry)
		s.forget(e)
		_ = os.Remove(s.path(e.key))
	}
}

func (s *store) path(key string) string { return filepath.Join(s.dir, key) }

// get finds an answer and opens its file; nil when there is none.
func (s *store) get(key string) (*entry, *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		return nil, nil
	}
	f, err := os.Open(s.path(key))
	if err != nil { // an operator removed it
		s.forget(e)
		return nil, nil
	}
	s.order.MoveToFront(e.place)
	if now := time.Now(); now.Sub(e.used) > touchEvery {
		e.used = now
		_ = os.Chtimes(s.path(key), now, now)
	}
	return e, f
}

// isFresh reports whether an answer needs no asking.
func (s *store) isFresh(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.Final || time.Now().Before(e.fresh)
}

// newer reports whether there is an answer that is good, and another than old.
func (s *store) newer(key string, old *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	return e != nil && e != old && (e.Final || time.Now().Before(e.fresh))
}

// believe has an answer be fresh for a while, or for as long as the server runs.
func (s *store) believe(e *entry, d time.Duration, forGood bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.fresh = time.Now().Add(d)
	e.Final = e.Final || forGood
}

// reserve makes room for n bytes that are to come. It fails when they would
// not fit into half of the whole: one file should not drive out all others.
func (s *store) reserve(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.limit/2 {
		return false
	}
	s.used += n
	s.evict()
	if s.used > s.limit { // others are on their way
		s.used -= n
		return false
	}
	return true
}

func (s *store) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// create begins a file with its first line.
func (s *store) create(h head) (*os.File, int64, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, 0, err
	}
	line = append(line, '\n')
	if len(line) > maxHeadLine || bytes.IndexByte(line, '\n') != len(line)-1 {
		return nil, 0, errors.New("its headers are too long")
	}
	f, err := os.CreateTemp(s.dir, newPrefix)
	if err != nil {
		return nil, 0, err
	}
	if _, err := f.Write(line); err != nil {
		return nil, 0, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, int64(len(line)), nil
}

// holds reports whether what is kept of an entry is what came for another.
func (s *store) holds(e, came *entry, file *os.File) bool {
	kept, err := os.Open(s.path(e.key))
	if err != nil {
		return false
	}
	defer kept.Close()
	a, b := io.NewSectionReader(kept, e.offset, e.size-e.offset), io.NewSectionReader(file, came.offset, came.size-came.offset)
	x, y := make([]byte, piece), make([]byte, piece)
	if a.Size() != b.Size() {
		return false
	}
	for {
		n, err := io.ReadFull(a, x)
		m, _ := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false
		}
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

// keep puts a whole file in its place.
func (s *store) keep(name string, e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(name, s.path(e.key)); err != nil {
		return err
	}
	e.used = time.Now()
	s.add(e)
	s.evict()
	return nil
}

// remove removes the answers that which selects; with dry it only tells them.
func (s *store) remove(dry bool, which func(*entry) bool) (out []cay.Garbage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if !which(e) {
			continue
		}
		if !dry {
			if err := os.Remove(s.path(e.key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return out, cay.Wrap(cay.Internal, err, "a kept package cannot be removed")
			}
			s.forget(e)
		}
		out = append(out, cay.Garbage{Kind: "package", Name: e.URL, Bytes: e.size})
	}
	return out, nil
}

func (s *store) size() (files int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		bytes += e.size
	}
	return len(s.entries), bytes
}
