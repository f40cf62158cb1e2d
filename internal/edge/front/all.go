package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// Some requests are about what several nodes have: each of these is asked, and the
// client gets one answer of all. One node that refuses, or does not answer, is the
// answer: a part would look like the whole. But a search of logs names the nodes
// that do not answer.

// partWithin is how long a node has for its part where others answer without it.
const partWithin = 20 * time.Second

const toAll = "all" // one of several nodes that are asked the same

// merge makes one body of those of all nodes.
type merge func(bodies [][]byte) (any, error)

// whole is how all nodes answer a request together.
type whole struct {
	merge
	// missing has an answer name the nodes that gave none; nil where each must answer.
	missing func(answer any, of []cay.NodeID)
}

// ofAll tells how the answers of all nodes become one; nil for a request that one
// node answers.
func ofAll(r *http.Request) *whole {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/admin/sandboxes/running-counts",
		r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/admin/teams/") && strings.HasSuffix(r.URL.Path, "/sandboxes/kill"):
		return &whole{merge: sums}
	case r.Method == http.MethodGet && r.URL.Path == "/sandboxes/metrics":
		return &whole{merge: unions}
	case r.Method == http.MethodGet && r.URL.Path == "/cay/v1/disk-use":
		return &whole{merge: diskUses}
	case r.Method == http.MethodGet && r.URL.Path == "/cay/v1/logs":
		return &whole{merge: linesOf(r), missing: missingLines}
	}
	return nil
}

// sums adds the numbers of objects by their keys.
func sums(bodies [][]byte) (any, error) {
	out := map[string]int64{}
	for _, body := range bodies {
		var one map[string]int64
		if err := json.Unmarshal(body, &one); err != nil {
			return nil, err
		}
		for key, n := range one {
			out[key] += n
		}
	}
	return out, nil
}

// unions puts the objects in objects together.
func unions(bodies [][]byte) (any, error) {
	out := map[string]map[string]json.RawMessage{}
	for _, body := range bodies {
		var one map[string]map[string]json.RawMessage
		if err := json.Unmarshal(body, &one); err != nil {
			return nil, err
		}
		for key, inner := range one {
			if out[key] == nil {
				out[key] = map[string]json.RawMessage{}
			}
			for name, v := range inner {
				out[key][name] = v
			}
		}
	}
	return out, nil
}

// answer is what a node says.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.status = code }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// everywhere asks all nodes that serve the same.
func (t *trip) everywhere(w http.ResponseWriter, all *whole) {
	members := t.front.cfg.Members
	asked := map[cay.NodeID][]byte{}
	for _, n := range members.Serving() {
		asked[n] = t.whole
	}
	ctx := t.in.Context()
	if all.missing != nil {
		within, cancel := context.WithTimeout(ctx, partWithin)
		defer cancel()
		t.in = t.in.WithContext(within)
	}
	ids, answers, errs := t.gather(asked)
	merge := all.merge
	if all.missing != nil && ctx.Err() == nil {
		missing := members.Away()
		var told []*answer
		for i, id := range ids {
			if errs[i] != nil {
				missing = append(missing, id)
				continue
			}
			told = append(told, answers[i])
		}
		if len(told) > 0 {
			answers, errs = told, nil
		}
		slices.Sort(missing)
		merge = func(bodies [][]byte) (any, error) {
			out, err := all.merge(bodies)
			if err == nil && len(missing) > 0 {
				all.missing(out, missing)
			}
			return out, err
		}
	}
	if err := errors.Join(errs...); err != nil {
		fail(w, err)
		return
	}
	t.tell(w, answers, merge)
}

// gather asks nodes at once, each with a body, and returns their answers, or why they
// gave none, in the order of the nodes' ids.
func (t *trip) gather(asked map[cay.NodeID][]byte) (ids []cay.NodeID, answers []*answer, errs []error) {
	t.front.counts.several.Add(1)
	ids = slices.Sorted(maps.Keys(asked))
	answers, errs = make([]*answer, len(ids)), make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { answers[i], errs[i] = t.ask(id, asked[id]) })
	}
	wg.Wait()
	return ids, answers, errs
}

// with is the request with another body.
func (t *trip) with(body []byte) *http.Request {
	r := t.in.Clone(t.in.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r
}

// outwards makes a copy of the request one that goes to a node.
func (t *trip) outwards(r *http.Request) {
	r.RequestURI, r.URL.Scheme = "", "https"
	r.Header.Del("Connection")
	t.mark(r.Header)
}

// ask asks one node.
func (t *trip) ask(id cay.NodeID, body []byte) (*answer, error) {
	f := t.front
	out := &answer{status: http.StatusOK, header: http.Header{}}
	r := t.with(body)
	if id == f.cfg.Members.Self() {
		if !f.cfg.Members.Serves() {
			return nil, errNoLease()
		}
		t.next.ServeHTTP(out, r)
		return out, nil
	}
	n, err := f.cfg.Members.Node(r.Context(), id)
	if err != nil {
		return nil, errAway(id, "it is no member")
	}
	t.outwards(r)
	r.URL.Host = n.Address
	r.Header.Set(hopFor, toAll)
	resp, err := f.peers.to(n, false).RoundTrip(r.WithContext(mutedTrace{r.Context()}))
	if err != nil {
		f.cfg.Log.WarnContext(r.Context(), "a node does not answer", "node", id, "err", err)
		return nil, errBroke(id)
	}
	if resp.Header.Get(hopMoved) != "" {
		_ = resp.Body.Close()
		return nil, errAway(id, "it has lost its lease")
	}
	return out, out.read(resp, id)
}

// read reads what a node says.
func (a *answer) read(resp *http.Response, id cay.NodeID) error {
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	if _, err := io.Copy(&a.body, io.LimitReader(resp.Body, mostAnswer)); err != nil {
		return errBroke(id)
	}
	return nil
}

const mostAnswer = 64 << 20 // of one node

// tell answers with what all nodes say, or with what one says that refuses.
func (t *trip) tell(w http.ResponseWriter, answers []*answer, all merge) {
	var bodies [][]byte
	for _, a := range answers {
		if a.status != http.StatusOK {
			for _, name := range []string{"Content-Type", "Retry-After", "Should-Retry"} {
				if v := a.header.Get(name); v != "" {
					w.Header().Set(name, v)
				}
			}
			w.WriteHeader(a.status)
			_, _ = w.Write(a.body.Bytes())
			return
		}
		bodies = append(bodies, a.body.Bytes())
	}
	out, err := all(bodies)
	if err != nil {
		t.front.cfg.Log.ErrorContext(t.in.Context(), "the answers of the nodes cannot be put together", "path", t.in.URL.Path, "err", err)
		fail(w, cay.Wrap(cay.Internal, err, "the answers of the nodes cannot be put together"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}
