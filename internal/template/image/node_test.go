package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
)

func TestNewest(t *testing.T) {
	for _, c := range []struct {
		versions []string
		major    string
		want     string
	}{
		{[]string{"24.2.0", "24.10.1", "24.9.3", "25.0.0"}, "24", "24.10.1"},
		{[]string{"24.2.0", "24.3.0-rc.1", "24.3"}, "24", "24.2.0"},
		{[]string{"24.2.x", "24.-1.0", "240.0.0"}, "24", ""},
		{nil, "24", ""},
	} {
		if got, ok := newest(c.versions, c.major); got != c.want || ok != (c.want != "") {
			t.Errorf("of %v the newest %s is %q, %v; want %q", c.versions, c.major, got, ok, c.want)
		}
	}
}

// packed is an archive of npm's: files below one directory.
func packed(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, h := range headers {
		h.Size = int64(len(h.Name))
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			fmt.Fprint(w, h.Name) // its content
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// registry serves one package in one version, with the hash of good.
func registry(t *testing.T, good, served []byte) string {
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	sum := sha512.Sum512(good)
	mux.HandleFunc("/tool", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"versions":{"7.1.0":{"dist":{"tarball":%q,"integrity":%q}}}}`,
			s.URL+"/tool.tgz", "sha512-"+base64.StdEncoding.EncodeToString(sum[:]))
	})
	mux.HandleFunc("/tool.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(served) })
	return s.URL + "/"
}

func TestFetchPackage(t *testing.T) {
	archive := packed(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "package/bin/tool", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeReg, Name: "package/lib/a.js", Mode: 0o600},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "package/link", Linkname: "/etc/passwd"},
	)
	dir := filepath.Join(t.TempDir(), "out")
	if err := fetchPackage(t.Context(), registry(t, archive, archive), "tool", "7", dir); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"bin/tool": 0o744, "lib/a.js": 0o644} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || string(text) != "package/"+path {
			t.Errorf("%s holds %q, %v", path, text, err)
		}
		if st, err := os.Stat(filepath.Join(dir, path)); err != nil || st.Mode() != mode {
			t.Errorf("%s has the mode %v, %v; want %v", path, st.Mode(), err, mode)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "link")); err == nil {
		t.Error("a link of a package is there")
	}
}

func TestFetchAgainAfterTheRegistryBreaksOff(t *testing.T) {
	archive := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "package/a", Mode: 0o644})
	whole := registry(t, archive, archive)
	for _, broken := range []int{fetchTries - 1, fetchTries} {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if int(asked.Add(1)) <= broken {
				panic(http.ErrAbortHandler)
			}
			http.Redirect(w, r, whole+r.URL.Path[1:], http.StatusFound)
		}))
		dir := filepath.Join(t.TempDir(), "out")
		err := fetchAgain(t.Context(), s.URL, "tool", "7", dir)
		s.Close()
		if (err == nil) != (broken < fetchTries) {
			t.Errorf("after %d broken answers: %v", broken, err)
		}
		if _, there := os.Lstat(dir); (there == nil) != (err == nil) {
			t.Errorf("after %v the package is there: %v", err, there)
		}
	}
}

func TestFetchPackageRefuses(t *testing.T) {
	good := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "package/a", Mode: 0o644})
	other := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "package/b", Mode: 0o644})
	out := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "package/../../../escaped", Mode: 0o644})
	for name, c := range map[string]struct {
		good, served []byte
		tool, major  string
	}{
		"another archive":   {good, other, "tool", "7"},
		"a cut archive":     {good, good[:len(good)-9], "tool", "7"},
		"a name outside":    {out, out, "tool", "7"},
		"no such version":   {good, good, "tool", "8"},
		"no such package":   {good, good, "none", "7"},
		"more than archive": {good, append(bytes.Clone(good), good...), "tool", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			err := fetchPackage(t.Context(), registry(t, c.good, c.served), c.tool, c.major, filepath.Join(parent, "out"))
			if err == nil {
				t.Fatal("it was taken")
			}
			if name != "a name outside" && cay.KindOf(err) != cay.Unavailable {
				t.Errorf("got %v of kind %v", err, cay.KindOf(err))
			}
			if _, err := os.Lstat(filepath.Join(parent, "escaped")); err == nil {
				t.Error("a file is outside")
			}
		})
	}
}
