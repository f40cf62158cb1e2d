package compare_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/compare"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// file is a header with a content.
type file struct {
	tar.Header
	body string
}

func reg(name, body string) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: time.Unix(2, 0)}, body}
}

func dir(name string) file {
	return file{tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func gone(name string) file { return reg(filepath.Dir(name)+"/.wh."+filepath.Base(name), "") }

func layer(files ...file) compare.Files {
	return func(visit func(*tar.Header, io.Reader) error) error {
		for _, f := range files {
			h := f.Header
			h.Size = int64(len(f.body))
			if err := visit(&h, strings.NewReader(f.body)); err != nil {
				return err
			}
		}
		return nil
	}
}

// root is an image with some files.
func root(t testing.TB) *erofs.Tree {
	t.Helper()
	tree := erofs.New()
	put := func(name string, n erofs.Node) {
		if err := tree.Put(name, n); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.CreateTemp(t.TempDir(), "content")
	if err != nil {
		t.Fatal(err)
	}
	tree.Own(content)
	at := int64(0)
	add := func(name, body string) {
		if _, err := content.WriteString(body); err != nil {
			t.Fatal(err)
		}
		put(name, erofs.Node{Mode: 0o100644, Size: int64(len(body)), File: content, Offset: at, Mtime: time.Unix(1, 0)})
		at += int64(len(body))
	}
	for _, name := range []string{"etc", "srv", "srv/deep"} {
		put(name, erofs.Node{Mode: 0o040755})
	}
	add("etc/motd", "one\ntwo\nthree\n")
	add("srv/a", "a\n")
	add("srv/deep/b", "b\n")
	put("bin", erofs.Node{Mode: 0o120777, Target: "srv"})
	t.Cleanup(func() { tree.Close() })
	return tree
}

func trees(t *testing.T, before, after compare.Files, most compare.Limits) cay.Comparison {
	t.Helper()
	out, err := compare.Trees(t.Context(), root(t), before, after, most)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// brief is one line a change.
func brief(c cay.Comparison) []string {
	out := []string{}
	for _, x := range c.Changes {
		line := fmt.Sprintf("%s %s", x.Kind, x.Path)
		for _, s := range []*cay.FileState{x.Before, x.After} {
			if s != nil {
				line += fmt.Sprintf(" %s:%o:%d%s", s.Type, s.Mode, s.Size, s.Target)
			}
		}
		out = append(out, strings.TrimSpace(line+" "+string(x.NoDiff)))
	}
	return out
}

func TestChanges(t *testing.T) {
	none := layer()
	same := reg("etc/motd", "one\ntwo\nthree\n") // written again, as it was
	wider := reg("etc/motd", same.body)
	wider.Mode = 0o4755
	owned := reg("etc/motd", same.body)
	owned.Uid = 7
	link := file{tar.Header{Name: "etc/motd", Typeflag: tar.TypeSymlink, Linkname: "/srv/a", Mode: 0o777}, ""}
	second := file{tar.Header{Name: "srv/z", Typeflag: tar.TypeLink, Linkname: "srv/y"}, ""}
	elsewhere := file{tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "etc", Mode: 0o777}, ""}
	for name, tt := range map[string]struct {
		before, after compare.Files
		want          []string
	}{
		"nothing":            {none, none, nil},
		"touched":            {none, layer(dir("etc"), same), nil},
		"the same twice":     {layer(reg("x", "1")), layer(reg("x", "1")), nil},
		"added":              {none, layer(reg("srv/new", "1")), []string{"added /srv/new file:644:1"}},
		"taken back":         {layer(reg("srv/new", "1")), none, []string{"removed /srv/new file:644:1"}},
		"of the image":       {none, layer(reg("etc/motd", "one\n")), []string{"changed /etc/motd file:644:14 file:644:4"}},
		"equal length":       {none, layer(reg("srv/a", "z\n")), []string{"changed /srv/a file:644:2 file:644:2"}},
		"both changed":       {layer(reg("srv/a", "y")), layer(reg("srv/a", "z")), []string{"changed /srv/a file:644:1 file:644:1"}},
		"mode":               {none, layer(wider), []string{"changed /etc/motd file:644:14 file:4755:14"}},
		"owner":              {none, layer(owned), []string{"changed /etc/motd file:644:14 file:644:14"}},
		"removed":            {none, layer(gone("srv/a")), []string{"removed /srv/a file:644:2"}},
		"a directory":        {none, layer(gone("srv")), []string{"removed /srv directory:755:0", "removed /srv/a file:644:2", "removed /srv/deep directory:755:0", "removed /srv/deep/b file:644:2"}},
		"made anew":          {layer(gone("srv")), layer(dir("srv"), reg("srv/.wh..wh..opq", ""), reg("srv/a", "a\n")), []string{"added /srv directory:755:0", "added /srv/a file:644:2"}},
		"hidden":             {none, layer(dir("srv"), reg("srv/.wh..wh..opq", "")), []string{"removed /srv/a file:644:2", "removed /srv/deep directory:755:0", "removed /srv/deep/b file:644:2"}},
		"became a link":      {none, layer(link), []string{"changed /etc/motd file:644:14 symlink:777:0/srv/a"}},
		"leads elsewhere":    {none, layer(elsewhere), []string{"changed /bin symlink:777:0srv symlink:777:0etc"}},
		"below an old link":  {none, layer(dir("bin"), reg("bin/a", "1")), []string{"changed /bin symlink:777:0srv directory:755:0", "added /bin/a file:644:1"}},
		"file for directory": {none, layer(reg("srv/deep", "")), []string{"changed /srv/deep directory:755:0 file:644:0", "removed /srv/deep/b file:644:2"}},
		"two names":          {layer(reg("srv/y", "1")), layer(reg("srv/y", "2"), second), []string{"changed /srv/y file:644:1 file:644:1", "added /srv/z file:644:1"}},
		"Cay's own":          {none, layer(reg("etc/machine-id", "x"), reg("run/cay/generation", "x"), reg("proc/x", ""), reg("dev/null", "")), nil},
		"odd names":          {none, layer(reg("a\x1b[31m", ""), reg("b\xff", ""), reg("../../c\nd", ""), reg("ü ü", "")), []string{`added "/a\x1b[31m" file:644:0`, `added "/b\xff" file:644:0`, `added "/c\nd" file:644:0`, "added /ü ü file:644:0"}},
		"binary":             {none, layer(reg("srv/a", "\x00")), []string{"changed /srv/a file:644:2 file:644:1 binary"}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(append([]string{}, tt.want...), brief(trees(t, tt.before, tt.after, compare.Default))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDiff(t *testing.T) {
	out := trees(t, layer(reg("old", "x\n")), layer(reg("etc/motd", "one\n2\nthree\n"), reg("new\x07", "y")), compare.Default)
	if out.Added != 1 || out.Changed != 1 || out.Removed != 1 {
		t.Errorf("%d added, %d changed, %d removed", out.Added, out.Changed, out.Removed)
	}
	var got []string
	for _, c := range out.Changes {
		got = append(got, c.Diff)
	}
	want := []string{
		"--- a/etc/motd\n+++ b/etc/motd\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
		"--- /dev/null\n+++ \"b/new\\a\"\n@@ -0,0 +1,1 @@\n+y\n\\ No newline at end of file\n",
		"--- a/old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestBounds(t *testing.T) {
	most := compare.Default
	most.Text, most.Texts, most.Listed = 100, 250, 3
	long := strings.Repeat("line\n", 30)
	short := strings.Repeat("x\n", 40)
	out := trees(t, layer(), layer(reg("a", long), reg("b", short), reg("c", short), reg("d", short)), most)
	want := []string{"added /a file:644:150 large", "added /b file:644:80", "added /c file:644:80 many"}
	if d := cmp.Diff(want, brief(out)); d != "" || out.Added != 4 {
		t.Error(d, out.Added)
	}

	// A file that is too large to be read is compared by its time.
	most = compare.Default
	most.Sum = 3
	later := reg("a", "abcd")
	later.ModTime = time.Unix(3, 0)
	if out := trees(t, layer(reg("a", "abcd"), reg("b", "abcd")), layer(later, reg("b", "xyzw")), most); out.Changed != 1 {
		t.Errorf("%v", brief(out))
	}

	most = compare.Default
	most.Files = 2
	_, err := compare.Trees(t.Context(), root(t), layer(), layer(reg("a", ""), reg("b", ""), reg("c", "")), most)
	if cay.KindOf(err) != cay.Exhausted {
		t.Errorf("three files where two may be: %v", err)
	}
	_, err = compare.Trees(t.Context(), root(t), layer(reg(strings.Repeat("n", 5000), "")), layer(), compare.Default)
	if cay.KindOf(err) != cay.Exhausted {
		t.Errorf("a long name: %v", err)
	}
	broken := errors.New("broken")
	_, err = compare.Trees(t.Context(), root(t), func(func(*tar.Header, io.Reader) error) error { return broken }, layer(), compare.Default)
	if !errors.Is(err, broken) {
		t.Errorf("an unreadable state: %v", err)
	}
}

// FuzzTrees compares whatever a tar may say with nothing, and with itself.
func FuzzTrees(f *testing.F) {
	var sample bytes.Buffer
	w := tar.NewWriter(&sample)
	for _, x := range []file{dir("srv"), reg("srv/.wh..wh..opq", ""), reg("srv/new", "text\n"), gone("etc/motd"),
		{tar.Header{Name: "srv/l", Typeflag: tar.TypeLink, Linkname: "srv/new"}, ""},
		{tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "/"}, ""}} {
		x.Header.Size = int64(len(x.body))
		if err := w.WriteHeader(&x.Header); err != nil {
			f.Fatal(err)
		}
		io.WriteString(w, x.body)
	}
	w.Close()
	f.Add(sample.Bytes())
	tree := root(f)
	most := compare.Limits{Files: 100, Listed: 20, Sum: 1 << 10, Sums: 1 << 12, Text: 1 << 10, Texts: 1 << 12, Name: 256, Names: 1 << 14, Shown: 1 << 12}
	f.Fuzz(func(t *testing.T, in []byte) {
		files := compare.Files(func(visit func(*tar.Header, io.Reader) error) error {
			r := tar.NewReader(bytes.NewReader(in))
			for {
				h, err := r.Next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if err := visit(h, r); err != nil {
					return err
				}
			}
		})
		none := compare.Files(func(func(*tar.Header, io.Reader) error) error { return nil })
		out, err := compare.Trees(t.Context(), tree, none, files, most)
		if err != nil {
			return
		}
		if len(out.Changes) > most.Listed || len(out.Changes) > out.Added+out.Changed+out.Removed {
			t.Errorf("%d are listed of %d, %d, %d", len(out.Changes), out.Added, out.Changed, out.Removed)
		}
		back, err := compare.Trees(t.Context(), tree, files, none, most)
		if err != nil || back.Added != out.Removed || back.Removed != out.Added || back.Changed != out.Changed {
			t.Errorf("there %d, %d, %d; back %d, %d, %d; %v", out.Added, out.Changed, out.Removed, back.Added, back.Changed, back.Removed, err)
		}
		if same, err := compare.Trees(t.Context(), tree, files, files, most); err != nil || len(same.Changes) > 0 {
			t.Errorf("it differs from itself: %v, %v", brief(same), err)
		}
	})
}
