package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// rawGuest serves a port of a sandbox by hand: talk has one connection, and is
// told which it is.
func (w *world) rawGuest(t *testing.T, id cay.SandboxID, port int, talk func(nth int, r *bufio.Reader, c net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for nth := 0; ; nth++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				talk(nth, bufio.NewReader(c), c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guests[fmt.Sprintf("%s:%d", w.targets[id].Addr, port)] = l.Addr().String()
}

func heard(r *bufio.Reader) bool {
	_, err := http.ReadRequest(r)
	return err == nil
}

// fetch asks port 3000 of a sandbox and returns the status and what was said.
func (w *world) fetch(t *testing.T, method string, id cay.SandboxID) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.front.URL+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-" + string(id) + ".x"
	resp, err := w.front.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// After an answer of any kind the next request goes by the same connection.
func TestLinesAreReused(t *testing.T) {
	w := newWorld(t)
	var kind atomic.Int32
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch kind.Add(1) % 4 {
		case 0:
			rw.WriteHeader(http.StatusNoContent)
		case 1:
			rw.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(rw, "chunked")
			rw.(http.Flusher).Flush()
			rw.Header().Set("X-Sum", "1")
		case 2:
			fmt.Fprint(rw, strings.Repeat("long", 100_000))
		default:
			fmt.Fprint(rw, "short")
		}
	})})
	for range 4 {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			if status, _ := w.fetch(t, method, "i1"); status/100 != 2 {
				t.Fatalf("%s: %d", method, status)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dials != 1 {
		t.Errorf("%d connections to the guest, want 1", w.dials)
	}
}

// A guest that breaks its connection has not ended its answer, or its websocket,
// also where only the end of the connection says where they end.
func TestBrokenIsNoEnd(t *testing.T) {
	w := newWorld(t)
	part := make(chan struct{})
	for id, answer := range map[cay.SandboxID]string{
		"ianswer": "HTTP/1.0 200 OK\r\n\r\npart",
		"isocket": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\npart",
	} {
		w.sandbox(t, id, nil, nil)
		w.rawGuest(t, id, 3000, func(_ int, r *bufio.Reader, c net.Conn) {
			_ = heard(r)
			_, _ = io.WriteString(c, answer)
			<-part
			reset(c)
		})
	}
	for _, tt := range []struct {
		id      cay.SandboxID
		headers string
		want    error
	}{
		{"ianswer", "", io.ErrUnexpectedEOF}, // of the chunks that the proxy made of it
		{"isocket", "Connection: Upgrade\r\nUpgrade: websocket\r\n", syscall.ECONNRESET},
	} {
		conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(deadline))
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: 3000-%s.localhost\r\n%s\r\n", tt.id, tt.headers)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		var body io.Reader = resp.Body
		if tt.headers != "" {
			body = r
		}
		var text [4]byte
		if _, err := io.ReadFull(body, text[:]); err != nil {
			t.Fatal(err)
		}
		part <- struct{}{}
		if _, err := body.Read(text[:]); !errors.Is(err, tt.want) {
			t.Errorf("%s: %q, then %v; want %v", tt.id, text, err, tt.want)
		}
	}
}

// A guest's server may drop a connection whenever it is idle, also just when a
// request is on its way.
func TestDroppedLines(t *testing.T) {
	w := newWorld(t)
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for id, talk := range map[cay.SandboxID]func(int, *bufio.Reader, net.Conn){
		"idropped": func(_ int, r *bufio.Reader, c net.Conn) {
			_ = heard(r)
			_, _ = io.WriteString(c, answer)
		},
		"ideaf": func(_ int, r *bufio.Reader, c net.Conn) { // hears a second request, and hangs up
			_ = heard(r)
			_, _ = io.WriteString(c, answer)
			_ = heard(r)
		},
		"itwo": func(_ int, r *bufio.Reader, c net.Conn) { // an answer to no request
			for heard(r) {
				_, _ = io.WriteString(c, answer+"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
			}
		},
	} {
		w.sandbox(t, id, nil, nil)
		w.rawGuest(t, id, 3000, talk)
		for i := range 5 {
			if status, body := w.fetch(t, http.MethodGet, id); status != http.StatusOK || body != "ok" {
				t.Errorf("%s, request %d: %d %q", id, i, status, body)
			}
		}
	}
	w.sandbox(t, "isilent", nil, nil)
	w.rawGuest(t, "isilent", 3000, func(_ int, r *bufio.Reader, _ net.Conn) { _ = heard(r) })
	if status, body := w.fetch(t, http.MethodGet, "isilent"); status != http.StatusBadGateway || !strings.Contains(body, "without an answer") {
		t.Errorf("a guest that never answers: %d %q", status, body)
	}
	w.sandbox(t, "iswitch", nil, nil)
	w.rawGuest(t, "iswitch", 3000, func(_ int, r *bufio.Reader, c net.Conn) {
		_ = heard(r)
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
	})
	if status, _ := w.fetch(t, http.MethodGet, "iswitch"); status != http.StatusBadGateway {
		t.Errorf("a switch that no client asked for: %d", status)
	}
}

// Early hints of a guest reach the client.
func TestEarlyHints(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Link", "</a.css>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		fmt.Fprint(rw, "page")
	})})
	for _, body := range []string{"", "a body"} {
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link")))
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.front.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "3000-i1.x"
		resp, err := w.front.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if len(hints) != 1 || hints[0] != "103</a.css>; rel=preload" || resp.Header.Get("Link") != "" {
			t.Errorf("body %q: hints %q, then Link %q", body, hints, resp.Header.Get("Link"))
		}
	}
}

// A service that takes a connection and never answers holds up its own clients,
// as long as they like and no longer, and no others.
func TestSilentGuest(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3001: says("fine")})
	const callers = 20
	asked, left := make(chan struct{}, callers), make(chan struct{}, callers)
	w.rawGuest(t, "i1", 3000, func(_ int, r *bufio.Reader, _ net.Conn) {
		_ = heard(r)
		asked <- struct{}{}
		_, _ = r.ReadByte() // until the proxy hangs up
		left <- struct{}{}
	})
	each := func(what string, c <-chan struct{}) {
		t.Helper()
		for range callers {
			select {
			case <-c:
			case <-time.After(deadline):
				t.Fatal(what)
			}
		}
	}
	ask := func(ctx context.Context, answers chan<- int) {
		for range callers {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.front.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "3000-i1.x"
			go func() {
				resp, err := w.front.Client().Do(req)
				if err != nil {
					answers <- 0
					return
				}
				resp.Body.Close()
				answers <- resp.StatusCode
			}()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan int, callers)
	ask(ctx, answers)
	each("the guest was not asked", asked)
	if _, body := w.do(t, w.request(t, "GET", "/", "3001-i1.x", nil)); body != "fine" {
		t.Error(body)
	}
	cancel()
	each("the guest was not told that its callers left", left)
	for range callers {
		<-answers
	}
	ask(t.Context(), answers)
	each("the guest was not asked again", asked)
	w.end("i1")
	each("connections outlived their sandbox", left)
	for range callers {
		if status := <-answers; status != http.StatusBadGateway {
			t.Errorf("status %d of a sandbox that ended", status)
		}
	}
}

// A service that does not read what it is sent holds its caller back: nothing
// of it gathers here.
func TestGuestThatDoesNotRead(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, nil)
	stop := make(chan struct{})
	w.rawGuest(t, "i1", 3000, func(int, *bufio.Reader, net.Conn) { <-stop })
	defer close(stop)
	conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const length = 1 << 30
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: 3000-i1.x\r\nContent-Length: %d\r\n\r\n", length)
	sent, chunk := 0, make([]byte, 64<<10)
	for sent < length {
		if err := conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Write(chunk)
		sent += n
		if err != nil {
			break // the reader is gone
		}
	}
	if sent >= length {
		t.Error("a gigabyte is in memory")
	}
}

// A short body goes with its head, by a direct connection like other requests; but no guest
// hears it twice, as a guest does a GET when it drops the connection.
func TestShortBodiesByLine(t *testing.T) {
	w := newWorld(t)
	w.sandbox(t, "i1", nil, nil)
	var heardBodies atomic.Int32
	w.rawGuest(t, "i1", 3000, func(_ int, r *bufio.Reader, c net.Conn) {
		for i := 0; ; i++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			text, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			heardBodies.Add(1)
			switch {
			case i == 3: // hears it, and hangs up
				return
			case req.ContentLength != int64(len(text)):
				fmt.Fprint(c, "HTTP/1.1 500 Wrong\r\nContent-Length: 0\r\n\r\n")
			default:
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
			}
		}
	})
	post := func(body string) (int, string) {
		resp, got := w.do(t, w.request(t, http.MethodPost, "/", "3000-i1.localhost", strings.NewReader(body)))
		return resp.StatusCode, got
	}
	for _, size := range []int{1, 3000, shortBody} {
		body := strings.Repeat("x", size)
		if status, got := post(body); status != http.StatusOK || got != body {
			t.Errorf("%d bytes: %d, %d bytes", size, status, len(got))
		}
	}
	if status, got := post("once"); status != http.StatusBadGateway || !strings.Contains(got, "without an answer") {
		t.Errorf("one that was heard and not answered: %d %q", status, got)
	}
	if n := heardBodies.Load(); n != 4 {
		t.Errorf("%d bodies were heard, want 4", n)
	}
	w.mu.Lock()
	dials := w.dials
	w.mu.Unlock()
	if dials != 1 {
		t.Errorf("%d connections for them, want 1", dials)
	}
	if status, got := post("again"); status != http.StatusOK || got != "again" {
		t.Errorf("the next one: %d %q", status, got)
	}
}

// The log says how the connection of the agent or the interpreter broke, and
// how old it was. A break by a guest's own port is not worth a warning.
func TestNoAnswerIsToldWithItsReason(t *testing.T) {
	w := newWorld(t)
	var log lockedLog
	w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.sandbox(t, "i1", nil, nil)
	for _, port := range []int{guest.InterpPort, 3000} {
		w.rawGuest(t, "i1", port, func(nth int, r *bufio.Reader, c net.Conn) {
			heard(r)
			if nth == 0 { // a reset, where the others are an end
				c.(*net.TCPConn).SetLinger(0)
			}
		})
	}
	for i, want := range []string{"reset by peer", "EOF", "EOF"} {
		for _, port := range []int{guest.InterpPort, 3000} {
			resp, _ := w.do(t, w.request(t, http.MethodPost, "/", fmt.Sprintf("%d-i1.localhost", port), strings.NewReader("x")))
			if resp.StatusCode != http.StatusBadGateway {
				t.Fatalf("port %d: %d", port, resp.StatusCode)
			}
		}
		lines := log.lines()
		if len(lines) != i+1 || !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "at call 1 of a connection made ") ||
			!strings.Contains(lines[i], "port=49999") || !strings.Contains(lines[i], "level=WARN") {
			t.Fatalf("after %d: %q", i+1, lines)
		}
	}
	for range 2 * maxWarnings {
		w.do(t, w.request(t, http.MethodPost, "/", "49999-i1.localhost", strings.NewReader("x")))
	}
	if n := len(log.lines()); n != maxWarnings {
		t.Errorf("a guest has the log take %d warnings", n)
	}
}

// lockedLog keeps the lines of a log.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}
