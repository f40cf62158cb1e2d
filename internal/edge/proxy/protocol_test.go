package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
)

// served is a service of a guest that is called with gRPC.
type served struct {
	processconnect.UnimplementedProcessHandler
	started chan struct{}
}

func (c served) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	resp := connect.NewResponse(&process.ListResponse{Processes: []*process.ProcessInfo{{Pid: 7}}})
	resp.Trailer().Set("X-Last", "word")
	return resp, nil
}

func (c served) Connect(ctx context.Context, _ *connect.Request[process.ConnectRequest], s *connect.ServerStream[process.ConnectResponse]) error {
	if err := s.Send(&process.ConnectResponse{}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (c served) StreamInput(_ context.Context, s *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	for s.Receive() {
		c.started <- struct{}{} // each message arrives before the next is sent
	}
	return connect.NewResponse(&process.StreamInputResponse{}), s.Err()
}

func TestGRPC(t *testing.T) {
	w := newWorld(t)
	service := served{started: make(chan struct{})}
	_, h := processconnect.NewProcessHandler(service)
	guest := httptest.NewUnstartedServer(h)
	guest.Config.Protocols = new(http.Protocols)
	guest.Config.Protocols.SetHTTP1(true)
	guest.Config.Protocols.SetUnencryptedHTTP2(true)
	guest.Start()
	t.Cleanup(func() { guest.CloseClientConnections(); guest.Close() })
	w.sandbox(t, "i1", nil, nil)
	w.guests[w.targets["i1"].Addr.String()+":3000"] = guest.Listener.Addr().String()

	c := processconnect.NewProcessClient(asHost{client(t, true), "3000-i1.x"}, w.front.URL, connect.WithGRPC())
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	resp, err := c.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil || resp.Msg.Processes[0].Pid != 7 || resp.Trailer().Get("X-Last") != "word" {
		t.Fatalf("got %v, %v", resp, err)
	}
	in := c.StreamInput(ctx)
	for range 3 {
		if err := in.Send(&process.StreamInputRequest{}); err != nil {
			t.Fatal(err)
		}
		<-service.started
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Error(err)
	}
	out, err := c.Connect(ctx, connect.NewRequest(&process.ConnectRequest{}))
	if err != nil || !out.Receive() {
		t.Fatal(err, out.Err())
	}
	if _, err := c.Start(ctx, connect.NewRequest(&process.StartRequest{})); err == nil {
		t.Log("the error comes with the stream's end")
	}
	w.end("i1")
	if out.Receive() || out.Err() == nil || errors.Is(out.Err(), context.DeadlineExceeded) {
		t.Errorf("after the sandbox's end: %v", out.Err())
	}
	out.Close()
}

// asHost sends requests under a name that no DNS has.
type asHost struct {
	*http.Client
	host string
}

func (c asHost) Do(r *http.Request) (*http.Response, error) {
	r.Host = c.host
	return c.Client.Do(r)
}

// A server inside may speak TLS, with a certificate of its own making.
func TestHTTPSPorts(t *testing.T) {
	w := newWorld(t)
	inner := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(rw, "secure")
			return
		}
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err == nil {
			_ = c.Write(r.Context(), websocket.MessageText, []byte("secure"))
			c.CloseNow()
		}
	}))
	t.Cleanup(func() { inner.CloseClientConnections(); inner.Close() })
	w.sandbox(t, "i1", func(tg *Target) { tg.HTTPSPorts = []int{8443} }, nil)
	for _, port := range []string{":8443", ":8444"} {
		w.guests[w.targets["i1"].Addr.String()+port] = inner.Listener.Addr().String()
	}
	if resp, body := w.do(t, w.request(t, "GET", "/", "8443-i1.x", nil)); body != "secure" {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	if resp, body := w.do(t, w.request(t, "GET", "/", "8444-i1.x", nil)); body == "secure" {
		t.Errorf("a port that was not named: %d %s", resp.StatusCode, body)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	c, _, err := websocket.Dial(ctx, w.front.URL, &websocket.DialOptions{Host: "8443-i1.x", HTTPClient: client(t, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, b, err := c.Read(ctx); string(b) != "secure" {
		t.Errorf("websocket: %s, %v", b, err)
	}
}

// echoes is a websocket server.
func echoes(opened func()) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		opened()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
}

// A server that ends says so to websockets; the end of a sandbox breaks them.
func TestDrainTellsWebsockets(t *testing.T) {
	w := newWorld(t)
	gone := make(chan struct{}, 2)
	h := echoes(func() {})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(rw, r)
		gone <- struct{}{}
	})})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var conns []*websocket.Conn
	for range 2 {
		c, _, err := websocket.Dial(ctx, w.front.URL, &websocket.DialOptions{Host: "3000-i1.x", HTTPClient: client(t, false)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for _, size := range []int{1, 125, 126, 70_000} {
			if err := c.Write(ctx, websocket.MessageBinary, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if _, b, err := c.Read(ctx); err != nil || len(b) != size {
				t.Fatalf("echo of %d: %d, %v", size, len(b), err)
			}
		}
		conns = append(conns, c)
	}
	w.Drain()
	for _, c := range conns {
		if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
			t.Errorf("after the drain: %v", err)
		}
		<-gone // the guest sees an end too
	}
	if _, _, err := websocket.Dial(ctx, w.front.URL, &websocket.DialOptions{Host: "3000-i1.x", HTTPClient: client(t, false)}); err == nil {
		// It was upgraded, and told at once.
		t.Log("a websocket after the drain is ended at once")
	}
}

// A guest that refuses an upgrade has its answer passed on.
func TestRefusedUpgrade(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Why", "because")
		http.Error(rw, "no sockets here", http.StatusTeapot)
	}), 3001: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err == nil {
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
			conn.Close()
		}
	})})
	for host, want := range map[string]int{"3000-i1.x": 418, "3001-i1.x": 502, "3002-i1.x": 502, "3000-i9.x": 502} {
		req := w.request(t, "GET", "/", host, nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		resp, body := w.do(t, req)
		if resp.StatusCode != want || want == 418 && (body != "no sockets here\n" || resp.Header.Get("X-Why") != "because") {
			t.Errorf("%s: %d %s", host, resp.StatusCode, body)
		}
	}
}

// A hundred requests at once wake a sandbox together, and all arrive.
func TestOneWakeForMany(t *testing.T) {
	w := newWorld(t)
	var wakes atomic.Int32
	up := make(chan struct{})
	w.cfg.Asleep = func(cay.SandboxID) (Target, bool) { return Target{Public: true}, true }
	w.cfg.Wake = func(ctx context.Context, id cay.SandboxID) error {
		if wakes.Add(1) == 100 { // control has them share one resume; the last lets it end
			w.sandbox(t, id, nil, map[int]http.Handler{3000: says("awake")})
			close(up)
		}
		<-up
		return nil
	}
	got := make(chan string)
	for range 100 {
		go func() {
			req, err := http.NewRequest("GET", w.front.URL, nil)
			if err != nil {
				got <- err.Error()
				return
			}
			req.Host = "3000-i1.x"
			resp, err := w.front.Client().Do(req)
			if err != nil {
				got <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			got <- string(b)
		}()
	}
	for range 100 {
		if body := <-got; body != "awake" {
			t.Errorf("got %s", body)
		}
	}
	if n := len(w.upstreams); n != 1 {
		t.Errorf("%d upstreams", n)
	}
}

// Requests for unknown hosts cost nothing.
func TestUnknownHostsAreForgotten(t *testing.T) {
	w := newWorld(t)
	for i := range 2000 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = fmt.Sprintf("3000-i%d.x", i)
		rec := httptest.NewRecorder()
		w.Wrap(http.NotFoundHandler()).ServeHTTP(rec, r)
		if rec.Code != 502 {
			t.Fatal(rec.Code)
		}
	}
	if len(w.upstreams) != 0 || w.dials != 0 {
		t.Errorf("%d upstreams, %d dials", len(w.upstreams), w.dials)
	}
}

// A guest cannot fill the host's memory with a header that does not end.
func TestHeaderBomb(t *testing.T) {
	w := newWorld(t)
	var sent atomic.Int64
	bomb := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		head := "HTTP/1.1 200 OK\r\n"
		if r.Header.Get("Upgrade") != "" {
			head = "HTTP/1.1 101 Switching Protocols\r\n"
		}
		fmt.Fprint(conn, head)
		for i := 0; sent.Load() < 64<<20; i++ {
			n, err := fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("x", 4<<10))
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: bomb, 3001: says("fine")})
	for _, upgrade := range []string{"", "websocket"} {
		sent.Store(0)
		req := w.request(t, "GET", "/", "3000-i1.x", nil)
		if upgrade != "" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", upgrade)
		}
		resp, body := w.do(t, req)
		if resp.StatusCode != 502 || sent.Load() >= 64<<20 {
			t.Errorf("upgrade %q: %d %.100s after %d bytes", upgrade, resp.StatusCode, body, sent.Load())
		}
	}
	if _, body := w.do(t, w.request(t, "GET", "/", "3001-i1.x", nil)); body != "fine" {
		t.Error(body)
	}
}

// A client that does not read holds its guest back, and no other; the bytes
// under way between them are bounded.
func TestSlowClient(t *testing.T) {
	w := newWorld(t)
	var sent atomic.Int64
	stopped := make(chan struct{})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		defer close(stopped)
		chunk := make([]byte, 64<<10)
		for sent.Load() < 1<<30 {
			if _, err := rw.Write(chunk); err != nil {
				return
			}
			sent.Add(int64(len(chunk)))
		}
	}), 3001: says("fine")})
	conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: 3000-i1.x\r\n\r\n")
	if _, err := bufio.NewReader(io.LimitReader(conn, 10)).ReadByte(); err != nil {
		t.Fatal(err)
	}
	// Others are served meanwhile, many times over, and what the client does not
	// take stays in the guest, but for what buffers of sockets hold.
	for range 200 {
		if _, body := w.do(t, w.request(t, "GET", "/", "3001-i1.x", nil)); body != "fine" {
			t.Fatal(body)
		}
	}
	if n := sent.Load(); n >= 128<<20 {
		t.Errorf("%d bytes are in memory", n)
	}
	conn.Close()
	select {
	case <-stopped:
	case <-time.After(deadline):
		t.Error("the guest was not told that its client left")
	}
}

// frame makes a websocket's frame of a payload.
func frame(size int, masked bool) []byte {
	b := []byte{0x82}
	var mask byte
	if masked {
		mask = 0x80
	}
	switch {
	case size < 126:
		b = append(b, mask|byte(size))
	case size < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(size))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(size))
	}
	if masked {
		b = append(b, 1, 2, 3, 4)
	}
	return append(b, make([]byte, size)...)
}

func TestFrames(t *testing.T) {
	var all bytes.Buffer
	ends := map[int]bool{0: true}
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 100_000} {
		for _, masked := range []bool{false, true} {
			all.Write(frame(size, masked))
			ends[all.Len()] = true
		}
	}
	for _, step := range []int{1, 3, 7, 4096} {
		var f frames
		for at := 0; at < all.Len(); {
			n := min(step, all.Len()-at)
			f.observe(all.Bytes()[at : at+n])
			if at += n; f.between() != ends[at] {
				t.Fatalf("steps of %d: at %d between is %v", step, at, f.between())
			}
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(frame(3, false))
	f.Add(frame(126, true))
	f.Add([]byte{0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, parts frames
		whole.observe(b)
		for i := range b {
			parts.observe(b[i : i+1])
		}
		if whole.between() != parts.between() || whole.left != parts.left || len(parts.head) > 14 {
			t.Errorf("at once %+v, byte by byte %+v", whole, parts)
		}
	})
}
