package front

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cay-run/cay"
)

// Shell brings a connection to the SSH server of the node that has a sandbox, for a caller
// of a team whom this node has let in. Nil where that is this node.
func (f *Front) Shell(ctx context.Context, team cay.TeamID, id cay.SandboxID) (io.ReadWriteCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://node/", http.NoBody)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot reach sandbox %s", id)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "ssh")
	r.Header.Set(hopShell, string(team))
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
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		resp.Body.Close()
		return nil, cay.Errorf(cay.Unavailable, "node %s answers %d for SSH to sandbox %s", t.node, resp.StatusCode, id).WithCode(cay.CodeNodeAway)
	}
	return conn, nil
}

// shell has the connection of a member become one to this node's SSH server.
func (f *Front) shell(w http.ResponseWriter, h hop) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, cay.Wrap(cay.Invalid, err, "SSH needs HTTP/1.1"))
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ssh\r\n\r\n"); err != nil {
		conn.Close()
		return
	}
	f.cfg.Shell(&readOn{Conn: conn, r: buffered}, h.shell)
}

// readOn is a connection some of which was read already.
type readOn struct {
	net.Conn
	r io.Reader
}

func (c *readOn) Read(p []byte) (int, error) { return c.r.Read(p) }
