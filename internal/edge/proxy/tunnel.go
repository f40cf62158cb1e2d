package proxy

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cay-run/cay/internal/guest"
)

// tunnel reaches a service that listens on the sandbox's loopback alone, with
// the agent's help. It returns nil when there is none, or the agent is too old
// to help.
func (l *upstream) tunnel(ctx context.Context, network, addr string) net.Conn {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == strconv.Itoa(guest.AgentPort) {
		return nil
	}
	conn, err := l.tryDial(ctx, network, net.JoinHostPort(host, strconv.Itoa(guest.AgentPort)))
	if err != nil {
		return nil
	}
	// The agent may answer late or never; ctx ends with the request and with
	// the sandbox.
	stop := context.AfterFunc(ctx, func() { conn.abort() })
	r, ok := l.ask(conn, host, port)
	if !stop() || !ok {
		_ = conn.Close()
		return nil
	}
	return &tunnelConn{upstreamConn: conn, r: r}
}

// ask has the agent join a connection to a port.
func (l *upstream) ask(conn net.Conn, host, port string) (*bufio.Reader, bool) {
	req := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: guest.TunnelPath, RawQuery: "port=" + port},
		Host:   host,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}},
	}
	if l.token != "" {
		req.Header.Set("X-Access-Token", l.token)
	}
	if err := req.Write(conn); err != nil {
		return nil, false
	}
	// A response's header is bounded, because the guest is hostile; what
	// follows is the service's.
	limit := &limitedConn{Conn: conn, left: maxHead}
	r := bufio.NewReader(limit)
	resp, err := http.ReadResponse(r, req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, false
	}
	limit.left = -1
	return r, true
}

// limitedConn ends after so many bytes, or never when left is negative.
type limitedConn struct {
	net.Conn
	left int
}

func (c *limitedConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, net.ErrClosed
	}
	if c.left > 0 && len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.Conn.Read(p)
	if c.left > 0 {
		c.left -= n
	}
	return n, err
}

// tunnelConn reads on where the answer to the agent's header ended.
type tunnelConn struct {
	*upstreamConn
	r *bufio.Reader
}

func (c *tunnelConn) Read(p []byte) (int, error) { return c.r.Read(p) }
