package server

import (
	"net/http"
	"sync"
	"time"
)

// requests counts the requests that are under way. Its zero value is ready.
type requests struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when the last one ends; nil while no one waits
}

// count returns a handler whose requests are counted.
func (r *requests) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.n++
		r.mu.Unlock()
		defer r.end()
		h.ServeHTTP(w, req)
	})
}

func (r *requests) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// wait returns when no request is under way, or after a while. It tells how
// many it waits for, if there are any.
func (r *requests) wait(most time.Duration, tell func(int)) {
	r.mu.Lock()
	n, none := r.n, make(chan struct{})
	r.none = none
	r.mu.Unlock()
	if n == 0 {
		return
	}
	tell(n)
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-none:
	case <-patience.C:
	}
}
