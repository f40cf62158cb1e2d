package parcel

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// write makes files; a name that ends in "/" is a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(full, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// packed packs a COPY of a directory and lists the archive.
func packed(t *testing.T, dir string, c dockerfile.Copy) (string, *Parcel, error) {
	t.Helper()
	ctx, err := OpenContext(dir, filepath.Join(dir, "Dockerfile"))
	if err != nil {
		return "", nil, err
	}
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Remove)
	if err := ctx.Pack(t.Context(), p, c); err != nil {
		return "", nil, err
	}
	if err := p.Seal(); err != nil {
		return "", nil, err
	}
	f, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	in := tar.NewReader(f)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(in)
		if name := h.Name; h.Typeflag == tar.TypeReg {
			names = append(names, name+"="+string(text))
		} else if h.Typeflag == tar.TypeSymlink {
			names = append(names, name+"→"+h.Linkname)
		} else if name != "./" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " "), p, nil
}

func TestCopyIsLaidOutAsDockerWould(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"a.txt": "1", "b.txt": "2", "src/one": "3", "src/deep/two": "4", "src/deep/skip.log": "5",
		"lib/x/f": "6", "lib/y/f2": "7", "only/file": "8", "empty/": "", "secret": "9",
		".dockerignore": "**/*.log\nsecret\n",
	})
	if err := os.Symlink("a.txt", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"links/": ""})
	for name, to := range map[string]string{"libs": "/lib", "out": "../../a.txt", "links/dangling": "nowhere", "nowhere": "none", "round": "round"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "inside/f", Mode: 0o644, Size: 2, Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte("hi"))
	w.Close()
	z.Close()
	write(t, dir, map[string]string{"x.tar.gz": archive.String(), "not.gz": "plain"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "net") }))
	defer server.Close()

	for name, test := range map[string]struct {
		copy   dockerfile.Copy
		want   string
		single string
	}{
		"a file":                    {dockerfile.Copy{Sources: []string{"a.txt"}, Dest: "/x"}, "a.txt=1", "a.txt"},
		"two files":                 {dockerfile.Copy{Sources: []string{"a.txt", "./b.txt"}, Dest: "/x/"}, "a.txt=1 b.txt=2", ""},
		"a directory":               {dockerfile.Copy{Sources: []string{"src"}, Dest: "/x"}, "deep/ deep/two=4 one=3", ""},
		"a directory of one file":   {dockerfile.Copy{Sources: []string{"only/"}, Dest: "/x"}, "file=8", ""},
		"an empty directory":        {dockerfile.Copy{Sources: []string{"empty"}, Dest: "/x"}, "", ""},
		"a pattern":                 {dockerfile.Copy{Sources: []string{"*.txt"}, Dest: "/x/"}, "a.txt=1 b.txt=2", ""},
		"a pattern of directories":  {dockerfile.Copy{Sources: []string{"lib/*"}, Dest: "/x/"}, "f2=7 f=6", ""},
		"paths that are kept":       {dockerfile.Copy{Sources: []string{"src/deep/two"}, Dest: "/x/", Parents: true}, "src/ src/deep/ src/deep/two=4", ""},
		"paths below a pivot":       {dockerfile.Copy{Sources: []string{"src/./deep/two", "lib/./x"}, Dest: "/x/", Parents: true}, "deep/ deep/two=4 x/ x/f=6", ""},
		"a path by a pattern":       {dockerfile.Copy{Sources: []string{"lib/*/f*"}, Dest: "/x/", Parents: true}, "lib/ lib/x/ lib/x/f=6 lib/y/ lib/y/f2=7", ""},
		"but some":                  {dockerfile.Copy{Sources: []string{"src"}, Dest: "/x", Exclude: []string{"src/deep"}}, "one=3", ""},
		"but some of the source":    {dockerfile.Copy{Sources: []string{"src"}, Dest: "/x", Exclude: []string{"deep/t*", "o*"}}, "deep/", ""},
		"but files of a pattern":    {dockerfile.Copy{Sources: []string{"*.txt"}, Dest: "/x/", Exclude: []string{"a.*"}}, "b.txt=2", "b.txt"},
		"but all with an exception": {dockerfile.Copy{Sources: []string{"src"}, Dest: "/x", Exclude: []string{"*", "!one"}}, "one=3", ""},
		"paths but some":            {dockerfile.Copy{Sources: []string{"lib"}, Dest: "/x", Parents: true, Exclude: []string{"lib/x"}}, "lib/ lib/y/ lib/y/f2=7", ""},
		"a link":                    {dockerfile.Copy{Sources: []string{"link"}, Dest: "/x"}, "link=1", "link"},
		"a link to a directory":     {dockerfile.Copy{Sources: []string{"libs"}, Dest: "/x"}, "x/ x/f=6 y/ y/f2=7", ""},
		"through a link":            {dockerfile.Copy{Sources: []string{"libs/x/f"}, Dest: "/x"}, "f=6", "f"},
		"a link out of the context": {dockerfile.Copy{Sources: []string{"out"}, Dest: "/x"}, "out=1", "out"},
		"links in a directory":      {dockerfile.Copy{Sources: []string{"links"}, Dest: "/x"}, "dangling→nowhere", ""},
		"what climbs stays":         {dockerfile.Copy{Sources: []string{"../../a.txt"}, Dest: "/x"}, "a.txt=1", "a.txt"},
		"text":                      {dockerfile.Copy{Contents: []dockerfile.Content{{Name: "EOF", Data: "t"}}, Dest: "/x"}, "EOF=t", "EOF"},
		"an archive, added":         {dockerfile.Copy{Sources: []string{"x.tar.gz"}, Dest: "/x/", Add: true}, "inside/f=hi", ""},
		"what is none, added":       {dockerfile.Copy{Sources: []string{"not.gz"}, Dest: "/x/", Add: true}, "not.gz=plain", "not.gz"},
		"a URL":                     {dockerfile.Copy{Sources: []string{server.URL + "/get/it"}, Dest: "/x/", Add: true}, "it=net", "it"},
	} {
		t.Run(name, func(t *testing.T) {
			got, p, err := packed(t, dir, test.copy)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want || p.single != test.single {
				t.Errorf("got %q, single %q; want %q, %q", got, p.single, test.want, test.single)
			}
		})
	}
	for name, src := range map[string]string{"what is not there": "none", "a link to nothing": "nowhere", "a link to itself": "round", "what is ignored": "secret", "a bad pattern": "[", "what is outside": "/etc/passwd"} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := packed(t, dir, dockerfile.Copy{Sources: []string{src}, Dest: "/x"}); err == nil {
				t.Error("no error")
			}
		})
	}
	_, _, err := packed(t, dir, dockerfile.Copy{Sources: []string{server.URL + "/f"}, Dest: "/x", Add: true, Checksum: "sha256:00"})
	if cay.KindOf(err) != cay.Invalid {
		t.Errorf("a wrong checksum: %v", err)
	}
}

// Equal files are one upload, whenever they were written.
func TestParcelHash(t *testing.T) {
	hash := func(files map[string]string, args ...string) string {
		dir := t.TempDir()
		write(t, dir, files)
		_, p, err := packed(t, dir, dockerfile.Copy{Sources: []string{"."}, Dest: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		return p.Hash(args)
	}
	one := hash(map[string]string{"a": "1", "b/c": "2"}, "x")
	if again := hash(map[string]string{"a": "1", "b/c": "2"}, "x"); again != one || len(one) != 64 {
		t.Errorf("%s, then %s", one, again)
	}
	for name, other := range map[string]string{
		"another content": hash(map[string]string{"a": "1", "b/c": "3"}, "x"),
		"another name":    hash(map[string]string{"a": "1", "b/d": "2"}, "x"),
		"another place":   hash(map[string]string{"a": "1", "b/c": "2"}, "y"),
		"moved content":   hash(map[string]string{"a": "12", "b/c": ""}, "x"),
	} {
		if other == one {
			t.Errorf("%s: the same hash", name)
		}
	}
}
