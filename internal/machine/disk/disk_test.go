package disk

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
)

func TestLockIsForOne(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(t.Context(), dir, func() { t.Error("no other process held it") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Lock(ctx, dir, cancel); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a second one got: %v", err)
	}
	told := make(chan struct{})
	go func() {
		<-told
		unlock()
	}()
	again, err := Lock(t.Context(), dir, func() { close(told) })
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestUse(t *testing.T) {
	dir := t.TempDir()
	empty := Use(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file, filepath.Join(dir, "second")); err != nil {
		t.Fatal(err)
	}
	hole := filepath.Join(dir, "hole")
	if err := os.WriteFile(hole, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(hole, 1<<30); err != nil {
		t.Fatal(err)
	}
	if got := Use(dir) - empty; got < 1<<20 || got > 3<<19 {
		t.Errorf("1 MB under two names and a hole take %d bytes", got)
	}
	if got := Use(filepath.Join(dir, "none")); got != 0 {
		t.Errorf("nothing takes %d bytes", got)
	}
}

// Written data counts, on its way to the disk or there; reserved room and holes
// do not. Where a file has very many parts its blocks are the bound.
func TestWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, 64<<20); err != nil {
		t.Skipf("this file system cannot reserve room: %v", err)
	}
	is := func(want int64) {
		t.Helper()
		if got := Written(name); got < want || got > want+1<<20 {
			t.Errorf("%d bytes are written, want %d", got, want)
		}
	}
	is(0)
	if Use(name) < 64<<20 {
		t.Errorf("%d bytes are reserved, want 64 MB", Use(name))
	}
	for _, at := range []int64{0, 20 << 20, 60 << 20} {
		if _, err := f.WriteAt(make([]byte, 2<<20), at); err != nil {
			t.Fatal(err)
		}
	}
	is(6 << 20)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	is(6 << 20)
	if err := f.Truncate(200 << 20); err != nil {
		t.Fatal(err)
	}
	is(6 << 20)

	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	for i := range int64(runsAtOnce + 100) {
		if _, err := f.WriteAt([]byte{1}, i*16<<10); err != nil {
			t.Fatal(err)
		}
	}
	if got := Written(name); got < (runsAtOnce+100)*4<<10 || got > Use(name) {
		t.Errorf("%d bytes of %d parts are written, and the file has %d", got, runsAtOnce+100, Use(name))
	}
	if got := Written(filepath.Join(t.TempDir(), "none")); got != 0 {
		t.Errorf("what is not there has %d bytes", got)
	}
}

func TestRoom(t *testing.T) {
	dir := t.TempDir()
	if err := Room(dir, "it", 1); err != nil {
		t.Error(err)
	}
	if err := Room(dir, "it", 1<<60); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("an exabyte: %v", err)
	}
	if err := Room(filepath.Join(dir, "none"), "it", 1<<60); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error)  { return 0, f.error }
func (f failing) Write([]byte) (int, error) { return 0, f.error }

func TestCopyTellsWhoseFaultItIs(t *testing.T) {
	broken := failing{io.ErrUnexpectedEOF}
	if n, read, err := Copy(io.Discard, strings.NewReader("four")); n != 4 || read != nil || err != nil {
		t.Errorf("a whole copy: %d, %v, %v", n, read, err)
	}
	if _, read, err := Copy(io.Discard, io.MultiReader(strings.NewReader("x"), broken)); read == nil || err == nil {
		t.Errorf("a reader that fails: %v, %v", read, err)
	}
	if _, read, err := Copy(broken, strings.NewReader("four")); read != nil || err == nil {
		t.Errorf("a writer that fails: %v, %v", read, err)
	}
}
