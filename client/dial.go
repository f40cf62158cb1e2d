package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// dialWithin bounds how long a server may take to join a connection. A sandbox
// that is paused is resumed first.
const dialWithin = 2 * time.Minute

// Dial connects to a port of a sandbox, whatever it speaks and whichever of
// the sandbox's addresses it listens on. One that is paused is resumed.
func (c *Client) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	return c.upgrade(ctx, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/ports/"+strconv.Itoa(port), "tcp")
}

// DialSSH connects to the server's SSH. Its users are the team's sandboxes, by
// id; it asks for no password.
func (c *Client) DialSSH(ctx context.Context) (net.Conn, error) {
	return c.upgrade(ctx, "/cay/v1/ssh", "ssh")
}

// SSHServer says what a client needs to know of the server's SSH.
type SSHServer struct {
	HostKey string `json:"hostKey"`          // as known_hosts has it after the host
	Listen  string `json:"listen,omitempty"` // host:port, if it has a port of its own
}

// SSH describes the server's SSH.
func (c *Client) SSH(ctx context.Context) (SSHServer, error) {
	var out SSHServer
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/ssh", nil, &out)
	return out, err
}

// SSHKey is a public key that opens the team's sandboxes over SSH.
type SSHKey struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Fingerprint string    `json:"fingerprint"`
	PublicKey   string    `json:"publicKey"`
	CreatedAt   time.Time `json:"createdAt"`
}

// AddSSHKey has a public key, in the form of authorized_keys, open the team's
// sandboxes. An empty name leaves the key its comment.
func (c *Client) AddSSHKey(ctx context.Context, name, publicKey string) (SSHKey, error) {
	in := map[string]string{"publicKey": publicKey}
	if name != "" {
		in["name"] = name
	}
	var out SSHKey
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/ssh-keys", in, &out)
	return out, err
}

// SSHKeys lists the team's keys, oldest first.
func (c *Client) SSHKeys(ctx context.Context) ([]SSHKey, error) {
	var out []SSHKey
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/ssh-keys", nil, &out)
	return out, err
}

// RemoveSSHKey has a key open nothing from now on.
func (c *Client) RemoveSSHKey(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/cay/v1/ssh-keys/"+url.PathEscape(id), nil, nil)
	return err
}

// upgrade asks for a connection that is no more HTTP. It is made by hand: the
// standard client gives none away that can end one of its directions.
func (c *Client) upgrade(ctx context.Context, path, protocol string) (net.Conn, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.APIURL+path, nil)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	c.present(request.Header)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", protocol)
	conn, err := c.connectTo(ctx, request.URL)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(dialWithin))
	r := bufio.NewReader(conn)
	var answer *http.Response
	if err = request.Write(conn); err == nil {
		answer, err = http.ReadResponse(r, request)
	}
	switch {
	case err == nil && answer.StatusCode != http.StatusSwitchingProtocols:
		err = failure(answer)
	case err == nil && stop():
		_ = conn.SetDeadline(time.Time{})
		return &upgraded{Conn: conn, r: r}, nil
	default:
		err = c.unreachable(ctx, err)
	}
	stop()
	conn.Close()
	return nil, err
}

// transport is the standard one, for which names below localhost are this
// machine, whatever the system's resolver says.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = dial
	return t
}

// dial connects. Names below localhost are this machine (RFC 6761).
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(strings.ToLower(host), ".localhost") {
		address = net.JoinHostPort("localhost", port)
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// connectTo connects to where a URL says.
func (c *Client) connectTo(ctx context.Context, u *url.URL) (net.Conn, error) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	address := net.JoinHostPort(u.Hostname(), port)
	if u.Scheme != "https" {
		return dial(ctx, "tcp", address)
	}
	cfg := &tls.Config{}
	if t, ok := c.cfg.HTTP.Transport.(*http.Transport); ok && t.TLSClientConfig != nil {
		cfg = t.TLSClientConfig.Clone()
	}
	cfg.NextProtos = []string{"http/1.1"}
	if cfg.ServerName == "" {
		cfg.ServerName = u.Hostname()
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// upgraded reads on where the answer's header ended.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.r.Read(p) }

// CloseWrite ends what is sent.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Conn.Close()
}
