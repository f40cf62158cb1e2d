package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var page = fstest.MapFS{
	"index.html":        {Data: []byte("<!doctype html><head>the page")},
	"assets/a-1.js":     {Data: []byte("script")},
	"assets/a-1.js.gz":  {Data: packed("script")},
	"assets/secret.key": {Data: []byte("x")},
}

func packed(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.Bytes()
}

// guest answers as badly as a guest can.
func guest(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html")
	h.Set("Set-Cookie", "a=b")
	h.Set("Clear-Site-Data", `"*"`)
	h.Set("Content-Security-Policy", "default-src *")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Service-Worker-Allowed", "/")
	h.Set("Strict-Transport-Security", "max-age=1")
	h.Set("Location", "https://evil.example")
	h.Set("Refresh", "0;url=https://evil.example")
	h.Set("Www-Authenticate", "Basic")
	h.Set("Link", "</x.js>; rel=preload")
	w.WriteHeader(http.StatusEarlyHints)
	for name := range r.Header {
		if slices.Contains([]string{"Authorization", "Cookie", "X-Api-Key", "X-Team-Id", "X-Admin-Token"}, name) {
			io.WriteString(w, name+"="+r.Header.Get(name)+"\n")
		}
	}
	io.WriteString(w, "<script>guest</script>")
}

func served(t *testing.T, here func(net.Addr) bool) *httptest.Server {
	t.Helper()
	c := New(Config{
		Page: page, API: http.HandlerFunc(guest), Agents: http.HandlerFunc(guest), Domain: "cay.example:8443", Here: here,
		Ways: func() []string { return []string{"http://console.localhost:7070"} }, Ports: func(*http.Request, bool) string { return "http://{port}-{sandbox}/" },
	})
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	s := httptest.NewServer(c.Wrap(c.Elsewhere(next)))
	t.Cleanup(s.Close)
	return s
}

func ask(t *testing.T, s *httptest.Server, method, host, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	tr := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// The console answers at its own names alone, and says elsewhere where it is.
func TestNames(t *testing.T) {
	s := served(t, nil)
	for host, ours := range map[string]bool{
		"console.localhost": true, "console.localhost:7070": true, "CONSOLE.localhost.": true, "console.cay.example": true, "console.cay.example:8443": true,
		"localhost": false, "console.evil.example": false, "console.localhost.evil.example": false, "8000-i1.localhost": false, "xconsole.localhost": false, "127.0.0.1": false,
		"console.cay.example.evil": false, "cay.example": false,
	} {
		resp, text := ask(t, s, "GET", host, "/sandboxes")
		if (resp.StatusCode == http.StatusOK && strings.Contains(text, "the page")) != ours {
			t.Errorf("%s: %d %s", host, resp.StatusCode, text)
		}
	}
	if resp, text := ask(t, s, "GET", "localhost", "/", "Accept", "text/html"); resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "http://console.localhost:7070") {
		t.Errorf("elsewhere: %d %s", resp.StatusCode, text)
	}
	if resp, _ := ask(t, s, "GET", "localhost", "/", "Accept", "application/json"); resp.StatusCode != http.StatusTeapot {
		t.Errorf("a program elsewhere: %d", resp.StatusCode)
	}
	own := served(t, func(net.Addr) bool { return true })
	if resp, text := ask(t, own, "GET", "8000-i1.localhost", "/"); resp.StatusCode != http.StatusOK || !strings.Contains(text, "the page") {
		t.Errorf("where the console alone listens, another name: %d %s", resp.StatusCode, text)
	}
}

func TestPartsOfThePage(t *testing.T) {
	s := served(t, nil)
	for _, tc := range []struct {
		path, accept string
		status       int
		kind, cache  string
		coding       string
	}{
		{"/", "", 200, "text/html; charset=utf-8", "no-cache", ""},
		{"/sandboxes/i1/terminal", "gzip", 200, "text/html; charset=utf-8", "no-cache", ""},
		{"/assets/a-1.js", "br, gzip;q=1", 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "gzip"},
		{"/assets/a-1.js", "", 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", ""},
		{"/assets/a-1.js.gz", "", 404, "text/plain; charset=utf-8", "", ""},
		{"/assets/gone.js", "", 404, "text/plain; charset=utf-8", "", ""},
		{"/assets/../../../etc/passwd", "", 200, "text/html; charset=utf-8", "no-cache", ""},
		{"/assets/%2e%2e/index.html", "", 200, "text/html; charset=utf-8", "no-cache", ""},
	} {
		resp, _ := ask(t, s, "GET", LocalName, tc.path, "Accept-Encoding", tc.accept)
		h := resp.Header
		if resp.StatusCode == http.StatusMovedPermanently || resp.StatusCode == http.StatusTemporaryRedirect { // a cleaned path
			continue
		}
		if resp.StatusCode != tc.status || h.Get("Content-Type") != tc.kind || tc.cache != "" && h.Get("Cache-Control") != tc.cache || h.Get("Content-Encoding") != tc.coding {
			t.Errorf("%s: %d %v", tc.path, resp.StatusCode, h)
		}
		if h.Get("Content-Security-Policy") != policy || h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s is not guarded: %v", tc.path, h)
		}
	}
	if resp, _ := ask(t, s, "POST", LocalName, "/"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a post to the page: %d", resp.StatusCode)
	}
}

// An answer of a guest is bytes for the page's scripts and nothing else.
func TestAnswersAreInert(t *testing.T) {
	s := served(t, nil)
	for _, path := range []string{"/api/x", "/agent/files?path=/x"} {
		resp, text := ask(t, s, "GET", LocalName, path, "Authorization", "Basic dXNlcjo=")
		for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Access-Control-Allow-Origin", "Service-Worker-Allowed", "Strict-Transport-Security", "Location", "Refresh", "Www-Authenticate", "Link"} {
			if resp.Header.Get(name) != "" {
				t.Errorf("%s has %s: %s", path, name, resp.Header.Get(name))
			}
		}
		if csp := resp.Header.Values("Content-Security-Policy"); len(csp) != 1 || csp[0] != inertPolicy || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, resp.Header)
		}
		if !strings.Contains(text, "guest") {
			t.Errorf("%s: %s", path, text)
		}
		for name, value := range map[string]string{"Sec-Fetch-Dest": "document"} {
			if resp, _ := ask(t, s, "GET", LocalName, path, name, value); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s as a %s: %d", path, value, resp.StatusCode)
			}
		}
		for _, dest := range []string{"document", "iframe", "script", "style", "image", "worker", "serviceworker", "object"} {
			if resp, _ := ask(t, s, "GET", LocalName, path, "Sec-Fetch-Dest", dest); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s as a %s: %d", path, dest, resp.StatusCode)
			}
		}
		for _, site := range []string{"cross-site", "same-site"} {
			if resp, _ := ask(t, s, "POST", LocalName, path, "Sec-Fetch-Site", site); resp.StatusCode != http.StatusForbidden {
				t.Errorf("a post to %s from a page that is %s: %d", path, site, resp.StatusCode)
			}
		}
		if resp, _ := ask(t, s, "OPTIONS", LocalName, path, "Origin", "http://evil.example", "Access-Control-Request-Method", "GET"); resp.StatusCode != http.StatusForbidden || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("a preflight of %s: %d", path, resp.StatusCode)
		}
	}
	_, text := ask(t, s, "GET", LocalName, "/agent/x", "Authorization", "Basic dXNlcjo=", "Cookie", "a=b", "X-API-Key", "k", "X-Team-ID", "t", "X-Admin-Token", "a")
	if !strings.Contains(text, "Authorization=Basic dXNlcjo=") || strings.Contains(text, "Cookie") || strings.Contains(text, "X-") {
		t.Errorf("a guest was given %s", text)
	}
	for _, secret := range []string{"Bearer cay_session_x", "bearer e2b_x", "Bearer"} {
		if resp, text := ask(t, s, "GET", LocalName, "/agent/x", "Authorization", secret); resp.StatusCode != http.StatusBadRequest || strings.Contains(text, "guest>") {
			t.Errorf("a guest was given %s: %d", secret, resp.StatusCode)
		}
	}
}

// A browser that another page sends to log in is asked first.
func TestLinksOfOthersAreAskedAbout(t *testing.T) {
	s := served(t, nil)
	for site, asks := range map[string]bool{"": false, "none": false, "same-origin": false, "same-site": true, "cross-site": true} {
		_, text := ask(t, s, "GET", LocalName, "/login", "Sec-Fetch-Site", site, "Accept-Encoding", "gzip")
		if strings.Contains(text, `<meta name="cay-link"`) != asks {
			t.Errorf("from %q: %s", site, text)
		}
	}
}

func TestWithoutThePage(t *testing.T) {
	c := New(Config{Page: fstest.MapFS{"README": {Data: []byte("x")}}, API: http.HandlerFunc(guest), Agents: http.HandlerFunc(guest), Ports: func(*http.Request, bool) string { return "" }})
	s := httptest.NewServer(c.Wrap(http.NotFoundHandler()))
	defer s.Close()
	if resp, text := ask(t, s, "GET", LocalName, "/sandboxes"); resp.StatusCode != http.StatusNotImplemented || !strings.Contains(text, "make console build") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// Bytes that the page may take, packed.
const (
	mostScript = 60 << 10 // of the first load
	mostStyle  = 15 << 10
	mostAll    = 1200 << 10
)

// TestBudget holds the page to the bytes that it may take.
func TestBudget(t *testing.T) {
	page := Page()
	html, err := fs.ReadFile(page, "index.html")
	if err != nil {
		t.Skip("NOT TESTED HERE: the console's page is not built (make console)")
	}
	size := func(name string) int {
		text, err := fs.ReadFile(page, name+".gz")
		if err != nil {
			t.Fatalf("%s has no packed copy: %v", name, err)
		}
		return len(text)
	}
	script, style := 0, 0
	for _, m := range regexp.MustCompile(`(?:src|href)="/(assets/[^"]+)"`).FindAllStringSubmatch(string(html), -1) {
		switch {
		case strings.HasSuffix(m[1], ".js"):
			script += size(m[1])
		case strings.HasSuffix(m[1], ".css"):
			style += size(m[1])
		}
	}
	if script == 0 || script > mostScript || style == 0 || style > mostStyle {
		t.Errorf("the first load has %d bytes of script, of %d, and %d of style, of %d", script, mostScript, style, mostStyle)
	}
	if strings.Contains(string(html), "<script>") || strings.Contains(string(html), "://") {
		t.Errorf("the page has a script in itself, or loads from elsewhere: %s", html)
	}
	all := 0
	err = fs.WalkDir(page, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".gz") {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all += int(info.Size())
		}
		return err
	})
	if err != nil || all > mostAll {
		t.Errorf("the page has %d bytes, of %d: %v", all, mostAll, err)
	}
	t.Logf("packed: script of the first load %d, style %d, all %d bytes", script, style, all)
}
