package build

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// overlay makes a layer of what a sandbox had changed of its root when a
// snapshot was taken of it, or finds that layer. The build stands on it.
func (r *run) overlay(ctx context.Context, s cay.Snapshot) error {
	key := digest("sandbox 1", string(s.ID))
	var known state
	if r.layers.Find(key, &known) {
		if _, err := r.layers.Load(known.Layer); err == nil {
			r.below = known.Layer
			return nil
		}
	}
	r.say(baseStep, "[base] reading the files of the sandbox")
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := r.pack(ctx, s.ID, out)
		out.CloseWithError(err)
		packed <- err
	}()
	most := int64(max(s.Limits.DiskMB, r.spec.Limits.DiskMB)) << 20
	l, err := r.layers.Add(ctx, "", nil, in, most)
	in.CloseWithError(io.ErrClosedPipe)
	if unread := <-packed; unread != nil && !errors.Is(unread, io.ErrClosedPipe) {
		return unread // it explains the other error
	}
	if err != nil {
		return err
	}
	r.below = l.Digest
	return r.layers.Remember(key, state{Layer: l.Digest})
}

// pack writes the files of a snapshot as a tar, without Docker's store: a layer
// cannot say which files an image of Docker's removes.
func (r *run) pack(ctx context.Context, id cay.SnapshotID, w io.Writer) error {
	out := tar.NewWriter(w)
	err := r.cfg.Node.ReadFiles(ctx, id, func(h *tar.Header, body io.Reader) error {
		if strings.HasPrefix(h.Name, strings.TrimPrefix(guest.DockerStore, "/")+"/") {
			return nil
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(out, body)
		return err
	})
	return errors.Join(err, out.Close())
}
