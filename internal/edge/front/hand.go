package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/cay-run/cay"
)

// has reports whether a sandbox is this node's. One that is on its way to another node
// is waited for.
func (f *Front) has(ctx context.Context, id cay.SandboxID) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, moves)
	defer cancel()
	return f.cfg.Has(ctx, id)
}

// Whole reports whether a node has all of a snapshot on its disk.
func (f *Front) Whole(ctx context.Context, node cay.NodeID, id cay.SnapshotID) bool {
	n, err := f.cfg.Members.Node(ctx, node)
	if err != nil {
		return false
	}
	resp, err := f.AskFor(n)(ctx, "/snapshots/"+string(id))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, mostBody))
	return resp.StatusCode == http.StatusOK
}

// errRefused means that a node takes a sandbox not, and that nothing has changed.
var errRefused = errors.New("the node refuses the sandbox")

// mostLog bounds the log of a sandbox that another node hands over.
const mostLog = 4 << 20

// Hand offers a paused sandbox of this node with its log to others, the best place first,
// until one has it. After an error one may have it nonetheless, unless its kind is
// Unavailable.
func (f *Front) Hand(ctx context.Context, s cay.Sandbox, log []byte) error {
	return f.toBestPlace(ctx, s, func(n cay.Node) error {
		return f.offer(ctx, n, s, fmt.Sprint(toTake, " ", s.ID, " ", s.Version), log)
	}, f.cfg.Members.Self())
}

// Rescue has the node with the best place take a sandbox that is to go on and whose node is
// gone. It is no error where another one was first.
func (f *Front) Rescue(ctx context.Context, s cay.Sandbox) error {
	return f.toBestPlace(ctx, s, func(n cay.Node) error {
		if n.ID == f.cfg.Members.Self() {
			return f.adopt(ctx, s.ID)
		}
		return f.offer(ctx, n, s, fmt.Sprint(toRescue, " ", s.ID), nil)
	})
}

// toBestPlace gives a sandbox to the nodes with the best places, but for some, one after
// the other until one does not refuse it.
func (f *Front) toBestPlace(ctx context.Context, s cay.Sandbox, give func(cay.Node) error, not ...cay.NodeID) error {
	why := errNoPlace()
	for offers := 0; offers < placeMost; {
		n, ok := f.besideOthers(ctx, s, not)
		if !ok {
			n, ok = f.cfg.Members.Place(string(s.Template), not...)
		}
		if !ok {
			break
		}
		err := give(n)
		if cay.CodeOf(err) == cay.CodeProcessor {
			why, not = err, append(not, f.cfg.Members.Like(n.ID)...)
			continue
		}
		if !errors.Is(err, errRefused) {
			f.homes.forget(s.ID)
			return err
		}
		f.cfg.Log.InfoContext(ctx, "a node does not take a sandbox", "node", n.ID, "sandbox", s.ID, "err", err)
		not = append(not, n.ID)
		offers++
	}
	return why
}

// besideOthers finds the node of the other members of a sandbox's private network.
func (f *Front) besideOthers(ctx context.Context, s cay.Sandbox, not []cay.NodeID) (cay.Node, bool) {
	if s.Network.Private == nil {
		return cay.Node{}, false
	}
	members, err := f.cfg.Homes.NetworkMembers(ctx, s.Team, s.Network.Private.Name)
	if err != nil {
		f.cfg.Log.WarnContext(ctx, "cannot look for the members of a private network", "sandbox", s.ID, "err", err)
	}
	for _, m := range members {
		if m.ID == s.ID || slices.Contains(not, m.Node) {
			continue
		}
		if n, err := f.cfg.Members.Node(ctx, m.Node); err == nil && n.Takes() {
			return n, true
		}
	}
	return cay.Node{}, false
}

// adopt makes a sandbox this node's whose own is gone.
func (f *Front) adopt(ctx context.Context, id cay.SandboxID) error {
	err := f.cfg.Adopt(ctx, id)
	f.homes.forget(id)
	if cay.KindOf(err) == cay.Conflict { // a request, or another member, was first
		return nil
	}
	return err
}

// rescue takes a sandbox for the member that leads.
func (f *Front) rescue(w http.ResponseWriter, r *http.Request, h hop) {
	if err := f.adopt(r.Context(), h.sandbox); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Bring has the node of a sandbox hand it over to this one. It is no error where this one has it.
func (f *Front) Bring(ctx context.Context, id cay.SandboxID) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://node/", http.NoBody)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot ask for sandbox %s", id)
	}
	r.ProtoMajor, r.ProtoMinor = 2, 0 // many share a connection
	r.Header.Set(hopBring, "1")
	t := &trip{front: f, in: r, kind: toSandbox, sandbox: id}
	if err := t.resolve(ctx, false); err != nil {
		return err
	}
	resp, err := t.reach(func() *http.Request { return r })
	if err == nil && resp != nil {
		_, err = answered(resp, t.node)
	}
	return err
}

// give gives a sandbox to a member that asks for it.
func (f *Front) give(w http.ResponseWriter, r *http.Request, h hop) {
	err := f.cfg.Give(r.Context(), h.sandbox, func(ctx context.Context, s cay.Sandbox, log []byte) error {
		n, err := f.cfg.Members.Node(ctx, h.from)
		if err != nil {
			return err
		}
		return f.offer(ctx, n, s, fmt.Sprint(toTake, " ", s.ID, " ", s.Version), log)
	})
	f.homes.forget(h.sandbox)
	if err != nil {
		f.cfg.Log.WarnContext(r.Context(), "a sandbox does not go to the node that asks for it", "sandbox", h.sandbox, "node", h.from, "err", err)
		failAsked(w, err)
	}
}

// offer asks one node to take a sandbox with its log.
func (f *Front) offer(ctx context.Context, n cay.Node, s cay.Sandbox, what string, log []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+n.Address+"/", bytes.NewReader(log))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot offer sandbox %s", s.ID)
	}
	r.Header.Set(hopFor, what)
	resp, err := f.peers.to(n, true).RoundTrip(r)
	switch {
	case unreached(err):
		return errors.Join(errRefused, err)
	case err != nil:
		return cay.Wrap(cay.Unavailable, err, "node %s does not say whether it has taken sandbox %s", n.ID, s.ID).WithCode(cay.CodeNodeAway)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusServiceUnavailable, http.StatusMisdirectedRequest: // of an older Cay, which takes none
		if codeOf(text) == cay.CodeProcessor {
			return cay.Errorf(cay.Unavailable, "no node of the cluster has a processor for the memory of sandbox %s: it relies on features that others lack", s.ID).WithCode(cay.CodeProcessor)
		}
		return fmt.Errorf("%w: %s", errRefused, text)
	}
	return cay.Errorf(cay.Internal, "node %s answers %d for sandbox %s: %s", n.ID, resp.StatusCode, s.ID, text)
}

// take takes a sandbox that a member hands over.
func (f *Front) take(w http.ResponseWriter, r *http.Request, h hop) {
	log, err := io.ReadAll(io.LimitReader(r.Body, mostLog))
	if err == nil {
		err = f.cfg.Take(r.Context(), h.sandbox, h.from, h.version, log)
	}
	f.homes.forget(h.sandbox)
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
