package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/ticks"
	"github.com/cay-run/cay/internal/trail"
)

// trip is a request on its way to a node.
type trip struct {
	front   *Front
	in      *http.Request
	call    *http.Request // of the API that in is; nil for one of a member
	next    http.Handler
	kind    string
	sandbox cay.SandboxID // of toSandbox and toAdopt
	node    cay.NodeID
	body    *body // nil without one
	whole   []byte
	refused []cay.NodeID // the nodes that a sandbox is not brought to
	offers  int          // of a create that nodes have refused for want of room
	asked   asked        // of a body that is read here
	movable bool         // another node can do it where that of the sandbox lacks a feature
	moved   bool         // the node was asked for once more
	sized   bool         // the answer says where it ends
	until   time.Time    // a node that is away is waited for
}

// asked is what decides in the body of a request where it goes.
type asked struct {
	Template string `json:"templateID"` // of a create
	Near     string `json:"near"`       // the sandbox beside which a create is to be
	Sandbox  string `json:"sandboxID"`  // of a ticket
}

// find tells what a request is for, and its node.
func (t *trip) find(ctx context.Context) error {
	f := t.front
	id, ok := t.sandbox, t.sandbox != ""
	if !ok {
		id, ok = inPath(t.call.URL.Path)
	}
	if !ok {
		if checkpoint, is := checkpointIn(t.call.URL.Path); is {
			found, err := f.cfg.Homes.CheckpointHome(ctx, checkpoint)
			if err != nil && cay.KindOf(err) != cay.NotFound {
				return err
			}
			id, ok = found, err == nil
			t.movable = ok && isCopy(t.call)
		}
	}
	switch {
	case ok:
		t.kind, t.sandbox = toSandbox, id
		if t.movable {
			if err := t.keepBody(); err != nil {
				return err
			}
		}
	case nodeIn(t.call) != "":
		n, err := f.cfg.Members.Node(ctx, nodeIn(t.call))
		if err != nil {
			return err
		}
		t.kind, t.node = toNode, n.ID
	case isCreate(t.call):
		t.kind = toPlace
		if err := t.keepBody(); err != nil {
			return err
		}
		t.isFor(t.asked.Near)
	case isTicket(t.call):
		if err := t.keepBody(); err != nil {
			return err
		}
		t.isFor(t.asked.Sandbox)
	}
	return t.resolve(ctx, false)
}

// isFor has a request go to the node of the sandbox that its body names, if it names one:
// that node says whether it is there for the client's team.
func (t *trip) isFor(name string) {
	if id, ok := sandboxOf(name); ok {
		t.kind, t.sandbox = toSandbox, id
	}
}

// keepBody reads the body of a request whose node it decides, or that several nodes are
// offered. A larger one than the API takes is left to the node that leads to refuse.
func (t *trip) keepBody() error {
	if t.in.Body == nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(t.in.Body, mostBody+1))
	if err != nil {
		return errBody(err)
	}
	if len(text) > mostBody {
		t.in.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(text), t.in.Body), t.in.Body}
		t.kind = toLead
		return nil
	}
	t.whole, t.in.Body = text, io.NopCloser(bytes.NewReader(text))
	_ = json.Unmarshal(text, &t.asked) // the node says what is wrong with it
	return nil
}

// resolve finds the node. Fresh asks the records though the way is known.
func (t *trip) resolve(ctx context.Context, fresh bool) error {
	f := t.front
	self := f.cfg.Members.Self()
	switch t.kind {
	case toPlace:
		n, ok := f.cfg.Members.Place(t.asked.Template, t.refused...)
		if !ok {
			return errNoPlace()
		}
		t.node = n.ID
	case toNode: // it is that one or none
	case toLead:
		if t.node = f.cfg.Members.Lead(); t.node == "" {
			return errAway("", "no node leads the cluster now")
		}
	default:
		t.kind = toSandbox
		if !fresh {
			here, err := f.has(ctx, t.sandbox)
			if here || err != nil {
				t.node = self
				return err
			}
		}
		home, err := f.home(ctx, t.sandbox, fresh)
		switch {
		case cay.KindOf(err) == cay.NotFound: // this node says so in the words of the API
			t.node = self
			return nil
		case err != nil:
			return err
		}
		t.node = home.Node
		return t.fromGone(ctx, home, fresh)
	}
	return nil
}

// fromGone finds a new node for a paused sandbox whose own is gone; for what is left
// of one that ended, this node does.
func (t *trip) fromGone(ctx context.Context, home home, fresh bool) error {
	f := t.front
	n, err := f.cfg.Members.Node(ctx, home.Node)
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && n.State == cay.NodeGone:
	default:
		return err
	}
	if !fresh { // another node may have it by now, and its state is older than that
		return t.resolve(ctx, true)
	}
	if home.State != cay.Paused {
		t.node = f.cfg.Members.Self()
		return nil
	}
	to, ok := f.cfg.Members.Place("", t.refused...)
	if !ok {
		return errNoPlace()
	}
	t.kind, t.node = toAdopt, to.ID
	return nil
}

// serve serves the request here, or brings it to its node.
func (t *trip) serve(w http.ResponseWriter) {
	f := t.front
	if t.node == f.cfg.Members.Self() {
		t.here(w)
		return
	}
	if t.in.Body != nil && t.in.Body != http.NoBody && t.whole == nil {
		t.body = newBody(t.in.Body)
		if t.in.ProtoMajor == 1 {
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
	}
	trail.Leave(w.Header()) // the node's are in the answer
	out := httputil.ReverseProxy{
		Rewrite:       t.rewrite,
		Transport:     t,
		FlushInterval: -1,

		ModifyResponse: t.answeredBy,
		ErrorHandler:   t.failed,
		ErrorLog:       slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelDebug),
	}
	in := t.in.WithContext(t.in.Context())
	if t.body != nil {
		in.Body = t.body
	}
	out.ServeHTTP(w, in)
	t.linger(w)
}

func (t *trip) answeredBy(resp *http.Response) error {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.endUnread(resp.Header)
		t.sized = resp.ContentLength >= 0
	}
	t.front.counts.node.Add(1)
	return nil
}

// here serves the request on this node.
func (t *trip) here(w http.ResponseWriter) {
	f := t.front
	if !f.cfg.Members.Serves() {
		fail(w, errNoLease())
		return
	}
	switch elsewhere, err := t.adopt(); {
	case err != nil:
		fail(w, err)
		return
	case elsewhere:
		t.serve(w)
		return
	}
	if t.whole != nil {
		t.in.Body = io.NopCloser(bytes.NewReader(t.whole))
	}
	if t.kind == toPlace || t.movable {
		t.placeHere(w)
		return
	}
	f.counts.here.Add(1)
	t.next.ServeHTTP(w, t.in)
}

// adopt makes the sandbox this node's whose own is gone. It reports whether the request is
// for another node: one that was first, or whose processor its memory needs.
func (t *trip) adopt() (elsewhere bool, err error) {
	if t.kind != toAdopt {
		return false, nil
	}
	f := t.front
	err = f.cfg.Adopt(t.in.Context(), t.sandbox)
	f.homes.forget(t.sandbox)
	first := cay.KindOf(err) == cay.Conflict && !t.moved // another node was
	if !first && cay.CodeOf(err) != cay.CodeProcessor {
		return false, err
	}
	t.moved = t.moved || first
	if !first {
		t.notLike(t.node)
	}
	err = t.resolve(t.in.Context(), true)
	return err == nil, err
}

// reach brings a request to its node, and returns its answer, or none where that is this node. The
// request is made for each node that is tried.
func (t *trip) reach(request func() *http.Request) (*http.Response, error) {
	members := t.front.cfg.Members
	for {
		if t.node != members.Self() {
			resp, err := t.RoundTrip(request())
			if err == nil {
				return resp, nil
			}
			if !errors.Is(err, errHere) {
				return nil, t.broke(err)
			}
		}
		if !members.Serves() {
			return nil, errNoLease()
		}
		if elsewhere, err := t.adopt(); err != nil || !elsewhere {
			return nil, err
		}
	}
}

// placeHere offers what makes sandboxes to this node, and to others where it refuses.
func (t *trip) placeHere(w http.ResponseWriter) {
	out := &answer{status: http.StatusOK, header: w.Header().Clone()}
	t.next.ServeHTTP(out, t.in.WithContext(cay.WithElsewhere(t.in.Context())))
	if out.status == http.StatusServiceUnavailable && t.instead(codeOf(out.body.Bytes())) {
		t.serve(w)
		return
	}
	t.front.counts.here.Add(1)
	clear(w.Header())
	maps.Copy(w.Header(), out.header)
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body.Bytes())
}

// instead finds another node for a create that this one has refused with a code.
func (t *trip) instead(code string) bool {
	switch {
	case code == cay.CodeProcessor:
		t.notLike(t.node)
	case code == cay.CodeCapacity && t.movable:
		t.notOn(t.node)
	default:
		return t.kind == toPlace && t.another()
	}
	return t.resolve(t.in.Context(), true) == nil
}

// another finds another node for a create that this one has refused.
func (t *trip) another() bool {
	if t.offers++; t.offers >= placeMost {
		return false
	}
	n, ok := t.front.cfg.Members.Place(t.asked.Template, append(t.refused, t.node)...)
	if ok {
		t.refused, t.node = append(t.refused, t.node), n.ID
		t.front.counts.refused.Add(1)
	}
	return ok
}

// notLike has a sandbox not brought to nodes with the processor of one that lacks a feature.
func (t *trip) notLike(node cay.NodeID) { t.notOn(t.front.cfg.Members.Like(node)...) }

// notOn has a sandbox not brought to some nodes.
func (t *trip) notOn(nodes ...cay.NodeID) {
	if t.movable { // to any other
		t.kind, t.sandbox = toPlace, ""
	}
	t.refused = append(t.refused, nodes...)
}

// codeOf is the code of an error that the API has answered with.
func codeOf(body []byte) string {
	var e struct {
		Code string `json:"error_code"`
	}
	_ = json.Unmarshal(body, &e) // what is none has no code
	return e.Code
}

// refusal is the code of an answer that a node has no place for a sandbox, which stays to be
// read.
func (t *trip) refusal(resp *http.Response) string {
	if t.kind != toPlace && t.kind != toAdopt && !t.movable || resp.StatusCode != http.StatusServiceUnavailable {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostRefusal))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), failing{err}, resp.Body), resp.Body}
	return codeOf(text)
}

const mostRefusal = 64 << 10 // bytes of an error

// failing is read as an error; without one it is empty.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// mark says where the client is, whether it came by TLS, and the ids of its request.
func (t *trip) mark(h http.Header) {
	h.Set(hopFrom, t.in.RemoteAddr)
	if of := trail.Of(t.in.Context()); of != nil {
		h.Set(hopTrail, of.Request+" "+of.Trace)
	}
	if t.front.cfg.Console.Alone(t.in) {
		h.Set(hopAlone, "1")
	}
	if t.in.TLS != nil {
		h.Set(hopName, ":"+t.in.TLS.ServerName)
	}
}

// rewrite leaves a request as it came, but for where it goes.
func (t *trip) rewrite(r *httputil.ProxyRequest) {
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
	t.mark(r.Out.Header)
	if t.body != nil {
		r.Out.Body = t.body                        // which stays open for another node
		r.Out.Header.Set("Expect", "100-continue") // the node says first whether it is the right one
	}
}

// RoundTrip brings the request to its node. One that no node has begun goes to another
// one where the first is away, or says that it is not the one.
func (t *trip) RoundTrip(out *http.Request) (*http.Response, error) {
	ctx := out.Context()
	t.until = time.Now().Add(patience)
	for {
		resp, err := t.try(out)
		switch {
		case err != nil && (t.begun() || !unreached(err)):
			return nil, err
		case err != nil:
			if time.Now().After(t.until) {
				return nil, errAway(t.node, "it cannot be reached")
			}
			if t.kind == toPlace {
				t.refused = append(t.refused, t.node)
			} else if !ticks.Wait(ctx, pause) {
				return nil, ctx.Err()
			}
		case t.again(resp):
		case resp.Header.Get(hopMoved) != "":
			_ = resp.Body.Close()
			return nil, errAway(t.node, "it does not serve what the records say is its")
		default:
			return resp, nil
		}
		if t.kind != toPlace || slices.Contains(t.refused, t.node) {
			if err := t.resolve(ctx, true); err != nil {
				return nil, err
			}
		}
		if t.node == t.front.cfg.Members.Self() {
			return nil, errHere
		}
	}
}

// errHere means that the request is this node's now.
var errHere = errors.New("the request is for this node")

// try sends the request once.
func (t *trip) try(out *http.Request) (*http.Response, error) {
	n, err := t.front.cfg.Members.Node(out.Context(), t.node)
	if cay.KindOf(err) == cay.NotFound {
		return nil, &unreachable{cay.Errorf(cay.Unavailable, "node %s is no member", t.node)}
	}
	if err != nil {
		return nil, err
	}
	to := out.Clone(mutedTrace{out.Context()})
	to.URL.Scheme, to.URL.Host = "https", n.Address
	to.Header.Set(hopFor, t.kind)
	if t.sandbox != "" {
		to.Header.Set(hopFor, t.kind+" "+string(t.sandbox))
	}
	if t.movable {
		to.Header.Set(hopElse, "1")
	}
	if t.whole != nil {
		to.Body, to.ContentLength = io.NopCloser(bytes.NewReader(t.whole)), int64(len(t.whole))
	}
	return t.front.peers.to(n, t.in.ProtoMajor == 2).RoundTrip(to)
}

// again reports whether an answer says to go to another node.
func (t *trip) again(resp *http.Response) bool {
	moved := resp.StatusCode == http.StatusMisdirectedRequest && resp.Header.Get(hopMoved) != ""
	refusal := t.refusal(resp)
	full := t.kind == toPlace && resp.StatusCode == http.StatusServiceUnavailable
	switch {
	case moved && !t.moved && !t.begun():
		t.moved = true
		t.front.counts.moved.Add(1)
		if t.kind == toPlace {
			t.refused = append(t.refused, t.node)
		}
	case refusal == cay.CodeProcessor:
		t.notLike(t.node)
	case refusal == cay.CodeCapacity && t.movable:
		t.notOn(t.node)
	case full && t.another():
	default:
		return false
	}
	_ = resp.Body.Close()
	return true
}

// begun reports whether a node may have read some of the body.
func (t *trip) begun() bool { return t.body != nil && t.body.begun.Load() }

// failed answers a request that got no answer.
func (t *trip) failed(w http.ResponseWriter, r *http.Request, err error) {
	if of := trail.Of(t.in.Context()); of != nil {
		of.Tell(w.Header())
	}
	t.endUnread(w.Header())
	if errors.Is(err, errHere) && !t.begun() {
		t.here(w)
		return
	}
	t.front.counts.none.Add(1)
	t.sized = true // fail says how long its answer is
	if t.body != nil {
		if why := t.body.broken(r.Context()); why != nil {
			fail(w, errBody(why))
			return
		}
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	t.front.cfg.Log.WarnContext(r.Context(), "a request did not reach its node", "node", t.node, "for", t.kind, "sandbox", t.sandbox, "err", err)
	var ours *cay.Error
	if !errors.As(err, &ours) {
		err = errBroke(t.node)
	}
	fail(w, err)
}
