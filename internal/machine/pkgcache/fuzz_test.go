package pkgcache

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzWish gives readWish requests of a hostile guest. The upstream is always the
// named host, below the mirror's path.
func FuzzWish(f *testing.F) {
	f.Add("/simple/pip/", "application/json", "gzip")
	f.Add("/@scope%2fname", "", "")
	f.Add("/a/../../etc/passwd", "*/*", "")
	f.Add("/%2e%2e/%2e%2e/secret", "*/*", "")
	f.Add("//evil.example/x.whl", "*/*", "br")
	f.Add("/packages/aa/bb/"+strings.Repeat("c", 60)+"/x.tar.gz", "a\nb", "identity")
	f.Add("/x\\..\\y", "", "")
	mirror := &url.URL{Scheme: "http", Host: "mirror.lan:8080", Path: "/root"}
	f.Fuzz(func(t *testing.T, path, accept, encoding string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		r := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{"Accept": {accept}, "Accept-Encoding": {encoding}}}
		w, ok := readWish(r, "https", "pypi.org")
		if !ok {
			return
		}
		direct, err := w.url(nil)
		if err != nil || direct.Host != "pypi.org" || direct.Scheme != "https" || direct.User != nil || direct.RawQuery != "" {
			t.Fatalf("%q leads to %v, %v", path, direct, err)
		}
		below, err := w.url(mirror)
		if err != nil || below.Host != "mirror.lan:8080" || !strings.HasPrefix(below.Path, "/root/") || climbs(below.Path) {
			t.Fatalf("%q leads to %v, %v", path, below, err)
		}
		if key := w.key(); len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
			t.Fatalf("key %q", key)
		}
		check(u.Path)
	})
}
