package front

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"github.com/cay-run/cay"
)

// actions is the route of one action on many sandboxes, each of which has an outcome.
const actions = "/cay/v1/sandbox-actions"

const (
	mostActed   = 100 // sandboxes of one request
	adoptAtOnce = 8
)

// outcome is what became of one sandbox, as the API has it.
type outcome struct {
	Sandbox cay.SandboxID   `json:"sandboxID"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// part are sandboxes that one node is asked to act on.
type part struct {
	ids []cay.SandboxID
	ask func(body []byte) (*answer, error)
	*answer
	err error
}

// eachItsOwn has each node act on the sandboxes that are its: a batch is cut by owners and
// put together again. A node that does not answer is the outcome of its sandboxes alone.
func (t *trip) eachItsOwn(w http.ResponseWriter) {
	var fields map[string]json.RawMessage
	var names []string
	if json.Unmarshal(t.whole, &fields) != nil || json.Unmarshal(fields["sandboxIDs"], &names) != nil || !areSandboxes(names) {
		t.kind = toLead // which says what is wrong, before any node acts
		if err := t.resolve(t.in.Context(), false); err != nil {
			fail(w, err)
			return
		}
		t.serve(w)
		return
	}
	parts := t.parts(names)
	t.front.counts.several.Add(1)
	var work sync.WaitGroup
	turns := make(chan struct{}, adoptAtOnce)
	for _, p := range parts {
		own := map[string]any{"sandboxIDs": p.ids}
		for name, v := range fields {
			if own[name] == nil {
				own[name] = v
			}
		}
		body, err := json.Marshal(own)
		if err != nil {
			fail(w, errBody(err))
			return
		}
		work.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			p.answer, p.err = p.ask(body)
		})
	}
	work.Wait()
	t.tellOutcomes(w, names, parts)
}

// areSandboxes reports whether names are those of so many sandboxes as a request may have,
// each once.
func areSandboxes(names []string) bool {
	seen := map[cay.SandboxID]bool{}
	for _, name := range names {
		id, ok := sandboxOf(name)
		if !ok || seen[id] {
			return false
		}
		seen[id] = true
	}
	return len(names) > 0 && len(names) <= mostActed
}

// parts cuts a batch. Each sandbox whose node is gone is a part of its own: a node that takes
// it acts on it.
func (t *trip) parts(names []string) (out []*part) {
	by := map[cay.NodeID]*part{}
	for _, name := range names {
		id, _ := sandboxOf(name)
		one := &trip{front: t.front, in: t.in, next: t.next, kind: toSandbox, sandbox: id}
		switch err := one.resolve(t.in.Context(), true); {
		case err != nil:
			out = append(out, &part{ids: []cay.SandboxID{id}, ask: func([]byte) (*answer, error) { return nil, err }})
			continue
		case one.kind == toAdopt:
			out = append(out, &part{ids: []cay.SandboxID{id}, ask: one.bring})
			continue
		}
		p := by[one.node]
		if p == nil {
			node := one.node
			p = &part{ask: func(body []byte) (*answer, error) { return t.ask(node, body) }}
			by[node] = p
			out = append(out, p)
		}
		p.ids = append(p.ids, id)
	}
	return out
}

// bring brings the request with a body to the node that is to have its sandbox.
func (t *trip) bring(body []byte) (*answer, error) {
	t.whole = body
	out := &answer{status: http.StatusOK, header: http.Header{}}
	resp, err := t.reach(func() *http.Request {
		r := t.with(body)
		t.outwards(r)
		return r
	})
	switch {
	case err != nil:
		return nil, err
	case resp != nil:
		return out, out.read(resp, t.node)
	}
	t.next.ServeHTTP(out, t.with(body))
	return out, nil
}

// tellOutcomes answers with the outcomes of all parts, in the order of the names. A
// refusal of all parts is the answer.
func (t *trip) tellOutcomes(w http.ResponseWriter, names []string, parts []*part) {
	all := map[cay.SandboxID]outcome{}
	var refused *answer
	acted := false
	for _, p := range parts {
		for _, o := range p.outcomes() {
			all[o.Sandbox] = o
		}
		switch {
		case p.err == nil && p.status == http.StatusOK:
			acted = true
		case p.err == nil:
			refused = p.answer
		}
	}
	switch {
	case !acted && refused != nil:
		t.tell(w, []*answer{refused}, nil)
		return
	case !acted:
		fail(w, parts[0].err)
		return
	}
	out := make([]outcome, 0, len(names))
	for _, name := range names {
		id, _ := sandboxOf(name)
		out = append(out, all[id])
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"outcomes": out})
}

// outcomes are those of a part's sandboxes.
func (p *part) outcomes() []outcome {
	why := json.RawMessage(nil)
	switch {
	case p.err != nil:
		why = wireError(p.err)
	case p.status != http.StatusOK:
		why = slices.Clone(p.body.Bytes())
	default:
		var told struct{ Outcomes []outcome }
		if err := json.Unmarshal(p.body.Bytes(), &told); err == nil && len(told.Outcomes) == len(p.ids) {
			return told.Outcomes
		}
		why = wireError(cay.Errorf(cay.Internal, "the answer of its node cannot be read"))
	}
	if !json.Valid(why) {
		why = wireError(cay.Errorf(cmp.Or(cay.KindOf(p.err), cay.Internal), "its node refuses"))
	}
	out := make([]outcome, len(p.ids))
	for i, id := range p.ids {
		out[i] = outcome{id, why}
	}
	return out
}
