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
