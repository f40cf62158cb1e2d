package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/cay-run/cay"
)

// upload is a request's body that remembers whether it ended before its time:
// a client which closes only its sending half still wants to be told.
type upload struct {
	io.ReadCloser
	mu    sync.Mutex // held while a read is under way
	short bool
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		u.short = true
	}
	return n, err
}

// endedEarly waits for a read that is under way; where the connection is gone
// it ends at once.
func (u *upload) endedEarly() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.short
}

// watchUpload has the trip know how the request's body ends.
func watchUpload(r *http.Request, t *trip) {
	if r.Body != nil && r.Body != http.NoBody {
		t.upload = &upload{ReadCloser: r.Body}
		r.Body = t.upload
	}
}

func shortBody(id cay.SandboxID) answer {
	const m = "The request's body ended before its announced length"
	return answer{SandboxID: id, Message: m, Code: http.StatusBadRequest, title: "Incomplete Request", text: m}
}
