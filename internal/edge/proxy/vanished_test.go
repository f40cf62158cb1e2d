package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
)

// host is a network namespace: a machine as far as TCP can tell.
type host struct{ ns netns.NsHandle }

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{}
	err := apart(func() (err error) {
		h.ns, err = netns.New()
		return err
	})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("network namespaces need root")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.ns.Close() })
	h.must(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return h
}

// apart runs f on a thread that ends with it.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever
		done <- f()
	}()
	return <-done
}

// do runs f on a thread in the host's network.
func (h *host) do(f func() error) error {
	return apart(func() error {
		if err := netns.Set(h.ns); err != nil {
			return err
		}
		return f()
	})
}

func (h *host) must(t *testing.T, f func() error) {
	t.Helper()
	if err := h.do(f); err != nil {
		t.Fatal(err)
	}
}

// dial and listen do so with a patience that a test can wait for.
func (h *host) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = h.do(func() error {
		c, err = (&net.Dialer{KeepAliveConfig: short}).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

func (h *host) listen(t *testing.T, addr string) (l net.Listener) {
	t.Helper()
	h.must(t, func() (err error) {
		l, err = (&net.ListenConfig{KeepAliveConfig: short}).Listen(t.Context(), "tcp", addr)
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

// client is a program on the host that connects anew for each request.
func (h *host) client(t *testing.T) *http.Client {
	tr := &http.Transport{DialContext: h.dial, DisableKeepAlives: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// short is conns.Patience in the least units that the kernel knows.
var short = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}

// join lays a cable between two hosts. Ours gives up soon on acknowledgements
// that it is owed, as others do after a quarter of an hour.
func join(t *testing.T, ours, far *host, a, b string) {
	t.Helper()
	ours.must(t, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "far"}, PeerName: "ours", PeerNamespace: netlink.NsFd(int(far.ns))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", []byte("2"), 0); err != nil {
			return err
		}
		return address("far", a)
	})
	far.must(t, func() error { return address("ours", b) })
}

func address(link, prefix string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

// vanish has a host never send or receive anything again, without a word.
func (h *host) vanish(t *testing.T) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(h.ns)))
	if err != nil {
		t.Fatal(err)
	}
	drop := nftables.ChainPolicyDrop
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "gone"})
	for name, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookInput, "out": nftables.ChainHookOutput} {
		c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// service is one that tests can see into.
type service struct {
	under atomic.Int32 // requests under way
	sent  atomic.Int64 // by /endless
	got   atomic.Int64 // by /upload
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.under.Add(1)
	defer s.under.Add(-1)
	switch r.URL.Path {
	case "/silent":
		_, _ = io.Copy(io.Discard, r.Body) // or net/http does not look whether the caller is there
		<-r.Context().Done()
	case "/endless":
		for b := make([]byte, 64<<10); ; {
			n, err := w.Write(b)
			s.sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	case "/upload":
		for b := make([]byte, 64<<10); ; {
			n, err := r.Body.Read(b)
			s.got.Add(int64(n))
			if err != nil {
				return
			}
		}
	case "/socket":
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		if rw.Flush() == nil {
			_, _ = io.Copy(io.Discard, rw)
		}
	default:
		fmt.Fprint(w, "here")
	}
}

// edge is a proxy on one host, with a service of a sandbox on that host and one
// on another, and the clients that are connected to it.
type edge struct {
	*Proxy
	ours, far        *host
	nearBox, farBox  *service
	url              string
	mu               sync.Mutex
	open             map[net.Conn]string // to the servers here, and whence
	nearHost, farOne string              // what the services are called
}

func newEdge(t *testing.T) *edge {
	t.Helper()
	e := &edge{ours: newHost(t), far: newHost(t), nearBox: &service{}, farBox: &service{}, open: map[net.Conn]string{}}
	t.Cleanup(func() { e.settle(t) })
	join(t, e.ours, e.far, "10.0.0.1/24", "10.0.0.2/24")
	targets := map[cay.SandboxID]Target{
		"inear": {Instance: "inear1", Addr: netip.MustParseAddr("10.0.0.1"), Public: true},
		"ifar":  {Instance: "ifar1", Addr: netip.MustParseAddr("10.0.0.2"), Public: true},
	}
	e.Proxy = New(Config{
		Lookup: func(id cay.SandboxID) (Target, error) {
			if tg, ok := targets[id]; ok {
				return tg, nil
			}
			return Target{}, cay.Errorf(cay.NotFound, "no sandbox %s", id)
		},
		Dial: e.ours.dial,
	})
	e.serve(t, e.ours.listen(t, "10.0.0.1:3000"), &http.Server{Handler: e.nearBox, ConnState: e.track("near")})
	e.serve(t, e.far.listen(t, "10.0.0.2:3000"), &http.Server{Handler: e.farBox, ConnState: e.track("far")})
	front := e.ours.listen(t, "10.0.0.1:80")
	e.serve(t, front, &http.Server{Handler: e.Wrap(http.NotFoundHandler()), ConnState: e.track("")})
	t.Cleanup(e.Close)
	e.url, e.nearHost, e.farOne = "http://10.0.0.1", "3000-inear.localhost", "3000-ifar.localhost"
	return e
}

func (e *edge) serve(t *testing.T, l net.Listener, s *http.Server) {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// track returns what keeps count of a server's connections: by whence they come,
// unless the server's name does.
func (e *edge) track(server string) func(net.Conn, http.ConnState) {
	return func(c net.Conn, state http.ConnState) {
		from := server
		if from == "" {
			from, _, _ = net.SplitHostPort(c.RemoteAddr().String())
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if state == http.StateClosed || state == http.StateHijacked {
			delete(e.open, c)
		} else {
			e.open[c] = from
		}
	}
}

// settle waits for what net/http does behind the back of Close.
func (e *edge) settle(t *testing.T) {
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		e.mu.Lock()
		open := len(e.open)
		e.mu.Unlock()
		under := e.nearBox.under.Load() + e.farBox.under.Load()
		if open == 0 && under == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d connections and %d requests are left", open, under)
			return
		}
	}
}

// connected is how many connections there are from an address.
func (e *edge) connected(from string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.open {
		if f == from {
			n++
		}
	}
	return n
}

// held is how many connections there are to a sandbox.
func (e *edge) held(id cay.SandboxID) int {
	e.Proxy.mu.Lock()
	l := e.upstreams[id]
	e.Proxy.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

func (e *edge) request(t *testing.T, method, path, host string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, e.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	return r
}

// socket opens a websocket from a host, as far as the proxy looks at it.
func (e *edge) socket(t *testing.T, from *host, name string) net.Conn {
	t.Helper()
	c, err := from.dial(t.Context(), "tcp", "10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", name)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the websocket did not open: %v, %v", resp, err)
	}
	resp.Body.Close()
	return c
}

// until waits for a state while others are served as ever.
func (e *edge) until(t *testing.T, what string, client *http.Client, state func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !state(); {
		if time.Now().After(end) {
			t.Fatalf("still not: %s; clients %d near and %d far, requests %d near and %d far", what,
				e.connected("10.0.0.1"), e.connected("10.0.0.2"), e.nearBox.under.Load(), e.farBox.under.Load())
		}
		resp, err := client.Do(e.request(t, "GET", "/", e.nearHost, nil))
		if err != nil {
			t.Fatalf("another client is served no more: %v", err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(text) != "here" {
			t.Fatalf("another client got %q, %v", text, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// nothingIn is what a peer that has vanished may be sent at most: what sockets
// and buffers hold.
const nothingIn = 64 << 20

// A client whose machine is cut off says no goodbye. The proxy finds that out: by
// keepalive where the client only waits, by missing acknowledgements where bytes
// go to it. Then its service is told, and nothing is left.
func TestClientsThatVanish(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	near, far := e.ours.client(t), e.far.client(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var work sync.WaitGroup
	for _, r := range []*http.Request{
		e.request(t, "GET", "/silent", e.nearHost, nil),
		e.request(t, "POST", "/silent", e.nearHost, strings.NewReader("a body")),
		e.request(t, "GET", "/endless", e.nearHost, nil),
		e.request(t, "POST", "/upload", e.nearHost, patternReader{}),
	} {
		work.Go(func() {
			if resp, err := far.Do(r.WithContext(ctx)); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	e.socket(t, e.far, e.nearHost)
	idle, err := e.far.dial(t.Context(), "tcp", "10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	e.until(t, "all of them are under way", near, func() bool {
		return e.nearBox.under.Load() == 5 && e.connected("10.0.0.2") == 5 && e.nearBox.sent.Load() > 1<<20 && e.nearBox.got.Load() > 1<<20
	})
	e.far.vanish(t)
	before := e.nearBox.sent.Load()
	e.until(t, "nothing of them is left", near, func() bool { return e.nearBox.under.Load() == 0 && e.connected("10.0.0.2") == 0 })
	if more := e.nearBox.sent.Load() - before; more > nothingIn {
		t.Errorf("%d bytes were taken for a client that had vanished", more)
	}
	leave()
	work.Wait()
}

// A service whose machine is cut off is found out in the same ways, and a client
// that waits for it gets an answer or a broken connection.
func TestServicesThatVanish(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	near := e.ours.client(t)
	type end struct {
		path   string
		status int
		err    error
	}
	ends := make(chan end, 4)
	for _, r := range []*http.Request{
		e.request(t, "GET", "/silent", e.farOne, nil),
		e.request(t, "POST", "/silent", e.farOne, strings.NewReader("a body")),
		e.request(t, "GET", "/endless", e.farOne, nil),
		e.request(t, "POST", "/upload", e.farOne, patternReader{}),
	} {
		go func() {
			resp, err := near.Do(r)
			if err != nil {
				ends <- end{r.URL.Path, 0, err}
				return
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			ends <- end{r.URL.Path, resp.StatusCode, err}
		}()
	}
	socket := e.socket(t, e.ours, e.farOne)
	e.until(t, "all of them are under way", near, func() bool {
		return e.farBox.under.Load() == 5 && e.farBox.sent.Load() > 1<<20 && e.farBox.got.Load() > 1<<20
	})
	e.far.vanish(t)
	e.until(t, "all of them have ended", near, func() bool { return len(ends) == cap(ends) })
	for range cap(ends) {
		got := <-ends
		if broken := got.status == http.StatusOK && got.err != nil; got.path == "/endless" && !broken {
			t.Errorf("half a download ended as %+v", got)
		}
		if got.path == "/silent" && (got.status != http.StatusBadGateway || got.err != nil) {
			t.Errorf("no answer at all ended as %+v", got)
		}
	}
	socket.SetReadDeadline(time.Now().Add(deadline))
	if _, err := io.Copy(io.Discard, socket); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the websocket is still open")
	}
	e.until(t, "no connection to it is left", near, func() bool { return e.held("ifar") == 0 })
}

// The patience that tests inject is the server's, in other units.
func TestPatienceReachesTheSocket(t *testing.T) {
	l, err := (&net.ListenConfig{KeepAliveConfig: conns.Patience}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var made net.Conn
	p := New(Config{Lookup: func(cay.SandboxID) (Target, error) {
		return Target{Instance: "i1", Addr: netip.MustParseAddr("127.0.0.1"), Public: true}, nil
	}})
	defer p.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	if made, err = p.Dial(t.Context(), "i", int(port)); err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for name, c := range map[string]net.Conn{"accepted": accepted, "dialled": tcpOf(made)} {
		for option, want := range map[int]time.Duration{
			unix.TCP_KEEPIDLE: conns.Patience.Idle, unix.TCP_KEEPINTVL: conns.Patience.Interval,
			unix.TCP_KEEPCNT: time.Duration(conns.Patience.Count) * time.Second,
		} {
			raw, err := c.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var got int
			failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
			if err := errors.Join(failed, err); err != nil || time.Duration(got)*time.Second != want {
				t.Errorf("%s: option %d is %d, %v; want %v", name, option, got, err, want)
			}
		}
	}
}
