package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/cay-run/cay"
)

// upload is a request's body that remembers how reading it failed: a client
// that closes only its sending half, or sends what is no body, still waits for
// an answer.
type upload struct {
	io.ReadCloser
	mu  sync.Mutex // held while a read is under way
	err error
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	if err != nil && err != io.EOF && u.err == nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
		u.err = err
	}
	return n, err
}

// failure says why the body could not be read to its end, empty where it could
// or nobody is left to tell. It waits for a read that is under way, which ends
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

// watchUpload has the trip know how the request's body ends.
func watchUpload(r *http.Request, t *trip) {
	if r.Body != nil && r.Body != http.NoBody {
		t.upload = &upload{ReadCloser: r.Body}
		r.Body = t.upload
	}
}

func badBody(id cay.SandboxID, m string) answer {
	return answer{SandboxID: id, Message: m, Code: http.StatusBadRequest, title: "Incomplete Request", text: m}
}
