package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/cay-run/cay"
)

// upload is a request's body that remembers how reading it failed: a client
// that closes only its sending half, or sends what is no body, still waits for
// an answer.
type upload struct {
	body   io.Reader
	keep   bool         // what is read is kept, because it is short
	kept   bytes.Buffer // guarded by mu
	taken  bool         // something was read; guarded by mu
	closed atomic.Bool
	mu     sync.Mutex // held while a read is under way
	err    error
}

// Close has later reads fail. It leaves the body itself to the server, and does
// not wait for a read that is under way.
func (u *upload) Close() error {
	u.closed.Store(true)
	return nil
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := u.body.Read(p)
	if u.taken = u.taken || n > 0; u.keep {
		u.kept.Write(p[:n])
	}
	if err != nil && err != io.EOF && u.err == nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
		u.err = err
	}
	return n, err
}

// rewound is the body from its beginning, where that is known still.
func (u *upload) rewound() (body io.ReadCloser, whole bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.taken && !u.keep {
		return nil, false
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(bytes.Clone(u.kept.Bytes())), u.body)), true
}

// failure says why the body could not be read to its end, empty where it could
// or no client is left to tell. It waits for a read that is under way, which ends
// at once where the connection is gone.
func (u *upload) failure(r *http.Request) string {
	if u == nil {
		return ""
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.err == nil:
		return ""
	case errors.Is(u.err, io.ErrUnexpectedEOF):
		return "The request's body ended before its announced length"
	case r.Context().Err() != nil:
		return ""
	}
	return "The request's body is malformed"
}

func badBody(id cay.SandboxID, m string) answer {
	return answer{SandboxID: id, Message: m, Code: http.StatusBadRequest, title: "Incomplete Request", text: m}
}
