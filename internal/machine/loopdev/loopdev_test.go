package loopdev_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cay-run/cay/internal/machine/loopdev"
)

// able skips a test where no device can be had.
func able(t *testing.T) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("NOT TESTED HERE: there are no loop devices: %v", err)
	}
	control.Close()
}

// Devices that were told to keep their room are made anew for the next file: callers
// at once meet each other's that are not there for a moment.
func TestAttachBesideOthers(t *testing.T) {
	able(t)
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 6 {
		file := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for round := range 30 {
				loop, err := loopdev.Attach(file)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				loopdev.KeepRoom(loop)
				if err := loop.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestAttachNothing(t *testing.T) {
	able(t)
	if loop, err := loopdev.Attach(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("%v, %v", loop, err)
	}
}
