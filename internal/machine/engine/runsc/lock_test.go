package runsc

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// TestStateIsLockedByACommandThatOutlivesUs: the lock is the command's, so
// that a server that comes after a crash waits for it.
func TestStateIsLockedByACommandThatOutlivesUs(t *testing.T) {
	e := &Engine{cfg: Config{Run: t.TempDir()}}
	id := cay.NewInstanceID()
	path := e.recordFile(id, "state.lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := e.lockState(id)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("cat") // ends when its input does
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.ExtraFiles = []*os.File{lock}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Close() // as a killed server does

	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while the command runs the lock is free: %v", err)
	}
	input.Close()
	again, err := e.lockState(id)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}
