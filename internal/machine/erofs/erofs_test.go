package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// listing describes every file of a tree: what a sandbox would see of it.
func listing(t *testing.T, tree *Tree) []string {
	t.Helper()
	var out []string
	names := map[*Node]string{}
	var walk func(name string, n *Node)
	walk = func(name string, n *Node) {
		line := fmt.Sprintf("%s %#o %d:%d %d.%09d %q %d", name, n.Mode, n.UID, n.GID, n.Mtime.Unix(), n.Mtime.Nanosecond(), n.Target, n.Rdev)
		if first := names[n]; first != "" {
			line += " is " + first
		}
		names[n] = name
		if n.IsRegular() {
			content, err := io.ReadAll(n.Content())
			if err != nil || int64(len(content)) != n.Size {
				t.Fatalf("%s: read %d of %d bytes: %v", name, len(content), n.Size, err)
			}
			line += fmt.Sprintf(" %d %x", n.Size, content[:min(len(content), 16)])
		}
		out = append(out, line)
		var below []string
		for child := range n.children {
			below = append(below, child)
		}
		slices.Sort(below)
		for _, child := range below {
			walk(path.Join(name, child), n.children[child])
		}
	}
	walk("/", tree.root)
	return out
}

func write(t *testing.T, tree *Tree) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tree.Write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func open(t *testing.T, name string) *Tree {
	t.Helper()
	tree, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("trees differ from line %d:\ngot  %v\nwant %v", i, got[min(i, len(got)):min(i+2, len(got))], want[min(i, len(want)):min(i+2, len(want))])
		}
	}
}

// pool is a file full of content to take files from.
func pool(t *testing.T, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "pool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	return f
}

var day = time.Unix(1_600_000_000, 123_000_000)

// grow makes a tree of every kind of file, with sizes around the edges.
func grow(t *testing.T, seed uint64) *Tree {
	t.Helper()
	tree, content := New(), pool(t, 1<<20)
	r := rand.New(rand.NewPCG(seed, 1))
	put := func(name string, n Node) {
		t.Helper()
		n.Mtime = day
		if err := tree.Put(name, n); err != nil {
			t.Fatal(err)
		}
	}
	put("", Node{Mode: typeDir | 0o755})
	dirs := []string{""}
	for i := range 400 {
		dir := dirs[r.IntN(len(dirs))]
		name := path.Join(dir, strings.Repeat("n", r.IntN(200))+fmt.Sprint(i))
		switch r.IntN(5) {
		case 0:
			put(name, Node{Mode: typeDir | 0o1777, UID: 70000, GID: uint32(i)})
			dirs = append(dirs, name)
		case 1:
			put(name, Node{Mode: typeSymlink | 0o777, Target: strings.Repeat("t", 1+r.IntN(4094))})
		default:
			size := []int64{0, 1, 4095, 4096, 4097, int64(r.IntN(20000))}[r.IntN(6)]
			put(name, Node{Mode: typeRegular | 0o4755, Size: size, File: content, Offset: int64(r.IntN(1 << 19))})
			if r.IntN(4) == 0 {
				if err := tree.Link(name+"-l", name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	put("dev/null", Node{Mode: typeChar | 0o666, Rdev: 0x103})
	put("fifo", Node{Mode: typeFIFO | 0o600})
	put("!before-the-dot", Node{Mode: typeRegular | 0o600, Size: 3, File: content})
	for i := range 3000 { // a directory of many blocks
		put(fmt.Sprintf("many/%d", i), Node{Mode: typeRegular | 0o644})
	}
	return tree
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for seed := range uint64(2) {
		tree := grow(t, seed)
		image := write(t, tree)
		if seed == 0 {
			check(t, image)
		}
		same(t, listing(t, open(t, image)), listing(t, tree))
		again := write(t, open(t, image)) // runs of the image are copied as one
		same(t, listing(t, open(t, again)), listing(t, tree))
	}
}

// check has the reference tools judge an image, where the host has them.
func check(t *testing.T, image string) {
	t.Helper()
	if _, err := exec.LookPath("fsck.erofs"); err != nil {
		return
	}
	if out, err := exec.CommandContext(t.Context(), "fsck.erofs", image).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v: %s", err, out)
	}
}

// An image that is extended in place equals a new one, for all changes, however
// often.
func TestAnImageIsExtended(t *testing.T) {
	tree := grow(t, 3)
	image, content := write(t, tree), pool(t, 1<<20)
	for turn := range uint64(2) {
		extend(t, image, content, rand.New(rand.NewPCG(3, turn)))
	}
	same(t, listing(t, open(t, write(t, open(t, image)))), listing(t, open(t, image)))
	other, err := os.OpenFile(write(t, tree), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if open(t, image).Extend(t.Context(), other) == nil || tree.Extend(t.Context(), other) == nil {
		t.Error("a tree went into an image that it was not read from")
	}
}

// extend changes files of an image, and compares what is read with what was
// meant.
func extend(t *testing.T, image string, content *os.File, r *rand.Rand) {
	t.Helper()
	tree := open(t, image)
	var files []string
	for name := range tree.Lookup("many").children {
		files = append(files, "many/"+name)
	}
	for name, n := range tree.root.children {
		if !n.IsDir() {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	for i := range 60 {
		name := files[r.IntN(len(files))]
		if i%2 == 0 {
			tree.Remove(name)
			continue
		}
		size := []int64{0, 1, 4096, 4097, int64(r.IntN(20000))}[r.IntN(5)]
		if err := tree.Put(name, Node{Mode: typeRegular | 0o644, Mtime: day, Size: size, File: content, Offset: int64(r.IntN(1 << 19))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Put(fmt.Sprintf("new/%d", r.Int()), Node{Mode: typeSymlink | 0o777, Target: "many"}); err != nil {
		t.Fatal(err)
	}
	want := listing(t, tree)
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tree.Extend(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	check(t, image)
	same(t, listing(t, open(t, image)), want)
}

func TestEqualTreesMakeEqualImages(t *testing.T) {
	one, err := os.ReadFile(write(t, grow(t, 7)))
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(write(t, grow(t, 7)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Error("they differ")
	}
}

func TestImagesOfTheReferenceAreRead(t *testing.T) {
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Skip("this host has no mkfs.erofs")
	}
	dir := t.TempDir()
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d", i)), bytes.Repeat([]byte{'x'}, i*37), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("file-1", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "file-299"), filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image")
	if out, err := exec.CommandContext(t.Context(), "mkfs.erofs", "-E", "noinline_data", "-x", "-1", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	tree := open(t, image)
	for i := range 300 {
		n := tree.Lookup(fmt.Sprintf("file-%d", i))
		if n == nil || n.Size != int64(i*37) || n.Mode != typeRegular|0o640 {
			t.Fatalf("file %d is %+v", i, n)
		}
	}
	if n := tree.Lookup("link"); n == nil || n.Target != "file-1" {
		t.Errorf("the link is %+v", n)
	}
	if tree.Lookup("hard") != tree.Lookup("file-299") {
		t.Error("the second name is another file")
	}
	same(t, listing(t, open(t, write(t, tree))), listing(t, tree))
}

func TestPaths(t *testing.T) {
	tree := New()
	put := func(name string, n Node) error { return tree.Put(name, n) }
	for _, err := range []error{
		put("usr/lib", Node{Mode: typeDir | 0o755}),
		put("lib", Node{Mode: typeSymlink | 0o777, Target: "usr/lib"}),
		put("abs", Node{Mode: typeSymlink | 0o777, Target: "/usr/../usr/lib"}),
		put("out", Node{Mode: typeSymlink | 0o777, Target: "../../../usr"}),
		put("loop", Node{Mode: typeSymlink | 0o777, Target: "loop"}),
		put("lib/a", Node{Mode: typeRegular | 0o644}),
		put("abs/b", Node{Mode: typeRegular | 0o644}),
		put("out/c", Node{Mode: typeRegular | 0o644}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"usr/lib/a", "usr/lib/b", "usr/c", "out/lib/a"} {
		if tree.Lookup(name) == nil {
			t.Errorf("%s is not there", name)
		}
	}
	for name, n := range map[string]Node{
		"loop/x":                       {Mode: typeRegular},
		"usr/lib/a/x":                  {Mode: typeRegular},
		strings.Repeat("x", 256):       {Mode: typeRegular},
		"..":                           {Mode: typeRegular},
		"a\x00b":                       {Mode: typeRegular},
		"strange":                      {Mode: 0o644},
		strings.Repeat("y", 256) + "/": {Mode: typeDir},
	} {
		if err := put(name, n); err == nil {
			t.Errorf("%.20q was put", name)
		}
	}
	tree.Remove("lib") // the link, not where it leads
	if tree.Lookup("usr/lib/a") == nil || tree.Lookup("lib") != nil {
		t.Error("a link was not removed as such")
	}
	tree.Clear("usr/lib")
	if tree.Lookup("usr/lib/a") != nil || tree.Lookup("usr/lib") == nil {
		t.Error("a directory was not emptied")
	}
	if err := tree.Link("again", "usr"); err == nil {
		t.Error("a directory got a second name")
	}
}

func TestACancelledWriteEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := grow(t, 1).Write(ctx, f); err == nil {
		t.Error("it was written")
	}
}

func FuzzOpen(f *testing.F) {
	tree := New()
	if err := tree.Put("a/b", Node{Mode: typeSymlink | 0o777, Target: "c"}); err != nil {
		f.Fatal(err)
	}
	name := filepath.Join(f.TempDir(), "image")
	out, err := os.Create(name)
	if err != nil {
		f.Fatal(err)
	}
	if err := tree.Write(context.Background(), out); err != nil {
		f.Fatal(err)
	}
	out.Close()
	seed, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= superOffset+superSize {
			load(nil, data) // must neither panic nor hang
		}
	})
}
