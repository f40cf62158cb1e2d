package proxy

import (
	"context"
	"net"
	"strconv"

	"github.com/cay-run/cay"
)

// Dial connects to a port of a sandbox that runs, on its address or else on
// its loopback. The caller checks the permission itself. The connection
// breaks when the sandbox is over or another instance takes its place.
func (p *Proxy) Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error) {
	target, l, err := p.upstream(id)
	if err != nil {
		return nil, err
	}
	conn, err := l.connect(ctx, "tcp4", net.JoinHostPort(target.Addr.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "sandbox %s does not answer on port %d", id, port)
	}
	return conn, nil
}
