package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
)

// pathWorld is a world that offers the path form, with an app that tells what
// it sees.
func pathWorld(t *testing.T) *world {
	return newWorldWith(t, func(cfg *Config) { cfg.Paths, cfg.Domain = true, "" })
}

// tells answers with the path, the query and what a browser's headers were.
func tells(name string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s referer=%s cookie=%s prefix=%s", name, r.RequestURI, r.Referer(), r.Header.Get("Cookie"), r.Header.Get("X-Forwarded-Prefix"))
	})
}

// stay is a client that follows no redirect.
func stay(w *world) *http.Client {
	c := *w.front.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

func TestPathForm(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: tells("one"), 49983: tells("agent")})
	w.sandbox(t, "i2", nil, map[int]http.Handler{3000: tells("two")})
	page := w.front.URL + "/s/i1/3000/deep/page?x=1"
	opened := openedCookie + "=3000-i2-" + teamTag("")
	for _, tt := range []struct {
		name, method, path string
		header             map[string]string
		status             int
		want               string // body, or where to
	}{
		{"page", "GET", "/s/i1/3000/a%2Fb?q=1;2", nil, 200, "one /a%2Fb?q=1;2 referer= cookie= prefix=/s/i1/3000"},
		{"agent", "GET", "/s/i1/49983/health", nil, 200, "agent /health referer= cookie= prefix="},
		{"agent's internal routes", "POST", "/s/i1/49983/init", nil, 404, "reserved"},
		{"no slash", "GET", "/s/i1/3000?q", nil, 307, "/s/i1/3000/?q"},
		{"unknown sandbox", "GET", "/s/i9/3000/", nil, 502, "not found"},
		{"closed port", "GET", "/s/i1/3001/", nil, 502, "not open"},
		{"no port", "GET", "/s/i1/x/", nil, 400, "Invalid path"},
		{"odd port", "GET", "/s/i1/03000/", nil, 400, "Invalid path"},
		{"escaped prefix", "GET", "/%73/i1/3000/", nil, 200, "rest"},
		{"not it", "GET", "/sandboxes", nil, 200, "rest"},
		{"asset of the page", "GET", "/assets/a.js?v=2", map[string]string{"Referer": page}, 307, "/s/i1/3000/assets/a.js?v=2"},
		{"link of the page", "GET", "/about", map[string]string{"Referer": page, "Accept": "text/html"}, 307, "/s/i1/3000/about"},
		{"call of the page", "POST", "/sandboxes", map[string]string{"Referer": page}, 307, "/s/i1/3000/sandboxes"},
		{"page that says nothing", "GET", "/a.js", map[string]string{"Cookie": opened}, 200, "rest"},
		{"page with a path of its own", "GET", "/a.js", map[string]string{"Cookie": opened, "Referer": w.front.URL + "/items/3"}, 307, "/s/i2/3000/a.js"},
		{"page with a path of its own, where browsers say so", "POST", "/a", map[string]string{"Cookie": opened, "Referer": w.front.URL + "/items/3", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 307, "/s/i2/3000/a"},
		{"page of another port", "GET", "/a.js", map[string]string{"Cookie": opened, "Referer": "http://127.0.0.1:1/items/3"}, 200, "rest"},
		{"page of another port, where browsers say so", "GET", "/a.js", map[string]string{"Cookie": opened, "Referer": w.front.URL + "/x", "Sec-Fetch-Site": "same-site"}, 200, "rest"},
		{"referrer beats cookie", "GET", "/a.js", map[string]string{"Cookie": opened, "Referer": page}, 307, "/s/i1/3000/a.js"},
		{"page with a key means the API", "GET", "/sandboxes", map[string]string{"Cookie": opened, "Referer": page, "X-API-Key": "k"}, 200, "rest"},
		{"person means the server", "GET", "/", map[string]string{"Cookie": opened, "Accept": "text/html"}, 200, "rest"},
		{"person, where browsers say so", "GET", "/", map[string]string{"Cookie": opened, "Sec-Fetch-Mode": "navigate"}, 200, "rest"},
		{"another address's page", "GET", "/a.js", map[string]string{"Referer": "http://192.0.2.1/s/i1/3000/"}, 200, "rest"},
		{"frame of a page that says nothing", "GET", "/f", map[string]string{"Cookie": opened, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 200, "rest"},
		{"frame of a page with a path of its own", "GET", "/f", map[string]string{"Cookie": opened, "Referer": w.front.URL + "/x", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 307, "/s/i2/3000/f"},
		{"own referrer", "GET", "/s/i1/3000/b", map[string]string{"Referer": page}, 200, "one /b referer=" + w.front.URL + "/deep/page?x=1 cookie="},
		{"another sandbox's referrer", "GET", "/s/i2/3000/b", map[string]string{"Referer": page}, 200, "two /b referer= cookie="},
		{"own cookies stay", "GET", "/s/i1/3000/", map[string]string{"Cookie": "a=1; " + openedCookie + "=3000-i1-" + teamTag("") + "; b=2"}, 200, "one / referer= cookie=a=1; b=2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := w.request(t, tt.method, tt.path, "", nil)
			for k, v := range tt.header {
				req.Header.Set(k, v)
			}
			resp, err := stay(w).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			got := string(body)
			if resp.StatusCode == 307 {
				got = resp.Header.Get("Location")
			}
			if resp.StatusCode != tt.status || !strings.HasPrefix(got, tt.want) && !(tt.status >= 400 && strings.Contains(got, tt.want)) {
				t.Errorf("got %d %s, want %d %s", resp.StatusCode, got, tt.status, tt.want)
			}
		})
	}
}

// A guest's cookies and redirects stay below its prefix.
func TestPathFormAnswers(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		h.Add("Set-Cookie", "a=1")
		h.Add("Set-Cookie", "b=2; Path=/app; Domain=localhost; HttpOnly")
		h.Add("Set-Cookie", "c=3; path=/s/i1/3000/x")
		h.Add("Set-Cookie", openedCookie+"=3000-i2-x")
		h.Set("Service-Worker-Allowed", "/")
		h.Set("Location", r.URL.Query().Get("to"))
		rw.WriteHeader(302)
	})})
	for to, want := range map[string]string{
		"/login?x=1":                        "/s/i1/3000/login?x=1",
		"next":                              "next",
		"/s/i1/3000/there":                  "/s/i1/3000/there",
		"/s/i1/30001":                       "/s/i1/3000/s/i1/30001",
		"http://localhost:3000/a?b#c":       "/s/i1/3000/a?b#c",
		"http://127.0.0.1:3000":             "/s/i1/3000/",
		w.front.URL + "/y":                  "/s/i1/3000/y",
		"https://example.com/":              "https://example.com/",
		"//example.com/":                    "//example.com/",
		"http://localhost:4000/":            "http://localhost:4000/",
		"http://localhost:3000//evil.com/x": "/s/i1/3000//evil.com/x",
	} {
		req := w.request(t, "GET", "/s/i1/3000/?to="+url.QueryEscape(to), "", nil)
		req.Header.Set("Accept", "text/html")
		resp, err := stay(w).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Location"); got != want {
			t.Errorf("to %s: %s, want %s", to, got, want)
		}
		cookies := strings.Join(resp.Header["Set-Cookie"], "\n")
		want := "a=1; Path=/s/i1/3000/\nb=2; HttpOnly; Path=/s/i1/3000/app\nc=3; Path=/s/i1/3000/x\n" +
			"cay_twin_3000-i1_a=1; Path=/; HttpOnly; SameSite=Strict\n" +
			openedCookie + "=3000-i1-" + teamTag("") + "; Path=/; Max-Age=34560000; HttpOnly; SameSite=Lax"
		if cookies != want || resp.Header.Get("Service-Worker-Allowed") != "" {
			t.Errorf("headers %v", resp.Header)
		}
	}
	// With a host of its own a guest keeps its paths, and its cookies to itself.
	resp, err := stay(w).Do(w.request(t, "GET", "/?to=/login", "3000-i1.localhost", nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header["Set-Cookie"]; resp.Header.Get("Location") != "/login" || len(got) != 3 || got[1] != "b=2; HttpOnly; Path=/app" {
		t.Errorf("by host: %v", resp.Header)
	}
}

// A page's websocket to a path of its own says nothing but cookies.
func TestPathFormWebsocket(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		_ = c.Write(r.Context(), websocket.MessageText, []byte(r.RequestURI))
		_, _, _ = c.Read(r.Context())
	})})
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for path, want := range map[string]string{"/?token=1": "/?token=1", "/s/i1/3000/hmr": "/hmr"} {
		c, _, err := websocket.Dial(ctx, w.front.URL+path, &websocket.DialOptions{
			HTTPClient: client(t, false),
			HTTPHeader: http.Header{"Cookie": {openedCookie + "=3000-i1-" + teamTag("")}, "Origin": {w.front.URL}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != want {
			t.Errorf("%s: %s, %v", path, b, err)
		}
		c.CloseNow()
	}
}

// Sandboxes of several teams at one address would be one origin in a browser.
func TestPathFormTeams(t *testing.T) {
	w := pathWorld(t)
	for id, team := range map[cay.SandboxID]cay.TeamID{"i1": "ours", "i2": "theirs"} {
		w.sandbox(t, id, func(tg *Target) { tg.Team = team }, map[int]http.Handler{3000: says("app of " + string(team))})
	}
	opened := func(path string, cookies ...string) (int, string) {
		req := w.request(t, "GET", path, "", nil)
		req.Header.Set("Accept", "text/html")
		req.Header.Set("User-Agent", "Mozilla/5.0")
		for _, c := range cookies {
			req.Header.Add("Cookie", c)
		}
		resp, body := w.do(t, req)
		return resp.StatusCode, body
	}
	bound := teamCookie + teamTag("ours") + "=1"
	ours := openedCookie + "=3000-i1-" + teamTag("ours") + "; " + bound
	theirs := openedCookie + "=3000-i2-" + teamTag("theirs")
	if code, body := opened("/s/i1/3000/", ours); code != 200 {
		t.Errorf("our own: %d %s", code, body)
	}
	if code, body := opened("/s/i2/3000/", ours); code != 403 || !strings.Contains(body, "private window") {
		t.Errorf("another team's: %d %s", code, body)
	}
	if code, body := opened("/s/i2/3000/", bound); code != 403 || !strings.Contains(body, "private window") {
		t.Errorf("another team's, before ours was shown: %d %s", code, body)
	}
	if code, body := opened("/s/i2/3000/", theirs, ours); code != 403 {
		t.Errorf("with a cookie that a page added: %d %s", code, body)
	}
	if code, body := opened("/", "a=1"); code != 200 || body != "rest" {
		t.Errorf("the server: %d %s", code, body)
	}
}

// A person opens a private sandbox with its token in the address, once.
func TestTokenInTheAddress(t *testing.T) {
	w := pathWorld(t)
	w.sandbox(t, "i1", func(tg *Target) { tg.Public, tg.TrafficToken = false, "secret" }, map[int]http.Handler{3000: tells("app")})
	for _, tt := range []struct{ host, path, back string }{
		{"", "/s/i1/3000/x?a=1&" + trafficToken + "=secret&b=2", "/s/i1/3000/x?a=1&b=2"},
		{"3000-i1.localhost", "//evil.com?" + trafficToken + "=secret", "/evil.com"},
	} {
		resp, err := stay(w).Do(w.request(t, "GET", tt.path, tt.host, nil))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 303 || resp.Header.Get("Location") != tt.back || len(resp.Cookies()) != 1 || !resp.Cookies()[0].HttpOnly {
			t.Fatalf("%s: %d %v", tt.path, resp.StatusCode, resp.Header)
		}
		if strings.Contains(fmt.Sprint(resp.Header), "secret") {
			t.Error("the token is told again")
		}
		req := w.request(t, "GET", tt.back, tt.host, nil)
		req.AddCookie(resp.Cookies()[0])
		if resp, body := w.do(t, req); resp.StatusCode != 200 || !strings.Contains(body, "cookie= ") {
			t.Errorf("with the cookie: %d %s", resp.StatusCode, body)
		}
	}
	if resp, body := w.do(t, w.request(t, "GET", "/s/i1/3000/?"+trafficToken+"=no", "", nil)); resp.StatusCode != 403 || !strings.Contains(body, "is invalid") {
		t.Errorf("a wrong token: %d %s", resp.StatusCode, body)
	}
	if resp, body := w.do(t, w.request(t, "POST", "/s/i1/3000/?a&"+trafficToken+"=secret", "", nil)); resp.StatusCode != 200 || strings.Contains(body, "secret") {
		t.Errorf("what cannot be redirected: %d %s", resp.StatusCode, body)
	}
}

// Where sandboxes have hosts the path form leads there.
func TestPathFormWithDomain(t *testing.T) {
	w := newWorld(t)
	w.cfg.Domain = "example.com:8443"
	for path, want := range map[string]string{
		"/s/i1/3000":         "//3000-i1.example.com:8443/",
		"/s/i1/3000/a%2F?q=": "//3000-i1.example.com:8443/a%2F?q=",
	} {
		resp, err := stay(w).Do(w.request(t, "GET", path, "", nil))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Location"); resp.StatusCode != 307 || got != want {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, got, want)
		}
	}
	w.cfg.Domain = ""
	if _, body := w.do(t, w.request(t, "GET", "/s/i1/3000/", "", nil)); body != "rest" {
		t.Errorf("where it is not offered: %s", body)
	}
}

func FuzzPathForm(f *testing.F) {
	f.Add("/s/i1/3000/a?b", "http://localhost:3000/x", "a=1; Path=/; Domain=x", "http://h/s/i1/3000/y")
	f.Add("/s/i1/3000", "//evil", "cay_opened=1", "")
	f.Add("/s/i1/3000/%2e%2e/", "/s/i1/3000x", ";;=;path", "http://h/s/i2/1/")
	f.Fuzz(func(t *testing.T, path, location, cookie, from string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		at := parsePath(u)
		if at.verdict != ours {
			return
		}
		if !cay.ValidID(string(at.id)) || at.port < 1 || at.port > 65535 {
			t.Fatalf("parsePath(%q) = %+v", path, at)
		}
		if at.moved != "" {
			if !strings.HasPrefix(at.moved, at.prefix+"/") {
				t.Errorf("%q is moved to %q", path, at.moved)
			}
			return
		}
		in := at.inside(&http.Request{URL: u})
		if !strings.HasPrefix(in.URL.EscapedPath(), "/") || at.prefix+in.URL.EscapedPath() != u.EscapedPath() {
			t.Errorf("inside(%q) = %q", path, in.URL.EscapedPath())
		}
		to := relocate(location, "h", at)
		if strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "//") && to != at.prefix && !strings.HasPrefix(to, at.prefix+"/") {
			t.Errorf("relocate(%q) = %q", location, to)
		}
		if line := dressCookie(cookie, at.prefix); strings.HasPrefix(line, ownCookies) || line != "" && !strings.Contains(line, " Path="+at.prefix) {
			t.Errorf("dressCookie(%q) = %q", cookie, line)
		}
		if seen := reference(from, at); strings.Contains(seen, pathRoot) && strings.Contains(seen, at.prefix+"/") && !strings.Contains(from, at.prefix+at.prefix) {
			u, err := url.Parse(seen)
			if err == nil && strings.HasPrefix(u.Path, at.prefix+"/") {
				t.Errorf("reference(%q) = %q", from, seen)
			}
		}
		withoutOwn(cookie)
		withoutToken(from)
	})
}
