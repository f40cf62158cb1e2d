package front

import (
	"context"
	"net/http"

	"github.com/cay-run/cay"
)

// AskFor returns how to ask a member for what it has of snapshots.
func (f *Front) AskFor(n cay.Node) func(ctx context.Context, path string) (*http.Response, error) {
	return func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+n.Address+path, http.NoBody)
		if err != nil {
			return nil, cay.Wrap(cay.Internal, err, "cannot ask node %s for %s", n.ID, path)
		}
		r.Header.Set(hopFor, toCopy)
		// Many large answers at once: each has a connection, which is kept.
		return f.copies.to(n, false).RoundTrip(r)
	}
}

// giveCopy answers a member that asks for what this node has of a snapshot. A node without a
// lease does, too, as long as the records know both: no snapshot ever changes.
func (f *Front) giveCopy(w http.ResponseWriter, r *http.Request) {
	if f.cfg.Copies == nil { // it runs no sandboxes
		http.NotFound(w, r)
		return
	}
	defer inBatches(r)()
	f.cfg.Copies.ServeHTTP(w, r)
}
