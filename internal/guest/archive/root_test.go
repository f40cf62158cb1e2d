package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestPackRootRoundTrip(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "d/a/f"), strings.Repeat("text", 200_000))
	write(t, filepath.Join(src, "d/empty"), "")
	write(t, filepath.Join(src, "d/\xff"), "a name that is no UTF-8")
	must(t, os.Link(filepath.Join(src, "d/empty"), filepath.Join(src, "d/twin")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(src, "d/out")))
	must(t, syscall.Mkfifo(filepath.Join(src, "d/fifo"), 0o600))
	for i := range 3 * listing {
		write(t, filepath.Join(src, "d/many", strings.Repeat("n", i%200+1)+"-"+string(rune('a'+i%26))), "x")
	}
	var b bytes.Buffer
	must(t, Packer{}.PackRoot(t.Context(), &b, openRoot(t, src), "d", "."))
	_, err := Unpacker{Owner: me(), Strict: true, Endless: true}.Into(t.Context(), openRoot(t, dst), &b)
	must(t, err)
	must(t, os.Remove(filepath.Join(src, "d/fifo")))
	got, want := tree(t, dst), tree(t, filepath.Join(src, "d"))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %d entries, want %d", len(got), len(want))
	}
	if read(t, filepath.Join(dst, "a/f")) != read(t, filepath.Join(src, "d/a/f")) {
		t.Error("contents differ")
	}
}

func TestPackRootOneFile(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "a/b/f"), "text")
	var b bytes.Buffer
	must(t, Packer{}.PackRoot(t.Context(), &b, openRoot(t, src), "a/b/f", "g"))
	_, err := Unpack(t.Context(), &b, dst, me())
	must(t, err)
	if read(t, filepath.Join(dst, "g")) != "text" {
		t.Error("contents differ")
	}
}

func TestPackRootRefuses(t *testing.T) {
	var bad *FormatError
	src := t.TempDir()
	write(t, filepath.Join(src, "holes"), "")
	must(t, os.Truncate(filepath.Join(src, "holes"), 1<<43))
	if err := (Packer{}).PackRoot(t.Context(), io.Discard, openRoot(t, src), ".", "."); !errors.As(err, &bad) {
		t.Errorf("a file of holes: %v", err)
	}
	src = t.TempDir()
	deep := openRoot(t, src)
	for range maxLevels + 2 {
		must(t, deep.Mkdir("d", 0o700))
		next, err := deep.OpenRoot("d")
		must(t, err)
		must(t, deep.Close())
		deep = next
	}
	must(t, deep.Close())
	if err := (Packer{}).PackRoot(t.Context(), io.Discard, openRoot(t, src), ".", "."); !errors.As(err, &bad) {
		t.Errorf("deep directories: %v", err)
	}
	src = t.TempDir()
	must(t, os.Symlink("/", filepath.Join(src, "l")))
	if err := (Packer{}).PackRoot(t.Context(), io.Discard, openRoot(t, src), "l/etc", "."); err == nil {
		t.Error("a link that leads out was followed")
	}
}

func TestUnpackStrict(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"device": {Typeflag: tar.TypeBlock, Name: "d", Devmajor: 8},
		"fifo":   {Typeflag: tar.TypeFifo, Name: "d"},
	} {
		var bad *FormatError
		if _, err := (Unpacker{Owner: me(), Strict: true}).Into(t.Context(), openRoot(t, t.TempDir()), tarOf(t, h)); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// swapping has a directory be itself and a link that leads out in turn, until the
// test ends.
func swapping(t *testing.T, dir, out string) (stop func()) {
	t.Helper()
	must(t, os.Symlink(out, dir+".link"))
	done := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			_ = os.Rename(dir, dir+".dir") // a step that fails is made good by the next round
			_ = os.Rename(dir+".link", dir)
			_ = os.Rename(dir, dir+".link")
			_ = os.Rename(dir+".dir", dir)
		}
	})
	return func() { close(done); gone.Wait() }
}

// A guest that swaps directories for links meanwhile has nothing outside read.
func TestPackRootAmongSwaps(t *testing.T) {
	src, out := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "d/f"), "inside")
	write(t, filepath.Join(out, "f"), "OUTSIDE")
	stop := swapping(t, filepath.Join(src, "d"), out)
	defer stop()
	for range 200 {
		var b bytes.Buffer
		must(t, Packer{}.PackRoot(t.Context(), &b, openRoot(t, src), ".", "."))
		if bytes.Contains(b.Bytes(), []byte("OUTSIDE")) {
			t.Fatal("what is outside was read")
		}
	}
}

// A guest that swaps directories for links meanwhile has nothing outside
// written.
func TestUnpackAmongSwaps(t *testing.T) {
	dst, out := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(dst, "d"), 0o755))
	stop := swapping(t, filepath.Join(dst, "d"), out)
	defer stop()
	for range 200 {
		_, _ = Unpacker{Owner: me()}.Into(t.Context(), openRoot(t, dst), tarOf(t, reg("d/f", "x"), reg("d/e/g", "x"))) // it may find the link
		if got := tree(t, out); len(got) != 0 {
			t.Fatalf("outside: %v", got)
		}
	}
}
