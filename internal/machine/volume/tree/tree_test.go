package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

func opened(t testing.TB) (*Tree, string) {
	t.Helper()
	outer := t.TempDir()
	dir := filepath.Join(outer, "volume")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(outer, "secret"), []byte(secret), 0o600))
	tree, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { tree.Close() })
	return tree, dir
}

// secret is in a file beside the volume, which no path leads to.
const secret = "of the host"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, kind cay.Kind, err error) {
	t.Helper()
	if err == nil || cay.KindOf(err) != kind {
		t.Fatalf("want an error of kind %s, got %v", kind, err)
	}
}

func write(t testing.TB, tree *Tree, name, text string, force bool) Entry {
	t.Helper()
	e, err := tree.Write(t.Context(), name, strings.NewReader(text), int64(len(text)), force, Meta{})
	must(t, err)
	return e
}

func read(t testing.TB, tree *Tree, name string) string {
	t.Helper()
	f, _, err := tree.Read(name)
	must(t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	must(t, err)
	return string(text)
}

func number(n uint32) *uint32 { return &n }

func paths(t testing.TB, tree *Tree, name string, depth int) string {
	t.Helper()
	all, err := tree.List(t.Context(), name, depth)
	must(t, err)
	var out []string
	for _, e := range all {
		out = append(out, e.Path)
	}
	return strings.Join(out, " ")
}

func TestFiles(t *testing.T) {
	tree, dir := opened(t)
	e := write(t, tree, "/a.txt", "one", false)
	if e.Name != "a.txt" || e.Path != "/a.txt" || e.Type != File || e.Size != 3 || e.Mode != 0o644 || e.Modified.IsZero() {
		t.Errorf("it is %+v", e)
	}
	if os.Geteuid() == 0 && (e.UID != 1000 || e.GID != 1000) {
		t.Errorf("it is %d:%d's", e.UID, e.GID)
	}
	want(t, cay.NotFound, errOf(tree.Write(t.Context(), "b/c/d", strings.NewReader(""), 0, false, Meta{})))
	write(t, tree, "b/c/d", "deep", true)
	if got := read(t, tree, "//b/./x/../c/d"); got != "deep" {
		t.Errorf("it has %q", got)
	}
	if got := paths(t, tree, "/", 1); got != "/a.txt /b" {
		t.Errorf("there are %s", got)
	}
	if got := paths(t, tree, "b", 2); got != "/b/c /b/c/d" {
		t.Errorf("there are %s", got)
	}
	must(t, os.Chmod(filepath.Join(dir, "a.txt"), 0o751))
	if e := write(t, tree, "a.txt", "", false); e.Mode != 0o751 || e.Size != 0 {
		t.Errorf("written again, it is %+v", e)
	}
	mode := uint32(0o600)
	if e, err := tree.Write(t.Context(), "a.txt", strings.NewReader("x"), -1, false, Meta{Mode: &mode}); err != nil || e.Mode != mode {
		t.Errorf("written with a mode, it is %+v: %v", e, err)
	}
	want(t, cay.Conflict, errOf(tree.Write(t.Context(), "b", strings.NewReader("x"), 1, true, Meta{})))
	want(t, cay.NotFound, errOf(tree.Write(t.Context(), "a.txt/x", strings.NewReader("x"), 1, true, Meta{})))
	_, _, err := tree.Read("b")
	want(t, cay.Invalid, err)
	must(t, tree.Remove(t.Context(), "b"))
	want(t, cay.NotFound, tree.Remove(t.Context(), "b"))
	want(t, cay.Invalid, tree.Remove(t.Context(), "/"))
	want(t, cay.Invalid, tree.Remove(t.Context(), "b/.."))
	if got := paths(t, tree, "/", 5); got != "/a.txt" {
		t.Errorf("there are %s", got)
	}
	if e, err := tree.Stat("/"); err != nil || e.Name != "/" || e.Path != "/" || e.Type != Directory {
		t.Errorf("the root is %+v: %v", e, err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestDirectories(t *testing.T) {
	tree, _ := opened(t)
	want(t, cay.NotFound, errOf(tree.Mkdir("a/b", false, Meta{})))
	e, err := tree.Mkdir("a/b", true, Meta{Mode: number(0o2750)})
	if err != nil || e.Mode != 0o2750 || e.Type != Directory || e.Name != "b" {
		t.Fatalf("it is %+v: %v", e, err)
	}
	want(t, cay.Conflict, errOf(tree.Mkdir("a/b", false, Meta{})))
	if e, err := tree.Mkdir("a/b", true, Meta{}); err != nil || e.Mode != 0o2750 {
		t.Errorf("one that is there becomes %+v: %v", e, err)
	}
	want(t, cay.Conflict, errOf(tree.Mkdir("/", false, Meta{})))
	must(t, errOf(tree.Mkdir("/", true, Meta{})))
	write(t, tree, "file", "", false)
	want(t, cay.Conflict, errOf(tree.Mkdir("file", false, Meta{})))
	if _, err := tree.Mkdir("file", true, Meta{}); err == nil {
		t.Error("a file was taken for a directory")
	}
	e, err = tree.SetMeta("a", Meta{Mode: number(0o700)})
	if err != nil || e.Mode != 0o700 {
		t.Errorf("it is %+v: %v", e, err)
	}
	if os.Geteuid() == 0 {
		if e, err = tree.SetMeta("a", Meta{UID: number(7), GID: number(8)}); err != nil || e.UID != 7 || e.GID != 8 || e.Mode != 0o700 {
			t.Errorf("it is %+v: %v", e, err)
		}
	}
	want(t, cay.NotFound, errOf(tree.SetMeta("none", Meta{})))
	for _, depth := range []int{-1, 0, MaxDepth + 1} {
		want(t, cay.Invalid, errOf(tree.List(t.Context(), "/", depth)))
	}
	want(t, cay.NotFound, errOf(tree.List(t.Context(), "file", 1)))
}

// A link leads to another place of the volume, or nowhere.
func TestLinks(t *testing.T) {
	tree, dir := opened(t)
	write(t, tree, "real/file", "inside", true)
	for name, target := range map[string]string{
		"absolute": "/real/file", "relative": "real/file", "up": "../../../../real/file", "dir": "/real",
		"out": "../secret", "host": "/etc/passwd", "magic": "/proc/self/root/etc/passwd", "loop": "loop", "dangling": "nothing",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	for _, name := range []string{"absolute", "relative", "up", "dir/file"} {
		if got := read(t, tree, name); got != "inside" {
			t.Errorf("%s has %q", name, got)
		}
	}
	for _, name := range []string{"out", "host", "magic", "loop", "dangling"} {
		_, _, err := tree.Read(name)
		if k := cay.KindOf(err); k != cay.NotFound && k != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		e, err := tree.Stat(name)
		if err != nil || e.Type != Symlink || e.Target == "" {
			t.Errorf("%s is %+v: %v", name, e, err)
		}
		if _, err := tree.SetMeta(name, Meta{Mode: number(0o777)}); err == nil {
			t.Errorf("%s: its target changed", name)
		}
		if _, err := tree.Write(t.Context(), name+"/x", strings.NewReader("x"), 1, true, Meta{}); err == nil {
			t.Errorf("something was written behind %s", name)
		}
	}
	if got := paths(t, tree, "dir", 1); got != "/dir/file" {
		t.Errorf("behind a link there are %s", got)
	}
	// A write and a removal are of the link.
	write(t, tree, "absolute", "own", false)
	must(t, tree.Remove(t.Context(), "dir"))
	if read(t, tree, "real/file") != "inside" || read(t, tree, "absolute") != "own" {
		t.Error("a write followed a link")
	}
	write(t, tree, "out", "own", false)
	if text, err := os.ReadFile(filepath.Join(dir, "..", "secret")); err != nil || string(text) != secret {
		t.Errorf("beside the volume there is %q: %v", text, err)
	}
}

// Neither FIFOs nor sockets nor devices are opened.
func TestSpecialFiles(t *testing.T) {
	tree, dir := opened(t)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	defer l.Close()
	all := []string{"fifo", "socket"}
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
		all = append(all, "device")
	}
	for _, name := range all {
		_, _, err := tree.Read(name)
		want(t, cay.Invalid, err)
		e, err := tree.SetMeta(name, Meta{Mode: number(0o600)})
		if err != nil || e.Type != Unknown || e.Mode != 0o600 {
			t.Errorf("%s is %+v: %v", name, e, err)
		}
		write(t, tree, name, "a file now", false)
		if got := read(t, tree, name); got != "a file now" {
			t.Errorf("%s has %q", name, got)
		}
		must(t, tree.Remove(t.Context(), name))
	}
}

func TestBadPaths(t *testing.T) {
	tree, dir := opened(t)
	for _, name := range []string{
		"", "a\x00b", "\xff", strings.Repeat("a/", MaxPath), strings.Repeat("x/", MaxParts) + "x", strings.Repeat("n", 256),
	} {
		_, err := tree.Stat(name)
		want(t, cay.Invalid, err)
		want(t, cay.Invalid, errOf(tree.Mkdir(name, true, Meta{})))
		want(t, cay.Invalid, errOf(tree.Write(t.Context(), name, strings.NewReader(""), 0, true, Meta{})))
		want(t, cay.Invalid, tree.Remove(t.Context(), name))
	}
	// A guest's names may be anything.
	must(t, os.WriteFile(filepath.Join(dir, "\xff\n\"\\"), nil, 0o600))
	if got := paths(t, tree, "/", 1); got != "/\xff\n\"\\" {
		t.Errorf("there are %q", got)
	}
}

// A write that is broken off leaves what was there, and no rests.
func TestAWriteIsWholeOrNone(t *testing.T) {
	tree, dir := opened(t)
	write(t, tree, "file", "before", false)
	must(t, os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "other")))
	broken := errors.New("the line is cut")
	_, err := tree.Write(t.Context(), "file", io.MultiReader(bytes.NewReader(make([]byte, 3<<20)), errorReader{broken}), -1, false, Meta{})
	if !errors.Is(err, broken) {
		t.Errorf("it says %v", err)
	}
	_, err = tree.Write(t.Context(), "file", io.MultiReader(strings.NewReader("x"), errorReader{io.ErrUnexpectedEOF}), 100, false, Meta{})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("it says %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	want(t, cay.Unavailable, errOf(tree.Write(ended, "file", strings.NewReader("x"), 1, false, Meta{})))
	want(t, cay.NoSpace, errOf(tree.Write(t.Context(), "file", strings.NewReader("x"), 1<<60, false, Meta{})))
	if got := read(t, tree, "file"); got != "before" {
		t.Errorf("it has %q", got)
	}
	write(t, tree, "file", "after", false)
	if got := read(t, tree, "other"); got != "before" {
		t.Errorf("the other name has %q", got)
	}
	if got := paths(t, tree, "/", 1); got != "/file /other" {
		t.Errorf("there are %s", got)
	}
}

type errorReader struct{ error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.error }

func TestMuchIsBounded(t *testing.T) {
	tree, dir := opened(t)
	deep := dir
	for range 120 { // names of a guest's own process, step by step
		deep = filepath.Join(deep, "d")
		must(t, os.Mkdir(deep, 0o755))
	}
	all, err := tree.List(t.Context(), "/", MaxDepth)
	if err != nil || len(all) != MaxDepth {
		t.Errorf("%d entries: %v", len(all), err)
	}
	must(t, tree.Remove(t.Context(), "d"))
	ended, end := context.WithCancel(t.Context())
	end()
	write(t, tree, "many/1", "", true)
	if _, err := tree.List(ended, "/", 1); err == nil {
		t.Error("it lists what nothing waits for")
	}
	if err := tree.Remove(ended, "many"); err == nil {
		t.Error("it removes what nothing waits for")
	}
	if got := paths(t, tree, "/", 2); got != "/many /many/1" {
		t.Errorf("there are %s", got)
	}
	tree.most = 1000
	for n := range 10 {
		for m := range 110 {
			write := filepath.Join(dir, "many", fmt.Sprint("d", n), fmt.Sprint(m))
			must(t, os.MkdirAll(filepath.Dir(write), 0o755))
			must(t, os.WriteFile(write, nil, 0o600))
		}
	}
	want(t, cay.Invalid, errOf(tree.List(t.Context(), "/", 3)))
	if all, err := tree.List(t.Context(), "/many/d7", 1); err != nil || len(all) != 110 {
		t.Errorf("%d entries: %v", len(all), err)
	}
	must(t, tree.Remove(t.Context(), "many"))
}

// Paths and targets bound a listing, not the number of entries alone: each may
// have thousands of bytes.
func TestLongPathsAreBounded(t *testing.T) {
	tree, dir := opened(t)
	long := filepath.Join(dir, strings.Repeat("d", 200), strings.Repeat("e", 200))
	must(t, os.MkdirAll(long, 0o755))
	for n := range 100 {
		must(t, os.WriteFile(filepath.Join(long, fmt.Sprint(n)), nil, 0o600))
	}
	tree.text = 50_000
	if all, err := tree.List(t.Context(), "/", 3); err != nil || len(all) != 102 {
		t.Errorf("%d entries: %v", len(all), err)
	}
	must(t, os.Symlink(strings.Repeat("t", 4000), filepath.Join(long, "a")))
	must(t, os.Symlink(strings.Repeat("t", 4000), filepath.Join(long, "b")))
	must(t, os.Symlink(strings.Repeat("t", 4000), filepath.Join(long, "c")))
	want(t, cay.Invalid, errOf(tree.List(t.Context(), "/", 3)))
	if all, err := tree.List(t.Context(), "/", 2); err != nil || len(all) != 2 {
		t.Errorf("%d entries: %v", len(all), err)
	}
}

// A tree deeper than a removal goes is refused, and nothing hangs.
func TestTooDeep(t *testing.T) {
	tree, dir := opened(t)
	at, err := os.Open(dir)
	must(t, err)
	for range deepest + 10 {
		must(t, unix.Mkdirat(int(at.Fd()), "d", 0o755))
		next, err := unix.Openat(int(at.Fd()), "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		at.Close()
		at = os.NewFile(uintptr(next), "d")
	}
	at.Close()
	want(t, cay.Conflict, tree.Remove(t.Context(), "d"))
	must(t, os.RemoveAll(filepath.Join(dir, "d")))
}

// swapper changes a place of a volume all the time: a directory, a link that
// leads out, a link inside, a file, nothing.
func swapper(dir string, stop *atomic.Bool) {
	a := filepath.Join(dir, "a")
	for n := 0; !stop.Load(); n++ {
		switch n % 6 {
		case 0:
			_ = os.MkdirAll(filepath.Join(a, "b"), 0o755)
		case 1:
			_ = os.Symlink("../../..", filepath.Join(a, "b", "c"))
		case 2:
			_ = os.Rename(a, filepath.Join(dir, fmt.Sprint("moved", n%3)))
			_ = os.Symlink("..", a)
		case 3:
			_ = os.Remove(a)
			_ = os.Symlink(filepath.Dir(dir), a)
		case 4:
			_ = os.Remove(a)
			_ = syscall.Mkfifo(a, 0o666)
		case 5:
			_ = os.Remove(a)
			_ = os.RemoveAll(filepath.Join(dir, fmt.Sprint("moved", n%3)))
		}
	}
}

// FuzzSwapped does everything with paths while a guest changes what they lead
// through: nothing beside the volume is read, written or removed.
func FuzzSwapped(f *testing.F) {
	for _, name := range []string{"a/b/c/secret", "a/secret", "a/b/secret", "a/../secret", "a/b", "a", "secret", "moved1/b/c/../secret", "a/b/c/a/b/c/secret"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		tree, dir := opened(t)
		outside := func() string {
			entries, err := os.ReadDir(filepath.Dir(dir))
			must(t, err)
			text, err := os.ReadFile(filepath.Join(dir, "..", "secret"))
			must(t, err)
			info, err := os.Stat(filepath.Join(dir, "..", "secret"))
			must(t, err)
			return fmt.Sprint(entries, string(text), info.Mode())
		}
		before := outside()
		var stop atomic.Bool
		var guest sync.WaitGroup
		guest.Go(func() { swapper(dir, &stop) })
		for range 8 {
			use(t, tree, name)
		}
		stop.Store(true)
		guest.Wait()
		if after := outside(); after != before {
			t.Errorf("beside the volume there was %s, and is %s", before, after)
		}
	})
}

func use(t *testing.T, tree *Tree, name string) {
	if f, _, err := tree.Read(name); err == nil {
		if text, _ := io.ReadAll(f); string(text) == secret {
			t.Errorf("%q leads out", name)
		}
		f.Close()
	}
	for _, err := range []error{
		errOf(tree.Stat(name)), errOf(tree.SetMeta(name, Meta{Mode: number(0o755)})), errOf(tree.Mkdir(name, true, Meta{})),
		errOf(tree.Write(t.Context(), name, strings.NewReader("own"), 3, true, Meta{})),
		errOf(tree.List(t.Context(), name, 3)), tree.Remove(t.Context(), name),
	} {
		var ours *cay.Error
		if err != nil && (!errors.As(err, &ours) || ours.Kind == cay.Internal) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
