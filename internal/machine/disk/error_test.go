package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
)

// The error of a full disk names the disk, not the file.
func TestAFullDiskIsNamed(t *testing.T) {
	at := disktest.Ext4(t, 4<<20)
	deep := filepath.Join(at, "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	full := os.WriteFile(filepath.Join(deep, "big"), make([]byte, 8<<20), 0o600)
	if err := os.RemoveAll(filepath.Join(at, "a")); err != nil { // the path may be gone by then
		t.Fatal(err)
	}
	err := Error(errors.Join(full, errors.New("another")), "write a key")
	if err.Kind != cay.NoSpace || err.Msg != "write a key: the disk at "+at+" is full" || err.Hint == "" {
		t.Errorf("%#v", err)
	}
}

func TestOtherErrorsAreOfTheWork(t *testing.T) {
	_, missing := os.Open(filepath.Join(t.TempDir(), "none"))
	if err := Error(missing, "read %s", "a key"); err.Kind != cay.Internal || err.Msg != "read a key" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%#v", err)
	}
	bare := Error(&os.SyscallError{Syscall: "write", Err: syscall.ENOSPC}, "write a key")
	if bare.Kind != cay.NoSpace || !strings.HasSuffix(bare.Msg, "the server's disk is full") {
		t.Errorf("%#v", bare)
	}
	if got := mountOf("/proc/self/none/deeper"); got != "/proc" {
		t.Errorf("/proc is on %s", got)
	}
}
