package fs

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

func tarPath(path string) string { return "/files/tar?path=" + url.QueryEscape(path) }

func names(t *testing.T, archive string) []string {
	t.Helper()
	var out []string
	r := tar.NewReader(strings.NewReader(archive))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		must(t, err)
		out = append(out, h.Name)
	}
}

func TestTar(t *testing.T) {
	w := newWorld(t)
	w.write("d/sub/f", "text")
	w.write("d/g", strings.Repeat("g", 500_000))
	must(t, os.Symlink("d", w.path("link")))

	a := w.do("GET", tarPath("d"), nil)
	if a.status != 200 || a.header.Get("Content-Type") != "application/x-tar" || a.header.Get("Content-Disposition") != "inline; filename=d.tar" {
		t.Errorf("got %d %v", a.status, a.header)
	}
	if got, want := names(t, a.body), []string{"g", "sub/", "sub/f"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := names(t, w.do("GET", tarPath("d/sub/f"), nil).body); !slices.Equal(got, []string{"f"}) {
		t.Errorf("one file: %v", got)
	}
	if got := names(t, w.do("GET", tarPath("link"), nil).body); len(got) != 3 {
		t.Errorf("a link: %v", got)
	}
	z := w.do("GET", tarPath("d"), nil, "Accept-Encoding", "gzip")
	if z.header.Get("Content-Encoding") != "gzip" || gunzipped(t, z.body) != a.body {
		t.Errorf("gzipped: %v", z.header)
	}
	for target, send := range map[string]func() answer{
		"to/post": func() answer { return w.do("POST", tarPath("to/post"), strings.NewReader(a.body)) },
		"to/put":  func() answer { return w.do("PUT", tarPath("to/put"), struct{ io.Reader }{strings.NewReader(a.body)}) },
		"to/gzip": func() answer {
			return w.do("POST", tarPath("to/gzip"), strings.NewReader(z.body), "Content-Encoding", "gzip")
		},
	} {
		send().check(t, 200, `{"entries":3,"bytes":500004}`)
		if w.read(target+"/sub/f") != "text" || len(w.read(target+"/g")) != 500_000 {
			t.Errorf("%s: contents differ", target)
		}
		for _, p := range []string{"to", target, target + "/sub", target + "/sub/f"} {
			if owner(t, w.path(p)) != uid() {
				t.Errorf("%s does not belong to the user", p)
			}
		}
	}
}

func TestTarFails(t *testing.T) {
	w := newWorld(t)
	w.write("f", "")
	w.do("GET", tarPath("none"), nil).check(t, 404, "does not exist")
	w.do("GET", tarPath("/dev/null"), nil).check(t, 400, "neither")
	w.do("GET", tarPath("f")+"&username=nobod", nil).check(t, 401, "nobod")
	w.do("GET", tarPath("f"), nil, "Accept-Encoding", "*;q=0").check(t, 406, "")
	post := func(target, text string) answer { return w.do("POST", tarPath(target), strings.NewReader(text)) }
	post("f", strings.Repeat("x", 600)).check(t, 400, "not a directory")
	post("new", "").check(t, 400, "empty")
	post("new", strings.Repeat("x", 600)).check(t, 400, "not a tar")
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	must(t, tw.WriteHeader(&tar.Header{Name: "../evil", Mode: 0o644}))
	must(t, tw.Close())
	post("in/side", b.String()).check(t, 400, "does not stay in the directory")
	if _, err := os.Lstat(w.path("in/evil")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it climbed out: %v", err)
	}
}

func TestTarFullDisk(t *testing.T) {
	w := newWorld(t)
	w.write("d/big", strings.Repeat("x", 2<<20))
	a := w.do("GET", tarPath("d"), nil)
	disk := smallDisk(t)
	w.do("POST", tarPath(disk), strings.NewReader(a.body)).check(t, 507, "not enough disk space")
	if items, _ := os.ReadDir(disk); len(items) != 0 {
		t.Errorf("left: %v", items)
	}
}
