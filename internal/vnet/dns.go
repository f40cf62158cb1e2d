package vnet

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
)

// resolver chooses where the guests' questions go. The packet filter sends
// them straight to the host's resolver when it can, because that works while
// the server is away; a resolver on the loopback or of IPv6 is asked by a
// relay of ours.
func (m *Manager) resolver(given []netip.AddrPort) (netip.AddrPort, error) {
	servers := given
	if len(servers) == 0 {
		servers = hostResolvers("/etc/resolv.conf")
	}
	m.servers = servers
	if first := servers[0]; first.Addr().Is4() && !first.Addr().IsLoopback() {
		return first, nil
	}
	r, err := newRelay(servers)
	if err != nil {
		return netip.AddrPort{}, err
	}
	m.relay = r
	return r.addr, nil
}

// hostResolvers reads the name servers of a resolv.conf. Without any, the
// C library asks the loopback, and so do we.
func hostResolvers(path string) []netip.AddrPort {
	var out []netip.AddrPort
	if f, err := os.Open(path); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) < 2 || words[0] != "nameserver" {
				continue
			}
			if addr, err := netip.ParseAddr(words[1]); err == nil {
				out = append(out, netip.AddrPortFrom(addr.Unmap(), 53))
			}
		}
	}
	if len(out) == 0 {
		out = append(out, netip.MustParseAddrPort("127.0.0.1:53"))
	}
	return out
}

const (
	relayUDP     = 256             // questions under way; more are dropped
	relayTCP     = 64              // connections; more wait
	relayPatient = 5 * time.Second // for one server's answer
	relayIdle    = 15 * time.Second
)

// relay passes DNS messages between guests and resolvers. It reads nothing of
// them; guests reach it only through the packet filter.
type relay struct {
	addr    netip.AddrPort
	servers []netip.AddrPort
	udp     net.PacketConn
	tcp     net.Listener
	ctx     context.Context
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

func newRelay(servers []netip.AddrPort) (*relay, error) {
	r := &relay{servers: servers}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.udp, r.tcp, err = listenPair(r.ctx); err != nil {
		r.cancel()
		return nil, cay.Wrap(cay.Internal, err, "the relay for names cannot listen")
	}
	r.addr = netip.AddrPortFrom(DNS, portOf(r.udp.LocalAddr()))
	r.done.Go(r.serveUDP)
	r.done.Go(r.serveTCP)
	return r, nil
}

func (r *relay) close() {
	r.cancel()
	r.udp.Close()
	r.tcp.Close()
	r.done.Wait()
}

func (r *relay) serveUDP() {
	slots := make(chan struct{}, relayUDP)
	buf := make([]byte, 4096)
	for {
		n, from, err := r.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		question := append([]byte(nil), buf[:n]...)
		r.done.Go(func() {
			defer func() { <-slots }()
			if answer := r.ask(question); answer != nil {
				_, _ = r.udp.WriteTo(answer, from)
			}
		})
	}
}

// ask gets the first answer that a server gives, in their order.
func (r *relay) ask(question []byte) []byte {
	for _, server := range r.servers {
		c, err := r.dial("udp", server)
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(relayPatient))
		stop := context.AfterFunc(r.ctx, func() { c.Close() })
		answer := make([]byte, 65535)
		n := 0
		if _, err = c.Write(question); err == nil {
			n, err = c.Read(answer)
		}
		stop()
		c.Close()
		if err == nil {
			return answer[:n]
		}
	}
	return nil
}

func (r *relay) dial(network string, server netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: relayPatient}
	return d.DialContext(r.ctx, network, server.String())
}

func (r *relay) serveTCP() {
	slots := make(chan struct{}, relayTCP)
	for guest := range conns.Each(r.tcp) {
		select {
		case slots <- struct{}{}:
		case <-r.ctx.Done():
			guest.Close()
			return
		}
		r.done.Go(func() {
			defer func() { <-slots }()
			r.splice(guest)
		})
	}
}

func (r *relay) splice(guest net.Conn) {
	defer guest.Close()
	var server net.Conn
	for _, s := range r.servers {
		if c, err := r.dial("tcp", s); err == nil {
			server = c
			break
		}
	}
	if server == nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(r.ctx, func() { guest.Close(); server.Close() })
	defer stop()
	deadline := time.Now().Add(relayIdle)
	_ = guest.SetDeadline(deadline)
	_ = server.SetDeadline(deadline)
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, guest); server.Close() })
	both.Go(func() { _, _ = io.Copy(guest, server); guest.Close() })
	both.Wait()
}
