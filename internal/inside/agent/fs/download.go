package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/gzip"
)

// smallFile is how much of a file is read before the answer begins. A file
// that ends within is served from memory, whatever its size claims to be:
// those of /proc claim none, those of /sys a page.
const smallFile = 64 << 10

// gzipWriters are reused: each has most of a megabyte of tables.
var gzipWriters = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil { // cannot happen: the level is a constant
		panic(err)
	}
	return z
}}

// download serves GET /files.
func (s *Service) download(w http.ResponseWriter, r *http.Request, c call) error {
	path, err := c.target(c.query.Get("path"))
	if err != nil {
		return err
	}
	f, st, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, smallFile)
	n, err := io.ReadFull(f, head)
	whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !whole {
		return pathFault(path, err)
	}
	head = head[:n]

	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	h.Set("Content-Type", contentType(path, head))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", disposition(filepath.Base(path)))
	accept, ok := negotiate(r.Header)
	if !ok {
		h.Del("Content-Type")
		h.Del("Content-Disposition")
		return &fault{status: http.StatusNotAcceptable, msg: "no content coding that the request accepts is supported; supported are gzip and identity"}
	}
	switch {
	case accept == codingGzip && n > 0 && r.Method != http.MethodHead && !partial(r.Header):
		return serveGzip(w, io.MultiReader(bytes.NewReader(head), f))
	case whole:
		h.Set("ETag", etag(st, int64(n)))
		http.ServeContent(w, r, "", st.ModTime(), bytes.NewReader(head))
	case st.Size() <= smallFile:
		// It is longer than it says: there is no length to announce.
		return serveStream(w, r, io.MultiReader(bytes.NewReader(head), f))
	default:
		h.Set("ETag", etag(st, st.Size()))
		http.ServeContent(fileWriter{w}, r, "", st.ModTime(), f)
	}
	return nil
}

// fileWriter sends files the short way: by the connection itself, which can
// have the kernel do it, past wrappers that do not know how.
type fileWriter struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom.
func (w fileWriter) ReadFrom(r io.Reader) (int64, error) {
	for inner := w.ResponseWriter; ; {
		if to, ok := inner.(io.ReaderFrom); ok {
			return to.ReadFrom(r)
		}
		wrapper, ok := inner.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return copyAll(w.ResponseWriter, r)
		}
		inner = wrapper.Unwrap()
	}
}

// openRegular opens a file for reading and refuses what is none; it never
// waits for the other end of a FIFO.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, lookFault(path, err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		err = pathFault(path, err)
	case st.IsDir():
		err = invalid("path '%s' is a directory", path)
	case !st.Mode().IsRegular():
		err = invalid("path '%s' is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// abort breaks the connection off: an answer that ended in the middle must
// not look complete.
func abort() { panic(http.ErrAbortHandler) }

func serveGzip(w http.ResponseWriter, from io.Reader) error {
	w.Header().Set("Content-Encoding", codingGzip)
	w.WriteHeader(http.StatusOK)
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(w)
	if _, err := copyAll(z, from); err != nil || z.Close() != nil {
		abort()
	}
	return nil
}

func serveStream(w http.ResponseWriter, r *http.Request, from io.Reader) error {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := copyAll(w, from); err != nil {
		abort()
	}
	return nil
}

// copyAll copies in units of bufSize.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}

// contentType is what a browser needs to show a file.
func contentType(path string, head []byte) string {
	if t := mime.TypeByExtension(filepath.Ext(path)); t != "" {
		return t
	}
	if len(head) == 0 {
		return "application/octet-stream"
	}
	return http.DetectContentType(head)
}

func disposition(name string) string {
	if v := mime.FormatMediaType("inline", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "inline"
}

func etag(st fs.FileInfo, size int64) string {
	var ino uint64
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		ino = sys.Ino
	}
	return fmt.Sprintf(`"%x-%x-%x"`, ino, size, st.ModTime().UnixNano())
}

const (
	codingIdentity = "identity"
	codingGzip     = "gzip"
)

// partial reports whether a request asks for less than the whole file, which
// only the identity coding answers.
func partial(h http.Header) bool {
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if h.Get(name) != "" {
			return true
		}
	}
	return false
}

// negotiate picks the content coding that Accept-Encoding likes best, gzip
// among equals. It fails where the header forbids both.
func negotiate(h http.Header) (string, bool) {
	weights := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		if name == "x-gzip" {
			name = codingGzip
		}
		weights[name] = weight(params)
	}
	star, hasStar := weights["*"]
	gz, named := weights[codingGzip]
	if !named && hasStar {
		gz = star
	}
	id, named := weights[codingIdentity]
	switch {
	case !named && hasStar && star == 0:
		id = 0
	case !named:
		id = min(1, max(gz, 0.001)) // always acceptable, never preferred
	}
	switch {
	case gz > 0 && gz >= id:
		return codingGzip, true
	case id > 0:
		return codingIdentity, true
	}
	return "", false
}

// weight reads the q parameter of one item; 1 where it cannot be read.
func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(k), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}
