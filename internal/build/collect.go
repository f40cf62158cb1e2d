package build

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/cay-run/cay"
)

// cacheLife is how long a layer or an archive is kept that nobody uses.
const cacheLife = 14 * 24 * time.Hour

// Collect removes layers and archives that were not used for long. Templates
// do not need them, later builds do. No build may run: call it in Idle.
func (b *Builder) Collect() error {
	before := time.Now().Add(-cacheLife)
	return errors.Join(
		b.layers.Collect(before, func(value json.RawMessage) string {
			var s state
			if json.Unmarshal(value, &s) != nil {
				return ""
			}
			return s.Layer
		}),
		b.eachUpload(func(_ string, st fs.FileInfo) bool { return st.ModTime().Before(before) }),
	)
}

// Tidy removes the root images of builds of this process that no snapshot
// stands on and no build is about to need. A root image is as large as all the
// files of its template, so they are not left for Collect.
func (b *Builder) Tidy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.images) == 0 {
		return nil
	}
	all, err := b.cfg.Snapshots.List()
	if err != nil {
		return err // one that is damaged may need any of them
	}
	used := map[string]bool{}
	for _, s := range all {
		used[s.Root] = true
	}
	var errs []error
	for name, l := range b.images {
		if l.holds > 0 || l.ours && used[name] {
			continue
		}
		if !l.ours {
			delete(b.images, name)
			continue
		}
		if err := b.cfg.Snapshots.RemoveImage(name); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(b.images, name)
	}
	return errors.Join(errs...)
}

// diskError tells a full disk from a broken one.
func diskError(ctx context.Context, err error, what string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return cay.Wrap(cay.NoSpace, err, "no room on the server's disk to %s", what)
	}
	return cay.Wrap(cay.Internal, err, "cannot %s", what)
}
