package server

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
)

// listen takes a port, or says how to get one.
func listen(ctx context.Context, address string) (net.Listener, error) {
	patient := net.ListenConfig{KeepAliveConfig: conns.Patience}
	l, err := patient.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, cay.Wrap(cay.Conflict, err, "cannot listen on %s", address).
			WithHint("choose another address, or stop what uses it (`ss -ltnp` names it)")
	}
	return l, nil
}

// listenHere takes the one port. On this machine's own address it takes the
// port of both families: names below localhost lead to ::1 first, and a client
// that finds another program there talks to that. A machine without IPv6 has
// no such client.
func listenHere(ctx context.Context, address string) ([]net.Listener, error) {
	l, err := listen(ctx, address)
	if err != nil {
		return nil, err
	}
	other := otherFamily(l.Addr())
	if !other.IsValid() {
		return []net.Listener{l}, nil
	}
	second, err := listen(ctx, other.String())
	switch {
	case err == nil:
		return []net.Listener{l, second}, nil
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		return []net.Listener{l}, nil
	}
	l.Close()
	if _, port, _ := net.SplitHostPort(address); port == "0" && errors.Is(err, unix.EADDRINUSE) {
		return listenHere(ctx, address) // the kernel picked a port that is free in one family only
	}
	return nil, err
}

// otherFamily is where a client may try as well that looks for a listener on a
// loopback address; it is not valid where there is no such place.
func otherFamily(addr net.Addr) netip.AddrPort {
	at := addr.(*net.TCPAddr).AddrPort()
	four, six := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	switch at.Addr().Unmap() {
	case four:
		return netip.AddrPortFrom(six, at.Port())
	case six:
		return netip.AddrPortFrom(four, at.Port())
	}
	return netip.AddrPort{}
}
