package fs

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func files(path string) string { return "/files?path=" + url.QueryEscape(path) }

func gunzipped(t *testing.T, s string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(s))
	must(t, err)
	text, err := io.ReadAll(z)
	must(t, err)
	return string(text)
}

func TestDownload(t *testing.T) {
	w := newWorld(t)
	big := strings.Repeat("0123456789abcdef", 40_000) // larger than what is read ahead
	w.write("big.txt", big)
	w.write("dir/small é\".txt", "hello")
	w.write("empty", "")
	must(t, os.Symlink("big.txt", w.path("link")))

	a := w.do("GET", files("dir/small é\".txt"), nil)
	a.check(t, 200, "hello")
	if got := a.header.Get("Content-Disposition"); got != `inline; filename*=utf-8''small%20%C3%A9%22.txt` {
		t.Errorf("disposition: %s", got)
	}
	if a.header.Get("Vary") != "Accept-Encoding" || a.header.Get("Content-Length") != "5" || a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("headers: %v", a.header)
	}
	for _, path := range []string{"big.txt", "~/link", w.path("big.txt")} {
		if a := w.do("GET", files(path), nil); a.body != big || a.header.Get("Content-Length") != fmt.Sprint(len(big)) {
			t.Errorf("%s: %d bytes, %v", path, len(a.body), a.header)
		}
		a := w.do("GET", files(path), nil, "Accept-Encoding", "gzip, deflate, br")
		if a.header.Get("Content-Encoding") != "gzip" || gunzipped(t, a.body) != big {
			t.Errorf("%s gzipped: %v", path, a.header)
		}
	}
	for _, accept := range []string{"", "gzip", "identity"} {
		a := w.do("GET", files("empty"), nil, "Accept-Encoding", accept)
		if a.status != 200 || a.header.Get("Content-Length") != "0" || a.header.Get("Content-Encoding") != "" {
			t.Errorf("empty with %q: %d %v", accept, a.status, a.header)
		}
	}
	a = w.do("HEAD", files("big.txt"), nil, "Accept-Encoding", "gzip")
	if a.status != 200 || a.header.Get("Content-Length") != fmt.Sprint(len(big)) || a.body != "" {
		t.Errorf("HEAD: %d %v", a.status, a.header)
	}
}

func TestDownloadParts(t *testing.T) {
	w := newWorld(t)
	big := strings.Repeat("0123456789abcdef", 40_000)
	w.write("f", big)
	w.write("s", "0123456789")
	for path, text := range map[string]string{"f": big, "s": "0123456789"} {
		for header, want := range map[string]string{
			"bytes=2-5":   text[2:6],
			"bytes=-3":    text[len(text)-3:],
			"bytes=5-":    text[5:],
			"bytes=0-0":   text[:1],
			"bytes=7-999": text[7:min(1000, len(text))],
		} {
			a := w.do("GET", files(path), nil, "Range", header, "Accept-Encoding", "gzip")
			if a.status != 206 || a.body != want || a.header.Get("Content-Encoding") != "" {
				t.Errorf("%s %s: %d, %d bytes", path, header, a.status, len(a.body))
			}
		}
		a := w.do("GET", files(path), nil, "Range", fmt.Sprintf("bytes=%d-", len(text)+1))
		if a.status != 416 {
			t.Errorf("beyond the end: %d", a.status)
		}
		full := w.do("GET", files(path), nil)
		tag := full.header.Get("ETag")
		if a := w.do("GET", files(path), nil, "If-None-Match", tag, "Accept-Encoding", "gzip"); a.status != 304 || tag == "" {
			t.Errorf("If-None-Match %q: %d", tag, a.status)
		}
		if a := w.do("GET", files(path), nil, "If-Match", `"other"`); a.status != 412 {
			t.Errorf("If-Match: %d", a.status)
		}
		if a := w.do("GET", files(path), nil, "If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)); a.status != 304 {
			t.Errorf("If-Modified-Since: %d", a.status)
		}
		if a := w.do("GET", files(path), nil, "Range", "bytes=0-1", "If-Range", `"other"`); a.status != 200 || a.body != text {
			t.Errorf("If-Range: %d", a.status)
		}
	}
}

// Files of /proc say that they measure nothing, those of /sys that they
// measure a page.
func TestDownloadGeneratedFiles(t *testing.T) {
	w := newWorld(t)
	const path = "/proc/sys/kernel/random/boot_id"
	want, err := os.ReadFile(path)
	must(t, err)
	a := w.do("GET", files(path), nil)
	a.check(t, 200, string(want))
	if a.header.Get("Content-Length") != fmt.Sprint(len(want)) {
		t.Errorf("headers: %v", a.header)
	}
	a = w.do("GET", files(path), nil, "Accept-Encoding", "gzip")
	if gunzipped(t, a.body) != string(want) {
		t.Errorf("gzipped: %q", a.body)
	}
	sys, err := filepath.Glob("/sys/kernel/mm/*/*")
	must(t, err)
	for _, path := range sys {
		want, err := os.ReadFile(path)
		if err != nil || len(want) == 0 || len(want) == 4096 {
			continue
		}
		if a := w.do("GET", files(path), nil); a.status != 200 || len(a.body) == 0 {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
		break
	}
	// More than is read ahead, with no size to announce.
	maps := "/proc/kallsyms"
	if st, err := os.Stat(maps); err == nil && st.Size() == 0 {
		want, err := os.ReadFile(maps)
		must(t, err)
		if a := w.do("GET", files(maps), nil); len(want) > smallFile && len(a.body) != len(want) {
			t.Errorf("%d bytes of %d", len(a.body), len(want))
		}
	}
}

func TestDownloadFails(t *testing.T) {
	w := newWorld(t)
	w.write("f", "text")
	must(t, syscall.Mkfifo(w.path("fifo"), 0o600))
	must(t, os.Symlink("loop", w.path("loop")))
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"none":                   {404, `{"code":404,"message":"path '` + w.path("none") + `' does not exist"}`},
		"f/below":                {404, "does not exist"},
		"":                       {400, "is a directory"},
		"/":                      {400, "is a directory"},
		"fifo":                   {400, "not a regular file"},
		"/dev/zero":              {400, "not a regular file"},
		"loop":                   {400, "symbolic links"},
		strings.Repeat("n", 300): {400, "too long"},
		"a\x00b":                 {400, "zero byte"},
	} {
		w.do("GET", files(path), nil).check(t, want.status, want.text)
	}
	w.do("GET", files("f")+"&username=nobod", nil).check(t, 401, `"invalid username: 'nobod'"`)
	w.do("GET", files("f"), nil, "Accept-Encoding", "identity;q=0, gzip;q=0").check(t, 406, "content coding")
	w.do("GET", "/files?path=%zz", nil).check(t, 400, "query")
}

func TestNegotiate(t *testing.T) {
	for accept, want := range map[string]string{
		"":                           codingIdentity,
		"gzip":                       codingGzip,
		"x-gzip":                     codingGzip,
		"GZIP ; q=0.5":               codingGzip,
		"deflate, br":                codingIdentity,
		"gzip;q=0":                   codingIdentity,
		"gzip;q=0.2, identity;q=0.8": codingIdentity,
		"*":                          codingGzip,
		"*;q=0":                      "",
		"*;q=0, gzip":                codingGzip,
		"*;q=0, identity":            codingIdentity,
		"identity;q=0":               "",
		"identity;q=0, gzip;q=0.1":   codingGzip,
		"gzip;q=nonsense":            codingGzip,
		",,;q=1, ;":                  codingIdentity,
	} {
		got, ok := negotiate(http.Header{"Accept-Encoding": {accept}})
		if got != want || ok != (want != "") {
			t.Errorf("%q: %q", accept, got)
		}
	}
}
