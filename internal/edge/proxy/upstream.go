package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// A closed port may be about to open: a server that was just started. These
// pauses come between tries.
var dialPauses = []time.Duration{
	10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond,
}

// The agent's and the interpreter's ports are open as long as the guest lives. A
// guest that was silent and refuses them then has just begun to move again:
// these pauses follow the others.
var ownPauses = []time.Duration{
	160 * time.Millisecond, 320 * time.Millisecond, 640 * time.Millisecond, 1280 * time.Millisecond,
}

// dialTimeout bounds one try. A live guest answers a SYN within microseconds;
// but when this host stands still, its clock does not. So what comes too late
// once is tried once more.
const dialTimeout = 5 * time.Second

// A guest's own server may drop an idle connection at any moment, usually
// after 5 s; a request sent just then is lost. Ours wait longer.
const (
	idleForeign = 3 * time.Second
	idleOwn     = 5 * time.Minute
)

// maxHead bounds the head of a guest's answer.
const maxHead = 256 << 10

// dialError marks that a request never left this host.
type dialError struct {
	err    error
	silent bool // the guest let a try pass without any answer
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// errCut is why dials fail after Cut.
var errCut = errors.New("the sandbox is over")

// upstream holds all connections to one instance of a sandbox.
type upstream struct {
	instance cay.InstanceID
	addr     netip.Addr
	token    string // of the agent
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	ctx      context.Context // done after cut
	cancel   context.CancelFunc
	own      *http.Transport // to the agent and the interpreter
	foreign  *http.Transport // to what users run
	grpc     *http.Transport // to all that, where calls are gRPC's

	warned atomic.Int32 // times that own ports gave no answer

	mu     sync.Mutex
	trips  int           // requests that a pause waits for
	rested chan struct{} // set by a pause; closed when there are no trips
	conns  map[*upstreamConn]struct{}
	direct map[string][]*direct // idle, by address, the longest idle first
	sweep  *time.Timer          // set while direct connections are idle
}

func newUpstream(t Target, dial func(context.Context, string, string) (net.Conn, error)) *upstream {
	l := &upstream{instance: t.Instance, addr: t.Addr, token: t.AccessToken, dial: dial, conns: map[*upstreamConn]struct{}{}, direct: map[string][]*direct{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.own, l.foreign, l.grpc = l.transport(idleOwn), l.transport(idleForeign), l.transport(idleForeign)
	l.foreign.TLSClientConfig = guestTLS()
	l.grpc.Protocols = new(http.Protocols)
	l.grpc.Protocols.SetUnencryptedHTTP2(true)
	return l
}

func (l *upstream) transport(idle time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:         l.connect,
		DisableCompression:  true, // bytes pass as they are
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     idle,
		ReadBufferSize:      32 << 10,
		WriteBufferSize:     32 << 10,

		// A guest's header is all in memory before the client sees any.
		MaxResponseHeaderBytes: maxHead,
	}
}

// RoundTrip sends a request to the port that its URL names.
func (l *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	if isGRPC(r) {
		return l.grpc.RoundTrip(r)
	}
	if isOwn(r.URL.Port()) {
		return l.own.RoundTrip(r)
	}
	return l.foreign.RoundTrip(r)
}

// isGRPC reports whether a call needs HTTP/2 to the guest as well: trailers, and
// both ways at once.
func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && r.URL.Scheme == "http" && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// connect dials the guest, with patience for a port that is not open yet.
func (l *upstream) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	pauses, silent := dialPauses, false
	for try := 0; ; try++ {
		conn, err := l.tryDial(ctx, network, addr)
		if !silent && isSilence(err) && ctx.Err() == nil {
			silent = true
			if _, port, _ := net.SplitHostPort(addr); isOwn(port) {
				pauses = slices.Concat(dialPauses, ownPauses)
			}
			conn, err = l.tryDial(ctx, network, addr)
		}
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			if conn := l.tunnel(ctx, network, addr); conn != nil {
				return conn, nil
			}
		}
		if try == len(pauses) || !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, &dialError{err, silent}
		}
		select {
		case <-ctx.Done():
			return nil, &dialError{ctx.Err(), silent}
		case <-time.After(pauses[try]):
		}
	}
}

// isSilence reports whether a dial failed because the guest sent nothing back:
// neither to a SYN, nor to the question for its link address, which the host's
// kernel repeats for three seconds. A dial whose time is up fails with the
// context's error or with the poller's, whichever is first to see it.
func isSilence(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EHOSTUNREACH)
}

// isOwn reports whether a port is the agent's or the interpreter's.
func isOwn(port string) bool {
	return port == strconv.Itoa(guest.AgentPort) || port == strconv.Itoa(guest.InterpPort)
}

func (l *upstream) tryDial(ctx context.Context, network, addr string) (*upstreamConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return l.keep(conn)
}

// keep registers a fresh connection, or refuses it when the upstream was cut
// while it was made.
func (l *upstream) keep(conn net.Conn) (*upstreamConn, error) {
	c := &upstreamConn{Conn: conn, upstream: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		conn.Close()
		return nil, errCut
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// cut breaks every connection, now and for ever.
func (l *upstream) cut() {
	l.cancel()
	l.mu.Lock()
	conns := l.conns
	l.conns, l.direct = nil, nil
	if l.sweep != nil {
		l.sweep.Stop()
	}
	l.mu.Unlock()
	for c := range conns {
		c.abort()
	}
	l.own.CloseIdleConnections()
	l.foreign.CloseIdleConnections()
	l.grpc.CloseIdleConnections()
}

// levelOf is how loud it is that a port gave no answer. The agent and the
// interpreter always answer; a guest that takes their place may not fill the
// log.
func (l *upstream) levelOf(port int) slog.Level {
	if !isOwn(strconv.Itoa(port)) || l.warned.Add(1) > maxWarnings {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// maxWarnings bounds the warnings of one upstream.
const maxWarnings = 10

func (l *upstream) isCut() bool { return l.ctx.Err() != nil }

// upstreamConn tells its upstream when it is closed.
type upstreamConn struct {
	net.Conn
	upstream *upstream
}

func (c *upstreamConn) Close() error {
	c.upstream.mu.Lock()
	delete(c.upstream.conns, c) // a nil map is fine
	c.upstream.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what is sent to the guest, as websockets and tunnels do.
func (c *upstreamConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close write: %w", errors.ErrUnsupported)
}

// abort drops the connection without waiting for a guest that is no more: a
// read here fails at once, and nothing lingers in the kernel.
func (c *upstreamConn) abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Conn.Close()
}
