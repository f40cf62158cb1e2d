package runsc

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Checkpoint implements engine.Engine.
func (e *Engine) Checkpoint(ctx context.Context, id cay.InstanceID, dir string, then engine.After) (cay.Snapshot, error) {
	in, err := e.get(id)
	if err != nil {
		return cay.Snapshot{}, err
	}
	// Once begun it is finished: half a checkpoint may end the instance.
	if err := ctx.Err(); err != nil {
		return cay.Snapshot{}, err
	}
	args := []string{"checkpoint", "--image-path=" + dir, "--compression=none", "--exclude-committed-zero-pages"}
	switch {
	case then == engine.Ends:
		in.asked.Store(true)
	case then == engine.Stays && in.EngineHash == e.cfg.Hash:
		args = append(args, "--leave-running", "--hold")
	case then == engine.Stays: // builds of before may not know the flag
		if err := e.Hold(ctx, id); err != nil {
			return cay.Snapshot{}, err
		}
		fallthrough
	default:
		args = append(args, "--leave-running")
	}
	written := writeBack(dir)
	_, err = e.call(context.WithoutCancel(ctx), in.record, append(args, string(id))...)
	written()
	if err != nil {
		in.asked.Store(false)
		return cay.Snapshot{}, disk.Error(err, "cannot checkpoint instance %s", id)
	}
	engine.Written(ctx)
	if then == engine.Ends {
		// The files that destroy removes have no part in the snapshot.
		if err := e.destroy(id); err != nil {
			return cay.Snapshot{}, err
		}
	}
	if err := copyFile(filepath.Join(dir, bundleName), filepath.Join(bundleDir(in.Dir), "config.json")); err != nil {
		return cay.Snapshot{}, disk.Error(err, "cannot keep the bundle of instance %s", id)
	}
	names, err := fileNames(dir)
	if err != nil {
		return cay.Snapshot{}, disk.Error(err, "cannot read the checkpoint of instance %s", id)
	}
	out := in.snapshot(cay.MemorySnapshot)
	if out.Files, err = seal(dir, names); err != nil {
		return cay.Snapshot{}, disk.Error(err, "cannot finish the checkpoint of instance %s", id)
	}
	return out, nil
}

// fileNames names the files in dir.
func fileNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// seal syncs files of a new snapshot, with the directory, and takes their
// measure.
func seal(dir string, names []string) ([]cay.SnapFile, error) {
	files := make([]cay.SnapFile, len(names))
	var g errgroup.Group
	for i, name := range names {
		g.Go(func() (err error) {
			files[i], err = sealFile(dir, name)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return files, disk.Sync(dir)
}

// castagnoli is a polynomial that processors know.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealFile has the disk write while the processor sums. A sum that finds damage
// is enough, and a tenth of the work of one that proves there is none.
func sealFile(dir, name string) (cay.SnapFile, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return cay.SnapFile{}, err
	}
	defer f.Close()
	synced := make(chan error, 1)
	go func() { synced <- f.Sync() }()
	sum := crc32.New(castagnoli)
	size, err := io.CopyBuffer(sum, struct{ io.Reader }{f}, make([]byte, 256<<10))
	return cay.SnapFile{Name: name, Size: size, CRC32C: hex.EncodeToString(sum.Sum(nil))}, errors.Join(err, <-synced)
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}

// Hold implements engine.Engine.
func (e *Engine) Hold(ctx context.Context, id cay.InstanceID) error {
	return e.turn(ctx, id, "pause", "paused")
}

// Release implements engine.Engine.
func (e *Engine) Release(ctx context.Context, id cay.InstanceID) error {
	return e.turn(ctx, id, "resume", "running")
}

// turn brings an instance into a state; being there already is no error.
func (e *Engine) turn(ctx context.Context, id cay.InstanceID, command, want string) error {
	in, err := e.get(id)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // milliseconds, and never half done
	_, err = e.finish(ctx, in.record, command, string(id))
	if err == nil {
		return nil
	}
	var state struct{ Status string }
	text, stateErr := e.call(ctx, in.record, "state", string(id))
	if stateErr == nil && json.Unmarshal(text, &state) == nil && state.Status == want {
		return nil
	}
	return cay.Wrap(cay.Unavailable, err, "cannot %s instance %s", command, id)
}

// Usage implements engine.Engine.
func (e *Engine) Usage(_ context.Context, id cay.InstanceID) (cay.Usage, error) {
	in, err := e.get(id)
	if err != nil {
		return cay.Usage{}, err
	}
	u := e.cg.usage(id)
	u.At = time.Now()
	u.MemoryMax = int64(in.Limits.MemoryMB) << 20
	u.MemoryPending = e.loadStatus(in.record).left
	u.DiskUsed, u.DiskMax = in.diskUse(), int64(in.DiskMB)<<20
	return u, nil
}

// SaveSize implements engine.Engine. gVisor leaves out pages of zeros, which it
// reads to know them; the holes of the files with its writes are known without.
func (e *Engine) SaveSize(_ context.Context, id cay.InstanceID, filesOnly bool) (int64, error) {
	in, err := e.get(id)
	if err != nil {
		return 0, err
	}
	var bytes int64
	for _, path := range in.writes() {
		bytes += disk.Written(path)
	}
	if !filesOnly {
		bytes += e.cg.usage(id).MemoryUsed + e.loadStatus(in.record).left
	}
	return bytes, nil
}
