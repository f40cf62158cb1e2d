package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/loopfs"
)

// A server finds its data where it was before, and nothing beside it.
func TestStorageIsMountedAtTheStart(t *testing.T) {
	cfg := Config{Data: filepath.Join(t.TempDir(), "data"), Run: t.TempDir()}
	busy := filepath.Join(cfg.Instances(), "n")
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	const size = 340 << 20
	if err := CreateStorage(t.Context(), cfg, size); cay.KindOf(err) != cay.Conflict {
		t.Fatalf("the data was moved from below a sandbox: %v", err)
	}
	if err := os.Remove(busy); err != nil {
		t.Fatal(err)
	}
	switch err := CreateStorage(t.Context(), cfg, size); cay.KindOf(err) {
	case "":
	case cay.Conflict, cay.Denied, cay.Unsupported, cay.NoSpace:
		t.Skipf("this machine has no use for storage, or cannot have it: %v", err)
	default:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := loopfs.Unmount(context.Background(), cfg.Data); err != nil {
			t.Error(err)
		}
	})
	if !loopfs.Waiting(cfg.Data) {
		t.Fatal("there is no storage")
	}
	lock, err := Take(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := os.Stat(cfg.Instances()); err != nil || loopfs.Waiting(cfg.Data) {
		t.Errorf("what was there is not: %v", err)
	}
	if err := CreateStorage(t.Context(), cfg, size); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a second one was made: %v", err)
	}
}
