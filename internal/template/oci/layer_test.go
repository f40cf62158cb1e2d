package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// item is one entry of a layer in a test.
type item struct {
	name, link, body string
	kind             byte // tar.TypeReg unless told, or a directory when name ends in "/"
	mode             int64
	uid, gid         int
	pax              map[string]string
}

func layerOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, it := range items {
		h := &tar.Header{
			Name: it.name, Linkname: it.link, Typeflag: it.kind, Mode: it.mode, Uid: it.uid, Gid: it.gid,
			Size: int64(len(it.body)), ModTime: time.Unix(1700000000, 0), PAXRecords: it.pax,
		}
		if h.Typeflag == 0 && strings.HasSuffix(it.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if h.Mode == 0 {
			h.Mode = map[bool]int64{true: 0o755, false: 0o644}[h.Typeflag == tar.TypeDir]
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(it.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking gives files their owners, which needs root")
	}
}

// applyAll unpacks layers into dir.
func applyAll(dir string, limits Limits, layers ...[]byte) error {
	tr, err := openTree(dir)
	if err != nil {
		return err
	}
	defer tr.close()
	u := &unpacker{tree: tr, left: limits}
	for _, l := range layers {
		if err := u.apply(context.Background(), bytes.NewReader(l)); err != nil {
			return err
		}
	}
	return nil
}

// listing shows a tree: directories end in "/", links show where they lead.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			rel += "/"
		case d.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(p)
			rel += "→" + to
		case d.Type().IsRegular():
			text, _ := os.ReadFile(p)
			rel += "=" + string(text)
		}
		out = append(out, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func TestLayersBecomeATree(t *testing.T) {
	needRoot(t)
	tests := map[string]struct {
		layers [][]item
		want   string
	}{
		"files and directories": {[][]item{{{name: "a/"}, {name: "a/f", body: "1"}, {name: "g", body: "2"}}}, "a/ a/f=1 g=2"},
		"parents without names": {[][]item{{{name: "x/y/z/f", body: "1"}}}, "x/ x/y/ x/y/z/ x/y/z/f=1"},
		"a later layer wins":    {[][]item{{{name: "f", body: "old"}}, {{name: "f", body: "new"}}}, "f=new"},
		"a whiteout":            {[][]item{{{name: "d/f", body: "1"}, {name: "d/g", body: "2"}}, {{name: "d/.wh.f"}}}, "d/ d/g=2"},
		"a whiteout of a tree":  {[][]item{{{name: "d/e/f", body: "1"}}, {{name: ".wh.d"}}}, ""},
		"a whiteout spares its own layer": {
			[][]item{{{name: "f", body: "1"}}, {{name: "f", body: "2"}, {name: ".wh.f"}}}, "f=2"},
		"a whiteout above its own layer's file": {
			[][]item{{{name: "d/old", body: "1"}}, {{name: "d/new", body: "2"}, {name: ".wh.d"}}}, "d/ d/new=2"},
		"a whiteout of nothing": {[][]item{{{name: ".wh.none"}}}, ""},
		"an opaque directory, told first": {
			[][]item{{{name: "d/f", body: "1"}, {name: "d/s/g", body: "1"}}, {{name: "d/"}, {name: "d/.wh..wh..opq"}, {name: "d/n", body: "2"}}}, "d/ d/n=2"},
		"an opaque directory, told last": {
			[][]item{{{name: "d/f", body: "1"}, {name: "d/s/g", body: "1"}}, {{name: "d/n", body: "2"}, {name: "d/s/h", body: "3"}, {name: "d/.wh..wh..opq"}}}, "d/ d/n=2 d/s/ d/s/h=3"},
		"another tool's own files":  {[][]item{{{name: ".wh..wh.plnk/1.2", body: "x"}, {name: ".wh..wh.aufs", body: "x"}}}, ".wh..wh.plnk/ .wh..wh.plnk/1.2=x"},
		"a directory for a file":    {[][]item{{{name: "x", body: "1"}}, {{name: "x/"}, {name: "x/f", body: "2"}}}, "x/ x/f=2"},
		"a file for a directory":    {[][]item{{{name: "x/f", body: "1"}}, {{name: "x", body: "2"}}}, "x=2"},
		"a directory for a link":    {[][]item{{{name: "t/"}, {name: "x", kind: tar.TypeSymlink, link: "t"}}, {{name: "x/"}, {name: "x/f", body: "2"}}}, "t/ x/ x/f=2"},
		"a link for a directory":    {[][]item{{{name: "x/f", body: "1"}}, {{name: "x", kind: tar.TypeSymlink, link: "t"}}}, "x→t"},
		"through a relative link":   {[][]item{{{name: "usr/lib/"}, {name: "lib", kind: tar.TypeSymlink, link: "usr/lib"}}, {{name: "lib/f", body: "1"}}}, "lib→usr/lib usr/ usr/lib/ usr/lib/f=1"},
		"through an absolute link":  {[][]item{{{name: "run/"}, {name: "var/run", kind: tar.TypeSymlink, link: "/run"}, {name: "var/run/f", body: "1"}}}, "run/ run/f=1 var/ var/run→/run"},
		"through links out of it":   {[][]item{{{name: "up", kind: tar.TypeSymlink, link: "../../../.."}, {name: "up/f", body: "1"}}}, "f=1 up→../../../.."},
		"dots stay inside":          {[][]item{{{name: "../../f", body: "1"}, {name: "/g", body: "2"}, {name: "a/../h", body: "3"}}}, "f=1 g=2 h=3"},
		"hard links":                {[][]item{{{name: "f", body: "1"}, {name: "d/g", kind: tar.TypeLink, link: "/f"}}}, "d/ d/g=1 f=1"},
		"a whiteout through a link": {[][]item{{{name: "usr/lib/f", body: "1"}, {name: "lib", kind: tar.TypeSymlink, link: "usr/lib"}}, {{name: "lib/.wh.f"}}}, "lib→usr/lib usr/ usr/lib/"},
		"devices are left out":      {[][]item{{{name: "dev/sda", kind: tar.TypeBlock}, {name: "dev/null", kind: tar.TypeChar}}}, "dev/"},
		"a removed directory again": {[][]item{{{name: "d/e/f", body: "1"}}, {{name: "d/e/x", body: "2"}, {name: "d", body: "file"}, {name: "q", body: "3"}}}, "d=file q=3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var layers [][]byte
			for _, items := range test.layers {
				layers = append(layers, layerOf(t, items...))
			}
			if err := applyAll(dir, DefaultLimits, layers...); err != nil {
				t.Fatal(err)
			}
			if got := listing(t, dir); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestLayersThatAreRefused(t *testing.T) {
	needRoot(t)
	deep := strings.Repeat("d/", depthMost+2) + "f"
	tests := map[string]struct {
		layer  []byte
		limits Limits
		kind   cay.Kind
	}{
		"a path that is too deep":         {layerOf(t, item{name: deep}), DefaultLimits, cay.Invalid},
		"a link to a file that is not":    {layerOf(t, item{name: "f", kind: tar.TypeLink, link: "none"}), DefaultLimits, cay.Invalid},
		"a hard link to a directory":      {layerOf(t, item{name: "d/"}, item{name: "f", kind: tar.TypeLink, link: "d"}), DefaultLimits, cay.Invalid},
		"a hard link through a link out":  {layerOf(t, item{name: "e", kind: tar.TypeSymlink, link: "/etc"}, item{name: "f", kind: tar.TypeLink, link: "e/passwd"}), DefaultLimits, cay.Invalid},
		"a file below a file":             {layerOf(t, item{name: "f"}, item{name: "f/g"}), DefaultLimits, cay.Invalid},
		"a file below a link to nothing":  {layerOf(t, item{name: "l", kind: tar.TypeSymlink, link: "none"}, item{name: "l/g"}), DefaultLimits, cay.Invalid},
		"a loop of links":                 {layerOf(t, item{name: "l", kind: tar.TypeSymlink, link: "l"}, item{name: "l/g"}), DefaultLimits, cay.Invalid},
		"a whiteout of its own directory": {layerOf(t, item{name: "d/.wh..."}), DefaultLimits, cay.Invalid},
		"a whiteout of nothing named":     {layerOf(t, item{name: "d/.wh."}), DefaultLimits, cay.Invalid},
		"too many bytes":                  {layerOf(t, item{name: "f", body: "12345"}), Limits{Bytes: 4, Entries: 9}, cay.Exhausted},
		"too many files":                  {layerOf(t, item{name: "f"}, item{name: "g"}), Limits{Bytes: 4, Entries: 1}, cay.Exhausted},
		"no tar":                          {bytes.Repeat([]byte("x"), 2048), DefaultLimits, cay.Invalid},
		"a tar that ends early":           {layerOf(t, item{name: "f", body: strings.Repeat("x", 4096)})[:1024], DefaultLimits, cay.Invalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := cay.KindOf(applyAll(t.TempDir(), test.limits, test.layer)); got != test.kind {
				t.Errorf("got %q, want %q", got, test.kind)
			}
		})
	}
}

// A file's owner, special bits, attributes, holes and links all arrive.
func TestLayerKeepsWhatFilesAre(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	sparse := "begin" + strings.Repeat("\x00", 8<<20) + "end"
	layer := layerOf(t,
		item{name: "su", body: "x", mode: 0o4755, uid: 0, gid: 42},
		item{name: "mine/", mode: 0o2770, uid: 1000, gid: 1001},
		item{name: "mine/f", body: "y", mode: 0o600, uid: 1000, gid: 1001, pax: map[string]string{
			"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.trusted.overlay.opaque": "y"}},
		item{name: "hard", kind: tar.TypeLink, link: "mine/f"},
		item{name: "pipe", kind: tar.TypeFifo, mode: 0o620},
		item{name: "sparse", body: sparse},
		item{name: "link", kind: tar.TypeSymlink, link: "/etc/shadow", uid: 7, gid: 7},
	)
	if err := applyAll(dir, DefaultLimits, layer); err != nil {
		t.Fatal(err)
	}
	stat := func(name string) *syscall.Stat_t {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t)
	}
	for name, want := range map[string][3]uint32{
		"su":     {unix.S_IFREG | 0o4755, 0, 42},
		"mine":   {unix.S_IFDIR | 0o2770, 1000, 1001},
		"mine/f": {unix.S_IFREG | 0o600, 1000, 1001},
		"pipe":   {unix.S_IFIFO | 0o620, 0, 0},
		"link":   {unix.S_IFLNK | 0o777, 7, 7},
	} {
		st := stat(name)
		if got := [3]uint32{st.Mode, st.Uid, st.Gid}; got != want {
			t.Errorf("%s: mode, uid and gid %o, want %o", name, got, want)
		}
		if st.Mtim.Sec != 1700000000 {
			t.Errorf("%s: its time is %d", name, st.Mtim.Sec)
		}
	}
	if stat("hard").Ino != stat("mine/f").Ino {
		t.Error("the hard link is another file")
	}
	if st := stat("sparse"); st.Size != int64(len(sparse)) || st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse file has %d bytes in %d blocks", st.Size, st.Blocks)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "sparse")); string(got) != sparse {
		t.Error("the sparse file's content differs")
	}
	buf := make([]byte, 64)
	if n, err := unix.Getxattr(filepath.Join(dir, "mine/f"), "user.note", buf); err == nil && string(buf[:n]) != "hello" {
		t.Errorf("the attribute is %q", buf[:n])
	}
	if n, err := unix.Getxattr(filepath.Join(dir, "mine/f"), "trusted.overlay.opaque", buf); err == nil {
		t.Errorf("a packer's attribute arrived: %q", buf[:n])
	}
}

// A layer changes nothing outside the tree, whatever it holds.
func FuzzLayer(f *testing.F) {
	f.Add(layerOf(f, item{name: "up", kind: tar.TypeSymlink, link: "../outside"}, item{name: "up/f", body: "x"}))
	f.Add(layerOf(f, item{name: "d/f", body: "1"}, item{name: "d/.wh..wh..opq"}, item{name: "../.wh.outside"}))
	f.Add(layerOf(f, item{name: "a", kind: tar.TypeSymlink, link: "/"}, item{name: "b", kind: tar.TypeLink, link: "a/../outside/canary"}))
	f.Fuzz(func(t *testing.T, layer []byte) {
		needRoot(t)
		world := t.TempDir()
		outside, inside := filepath.Join(world, "outside"), filepath.Join(world, "tree")
		for _, dir := range []string{outside, inside} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		canary := filepath.Join(outside, "canary")
		if err := os.WriteFile(canary, []byte("alive"), 0o640); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(canary)
		_ = applyAll(inside, Limits{Bytes: 1 << 20, Entries: 500}, layer)
		after, err := os.Lstat(canary)
		if err != nil {
			t.Fatal(err)
		}
		if after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) ||
			after.Sys().(*syscall.Stat_t).Nlink != 1 || listing(t, outside) != "canary=alive" {
			t.Error("something outside the tree changed")
		}
		if entries, _ := os.ReadDir(world); len(entries) != 2 {
			t.Errorf("beside the tree appeared %v", entries)
		}
	})
}
