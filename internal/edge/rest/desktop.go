package rest

import (
	"cmp"
	"context"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/edge/desktop"
)

// Desktops shows the screens of sandboxes.
type Desktops interface {
	Watch(ctx context.Context, box desktop.Box, who desktop.Person, c *websocket.Conn)
	Record(ctx context.Context, box desktop.Box, who desktop.Person, begun func(), out io.Writer) error
}

// screenOf is the sandbox of a request about its screen, and the party that looks.
func (o own) screenOf(ctx context.Context, id string) (box desktop.Box, who desktop.Person, err error) {
	caller := callerOf(ctx)
	if err := caller.May(cay.ExecSandboxes); err != nil {
		return box, who, err
	}
	b, err := o.sandboxes.Get(ctx, cay.ForTeam(caller.Team), sandboxID(id))
	switch {
	case err != nil:
		return box, who, err
	case o.desktops == nil:
		return box, who, cay.Errorf(cay.Unsupported, "this server shows no desktops")
	case b.State != cay.Running:
		return box, who, cay.Errorf(cay.Conflict, "sandbox %s is %s: it has no screen", b.ID, b.State)
	}
	access, _ := o.sandboxes.TokensOf(b)
	return desktop.Box{ID: b.ID, Team: b.Team, Token: access}, desktop.Person{Name: cay.Fit(cmp.Or(caller.Name, "operator"), 100)}, nil
}

// WatchDesktop shows the screen of a sandbox at a websocket.
func (o own) WatchDesktop(ctx context.Context, r cayv1.WatchDesktopRequestObject) (cayv1.WatchDesktopResponseObject, error) {
	box, who, err := o.screenOf(ctx, r.SandboxID)
	if err != nil {
		return nil, err
	}
	at := socketOf(ctx)
	if at.r == nil {
		return nil, cay.Errorf(cay.Invalid, "Upgrade: must be websocket, over HTTP/1.1")
	}
	who.MayControl = at.purpose != forView && !value(r.Params.ViewOnly, false)
	return watched{at, func(c *websocket.Conn) {
		ctx, done := o.auth.While(context.Background(), callerOf(ctx))
		defer done()
		o.desktops.Watch(ctx, box, who, c)
	}}, nil
}

// watched is the answer of WatchDesktop.
type watched struct {
	at    asked
	serve func(*websocket.Conn) // to its end
}

// VisitWatchDesktopResponse serves the websocket.
func (x watched) VisitWatchDesktopResponse(w http.ResponseWriter) error {
	c, err := accept(w, x.at.r)
	if err == nil { // else it has been answered
		x.serve(c)
	}
	return nil
}

// RecordDesktop records the screen of a sandbox.
func (o own) RecordDesktop(ctx context.Context, r cayv1.RecordDesktopRequestObject) (cayv1.RecordDesktopResponseObject, error) {
	box, who, err := o.screenOf(ctx, r.SandboxID)
	if err != nil {
		return nil, err
	}
	return recorded{func(w http.ResponseWriter) error {
		out := &flushed{w, http.NewResponseController(w)}
		return o.desktops.Record(ctx, box, who, func() { w.Header().Set("Content-Type", "application/octet-stream") }, out)
	}}, nil
}

// recorded is the answer of RecordDesktop.
type recorded struct {
	write func(http.ResponseWriter) error
}

// VisitRecordDesktopResponse sends the recording.
func (x recorded) VisitRecordDesktopResponse(w http.ResponseWriter) error { return x.write(w) }

// flushed sends what is written at once.
type flushed struct {
	http.ResponseWriter
	to *http.ResponseController
}

func (f *flushed) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.to.Flush()
	}
	return n, err
}
