package pkgcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/blake2b"
)

// upstream is an index of packages that a test makes. It answers for every
// name, in the clear.
type upstream struct {
	*httptest.Server
	mux  *http.ServeMux
	asks atomic.Int64
	gone atomic.Bool
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{mux: http.NewServeMux()}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.asks.Add(1)
		u.mux.ServeHTTP(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if u.gone.Load() {
		return nil, errors.New("no network")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", u.Listener.Addr().String())
}

// lose cuts the upstream off.
func (u *upstream) lose(c *Cache) {
	u.gone.Store(true)
	c.direct.CloseIdleConnections()
}

func (u *upstream) text(path, etag, body string) {
	u.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", etag)
		w.Header().Set("Content-Type", "text/plain")
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, body)
	})
}

func openCache(t *testing.T, u *upstream, dir string, limit int64, hosts ...Host) *Cache {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []Host{{Name: "pypi.org"}, {Name: "files.pythonhosted.org"}, {Name: "registry.npmjs.org"}, {Name: "deb.debian.org"}, {Name: "images.lan"}}
	}
	c, err := Open(Config{Dir: dir, Limit: limit, Hosts: hosts, Dial: u.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// front is what a sandbox reaches.
func front(t *testing.T, c *Cache) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.Has(r.Host) {
			t.Errorf("a request for %s came this far", r.Host)
		}
		c.Serve(w, r, "http", r.Host)
	}))
	t.Cleanup(s.Close)
	return s
}

type answer struct {
	status int
	how    string // hit, miss, stale
	body   string
	err    error
	header http.Header
}

func get(t *testing.T, s *httptest.Server, method, host, path string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(method, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("X-Cay-Cache"), string(body), err, resp.Header}
}

func want(t *testing.T, a answer, status int, how, body string) {
	t.Helper()
	if a.err != nil || a.status != status || a.how != how || a.body != body {
		t.Fatalf("got %d %q %.80q (%v), want %d %q %.80q", a.status, a.how, a.body, a.err, status, how, body)
	}
}

// pypiFile is a path under which PyPI would serve a content.
func pypiFile(name, content string) string {
	sum := blake2b.Sum256([]byte(content))
	d := hex.EncodeToString(sum[:])
	return fmt.Sprintf("/packages/%s/%s/%s/%s", d[:2], d[2:4], d[4:], name)
}

func TestWhatWasInstalledOnceInstallsWithoutANetwork(t *testing.T) {
	u := newUpstream(t)
	wheel := pypiFile("small-1.0-py3-none-any.whl", "a wheel")
	deb := fmt.Sprintf("/debian/by-hash/SHA256/%x", sha256.Sum256([]byte("an index")))
	blob := fmt.Sprintf("/v2/team/app/blobs/sha256:%x", sha256.Sum256([]byte("a layer")))
	u.text("/v2/team/app/manifests/1", `"m"`, "a manifest")
	u.text(blob, `"l"`, "a layer")
	u.text("/simple/small/", `"1"`, "links")
	u.text(wheel, `"w"`, "a wheel")
	u.text("/left-pad", `"2"`, "{}")
	u.text("/left-pad/-/left-pad-1.3.0.tgz", `"t"`, "a tarball")
	u.text("/debian/dists/stable/InRelease", `"3"`, "signed")
	u.text(deb, `"b"`, "an index")
	dir := t.TempDir()
	c := openCache(t, u, dir, 1<<20)
	s := front(t, c)
	all := []struct{ host, path, body, later string }{
		{"pypi.org", "/simple/small/", "links", "stale"},
		{"files.pythonhosted.org", wheel, "a wheel", "hit"},
		{"registry.npmjs.org", "/left-pad", "{}", "stale"},
		{"registry.npmjs.org", "/left-pad/-/left-pad-1.3.0.tgz", "a tarball", "stale"},
		{"deb.debian.org", "/debian/dists/stable/InRelease", "signed", "stale"},
		{"deb.debian.org", deb, "an index", "hit"},
		{"images.lan", "/v2/team/app/manifests/1", "a manifest", "stale"},
		{"images.lan", blob, "a layer", "hit"},
	}
	for _, x := range all {
		want(t, get(t, s, "GET", x.host, x.path), 200, "miss", x.body)
	}
	asked := u.asks.Load()
	for _, x := range all {
		want(t, get(t, s, "GET", x.host, x.path), 200, "hit", x.body)
	}
	if n := u.asks.Load() - asked; n != 5 {
		t.Errorf("the second time %d requests reached the upstream, want 5: pages are asked about, and what has no digest and came in the clear", n)
	}

	u.lose(c)
	for _, x := range all {
		later := x.later
		if strings.HasSuffix(x.path, ".tgz") {
			later = "hit" // its host said a second time that it is right
		}
		want(t, get(t, s, "GET", x.host, x.path), 200, later, x.body)
	}
	if a := get(t, s, "GET", "pypi.org", "/simple/other/"); a.status != http.StatusGatewayTimeout {
		t.Errorf("what was never fetched: %d, want 504", a.status)
	}

	c.Close() // and after a restart
	c = openCache(t, u, dir, 1<<20)
	s = front(t, c)
	for _, x := range all {
		want(t, get(t, s, "GET", x.host, x.path), 200, x.later, x.body)
	}
	if files, _, err := c.Clear(); err != nil || files != len(all) {
		t.Errorf("Clear = %d, %v, want %d", files, err, len(all))
	}
	if a := get(t, s, "GET", "files.pythonhosted.org", wheel); a.status != http.StatusGatewayTimeout {
		t.Errorf("after Clear: %d, want 504", a.status)
	}
}

func TestAHundredAtOnceAreOneFetchThatStreams(t *testing.T) {
	u := newUpstream(t)
	half := strings.Repeat("x", 300_000)
	wheel := pypiFile("big-1.0-py3-none-any.whl", half+half)
	goOn := make(chan struct{})
	u.mux.HandleFunc("GET "+wheel, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "600000")
		_, _ = io.WriteString(w, half)
		w.(http.Flusher).Flush()
		<-goOn
		_, _ = io.WriteString(w, half)
	})
	c := openCache(t, u, t.TempDir(), 8<<20)
	s := front(t, c)
	var all, begun sync.WaitGroup
	for range 100 {
		begun.Add(1)
		all.Go(func() {
			req, _ := http.NewRequest("GET", s.URL+wheel, nil)
			req.Host = "files.pythonhosted.org"
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				begun.Done()
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			first := make([]byte, 200_000)
			_, err = io.ReadFull(resp.Body, first) // before the upstream has sent all
			begun.Done()
			if err != nil {
				t.Error(err)
				return
			}
			rest, err := io.ReadAll(resp.Body)
			if err != nil || len(rest) != 400_000 {
				t.Errorf("%d more bytes, %v", len(rest), err)
			}
		})
	}
	begun.Wait()
	close(goOn)
	all.Wait()
	if n := u.asks.Load(); n != 1 {
		t.Errorf("the upstream was asked %d times, want once", n)
	}
	a := get(t, s, "GET", "files.pythonhosted.org", wheel, "Range", "bytes=299999-300000")
	want(t, a, http.StatusPartialContent, "hit", "xx")
}

func TestWhatIsNotWholeIsNotKept(t *testing.T) {
	u := newUpstream(t)
	wrong := pypiFile("a-1.0-py3-none-any.whl", "another content")
	hash := fmt.Sprintf("/debian/by-hash/SHA256/%x", sha256.Sum256([]byte("another")))
	u.text(wrong, `"1"`, "poison")
	u.text(hash, `"1"`, "poison")
	blob := fmt.Sprintf("/v2/team/app/blobs/sha256:%x", sha256.Sum256([]byte("another")))
	u.text(blob, `"1"`, "poison")
	short := "/debian/pool/b_1.0_amd64.deb"
	u.mux.HandleFunc("GET "+short, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "short")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	dir := t.TempDir()
	c := openCache(t, u, dir, 1<<20)
	s := front(t, c)
	for _, x := range [][2]string{{"files.pythonhosted.org", wrong}, {"deb.debian.org", hash}, {"images.lan", blob}, {"deb.debian.org", short}} {
		if a := get(t, s, "GET", x[0], x[1]); a.err == nil {
			t.Errorf("%s came whole: %d %q", x[1], a.status, a.body)
		}
	}
	c.Close()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
}

// A file that came in the clear without a digest in its path may have been
// damaged on its way, and only the client can tell.
func TestAFileThatMayBeDamagedIsAskedAboutOnceMore(t *testing.T) {
	u := newUpstream(t)
	const host, deb = "deb.debian.org", "/debian/pool/a_1.0_amd64.deb"
	content, status := "a portal's page", http.StatusOK
	u.mux.HandleFunc("GET "+deb, func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(content)))
		w.Header().Set("Etag", tag)
		w.Header().Set("Cache-Control", "max-age=1000")
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, content)
	})
	c := openCache(t, u, t.TempDir(), 1<<20)
	s := front(t, c)
	want(t, get(t, s, "GET", host, deb), 200, "miss", "a portal's page")
	content = "the package"
	want(t, get(t, s, "GET", host, deb), 200, "miss", "the package")
	want(t, get(t, s, "GET", host, deb), 200, "hit", "the package")
	asked := u.asks.Load()
	content = "a portal's page" // again; a file that was asked about twice is safe from it
	want(t, get(t, s, "GET", host, deb), 200, "hit", "the package")
	if u.asks.Load() != asked {
		t.Error("a file that is known to be right was asked about")
	}

	// A client that sees the damage says so, and all clients get the new file.
	content = "the very package"
	want(t, get(t, s, "GET", host, deb, "Cache-Control", "no-cache"), 200, "miss", "the very package")
	want(t, get(t, s, "GET", host, deb), 200, "hit", "the very package")
	content, status = "gone", http.StatusNotFound
	want(t, get(t, s, "GET", host, deb, "Cache-Control", "no-cache"), 200, "stale", "the very package")
	u.lose(c)
	want(t, get(t, s, "GET", host, deb, "Cache-Control", "no-cache"), 200, "stale", "the very package")
}

// Some hosts give neither ETag nor date: an answer that they repeat is right.
func TestAFileThatCameTwiceTheSameIsKept(t *testing.T) {
	u := newUpstream(t)
	const host = "deb.debian.org"
	for _, size := range []int{0, 1, piece - 1, piece, piece + 1, 3 * piece} {
		deb := fmt.Sprintf("/debian/pool/a_%d_amd64.deb", size)
		content := strings.Repeat("x", size)
		u.mux.HandleFunc("GET "+deb, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) })
		c := openCache(t, u, t.TempDir(), 8<<20)
		s := front(t, c)
		if size > 0 {
			good := content
			content = good[:size-1] + "y"
			want(t, get(t, s, "GET", host, deb), 200, "miss", content)
			content = good
		}
		want(t, get(t, s, "GET", host, deb), 200, "miss", content)
		want(t, get(t, s, "GET", host, deb), 200, "miss", content)
		want(t, get(t, s, "GET", host, deb), 200, "hit", content)
	}
}

// A connection that breaks in the middle of an answer without a length looks
// like its end.
func TestWhatEndsAnywhereIsNotKept(t *testing.T) {
	u := newUpstream(t)
	for _, path := range []string{"/page", "/debian/pool/a_1.0_amd64.deb"} {
		u.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nEtag: \"1\"\r\nConnection: close\r\n\r\nhalf")
		})
	}
	c := openCache(t, u, t.TempDir(), 1<<20)
	s := front(t, c)
	for _, path := range []string{"/page", "/debian/pool/a_1.0_amd64.deb"} {
		want(t, get(t, s, "GET", "deb.debian.org", path), 200, "", "half")
	}
	if st := c.Stats(); st.Files != 0 {
		t.Errorf("%+v", st)
	}
}

func TestOnlyWhatAnybodyGetsIsKept(t *testing.T) {
	u := newUpstream(t)
	u.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %v", r.Method, r.Host, r.Header.Get("Authorization"), r.URL.RawQuery)
	})
	u.mux.HandleFunc("/private", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "private")
		_, _ = io.WriteString(w, "mine")
	})
	u.mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
	})
	c := openCache(t, u, t.TempDir(), 1<<20)
	s := front(t, c)
	const host = "registry.npmjs.org"
	want(t, get(t, s, "POST", host, "/-/audit"), 200, "", "POST "+host+"  ")
	want(t, get(t, s, "GET", host, "/pkg", "Authorization", "Bearer t"), 200, "", "GET "+host+" Bearer t ")
	want(t, get(t, s, "GET", host, "/pkg?q=1"), 200, "", "GET "+host+"  q=1")
	want(t, get(t, s, "GET", host, "/private"), 200, "", "mine")
	if a := get(t, s, "GET", host, "/elsewhere"); a.status != http.StatusFound || a.header.Get("Location") != "http://169.254.169.254/" {
		t.Errorf("a redirection: %d to %s; it is the client's to follow", a.status, a.header.Get("Location"))
	}
	if st := c.Stats(); st.Files != 0 || st.Hits+st.Misses != 0 || st.Passed != 5 {
		t.Errorf("%+v", st)
	}
	want(t, get(t, s, "GET", host, "/pkg"), 200, "miss", "GET "+host+"  ")
}

func TestNoGuestDecidesWhatAnotherGets(t *testing.T) {
	u := newUpstream(t)
	u.mux.HandleFunc("/page", func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			switch name {
			case "Accept", "Accept-Encoding", "User-Agent":
			default:
				t.Errorf("the header %s reached the upstream", name)
			}
		}
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "%s for %s", r.Header.Get("Accept"), r.Host)
	})
	c := openCache(t, u, t.TempDir(), 1<<20)
	s := front(t, c)
	evil := []string{"X-Forwarded-Host", "evil", "X-Original-Url", "/other", "Range", "bytes=0-0", "If-None-Match", `"x"`, "Accept", "text/evil"}
	want(t, get(t, s, "GET", "pypi.org", "/page", evil...), 200, "miss", "text/evil for pypi.org")
	want(t, get(t, s, "GET", "pypi.org", "/page", "Accept", "text/html"), 200, "miss", "text/html for pypi.org")
	want(t, get(t, s, "GET", "deb.debian.org", "/page", "Accept", "text/html"), 200, "miss", "text/html for deb.debian.org")
	want(t, get(t, s, "GET", "pypi.org", "/page", "Accept", "text/html"), 200, "hit", "text/html for pypi.org")
}

func TestTheDiskIsBounded(t *testing.T) {
	u := newUpstream(t)
	body := bytes.Repeat([]byte("x"), 10_000)
	u.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		times := 1
		w.Header().Set("Etag", `"e"`)
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if r.URL.Path == "/large.deb" {
			times = 6
		}
		w.Header().Set("Content-Length", fmt.Sprint(times*len(body)))
		_, _ = w.Write(bytes.Repeat(body, times))
	})
	dir := t.TempDir()
	c := openCache(t, u, dir, 100_000)
	s := front(t, c)
	path := func(i int) string { return fmt.Sprintf("/pool/p_%d.deb", i) }
	for i := range 30 {
		want(t, get(t, s, "GET", "deb.debian.org", path(i)), 200, "miss", string(body))
		want(t, get(t, s, "GET", "deb.debian.org", path(0)), 200, "hit", string(body)) // used, so it stays
	}
	if a := get(t, s, "GET", "deb.debian.org", "/large.deb"); a.err != nil || len(a.body) != 60_000 || a.how != "" {
		t.Errorf("a file that is too large: %d bytes, %q, %v; it is passed on", len(a.body), a.how, a.err)
	}
	var bytes int64
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			bytes += info.Size()
		}
	}
	if st := c.Stats(); bytes > 100_000 || st.Bytes != bytes || st.Files != len(files) || st.Files < 8 {
		t.Errorf("%d files of %d bytes on the disk, %+v", len(files), bytes, st)
	}
	want(t, get(t, s, "GET", "deb.debian.org", path(1)), 200, "miss", string(body))
}

func TestPagesOfUnknownLength(t *testing.T) {
	u := newUpstream(t)
	page := strings.Repeat("y", 3<<20)
	u.mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, page)
	})
	c := openCache(t, u, t.TempDir(), 64<<20)
	s := front(t, c)
	want(t, get(t, s, "GET", "pypi.org", "/long"), 200, "miss", page)
	u.lose(c)
	want(t, get(t, s, "GET", "pypi.org", "/long"), 200, "stale", page)
	if st := c.Stats(); c.store.used != st.Bytes {
		t.Errorf("%d bytes are reserved, %d are there", c.store.used, st.Bytes)
	}
}

func TestMirrorsAreAskedInstead(t *testing.T) {
	m := newUpstream(t)
	m.text("/root/simple/a/", `"1"`, "of the mirror")
	hosts, err := ParseHosts("pypi.org=" + m.URL + "/root/")
	if err != nil {
		t.Fatal(err)
	}
	u := newUpstream(t)
	u.text("/simple/b/", `"1"`, "of the host")
	c := openCache(t, u, t.TempDir(), 1<<20, hosts...)
	s := front(t, c)
	want(t, get(t, s, "GET", "pypi.org", "/simple/a/"), 200, "miss", "of the mirror")
	want(t, get(t, s, "GET", "pypi.org", "/simple/b/"), 200, "", "of the host") // the mirror lacks it
}

func TestParseHosts(t *testing.T) {
	for _, bad := range []string{"*.pypi.org", "http://pypi.org", "a_b/c", "pypi.org=ftp://x", "pypi.org=http://user:pw@x/", "pypi.org=http://x/?q"} {
		if got, err := ParseHosts(bad); err == nil {
			t.Errorf("ParseHosts(%q) = %v, want an error", bad, got)
		}
	}
}

func TestWhatNobodyUsedForAMonthGoes(t *testing.T) {
	u := newUpstream(t)
	dir := t.TempDir()
	c := openCache(t, u, dir, 1<<20)
	s := front(t, c)
	for _, path := range []string{"/old", "/new"} {
		u.text(path, `"1"`, "page")
		want(t, get(t, s, "GET", "pypi.org", path), 200, "miss", "page")
	}
	c.Close()
	long := time.Now().Add(-unusedFor - time.Hour)
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		if text, err := os.ReadFile(f); err != nil || !strings.Contains(string(text), "/old") {
			continue
		}
		if err := os.Chtimes(f, long, long); err != nil {
			t.Fatal(err)
		}
	}
	c = openCache(t, u, dir, 1<<20)
	for _, dry := range []bool{true, false} {
		gone, err := c.Collect(dry)
		if err != nil || len(gone) != 1 || gone[0].Kind != "package" || gone[0].Name != "http://pypi.org/old" || gone[0].Bytes == 0 {
			t.Fatalf("dry %t: %+v, %v", dry, gone, err)
		}
	}
	u.lose(c)
	s = front(t, c)
	want(t, get(t, s, "GET", "pypi.org", "/new"), 200, "stale", "page")
	if a := get(t, s, "GET", "pypi.org", "/old"); a.status != http.StatusGatewayTimeout {
		t.Errorf("what was collected: %d, want 504", a.status)
	}
}

// private is a registry that answers clients that show what it gave them, and leads
// them elsewhere for its layers. Its plain http port leads every request to https.
type private struct {
	blob   string
	sent   atomic.Int64 // layers that were sent whole
	secure *httptest.Server
	plain  *httptest.Server
	gone   atomic.Bool
}

func newPrivate(t *testing.T, layer string) *private {
	p := &private{blob: fmt.Sprintf("blobs/sha256:%x", sha256.Sum256([]byte(layer)))}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/{repository...}", func(w http.ResponseWriter, r *http.Request) {
		switch team := strings.Split(r.URL.Path, "/")[2]; {
		case team == "login": // some lead those that they refuse to a page
			http.Redirect(w, r, "https://images.lan/login", http.StatusFound)
		case r.Header.Get("Authorization") != "Bearer of "+team:
			w.Header().Set("Www-Authenticate", `Bearer realm="https://auth.lan/token"`)
			http.Error(w, "not yours", http.StatusUnauthorized)
		default:
			http.Redirect(w, r, "https://files.images.lan/data?signature=x", http.StatusTemporaryRedirect)
		}
	})
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "who are you?") })
	mux.HandleFunc("GET /data", func(w http.ResponseWriter, r *http.Request) {
		if given := r.Header.Get("Authorization"); given != "" || r.Host != "files.images.lan" || r.URL.RawQuery != "signature=x" {
			t.Errorf("the place of layers was asked for %s%s with %q", r.Host, r.URL, given)
		}
		if r.Header.Get("Range") == "" {
			p.sent.Add(1)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(layer))
	})
	p.secure = httptest.NewTLSServer(mux)
	t.Cleanup(p.secure.Close)
	p.plain = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://"+r.Host+r.URL.Path, http.StatusMovedPermanently)
	}))
	t.Cleanup(p.plain.Close)
	return p
}

func (p *private) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.gone.Load() {
		return nil, errors.New("no network")
	}
	to := p.secure
	if strings.HasSuffix(address, ":80") {
		to = p.plain
	}
	return new(net.Dialer).DialContext(ctx, network, to.Listener.Addr().String())
}

// open opens a cache in front of the registry, and a client's way to it by either scheme.
func (p *private) open(t *testing.T) (c *Cache, ask func(scheme, method, team, blob, token string) answer) {
	c, err := Open(Config{Dir: t.TempDir(), Limit: 1 << 20, Hosts: []Host{{Name: "images.lan"}}, Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.direct.TLSClientConfig = p.secure.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	c.direct.TLSClientConfig.ServerName = "example.com" // the certificate's
	fronts := map[string]*httptest.Server{"http": front(t, c)}
	fronts["https"] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.Serve(w, r, "https", r.Host) }))
	t.Cleanup(fronts["https"].Close)
	return c, func(scheme, method, team, blob, token string) answer {
		return get(t, fronts[scheme], method, "images.lan", "/v2/"+team+"/app/"+blob, "Authorization", token)
	}
}

func TestLayersOfARegistryThatAsksForCredentials(t *testing.T) {
	const layer = "a layer of an image"
	p := newPrivate(t, layer)
	c, ask := p.open(t)
	want(t, ask("https", "GET", "red", p.blob, "Bearer of red"), 200, "miss", layer)
	want(t, ask("https", "GET", "red", p.blob, "Bearer of red"), 200, "hit", layer)
	want(t, ask("https", "HEAD", "red", p.blob, "Bearer of red"), 200, "hit", "")
	want(t, ask("https", "GET", "blue", p.blob, "Bearer of blue"), 200, "hit", layer) // the same layer in another image
	if n := p.sent.Load(); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
	for name, token := range map[string]string{"another's": "Bearer of blue", "made up": "Basic eDp5", "none": ""} {
		if a := ask("https", "GET", "red", p.blob, token); a.status != http.StatusUnauthorized || strings.Contains(a.body, layer) || a.header.Get("Www-Authenticate") == "" {
			t.Errorf("with %s credentials: %d %q", name, a.status, a.body)
		}
	}
	p.gone.Store(true)
	c.direct.CloseIdleConnections()
	if a := ask("https", "GET", "red", p.blob, "Bearer of red"); a.status != http.StatusBadGateway {
		t.Errorf("while the registry is away: %d %q", a.status, a.body)
	}
}

// A redirection is no yes: not that of a port in the clear to https, which all requests
// get, and not that to a page for those that are refused.
func TestARedirectionOpensNoLayer(t *testing.T) {
	const layer = "a layer of an image"
	p := newPrivate(t, layer)
	_, ask := p.open(t)
	want(t, ask("https", "GET", "red", p.blob, "Bearer of red"), 200, "miss", layer)
	for _, token := range []string{"Bearer of red", "Bearer of blue", "Basic eDp5"} {
		if a := ask("http", "GET", "red", p.blob, token); a.status != http.StatusMovedPermanently || strings.Contains(a.body, layer) {
			t.Errorf("in the clear with %q: %d %q, want the registry's own redirection", token, a.status, a.body)
		}
	}
	if a := ask("https", "GET", "login", p.blob, "Basic eDp5"); a.status != http.StatusFound || strings.Contains(a.body, layer) {
		t.Errorf("led to a page: %d %q, want the registry's own redirection", a.status, a.body)
	}
}

func TestALayerThatLiesElsewhereIsTheOneThatWasNamed(t *testing.T) {
	p := newPrivate(t, "a layer")
	c, ask := p.open(t)
	if a := ask("https", "GET", "red", p.blob[:len(p.blob)-4]+"0000", "Bearer of red"); a.err == nil {
		t.Errorf("another layer came whole: %d %q", a.status, a.body)
	}
	if got := c.Stats(); got.Files != 0 {
		t.Errorf("it was kept: %+v", got)
	}
}

func TestMayFollow(t *testing.T) {
	at := func(url string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		r.Header.Set("Authorization", "Bearer x")
		return r
	}
	plain, safe := at("http://images.lan/v2/"), at("https://images.lan/v2/")
	for _, c := range []struct {
		next         *http.Request
		before       []*http.Request
		follow, with bool
	}{
		{at("https://images.lan/other"), []*http.Request{safe}, true, true},
		{at("https://files.images.lan/"), []*http.Request{safe}, true, false},
		{at("https://images.lan:8443/"), []*http.Request{safe}, true, false},
		{at("http://images.lan/other"), []*http.Request{safe}, false, true},
		{at("http://images.lan/other"), []*http.Request{plain}, true, true},
		{at("https://images.lan/other"), []*http.Request{safe, safe, safe}, true, true},
		{at("https://images.lan/other"), []*http.Request{safe, safe, safe, safe}, false, true},
	} {
		err := mayFollow(c.next, c.before)
		if with := c.next.Header.Get("Authorization") != ""; (err == nil) != c.follow || with != c.with {
			t.Errorf("%s after %d of %s: %v, with credentials: %v", c.next.URL, len(c.before), c.before[0].URL, err, with)
		}
	}
}
