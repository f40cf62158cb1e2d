package fs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// maxDrain bounds what is read of a body whose request has failed. Many
// clients see the answer only after they have sent all of it.
const maxDrain = 64 << 20

// buffers are what contents move through.
var buffers = sync.Pool{New: func() any { b := make([]byte, bufSize); return &b }}

// call is one authorised request of a plain route.
type call struct {
	query url.Values
	user  user.User
	dir   string // what an empty path means
}

// target resolves a path as its client means it.
func (c call) target(path string) (string, error) { return resolve(c.user, path, c.dir) }

// resolve makes a path absolute and clean for u.
func resolve(u user.User, path, dir string) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", invalid("a path cannot contain a zero byte")
	}
	return u.Path(path, dir), nil
}

// plain wraps a handler of a route below /files: it checks the caller, finds
// the account, and answers errors.
func (s *Service) plain(h func(http.ResponseWriter, *http.Request, call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := s.serve(w, r, h)
		if err == nil {
			return
		}
		var f *fault
		if !errors.As(pathFault("", err), &f) {
			f = &fault{status: http.StatusInternalServerError, msg: err.Error()}
		}
		if f.status >= http.StatusInternalServerError {
			s.log.Warn("request failed", "method", r.Method, "path", r.URL.Path, "status", f.status, "err", err)
		}
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, r.Body, maxDrain) // only to let the client read
		}
		wire.Error(w, f.status, f.msg)
	}
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request, h func(http.ResponseWriter, *http.Request, call) error) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("the query cannot be read: %s", err)
	}
	if err := authorize(r.Header, q, guest.FileOperation(r.Method, r.URL.Path), s.token(), time.Now()); err != nil {
		return err
	}
	u, err := s.account(q.Get("username"))
	if err != nil {
		return err
	}
	return h(w, r, call{query: q, user: u, dir: s.startDir(u)})
}

// requestBody returns the body behind its content coding. Closing it leaves
// the request's own open, to be drained.
func requestBody(r *http.Request) (io.ReadCloser, error) {
	switch coding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); coding {
	case "", "identity":
		return io.NopCloser(body{r.Body}), nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(body{r.Body})
		if err != nil {
			return nil, gzipFault(err)
		}
		return gunzip{z}, nil
	default:
		return nil, invalid("content encoding '%s' is not supported", coding)
	}
}

// body makes every error of reading a request's body the client's fault.
type body struct{ r io.Reader }

func (b body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, invalid("the request's body is shorter than announced")
	}
	return n, invalid("the request's body cannot be read: %s", err)
}

// gunzip does the same for the coding inside.
type gunzip struct{ *gzip.Reader }

func (g gunzip) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = gzipFault(err)
	}
	return n, err
}

func gzipFault(err error) error {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("the gzipped body ends too early")
	}
	return invalid("the gzipped body cannot be read: %s", err)
}

// readJSON decodes a small body.
func readJSON(r *http.Request, limit int64, into any) error {
	body, err := requestBody(r)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return err
	}
	if int64(len(text)) > limit {
		return invalid("the request's body is larger than %d bytes", limit)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(into); err != nil {
		return invalid("the request's body is not the JSON expected: %s", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client is gone: nothing to do
	return nil
}
