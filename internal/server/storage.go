package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/storage"
)

// takeData mounts the data directory's storage, if it has any, and makes this
// process the only server of it.
func takeData(ctx context.Context, cfg config.Config) (io.Closer, error) {
	if err := makeDirs(cfg); err != nil {
		return nil, err
	}
	for {
		if err := storage.Mount(ctx, cfg.Data); err != nil {
			return nil, err
		}
		lock, err := takeLock(cfg.Data)
		if err != nil || !storage.Waiting(cfg.Data) {
			return lock, err
		}
		lock.Close() // it was made, or unmounted, between the two
	}
}

// CreateStorage gives the data directory a file system of its own whose files
// share blocks, and moves what is there into it. Nothing of Cay may run.
func CreateStorage(ctx context.Context, cfg config.Config, size int64) error {
	if err := makeDirs(cfg); err != nil {
		return err
	}
	if !storage.Waiting(cfg.Data) { // else it is refused below
		lock, err := takeLock(cfg.Data)
		if err != nil {
			return err
		}
		defer lock.Close()
		for _, dir := range []string{instancesDir(cfg), filepath.Join(cfg.Data, "building")} {
			if left, err := os.ReadDir(dir); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				return cay.Wrap(cay.Conflict, err, "sandboxes use %s", cfg.Data).WithHint("end them first: cay down")
			}
		}
	}
	return storage.Create(ctx, cfg.Data, size)
}
