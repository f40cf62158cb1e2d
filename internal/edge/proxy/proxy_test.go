package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/trail"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is for what must happen and does so at once on an idle machine.
const deadline = 60 * time.Second

// world is a proxy with sandboxes that are servers in this process.
type world struct {
	*Proxy
	front *httptest.Server

	mu      sync.Mutex
	targets map[cay.SandboxID]Target
	tokens  map[cay.SandboxID]string
	guests  map[string]string // guest address → where it really listens
	dials   int
	watched watcher
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldWith(t, func(*Config) {})
}

// newWorldWith is a world whose proxy is configured otherwise from its start.
func newWorldWith(t testing.TB, change func(*Config)) *world {
	t.Helper()
	w := &world{targets: map[cay.SandboxID]Target{}, tokens: map[cay.SandboxID]string{}, guests: map[string]string{}}
	cfg := Config{
		Lookup: w.lookup,
		Tokens: func(context.Context) iter.Seq2[cay.SandboxID, string] {
			w.mu.Lock()
			defer w.mu.Unlock()
			return maps.All(maps.Clone(w.tokens))
		},
		Domain: "example.com",
		Dial:   w.dial,
	}
	change(&cfg)
	w.Proxy = New(cfg)
	rest := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "rest") })
	w.front = httptest.NewUnstartedServer(trail.Follow(trail.REST, w.Wrap(rest)))
	w.front.Config.BaseContext = func(net.Listener) context.Context { return trail.Watch(context.Background(), &w.watched) }
	w.front.Config.Protocols = new(http.Protocols)
	w.front.Config.Protocols.SetHTTP1(true)
	w.front.Config.Protocols.SetUnencryptedHTTP2(true)
	w.front.Start()
	t.Cleanup(func() {
		w.Proxy.Close()
		w.front.CloseClientConnections()
		w.front.Close()
	})
	return w
}

func (w *world) lookup(id cay.SandboxID) (Target, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if tg, ok := w.targets[id]; ok {
		return tg, nil
	}
	return Target{}, cay.Errorf(cay.NotFound, "no sandbox %s", id)
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	real, ok := w.guests[addr]
	w.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return new(net.Dialer).DialContext(ctx, network, real)
}

// sandbox makes one; guests serve its ports.
func (w *world) sandbox(t testing.TB, id cay.SandboxID, change func(*Target), ports map[int]http.Handler) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	tg := Target{Instance: cay.NewInstanceID(), Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(len(w.targets) + 1)}), Public: true}
	if change != nil {
		change(&tg)
	}
	w.targets[id] = tg
	for port, h := range ports {
		s := httptest.NewServer(h)
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		w.guests[fmt.Sprintf("%s:%d", tg.Addr, port)] = s.Listener.Addr().String()
	}
}

// end is what a node does when a sandbox is over.
func (w *world) end(id cay.SandboxID) {
	w.mu.Lock()
	instance := w.targets[id].Instance
	delete(w.targets, id)
	delete(w.tokens, id)
	w.mu.Unlock()
	w.Cut(id, instance)
}

func (w *world) request(t *testing.T, method, path, host string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, w.front.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		req.Host = host
	}
	return req
}

func (w *world) do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := w.front.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, text) })
}

func TestRoutes(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: says("one 3000"), 49983: says("one agent")})
	w.sandbox(t, "i2", nil, map[int]http.Handler{3000: says("two 3000"), 49983: says("two agent")})
	w.tokens["i1"], w.tokens["i2"] = "token1", "token2"
	signed := func(path, op, token string) string { return signedURL("/files", path, op, token, "") }
	var searches int
	counted := w.cfg.Tokens
	w.cfg.Tokens = func(ctx context.Context) iter.Seq2[cay.SandboxID, string] { searches++; return counted(ctx) }
	past, future := "1", "99999999999"
	tests := []struct {
		name, method, path, host string
		id, port                 string // headers
		status                   int
		want                     string
	}{
		{"host", "GET", "/", "3000-i1.localhost:7070", "", "", 200, "one 3000"},
		{"other sandbox", "GET", "/", "3000-i2.example.com", "", "", 200, "two 3000"},
		{"host beats headers", "GET", "/", "3000-i1.example.com", "i2", "3000", 200, "one 3000"},
		{"headers on localhost", "GET", "/x", "localhost:7070", "i1", "49983", 200, "one agent"},
		{"headers on an address", "GET", "/x", "", "i2", "49983", 200, "two agent"},
		{"headers on sandbox.", "GET", "/x", "sandbox.example.com", "i2", "3000", 200, "two 3000"},
		{"headers elsewhere do not count", "GET", "/x", "api.example.com", "i2", "3000", 200, "rest"},
		{"no headers", "GET", "/sandboxes", "localhost", "", "", 200, "rest"},
		{"bad host", "GET", "/", "3000-i_1.example.com", "", "", 400, "Invalid host"},
		{"bad headers", "GET", "/", "localhost", "i1", "99999", 400, "Invalid headers"},
		{"signed read", "GET", signed("a b.txt", "read", "token2"), "localhost", "", "", 200, "two agent"},
		{"signed write", "POST", signed("", "write", "token1"), "localhost", "", "", 200, "one agent"},
		{"signed for the other act", "POST", signed("x", "read", "token1"), "localhost", "", "", 401, "invalid signature"},
		{"signed by a stranger", "GET", signed("x", "read", "token3"), "localhost", "", "", 401, "invalid signature"},
		{"files without signature", "GET", "/files?path=x", "localhost", "", "", 200, "rest"},
		{"signed read of a tar", "GET", signedURL("/files/tar", "d", "read-tar", "token2", ""), "localhost", "", "", 200, "two agent"},
		{"signed write of a tar", "PUT", signedURL("/files/tar", "d", "write-tar", "token1", ""), "localhost", "", "", 200, "one agent"},
		{"a file's signature for a tar", "GET", signedURL("/files/tar", "d", "read", "token1", ""), "localhost", "", "", 401, "invalid signature"},
		{"signed in time", "GET", signedURL("/files", "x", "read", "token1", future), "localhost", "", "", 200, "one agent"},
		{"signed and expired", "GET", signedURL("/files", "x", "read", "token1", past), "localhost", "", "", 401, "signature is already expired"},
		{"no signature's form", "GET", "/files?path=x&signature=x", "localhost", "", "", 401, "invalid signature"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := w.request(t, tt.method, tt.path, tt.host, nil)
			if tt.id != "" {
				req.Header.Set(headerID, tt.id)
				req.Header.Set(headerPort, tt.port)
			}
			resp, body := w.do(t, req)
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, body, tt.status, tt.want)
			}
		})
	}
	searches = 0
	for _, path := range []string{"/files?path=x&signature=x", signedURL("/files", "x", "read", "token1", past)} {
		w.do(t, w.request(t, "GET", path, "localhost", nil))
	}
	if searches != 0 {
		t.Errorf("%d searches for signatures that no token can have made now", searches)
	}
}

// signedURL is a URL of files with a signature, as the SDKs make it.
func signedURL(route, path, op, token, expiry string) string {
	s := guest.Signature{Path: path, Expiry: expiry}
	q := url.Values{"path": {path}, "signature": {s.Sign(op, token)}}
	if expiry != "" {
		q.Set("signature_expiration", expiry)
	}
	return route + "?" + q.Encode()
}

// One search for a signature's sandbox runs at a time.
func TestOneSearchAtATime(t *testing.T) {
	w := newWorld(t)
	var now, most atomic.Int32
	w.cfg.Tokens = func(context.Context) iter.Seq2[cay.SandboxID, string] {
		return func(func(cay.SandboxID, string) bool) {
			n := now.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			runtime.Gosched()
			now.Add(-1)
		}
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				p := w.find(httptest.NewRequest("GET", "http://localhost"+signedURL("/files", "x", "read", "none", ""), nil))
				if p.verdict != broken {
					t.Errorf("verdict %v", p.verdict)
				}
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d searches at once", most.Load())
	}
}

func TestAnswers(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{49983: says("agent")})
	w.sandbox(t, "i2", func(tg *Target) { tg.Public, tg.TrafficToken = false, "secret" },
		map[int]http.Handler{3000: says("app"), 49983: says("agent")})
	const missing = `"Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"`
	const invalid = `"Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"`
	tests := []struct {
		name, host, path, token string
		status                  int
		json, html              string
	}{
		{"unknown", "3000-gone.x", "/", "", 502, `{"sandboxId":"gone","message":"The sandbox was not found","code":502}`, "Sandbox Not Found"},
		{"closed port", "3000-i1.x", "/", "", 502, `{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":3000,"code":502}`, "no service running on port"},
		{"no token", "3000-i2.x", "/", "", 403, `{"sandboxId":"i2","message":` + missing + `,"code":403}`, "Missing Traffic Access Token"},
		{"wrong token", "3000-i2.x", "/", "no", 403, `{"sandboxId":"i2","message":` + invalid + `,"code":403}`, "Invalid Traffic Access Token"},
		{"token", "3000-i2.x", "/", "secret", 200, "app", "app"},
		{"agent needs no token", "49983-i2.x", "/health", "", 200, "agent", "agent"},
		{"internal", "49983-i1.x", "/init", "", 404, `{"sandboxId":"i1","message":"This endpoint is reserved for the E2B control plane","code":404}`, "reserved"},
		{"internal in disguise", "49983-i1.x", "/x/..//%69nit/", "", 404, `{"sandboxId":"i1","message":"This endpoint is reserved for the E2B control plane","code":404}`, "reserved"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := w.request(t, "GET", tt.path, tt.host, nil)
			if tt.token != "" {
				req.Header.Set(trafficToken, tt.token)
			}
			resp, body := w.do(t, req)
			if resp.StatusCode != tt.status || body != tt.json {
				t.Errorf("got %d %s, want %d %s", resp.StatusCode, body, tt.status, tt.json)
			}
			if ct := resp.Header.Get("Content-Type"); tt.status != 200 && ct != "application/json; charset=utf-8" {
				t.Errorf("content type %q", ct)
			}
			if retry := resp.Header.Get("Should-Retry"); tt.status != 200 && retry != "false" {
				t.Errorf("Should-Retry %q", retry)
			}
			req.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)")
			resp, body = w.do(t, req)
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.html) || tt.status != 200 && !strings.HasPrefix(body, "<html") {
				t.Errorf("page: got %d %s, want %d with %q", resp.StatusCode, body, tt.status, tt.html)
			}
			if ct := resp.Header.Get("Content-Type"); tt.status != 200 && ct != "text/html; charset=utf-8" {
				t.Errorf("page: content type %q", ct)
			}
			req.Header.Set("Sec-Fetch-Mode", "cors")
			if _, body = w.do(t, req); body != tt.json {
				t.Errorf("to a page's script: %s", body)
			}
		})
	}
}

// Refusals that are about no sandbox say that no retry helps, too.
func TestRefusalsInWords(t *testing.T) {
	w := newWorld(t)
	w.cfg.Tokens = func(context.Context) iter.Seq2[cay.SandboxID, string] {
		return func(func(cay.SandboxID, string) bool) {}
	}
	for _, tt := range []struct {
		name, host, path, id string
		status               int
	}{
		{"a host", "65536-i1.x", "/", "", 400},
		{"headers", "localhost", "/", "i/../c", 400},
		{"a signature", "localhost", signedURL("/files", "localhost", "read", "none", ""), "", 401},
		{"a signature that is over", "localhost", signedURL("/files", "localhost", "read", "none", "1"), "", 401},
	} {
		req := w.request(t, "GET", tt.path, tt.host, nil)
		if tt.id != "" {
			req.Header.Set(headerID, tt.id)
			req.Header.Set(headerPort, "80")
		}
		resp, body := w.do(t, req)
		if resp.StatusCode != tt.status || resp.Header.Get("Should-Retry") != "false" {
			t.Errorf("%s: %d, Should-Retry %q, %s", tt.name, resp.StatusCode, resp.Header.Get("Should-Retry"), body)
		}
	}
}

// A refusal of a look-up says whether a retry may help, and when, as the
// catalogue of codes has it.
func TestRefusedLookups(t *testing.T) {
	for _, c := range cay.Codes() {
		err := cay.Errorf(c.Kind, "no").WithCode(c.Code)
		out := httptest.NewRecorder()
		lookupFailed("i1", err).write(out, httptest.NewRequest("GET", "/", nil))
		want := cay.RetryOf(err)
		if out.Code == http.StatusBadGateway { // "not found", whatever the reason is
			want = cay.Retry{}
		}
		after := ""
		if want.May {
			after = strconv.Itoa(int(want.After / time.Second))
		}
		if got := out.Header(); got.Get("Should-Retry") != strconv.FormatBool(want.May) || got.Get("Retry-After") != after {
			t.Errorf("%s: %d with Should-Retry %q, Retry-After %q, want %+v", c.Code, out.Code, got.Get("Should-Retry"), got.Get("Retry-After"), want)
		}
	}
}

func TestPortOpensLate(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: says("up")})
	w.mu.Lock()
	addr := w.targets["i1"].Addr.String() + ":3000"
	real := w.guests[addr]
	delete(w.guests, addr)
	w.mu.Unlock()
	w.Proxy.cfg.Dial = func(ctx context.Context, network, a string) (net.Conn, error) {
		conn, err := w.dial(ctx, network, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dials == 3 { // open from the fourth try on
			w.guests[addr] = real
		}
		return conn, err
	}
	if resp, body := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil)); body != "up" {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

func TestWhatTheGuestSees(t *testing.T) {
	w := newWorld(t)
	var got *http.Request
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { got = r })
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: h, 49983: h})
	w.sandbox(t, "i2", func(tg *Target) { tg.MaskHost = "app.local:${PORT}" }, map[int]http.Handler{3000: h})

	req := w.request(t, "GET", "/a%2Fb?q=1;2", "3000-i1.example.com", nil)
	req.Header.Set("X-Forwarded-For", "6.6.6.6")
	req.Header.Set("X-Forwarded-Proto", "https")
	req.Header.Set(trafficToken, "secret")
	req.Header.Set("Connection", "X-Hop")
	req.Header.Set("X-Hop", "1")
	w.do(t, req)
	if got.Host != "3000-i1.example.com" || got.RequestURI != "/a%2Fb?q=1;2" {
		t.Errorf("host %q, uri %q", got.Host, got.RequestURI)
	}
	for name, want := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "3000-i1.example.com",
		trafficToken: "", "X-Hop": "",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}

	w.do(t, w.request(t, "GET", "/", "3000-i2.example.com", nil))
	if got.Host != "app.local:3000" {
		t.Errorf("masked host %q", got.Host)
	}

	req = w.request(t, "GET", "/health", "49983-i1.example.com", nil)
	req.Header.Set("Connection", "Upgrade, HTTP2-Settings")
	req.Header.Set("Upgrade", "h2c")
	w.do(t, req)
	if got.Header.Get("Upgrade") != "" {
		t.Error("an upgrade reached the agent")
	}
}

func TestStreamsAreNotBuffered(t *testing.T) {
	w := newWorld(t)
	for _, h2 := range []bool{false, true} {
		next := make(chan string)
		w.sandbox(t, "i1", nil, map[int]http.Handler{3000: events(next)})
		resp, err := client(t, h2).Do(w.request(t, "GET", "/", "3000-i1.x", nil))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[h2]; resp.ProtoMajor != want {
			t.Errorf("HTTP/%d, want %d", resp.ProtoMajor, want)
		}
		lines := bufio.NewReader(resp.Body)
		for _, s := range []string{"one", "two"} { // each arrives before the next is sent
			next <- s
			for _, want := range []string{"data: " + s + "\n", "\n"} {
				if line, err := lines.ReadString('\n'); line != want || err != nil {
					t.Fatalf("got %q, %v", line, err)
				}
			}
		}
		close(next)
		if rest, err := io.ReadAll(lines); len(rest) != 0 || err != nil {
			t.Errorf("the end: %q, %v", rest, err)
		}
		resp.Body.Close()
	}
}

// events is a server of events, whose headers come at once.
func events(next <-chan string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(rw).Flush()
		for s := range next {
			fmt.Fprintf(rw, "data: %s\n\n", s)
			http.NewResponseController(rw).Flush()
		}
	})
}

func client(t *testing.T, h2 bool) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestLargeBodies(t *testing.T) {
	const size = 64 << 20
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			h := sha256.New()
			io.Copy(h, r.Body)
			fmt.Fprintf(rw, "%x", h.Sum(nil))
			return
		}
		io.Copy(rw, pattern(size))
	})})
	want := sum(pattern(size))
	_, got := w.do(t, w.request(t, "POST", "/", "3000-i1.x", io.MultiReader(pattern(size))))
	if s := fmt.Sprintf("%x", want.Sum(nil)); got != s {
		t.Errorf("upload: %s, want %s", got, s)
	}
	resp, err := w.front.Client().Do(w.request(t, "GET", "/", "3000-i1.x", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := sum(resp.Body); !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("download differs")
	}
}

func pattern(n int64) io.Reader {
	return io.LimitReader(patternReader{}, n)
}

type patternReader struct{}

// block is made once: with the race detector, a loop over every byte of every
// read would be most of what a test with large bodies does.
var block = func() []byte {
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}()

func (patternReader) Read(p []byte) (int, error) { return copy(p, block), nil }

func sum(r io.Reader) hash.Hash {
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(r, buf) // so that the pattern does not depend on read sizes
		h.Write(buf[:n])
		if err != nil {
			return h
		}
	}
}

func TestCutBreaksStreams(t *testing.T) {
	w := newWorld(t)
	endless := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "hello")
		http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	closeDelimited := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		buf.WriteString("HTTP/1.0 200 OK\r\n\r\nhello")
		buf.Flush()
		io.Copy(io.Discard, conn)
	})
	for _, h2 := range []bool{false, true} {
		for name, h := range map[string]http.Handler{"chunked": endless, "to the end": closeDelimited} {
			t.Run(fmt.Sprintf("%s h2=%v", name, h2), func(t *testing.T) {
				w.sandbox(t, "i1", nil, map[int]http.Handler{3000: h})
				resp, err := client(t, h2).Do(w.request(t, "GET", "/", "3000-i1.x", nil))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				w.end("i1")
				if n, err := io.Copy(io.Discard, resp.Body); err == nil {
					t.Errorf("the stream ended cleanly after %d bytes", n)
				} else if errors.Is(err, context.DeadlineExceeded) {
					t.Error("the stream hung")
				}
				resp, body := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil))
				if resp.StatusCode != 502 || !strings.Contains(body, "not found") {
					t.Errorf("after the end: %d %s", resp.StatusCode, body)
				}
			})
		}
	}
}

func TestCutWhileWaiting(t *testing.T) {
	w := newWorld(t)
	arrived := make(chan struct{})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // a server notices that its client left only after the body
		close(arrived)
		<-r.Context().Done()
	})})
	go func() { <-arrived; w.end("i1") }()
	resp, body := w.do(t, w.request(t, "POST", "/", "3000-i1.x", strings.NewReader("x")))
	if resp.StatusCode != 502 || body != `{"sandboxId":"i1","message":"The sandbox was not found","code":502}` {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

func TestWebsocket(t *testing.T) {
	w := newWorld(t)
	echo := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: echo})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	c, _, err := websocket.Dial(ctx, w.front.URL, &websocket.DialOptions{Host: "3000-i1.x", HTTPClient: client(t, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, s := range []string{"a", strings.Repeat("b", 20_000)} {
		if err := c.Write(ctx, websocket.MessageText, []byte(s)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != s {
			t.Fatalf("echo of %d bytes: %d, %v", len(s), len(b), err)
		}
	}
	w.end("i1")
	_, _, err = c.Read(ctx)
	if err == nil || ctx.Err() != nil || websocket.CloseStatus(err) != -1 {
		t.Errorf("after the cut: %v, want a broken connection", err)
	}
}

// A sandbox that ends between Lookup and the first connection must not lead
// to the next owner of its address.
func TestEndBetweenLookups(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: says("neighbour")})
	first := true
	lookup := w.Proxy.cfg.Lookup
	w.Proxy.cfg.Lookup = func(id cay.SandboxID) (Target, error) {
		tg, err := lookup(id)
		if first {
			first = false
			w.end(id)
		}
		return tg, err
	}
	resp, body := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil))
	if resp.StatusCode != 502 || w.dials != 0 {
		t.Errorf("got %d %s after %d dials", resp.StatusCode, body, w.dials)
	}
}

// A rollback gives a sandbox another instance under the same id.
func TestNewInstance(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: says("old")})
	if _, body := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil)); body != "old" {
		t.Fatal(body)
	}
	w.sandbox(t, "i1", func(tg *Target) { tg.Addr = netip.MustParseAddr("192.0.2.99") }, map[int]http.Handler{3000: says("new")})
	if _, body := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil)); body != "new" {
		t.Error(body)
	}
}

// A service on the loopback of a sandbox refuses the host; the agent reaches it.
func TestLoopbackService(t *testing.T) {
	w := newWorld(t)
	service := httptest.NewServer(says("inner"))
	t.Cleanup(service.Close)
	agent := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != guest.TunnelPath || r.Header.Get("X-Access-Token") != "access" || r.URL.Query().Get("port") != "3000" {
			http.Error(rw, "no", http.StatusBadGateway)
			return
		}
		out, err := net.Dial("tcp", service.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer out.Close()
		in, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer in.Close()
		fmt.Fprint(in, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		go io.Copy(out, in)
		io.Copy(in, out)
	})
	w.sandbox(t, "i1", func(tg *Target) { tg.AccessToken = "access" }, map[int]http.Handler{49983: agent})
	for range 2 {
		if resp, body := w.do(t, w.request(t, "POST", "/", "3000-i1.x", strings.NewReader("x"))); body != "inner" {
			t.Errorf("got %d %s", resp.StatusCode, body)
		}
	}
	if resp, body := w.do(t, w.request(t, "GET", "/", "3001-i1.x", nil)); resp.StatusCode != 502 || !strings.Contains(body, "port is not open") {
		t.Errorf("a closed port: %d %s", resp.StatusCode, body)
	}
	w.end("i1")
}

// A response may begin before the request has ended, and both go on.
func TestFullDuplex(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(rw)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		rc.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			rw.Write(buf[:n])
			rc.Flush()
			if err != nil {
				return
			}
		}
	})})
	for _, h2 := range []bool{false, true} {
		in, out := io.Pipe()
		resp, err := client(t, h2).Do(w.request(t, "POST", "/", "3000-i1.x", in))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"one", "two"} {
			if _, err := io.WriteString(out, s); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(s))
			if _, err := io.ReadFull(resp.Body, got); string(got) != s || err != nil {
				t.Fatalf("h2=%v: got %q, %v", h2, got, err)
			}
		}
		out.Close()
		if rest, err := io.ReadAll(resp.Body); len(rest) != 0 || err != nil {
			t.Errorf("h2=%v: the end: %q, %v", h2, rest, err)
		}
		resp.Body.Close()
	}
}

// An answer that does not wait for a large upload arrives, and the proxy goes
// on serving.
func TestEarlyAnswer(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Error(rw, "too large", http.StatusRequestEntityTooLarge)
	})})
	for range 3 {
		resp, err := client(t, false).Do(w.request(t, "POST", "/", "3000-i1.x", pattern(8<<20)))
		if err == nil { // or the connection was reset under the upload, as HTTP/1.1 has it
			if resp.StatusCode != http.StatusRequestEntityTooLarge && resp.StatusCode != http.StatusBadGateway {
				t.Errorf("got %d", resp.StatusCode)
			}
			resp.Body.Close()
		}
	}
	if resp, _ := w.do(t, w.request(t, "GET", "/", "3000-i1.x", nil)); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

// A proxy whose connections were broken goes on as before, as that of a node that has its lease again;
// at the end of its server a request under way gets no answer: its sandbox is not over.
func TestBreakAndClose(t *testing.T) {
	w := newWorld(t)
	begun := make(chan struct{}, 1)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/waits" {
			begun <- struct{}{}
			<-r.Context().Done()
		}
	})})
	w.Break()
	if resp, body := w.do(t, w.request(t, "GET", "/", "3001-i1.x", nil)); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "port is not open") {
		t.Errorf("a closed port answers %d %s", resp.StatusCode, body)
	}
	go func() {
		<-begun
		w.Close()
	}()
	if resp, err := http.DefaultClient.Do(w.request(t, "GET", "/waits", "3000-i1.x", nil)); err == nil {
		resp.Body.Close()
		t.Errorf("a request under way at the end of the server is answered %d", resp.StatusCode)
	}
}
