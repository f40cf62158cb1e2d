package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cay-run/cay"
)

// The bytes of SOCKS 5 (RFC 1928) and its passwords (RFC 1929).
const (
	socksVersion  = 5
	socksNoAuth   = 0
	socksPassword = 2
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
)

// dialSOCKS connects through a SOCKS5 server. With a name, that is what the
// server gets instead of an address. It never falls back to a direct
// connection.
func (p *Proxy) dialSOCKS(ctx context.Context, via *cay.EgressProxy, dst netip.AddrPort, name string) (net.Conn, error) {
	address, err := p.socksAddress(ctx, via.Address)
	if err != nil {
		return nil, err
	}
	c, err := p.cfg.Dial(ctx, "tcp4", address.String())
	if err != nil {
		return nil, fmt.Errorf("egress proxy: %w", err)
	}
	plain := c
	stop := context.AfterFunc(ctx, func() { plain.Close() })
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if via.TLS != nil {
		c, err = p.secure(ctx, c, via)
	}
	if err == nil {
		err = socksHandshake(c, via, dst, name)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("egress proxy: %w", err)
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// secure has the way to a SOCKS server be TLS, whose certificate is always
// verified. It returns a connection after an error too.
func (p *Proxy) secure(ctx context.Context, c net.Conn, via *cay.EgressProxy) (net.Conn, error) {
	cfg := &tls.Config{ServerName: via.TLS.ServerName, RootCAs: p.cfg.TLS, MinVersion: tls.VersionTLS12}
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(via.Address)
		if err != nil {
			return c, err
		}
		cfg.ServerName = host
	}
	if via.TLS.CACert != "" {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AppendCertsFromPEM([]byte(via.TLS.CACert))
	}
	secured := tls.Client(c, cfg)
	return secured, secured.HandshakeContext(ctx)
}

// socksAddress finds the server, for this one connection.
func (p *Proxy) socksAddress(ctx context.Context, address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if p.cfg.Closed(a) {
			return netip.AddrPort{}, errors.New("egress proxy: its address is in a closed range")
		}
		return netip.AddrPortFrom(a, uint16(n)), nil
	}
	found, err := p.names.lookup(ctx, cleanName(host))
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(found.addrs) == 0 {
		return netip.AddrPort{}, errors.New("egress proxy: its name has no address")
	}
	return netip.AddrPortFrom(found.addrs[0], uint16(n)), nil
}

func socksHandshake(c io.ReadWriter, via *cay.EgressProxy, dst netip.AddrPort, name string) error {
	hello := []byte{socksVersion, 1, socksNoAuth}
	if via.Username != "" {
		hello = []byte{socksVersion, 2, socksNoAuth, socksPassword}
	}
	if _, err := c.Write(hello); err != nil {
		return err
	}
	var two [2]byte
	if _, err := io.ReadFull(c, two[:]); err != nil {
		return err
	}
	switch {
	case two[0] != socksVersion:
		return errors.New("it does not speak SOCKS5")
	case two[1] == socksPassword && via.Username != "":
		if err := socksLogin(c, via); err != nil {
			return err
		}
	case two[1] != socksNoAuth:
		return errors.New("it wants another way to log in")
	}
	request := []byte{socksVersion, socksConnect, 0}
	if name != "" {
		request = append(request, socksName, byte(len(name)))
		request = append(request, name...)
	} else {
		request = append(request, socksIPv4)
		request = append(request, dst.Addr().AsSlice()...)
	}
	request = append(request, byte(dst.Port()>>8), byte(dst.Port()))
	if _, err := c.Write(request); err != nil {
		return err
	}
	return socksReply(c)
}

func socksLogin(c io.ReadWriter, via *cay.EgressProxy) error {
	login := append([]byte{1, byte(len(via.Username))}, via.Username...)
	login = append(append(login, byte(len(via.Password))), via.Password...)
	if _, err := c.Write(login); err != nil {
		return err
	}
	var two [2]byte
	if _, err := io.ReadFull(c, two[:]); err != nil {
		return err
	}
	if two[1] != 0 {
		return errors.New("it refuses the user name or password")
	}
	return nil
}

// socksReply reads the answer to a request, and not a byte more.
func socksReply(c io.Reader) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	if head[0] != socksVersion {
		return errors.New("it does not speak SOCKS5")
	}
	if head[1] != 0 {
		return fmt.Errorf("it answers %d", head[1])
	}
	n := 0
	switch head[3] {
	case socksIPv4:
		n = 4
	case socksIPv6:
		n = 16
	case socksName:
		var size [1]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return err
		}
		n = int(size[0])
	default:
		return errors.New("it answers with a strange address")
	}
	_, err := io.CopyN(io.Discard, c, int64(n)+2)
	return err
}
