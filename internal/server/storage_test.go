package server

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/storage"
)

// A server finds its data where it was before, and nothing beside it.
func TestStorageIsMountedAtTheStart(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = filepath.Join(t.TempDir(), "data"), t.TempDir()
	busy := filepath.Join(instancesDir(cfg), "n")
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
		if err := storage.Unmount(context.Background(), cfg.Data); err != nil {
			t.Error(err)
		}
	})
	if !storage.Waiting(cfg.Data) {
		t.Fatal("there is no storage")
	}
	lock, err := takeData(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := os.Stat(instancesDir(cfg)); err != nil || storage.Waiting(cfg.Data) {
		t.Errorf("what was there is not: %v", err)
	}
	if err := CreateStorage(t.Context(), cfg, size); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a second one was made: %v", err)
	}
}
