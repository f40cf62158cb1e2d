package front

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
)

// Shell brings a connection to the SSH server of the node that has a sandbox, for a caller
// of a team whom this node has let in, in the name of some parties. Nil where that is this
// node.
func (f *Front) Shell(ctx context.Context, team cay.TeamID, id cay.SandboxID, by []cay.Origins) (io.ReadWriteCloser, error) {
	text, err := json.Marshal(by)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot reach sandbox %s", id)
	}
	return f.join(ctx, id, http.Header{hopShell: {string(team)}, hopBy: {string(text)}})
}

// Dial connects to a port of a sandbox that runs, on whichever node. The caller checks the
// permission itself.
func (f *Front) Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error) {
	// The connection outlives the call: ctx is of the call alone.
	way, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	far, err := f.join(way, id, http.Header{hopPort: {strconv.Itoa(port)}})
	switch {
	case err != nil:
		cancel()
		return nil, err
	case far == nil:
		cancel()
		return f.cfg.Dial(ctx, id, port)
	}
	return &line{conns.Stream{ReadWriteCloser: far}, cancel}, nil
}

// line is a connection to another node, whose request ends with it.
type line struct {
	conns.Stream
	end context.CancelFunc
}

func (l *line) Close() error {
	defer l.end()
	return l.Stream.Close()
}

// join has a connection to the node of a sandbox become what headers say. Nil where that
// is this node.
func (f *Front) join(ctx context.Context, id cay.SandboxID, headers http.Header) (io.ReadWriteCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://node/", http.NoBody)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot reach sandbox %s", id)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "cay")
	maps.Copy(r.Header, headers)
	t := &trip{front: f, in: r, kind: toSandbox, sandbox: id}
	if err := t.resolve(ctx, false); err != nil {
		return nil, err
	}
	var resp *http.Response
	if err = errHere; t.node != f.cfg.Members.Self() {
		resp, err = t.RoundTrip(r)
	}
	switch {
	case errors.Is(err, errHere) && t.kind == toAdopt:
		defer f.homes.forget(id)
		return nil, f.cfg.Adopt(ctx, id)
	case errors.Is(err, errHere):
		return nil, nil
	case err != nil:
		return nil, t.broke(err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		_, err := answered(resp, t.node)
		return nil, err
	}
	return conn, nil
}

// broke is the error of a node that may have begun with a request.
func (t *trip) broke(err error) error {
	var ours *cay.Error
	if errors.As(err, &ours) || t.in.Context().Err() != nil {
		return err
	}
	t.front.cfg.Log.WarnContext(t.in.Context(), "a node does not answer", "node", t.node, "sandbox", t.sandbox, "err", err)
	return errBroke(t.node)
}

// joined has the connection of a member become one to this node's SSH server, or to a port
// of a sandbox of this node.
func (f *Front) joined(w http.ResponseWriter, r *http.Request, h hop) {
	var port net.Conn
	if h.shell == "" {
		var err error
		if port, err = f.cfg.Dial(r.Context(), h.sandbox, h.port); err != nil {
			failAsked(w, err)
			return
		}
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		if port != nil {
			port.Close()
		}
		fail(w, cay.Wrap(cay.Invalid, err, "a connection that is to become another one needs HTTP/1.1"))
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cay\r\n\r\n"); err != nil {
		conn.Close() // the join below ends with it
	}
	far := &conns.ReadOn{Conn: conn, R: buffered}
	if port == nil {
		f.cfg.Shell(far, h.shell, h.by)
		return
	}
	conns.Join(far, port)
}
