package replica

import (
	"context"
	"encoding/hex"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
)

// ahead is what is copied of a snapshot before it has its name.
type ahead struct {
	begun time.Time
	done  chan struct{}
	files map[string]early // by their names, once it is done; none where it failed
}

// early is a file that is in the bucket, and the checksum of what was sent.
type early struct {
	file
	crc32c string
}

// aheadFor is how long a copy may be under way for a snapshot that no Push asks for: it was never
// finished.
const aheadFor = 10 * time.Minute

// Ahead begins to copy the files in a directory, which become those of a snapshot and do not change
// any more. Push goes on from there, with those that the snapshot has as they were sent. Where it is
// never finished, they lie in the bucket without a record, and go as those of a copy that broke off.
// It takes no turn with removals, which leave alone what is as young.
func (r *Replica) Ahead(id cay.SnapshotID, dir string) {
	files, err := openAll(dir)
	if err != nil {
		r.log.Debug("a snapshot is not copied ahead", "snapshot", id, "err", err)
		return
	}
	a := &ahead{begun: time.Now(), done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.early, func(_ cay.SnapshotID, old *ahead) bool { return time.Since(old.begun) > aheadFor })
	r.early[id] = a
	r.running.Go(func() {
		defer close(a.done)
		if a.files, err = r.sendAhead(r.ctx, id, files); err != nil {
			r.log.Debug("a snapshot is not copied ahead", "snapshot", id, "err", err)
		}
	})
}

// openAll opens the files of a directory, which may get another name then.
func openAll(dir string) (out []*os.File, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		f, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, f)
	}
	return out, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // it was read only
	}
}

func (r *Replica) sendAhead(ctx context.Context, id cay.SnapshotID, files []*os.File) (map[string]early, error) {
	defer closeAll(files)
	if err := r.mine(ctx); err != nil {
		return nil, err
	}
	p, out := r.newPush(ctx, snapshots+string(id)+"/", r.piece), map[string]early{}
	p.effort = newEffort()
	var err error
	for _, f := range files {
		whole := crc32.New(castagnoli)
		var sent file
		if sent, err = p.file(f, whole); err != nil {
			break
		}
		sent.Name = filepath.Base(f.Name())
		out[sent.Name] = early{sent, hex.EncodeToString(whole.Sum(nil))}
	}
	if err := p.lane.wait(err); err != nil {
		return nil, err
	}
	return out, nil
}

// sentAhead waits for what Ahead began to copy of a snapshot.
func (r *Replica) sentAhead(ctx context.Context, id cay.SnapshotID) (map[string]early, error) {
	r.mu.Lock()
	a := r.early[id]
	r.mu.Unlock()
	if a == nil {
		return nil, nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.early, id)
	return a.files, nil
}

// is reports whether what was sent is a file of a snapshot.
func (e early) is(f cay.SnapFile) bool {
	return e.Size == f.Size && f.CRC32C != "" && e.crc32c == f.CRC32C
}
