package front

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/keys/member"
)

// silence is for how long a connection that many requests share may say nothing, and then
// for how long it may owe the answer to a ping. One whose packets go nowhere would hold
// all requests for the quarter of an hour in which the kernel gives it up, also those that
// come when the node can be reached again.
const silence = 4 * time.Second

// peers are the connections to other nodes: of each as it is recorded, and of each
// version of HTTP, because a request goes on in its client's.
type peers struct {
	own     *member.Member
	silence time.Duration
	ahead   int // bytes that are read at once
	mu      sync.Mutex
	all     map[peer]*http.Transport
}

type peer struct {
	node                 cay.NodeID
	address, fingerprint string
	two                  bool
}

func (p *peers) to(n cay.Node, two bool) *http.Transport {
	key := peer{n.ID, n.Address, n.Fingerprint, two}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.all[key]; t != nil {
		return t
	}
	t := &http.Transport{
		TLSClientConfig:       p.own.ClientConfig(n.ID, n.Fingerprint),
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Minute, // for ever, but for a node that says nothing
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second, // shorter than the node's
		DisableCompression:    true,
		Protocols:             new(http.Protocols),
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: p.silence, PingTimeout: p.silence},
	}
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAliveConfig: conns.Patience}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, &unreachable{err}
		}
		if p.ahead > 0 {
			conn = ahead{conn, bufio.NewReaderSize(conn, p.ahead)}
		}
		return conn, nil
	}
	if two {
		t.Protocols.SetHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	if p.all == nil {
		p.all = map[peer]*http.Transport{}
	}
	for old, its := range p.all { // of before it moved
		if old.node == n.ID && (old.address != n.Address || old.fingerprint != n.Fingerprint) {
			its.CloseIdleConnections()
			delete(p.all, old)
		}
	}
	p.all[key] = t
	return t
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.all {
		t.CloseIdleConnections()
	}
	p.all = nil
}

// unreachable is the error of a node that no connection leads to: it got nothing of
// the request.
type unreachable struct{ error }

func (u *unreachable) Unwrap() error { return u.error }

func unreached(err error) bool {
	var u *unreachable
	return errors.As(err, &u)
}

// body is that of a request on its way, which the server closes, not the transport.
type body struct {
	io.ReadCloser
	begun atomic.Bool
	once  sync.Once
	end   chan struct{} // closed when err is known
	err   error         // io.EOF, or why the client's part could not be read
}

func newBody(of io.ReadCloser) *body { return &body{ReadCloser: of, end: make(chan struct{})} }

func (b *body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(func() { b.err = err; close(b.end) })
	}
	return n, err
}

func (b *body) ended() bool {
	select {
	case <-b.end:
		return true
	default:
		return false
	}
}

// broken tells why a body could not be read to its end; nil where that is not known.
func (b *body) broken(ctx context.Context) error {
	if ctx.Err() != nil { // of a read that fails, which is about to say so
		select {
		case <-b.end:
		case <-time.After(time.Second):
		}
	}
	if b.ended() && b.err != io.EOF {
		return b.err
	}
	return nil
}

func (b *body) Close() error { return nil }

// mutedTrace is a context whose trace hears nothing of the node's 100 Continue, which
// is for this front and not for its client.
type mutedTrace struct{ context.Context }

func (c mutedTrace) Value(key any) any {
	v := c.Context.Value(key)
	trace, is := v.(*httptrace.ClientTrace)
	if !is || trace == nil || trace.Got1xxResponse == nil {
		return v
	}
	quiet := *trace
	told := trace.Got1xxResponse
	quiet.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		if code == http.StatusContinue {
			return nil
		}
		return told(code, header)
	}
	return &quiet
}
