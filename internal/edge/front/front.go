// Package front brings requests to the node that they are for, over mutual TLS: one
// for a sandbox to its owner, a create to the node with the best place, and what is
// of no sandbox to the node that leads. A request goes on as it came; no bodies are
// held but those that say where to, and nothing is sent twice that a node has begun.
package front

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/keys/member"
)

// The headers of a request between members. A front takes them off what clients
// send.
const (
	hopPrefix = "Cay-Hop-"
	hopFor    = hopPrefix + "For"   // what the node must be, or do
	hopFrom   = hopPrefix + "From"  // the client's address
	hopName   = hopPrefix + "Name"  // the name of the client's TLS connection, behind a colon; none without TLS
	hopTrail  = hopPrefix + "Trail" // the ids of the request and its trace
	hopShell  = hopPrefix + "Shell" // the team whose SSH connection it is to become
	hopBy     = hopPrefix + "By"    // the parties that ask for what is started there, in JSON
	hopPort   = hopPrefix + "Port"  // the port of the sandbox that its connection is to lead to
	hopAsk    = hopPrefix + "Ask"   // the member asks for itself, and not for a client
	hopAlone  = hopPrefix + "Alone" // the client came in where the console alone listens
	hopBring  = hopPrefix + "Bring" // the member asks for the sandbox
	hopMoved  = hopPrefix + "Moved"
	hopElse   = hopPrefix + "Else" // another node may be asked instead
)

// The kinds of hops.
const (
	toSandbox = "sandbox"
	toLead    = "lead"
	toPlace   = "place"
	toNode    = "node"   // one that its operator names
	toAdopt   = "adopt"  // a sandbox whose node is gone
	toTake    = "take"   // a sandbox that its node hands over: its id and its version
	toCopy    = "copy"   // what the node has of a snapshot
	toRescue  = "rescue" // a sandbox that is to go on and whose node is gone
)

const (
	patience  = 10 * time.Second       // with a node that is away, for what was not begun
	moves     = 45 * time.Second       // of a sandbox on its way to another node; clients wait for a minute
	pause     = 100 * time.Millisecond // between two tries
	mostBody  = 1 << 20                // that is held, as the API has it
	placeMost = 3                      // nodes that a create is offered to
)

// Homes are the records of who has what.
type Homes interface {
	SandboxHome(ctx context.Context, id cay.SandboxID) (cay.Home, error)
	CheckpointHome(ctx context.Context, id cay.SnapshotID) (cay.SandboxID, error)
	NetworkMembers(ctx context.Context, team cay.TeamID, network string) ([]cay.Sandbox, error)
}

// Config is what a Front needs.
type Config struct {
	Members *nodes.Members
	Own     *member.Member
	Homes   Homes
	// Has reports whether a sandbox is this node's, and waits for one that is on its way
	// to another, an error where that takes longer than ctx; Adopt makes one so whose node is
	// gone.
	Has   func(ctx context.Context, id cay.SandboxID) (bool, error)
	Adopt func(ctx context.Context, id cay.SandboxID) error
	// Take makes a paused sandbox with its log this node's that another node hands over.
	Take func(ctx context.Context, id cay.SandboxID, from cay.NodeID, version int64, log []byte) error
	// Give gives a sandbox of this node to the one that hand leads to.
	Give func(ctx context.Context, id cay.SandboxID, hand lifecycle.Hand) error
	// Asked does what another node, or this one, asks for (Ask).
	Asked func(ctx context.Context, what []byte) ([]byte, error)
	// Dial connects to a port of a sandbox of this node.
	Dial func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	// Shell serves SSH to this node's sandboxes for a caller of a team whom another member
	// has let in, with the parties that ask for what is started.
	Shell func(c net.Conn, team cay.TeamID, by []cay.Origins)
	// Copies answers members that ask for what this node has of snapshots; nil where it has none.
	Copies http.Handler
	// Alone says that this node takes no requests of clients, but for its health.
	Alone bool
	// Names tells the sandbox that a request goes into, by its host, path or headers.
	Names func(*http.Request) (cay.SandboxID, bool)
	// Console is the console's origin; nil for none.
	Console Console
	Log     *slog.Logger
}

// Console is the console's origin, whose pages are the node's that leads, and whose calls are
// for the nodes that those of the API are for.
type Console interface {
	// Call returns the request of the API that one is, which is the same at other origins,
	// and what guards its answer.
	Call(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request)
	// Alone reports whether a request came in where the console alone listens; Entered has
	// one that another member brings look so.
	Alone(r *http.Request) bool
	Entered(ctx context.Context) context.Context
}

// noConsole is a server without one.
type noConsole struct{}

func (noConsole) Call(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	return w, r
}
func (noConsole) Alone(*http.Request) bool                    { return false }
func (noConsole) Entered(ctx context.Context) context.Context { return ctx }

// Front is the way to the nodes of a cluster.
type Front struct {
	cfg    Config
	homes  homes
	peers  peers
	copies peers // of large answers

	counts counts
}

// New returns a front. Close must follow.
func New(cfg Config) *Front {
	if cfg.Console == nil {
		cfg.Console = noConsole{}
	}
	return &Front{cfg: cfg, peers: peers{own: cfg.Own, silence: silence}, copies: peers{own: cfg.Own, silence: silence, ahead: readAhead}}
}

// Close ends the connections to other nodes that are idle.
func (f *Front) Close() error {
	f.peers.close()
	f.copies.close()
	return nil
}

// Wrap serves what this node is to serve by next, and brings all else to its node.
func (f *Front) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isHop(r.Context()) {
			f.serve(w, r, next)
			return
		}
		f.arrived(w, r, next)
	})
}

// serve serves a client's request.
func (f *Front) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	for name := range r.Header {
		if strings.HasPrefix(name, hopPrefix) {
			delete(r.Header, name)
		}
	}
	id, inside := f.cfg.Names(r)
	if r.URL.Path == "/health" && !inside {
		if !f.cfg.Members.Serves() {
			fail(w, errNoLease())
			return
		}
		next.ServeHTTP(w, r)
		return
	}
	if f.cfg.Alone {
		fail(w, cay.Errorf(cay.Unavailable, "this node takes no requests of clients").WithHint("ask a front of the cluster"))
		return
	}
	w, call := f.cfg.Console.Call(w, r)
	t := &trip{front: f, in: r, call: call, next: next, kind: toLead, sandbox: id}
	all, batch := ofAll(call), call.Method == http.MethodPost && call.URL.Path == actions
	if (all != nil || batch) && !inside {
		if err := t.keepBody(); err != nil {
			fail(w, err)
			return
		}
		if batch {
			t.eachItsOwn(w)
		} else {
			t.everywhere(w, all)
		}
		return
	}
	if isStatus(call) && !inside {
		t.here(w)
		return
	}
	if err := t.find(r.Context()); err != nil {
		f.counts.none.Add(1)
		fail(w, err)
		return
	}
	t.serve(w)
}

func errAway(node cay.NodeID, why string) error {
	if node == "" {
		return cay.Errorf(cay.Unavailable, "%s", why).WithCode(cay.CodeNodeAway)
	}
	return cay.Errorf(cay.Unavailable, "node %s does not answer: %s", node, why).WithCode(cay.CodeNodeAway)
}

// errBroke is of a node that may have begun a request.
func errBroke(node cay.NodeID) error {
	return errAway(node, "the connection to it broke, and the request may have been carried out")
}

func errBody(err error) error {
	return cay.Wrap(cay.Invalid, err, "the request's body could not be read")
}

func errNoLease() error {
	return cay.Errorf(cay.Unavailable, "this node has not reached the records for as long as its lease lasts").WithCode(cay.CodeNodeAway)
}

func errNoPlace() error {
	return cay.Errorf(cay.Unavailable, "no node of the cluster takes new sandboxes now").WithCode(cay.CodeCapacity)
}

// fail answers with an error, in the form that the API has.
func fail(w http.ResponseWriter, err error) {
	status, body := cay.StatusOf(err), wireError(err)
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	rates.TellRetry(h, rates.RetryOf(err))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// wireError is an error in that form.
func wireError(err error) json.RawMessage {
	text, code := "internal error", ""
	var ours *cay.Error
	if errors.As(err, &ours) {
		text, code = ours.Msg, ours.Code
	}
	body, _ := json.Marshal(struct {
		Code      int    `json:"code"`
		Message   string `json:"message"`
		ErrorCode string `json:"error_code,omitempty"`
	}{cay.StatusOf(err), text, code})
	return body
}
