package triggers

import (
	"context"
	"encoding/json"
	"net"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Nodes lead to the sandboxes of all nodes of a cluster.
type Nodes interface {
	// Ask has the node of a sandbox Serve a call, or without a sandbox the one with the
	// best place for a template.
	Ask(ctx context.Context, id cay.SandboxID, template string, call []byte) ([]byte, error)
	// Dial connects to a port of a sandbox that runs.
	Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
}

// call is what the node that leads has the node of a sandbox do for a run.
type call struct {
	Do      string // the name of a method of Sandboxes
	Team    cay.TeamID
	Name    string           // of the runner
	Sandbox cay.SandboxID    `json:",omitempty"`
	Spec    *cay.CreateSpec  `json:",omitempty"`
	Timeout time.Duration    `json:",omitempty"`
	Memory  bool             `json:",omitempty"`
	Kind    cay.SnapshotKind `json:",omitempty"`
	Start   *cay.Start       `json:",omitempty"`
	By      []cay.Origins    `json:",omitempty"`
}

// done is what comes of a call.
type done struct {
	Sandbox cay.SandboxID `json:",omitempty"`
	Resumed bool          `json:",omitempty"`
}

// Serve does for a run on the node that leads what is to be done with a sandbox of this
// node.
func (t *Triggers) Serve(ctx context.Context, text []byte) ([]byte, error) {
	var c call
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "a call of a member is damaged")
	}
	who := cay.Caller{Team: c.Team, Name: c.Name, Scopes: cay.TeamScopes}
	out := done{Sandbox: c.Sandbox}
	var err error
	switch {
	case c.Do == "create" && c.Spec != nil:
		var box cay.Sandbox
		box, err = t.here.Create(ctx, who, *c.Spec)
		out.Sandbox = box.ID
	case c.Do == "connect":
		_, out.Resumed, err = t.here.Connect(ctx, who, c.Sandbox, c.Timeout, c.Memory)
	case c.Do == "pause":
		err = t.here.Pause(ctx, who, c.Sandbox, c.Kind, false)
	case c.Do == "kill":
		err = t.here.Kill(ctx, who, c.Sandbox)
	case c.Do == "start" && c.Start != nil:
		err = t.here.MayStart(ctx, c.Sandbox, *c.Start, c.By...)
	default:
		err = cay.Errorf(cay.Unavailable, "this node is of another version, which has no %.40q for runs", c.Do)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// here are the sandboxes of this node.
type here struct {
	Sandboxes
	dial     Dial
	mayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	ledger   *ledger.Ledger
}

func (h here) Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error) {
	return h.dial(ctx, id, port)
}

// MayStart returns why a command may not start. A server that stops decides nothing: the
// next one asks.
func (h here) MayStart(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error {
	err := h.mayStart(ctx, id, s, by...)
	if cay.CodeOf(err) == cay.CodeCommandWaits && !h.ledger.Streaming() {
		return cay.Wrap(cay.Unavailable, err, "the server stopped while the command waited for a decision")
	}
	return err
}

// everywhere are the sandboxes of all nodes: what is known of them is in the records, and
// what is to be done with one its node does.
type everywhere struct {
	here
	nodes Nodes
	store store.Store
}

// ask has the node of a sandbox do something.
func (e everywhere) ask(ctx context.Context, who cay.Caller, c call) (out done, err error) {
	c.Team, c.Name = who.Team, who.Name
	text, err := json.Marshal(c)
	if err != nil {
		return out, cay.Wrap(cay.Internal, err, "cannot ask a node")
	}
	template := ""
	if c.Spec != nil {
		template = c.Spec.Template
	}
	if text, err = e.nodes.Ask(ctx, c.Sandbox, template, text); err != nil {
		return out, err
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, cay.Wrap(cay.Internal, err, "the answer of a member is damaged")
	}
	return out, nil
}

func (e everywhere) Create(ctx context.Context, who cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error) {
	out, err := e.ask(ctx, who, call{Do: "create", Spec: &spec})
	if err != nil {
		return cay.Sandbox{}, err
	}
	return e.Get(ctx, who, out.Sandbox)
}

func (e everywhere) Connect(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration, memory bool) (box cay.Sandbox, resumed bool, err error) {
	out, err := e.ask(ctx, who, call{Do: "connect", Sandbox: id, Timeout: timeout, Memory: memory})
	if err != nil {
		return box, false, err
	}
	box, err = e.Get(ctx, who, id)
	return box, out.Resumed, err
}

func (e everywhere) Get(ctx context.Context, who cay.Caller, id cay.SandboxID) (cay.Sandbox, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	box, err := e.store.Sandbox(ctx, who.Team, id)
	if err == nil && (box.State == cay.Killed || box.State == cay.Creating) {
		err = ledger.NoSandbox(id)
	}
	if err != nil {
		return cay.Sandbox{}, ledger.Known(err, id)
	}
	return box, nil
}

func (e everywhere) Pause(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, _ bool) error {
	_, err := e.ask(ctx, who, call{Do: "pause", Sandbox: id, Kind: kind})
	return err
}

func (e everywhere) Kill(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	_, err := e.ask(ctx, who, call{Do: "kill", Sandbox: id})
	return err
}

func (e everywhere) MayStart(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error {
	_, err := e.ask(ctx, cay.Caller{}, call{Do: "start", Sandbox: id, Start: &s, By: by})
	return err
}

func (e everywhere) Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error) {
	return e.nodes.Dial(ctx, id, port)
}
