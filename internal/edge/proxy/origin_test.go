package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
)

// A guest's headers that a browser applies to a whole origin reach it where the
// sandbox has an origin of its own, and nowhere else.
func TestOriginWideHeaders(t *testing.T) {
	w := pathWorld(t)
	hostile := func(h http.Header) {
		for _, name := range originWide {
			h.Set(name, "hostile")
		}
		h.Set("X-Fine", "1")
		h.Set("Referrer-Policy", "strict-origin-when-cross-origin, no-referrer")
		h.Add("Www-Authenticate", `Basic realm="shared"`)
		h.Add("Www-Authenticate", `Digest realm="shared"`)
		h.Set("Content-Security-Policy", "default-src *")
	}
	app := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if isUpgrade(r) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			h := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
			hostile(h)
			var head strings.Builder
			h.Write(&head)
			fmt.Fprintf(c, "HTTP/1.1 101 Yes\r\n%s\r\n", head.String())
			return
		}
		hostile(rw.Header())
		rw.Header().Set("Set-Cookie", "early=1")
		rw.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(rw, "page")
	})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: app, 49983: app})
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	for _, tt := range []struct {
		name, host, path string
		header           http.Header
		shared           bool
	}{
		{"page", "", "/s/i1/3000/", nil, true},
		{"the agent's port", "", "/s/i1/49983/", nil, true},
		{"websocket", "", "/s/i1/3000/ws", upgrade, true},
		{"page by host", "3000-i1.localhost", "/", nil, false},
		{"websocket by host", "3000-i1.localhost", "/ws", upgrade, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var early []http.Header
			req := w.request(t, "GET", tt.path, tt.host, nil)
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					early = append(early, http.Header(h))
					return nil
				},
			}))
			for k, v := range tt.header {
				req.Header[k] = v
			}
			resp, err := w.front.Client().Transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if want := map[bool]int{false: 1, true: 0}[tt.header != nil]; len(early) != want {
				t.Fatalf("%d early answers", len(early))
			}
			for _, h := range append(early, resp.Header) {
				for _, name := range originWide {
					if (h.Get(name) == "") != tt.shared {
						t.Errorf("%s: %q", name, h.Get(name))
					}
				}
				if h.Get("X-Fine") != "1" {
					t.Error("a harmless header is lost")
				}
			}
			for _, h := range early {
				if h.Get("Set-Cookie") != "" {
					t.Error("a cookie came early, and as the guest wrote it")
				}
			}
			h := resp.Header
			policy, challenges := h.Values("Content-Security-Policy"), h.Values("Www-Authenticate")
			if !tt.shared {
				if len(policy) != 1 || challenges[0] != `Basic realm="shared"` || !strings.HasSuffix(h.Get("Referrer-Policy"), "no-referrer") {
					t.Errorf("by host: %v", h)
				}
				return
			}
			port := "3000"
			if strings.Contains(tt.path, "49983") {
				port = "49983"
			}
			if len(policy) != 2 || policy[1] != "frame-ancestors 'self' http://127.0.0.1:* https://127.0.0.1:*" {
				t.Errorf("policy %q", policy)
			}
			if !slices.Equal(challenges, []string{`Basic realm="` + port + `-i1", charset="UTF-8"`, `Digest realm="shared"`}) {
				t.Errorf("challenges %q", challenges)
			}
			if h.Get("Referrer-Policy") != "same-origin" {
				t.Errorf("referrer policy %q", h.Get("Referrer-Policy"))
			}
		})
	}
}

func TestFramers(t *testing.T) {
	for host, want := range map[string]string{
		"localhost:7070": "'self' http://localhost:* https://localhost:*",
		"[::1]:7070":     "'self'", "a;script-src x": "'self'", "": "'self'",
	} {
		if got := framers(host); got != want {
			t.Errorf("%q: %s", host, got)
		}
	}
}

// browsing is a browser as far as cookies and redirects go.
func browsing(t *testing.T, w *world) func(path string, header ...string) (*http.Response, string) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: w.front.Client().Transport, Jar: jar}
	return func(path string, header ...string) (*http.Response, string) {
		req := w.request(t, "GET", path, "", nil)
		req.Header.Set("User-Agent", "Mozilla/5.0")
		req.Header.Set("Accept", "text/html,*/*")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp, string(body)
	}
}

func teams(t *testing.T) *world {
	w := pathWorld(t)
	for id, team := range map[cay.SandboxID]cay.TeamID{"i1": "ours", "i2": "theirs", "i3": "ours"} {
		w.sandbox(t, id, func(tg *Target) { tg.Team = team }, map[int]http.Handler{3000: tells(string(id))})
	}
	return w
}

func TestBrowsersAreBound(t *testing.T) {
	w := teams(t)
	for _, kind := range [][]string{
		nil, // a browser that says nothing of its requests
		{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
		{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Accept", "*/*"},
		{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "embed", "Accept", "*/*"},
	} {
		open := browsing(t, w)
		resp, body := open("/s/i1/3000/a%2Fb?x=1&y", kind...)
		if resp.StatusCode != 200 || !strings.HasPrefix(body, "i1 /a%2Fb?x=1&y ") || resp.Request.URL.RequestURI() != "/s/i1/3000/a%2Fb?x=1&y" {
			t.Errorf("%q: %d %s at %s", kind, resp.StatusCode, body, resp.Request.URL)
		}
		if resp, body := open("/s/i2/3000/", kind...); resp.StatusCode != 403 {
			t.Errorf("%q: another team's: %d %s", kind, resp.StatusCode, body)
		}
		if resp, body := open("/s/i3/3000/", kind...); resp.StatusCode != 200 {
			t.Errorf("%q: the same team's: %d %s", kind, resp.StatusCode, body)
		}
	}
	// Programs and parts of pages need no cookie.
	for _, header := range [][2]string{{"Accept", "*/*"}, {"Sec-Fetch-Mode", "cors"}, {"User-Agent", "curl/8"}} {
		req := w.request(t, "GET", "/s/i1/3000/", "", nil)
		req.Header.Set("User-Agent", "Mozilla/5.0")
		req.Header.Set("Accept", "text/html")
		req.Header.Set(header[0], header[1])
		if resp, err := stay(w).Do(req); err != nil || resp.StatusCode != 200 {
			t.Errorf("%v: %v, %v", header, resp, err)
		} else {
			resp.Body.Close()
		}
	}
	// A browser that keeps no cookie is told so, and not sent around for ever.
	req := w.request(t, "GET", "/s/i1/3000/", "", nil)
	req.Header.Set("User-Agent", "Mozilla/5.0")
	req.Header.Set("Accept", "text/html")
	if resp, body := w.do(t, req); resp.StatusCode != 403 || !strings.Contains(body, "Cookies Needed") {
		t.Errorf("without cookies: %d %s", resp.StatusCode, body)
	}
	// By host each sandbox has an origin of its own.
	req.Host = "3000-i2.localhost"
	req.URL.Path = "/"
	if resp, body := w.do(t, req); resp.StatusCode != 200 {
		t.Errorf("by host: %d %s", resp.StatusCode, body)
	}
}

// Two windows open pages of two teams at once, in a browser that has opened
// none. In any order of the four requests, at most one page is shown.
func TestBrowsersAreBoundAtOnce(t *testing.T) {
	w := teams(t)
	for _, order := range []string{"aabb", "abab", "abba", "baba", "baab", "bbaa"} {
		jar, _ := cookiejar.New(nil)
		at := map[rune]string{'a': "/s/i1/3000/", 'b': "/s/i2/3000/"}
		// A window's request leaves with the cookies of its moment: the answer
		// to the other's may come between.
		type answer struct {
			status   int
			location string
		}
		shown := 0
		for again := range 3 { // mark, clean address, page
			_ = again
			for _, window := range order {
				if at[window] == "" {
					continue
				}
				req := w.request(t, "GET", at[window], "", nil)
				req.Header.Set("Sec-Fetch-Mode", "navigate")
				for _, c := range jar.Cookies(req.URL) {
					req.AddCookie(c)
				}
				resp, err := stay(w).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				jar.SetCookies(req.URL, resp.Cookies())
				got := answer{resp.StatusCode, resp.Header.Get("Location")}
				at[window] = got.location
				if got.status == 200 {
					shown++
				}
			}
		}
		if shown > 1 {
			t.Errorf("%s: pages of %d teams are shown", order, shown)
		}
	}
}

// A websocket to a path of a page's own is taken from pages of this origin.
func TestWebsocketsOfOtherOrigins(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err == nil {
			c.CloseNow()
		}
	})})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for origin, want := range map[string]int{
		w.front.URL: 101, "": 101, "http://127.0.0.1:1": 200, "http://evil.example": 200, "null": 200,
	} {
		h := http.Header{"Cookie": {openedCookie + "=3000-i1-" + teamTag("")}}
		if origin != "" {
			h.Set("Origin", origin)
		}
		c, resp, _ := websocket.Dial(ctx, w.front.URL+"/socket", &websocket.DialOptions{HTTPClient: client(t, false), HTTPHeader: h})
		if c != nil {
			c.CloseNow()
		}
		if resp == nil || resp.StatusCode != want {
			t.Errorf("origin %q: %v, want %d", origin, resp, want)
		}
	}
}

func TestCutQuery(t *testing.T) {
	for raw, want := range map[string]string{
		"": "", "a=1": "a=1", boundMark: "", "a&" + boundMark + "&b": "a&b", boundMark + "2": boundMark + "2", "x" + boundMark: "x" + boundMark,
	} {
		if got, _ := cutQuery(raw, boundMark); got != want {
			t.Errorf("%q: %q", raw, got)
		}
	}
}

// An answer on a line that was used before is bound like the first.
func TestBoundOnAUsedLine(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", nil, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nalt-svc: x\r\n\r\nHTTP/1.1 200 OK\r\nclear-site-data: \"*\"\r\nCLEAR-SITE-DATA: \"*\"\r\nTransfer-Encoding: chunked\r\nTrailer: Clear-Site-Data\r\n\r\n1\r\nx\r\n0\r\nClear-Site-Data: \"*\"\r\n\r\n")
		}
	}()
	w.mu.Lock()
	w.guests[w.targets["i1"].Addr.String()+":3000"] = l.Addr().String()
	w.mu.Unlock()
	for range 3 {
		resp, body := w.do(t, w.request(t, "GET", "/s/i1/3000/", "", nil))
		if body != "x" || resp.Header.Get("Clear-Site-Data") != "" || resp.Trailer.Get("Clear-Site-Data") != "" {
			t.Errorf("%q, %v, %v", body, resp.Header, resp.Trailer)
		}
	}
}

func FuzzBind(f *testing.F) {
	f.Add("a=1&cay-bound=1", "/x")
	f.Add("", "//evil.example/")
	f.Fuzz(func(t *testing.T, raw, path string) {
		u, err := url.ParseRequestURI("/s/i1/3000/" + strings.TrimPrefix(path, "/"))
		if err != nil {
			return
		}
		at := parsePath(u)
		u.RawQuery = raw
		r := at.inside(&http.Request{URL: u, Header: http.Header{"Sec-Fetch-Mode": {"navigate"}}})
		rw := &recorder{h: http.Header{}}
		if !bind(rw, r, at, "team") {
			t.Fatalf("%s is shown to a browser that is not bound", u)
		}
		if to := rw.h.Get("Location"); to != "" && !strings.HasPrefix(to, "/s/i1/3000/") {
			t.Errorf("%s leads to %s", u, to)
		}
	})
}

type recorder struct{ h http.Header }

func (r *recorder) Header() http.Header         { return r.h }
func (r *recorder) WriteHeader(int)             {}
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
