package front

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// relay leads connections to an address until it drops what they carry, without a word.
type relay struct {
	net.Listener
	to    string
	conns sync.Map
}

func (r *relay) serve() {
	for {
		in, err := r.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			in.Close()
			continue
		}
		dropped := &atomic.Bool{}
		r.conns.Store(dropped, []net.Conn{in, out})
		go pass(out, in, dropped)
		go pass(in, out, dropped)
	}
}

func pass(to, from net.Conn, dropped *atomic.Bool) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			to.Close()
			return
		}
		if !dropped.Load() {
			_, _ = to.Write(b[:n])
		}
	}
}

// drop has all connections that are open carry nothing any more.
func (r *relay) drop() {
	r.conns.Range(func(dropped, _ any) bool { dropped.(*atomic.Bool).Store(true); return true })
}

func (r *relay) end() {
	r.Close()
	r.conns.Range(func(_, ends any) bool {
		for _, c := range ends.([]net.Conn) {
			c.Close()
		}
		return true
	})
}

// A shared connection whose packets go nowhere is given up, and the next request has another.
func TestSilentConnection(t *testing.T) {
	_, a, b := pair(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, err := a.members.Node(t.Context(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: at.Address}
	go r.serve()
	t.Cleanup(r.end)
	p := peers{own: a.front.cfg.Own, silence: 100 * time.Millisecond}
	t.Cleanup(p.close)
	ask := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := p.to(cay.Node{ID: b.id, Address: l.Addr().String(), Fingerprint: at.Fingerprint}, true).RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	r.drop()
	begun := time.Now()
	if err := ask(); err == nil || time.Since(begun) > time.Minute {
		t.Errorf("over a connection that carries nothing: %v after %s", err, time.Since(begun))
	}
	if err := ask(); err != nil {
		t.Errorf("after it: %v", err)
	}
}
