package replica

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/disk"
)

// engineMost is how much a build of the engine may take, in bytes.
const engineMost = 1 << 30

// engineDir is where a build of the engine is; false where no build has that hash.
func (r *Replica) engineDir(hash string) (string, bool) {
	return filepath.Join(r.engines, hash), r.engines != "" && cay.ValidID(hash)
}

// pushEngine copies a build of the engine, or notes that it is needed still. A build
// that the data directory lacks restores nothing here, so its snapshots are of use for
// their files alone, there too.
func (r *Replica) pushEngine(ctx context.Context, hash string) error {
	dir, ok := r.engineDir(hash)
	if !ok {
		return nil
	}
	at := engines + hash + "/"
	err := r.pushShared(ctx, at, func(map[string]bool) (record, error) { return r.pushPrograms(ctx, at, dir) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// programsOf names the files of a build of the engine.
func programsOf(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	})
	return names, err
}

func (r *Replica) pushPrograms(ctx context.Context, at, dir string) (record, error) {
	names, err := programsOf(dir)
	out := record{Piece: r.otherPiece}
	if err != nil {
		return out, diskError(err, "read", dir)
	}
	for _, name := range names {
		pushed, err := r.pushFile(ctx, at, filepath.Join(dir, name), r.otherPiece)
		if err != nil {
			return out, err
		}
		pushed.Name = name
		out.Files = append(out.Files, pushed)
	}
	return out, nil
}

// fetchEngine copies a build of the engine that the data directory lacks, if the bucket
// has it. Programs from the bucket run as root here: they are opened with this
// installation's key, so only what a server of this installation wrote is taken.
func (r *Replica) fetchEngine(ctx context.Context, hash string) error {
	dir, ok := r.engineDir(hash)
	if _, err := os.Stat(dir); !ok || err == nil {
		return nil
	}
	at := engines + hash + "/"
	there, err := r.record(ctx, at)
	if errors.Is(err, blob.ErrMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.placeEngine(dir, there.Files, func(f file, path string) error { return r.fetchFile(ctx, at, f, there.Piece, path) })
}

// placeEngine makes the directory of a build of the engine of files that get writes.
func (r *Replica) placeEngine(dir string, files []file, get func(f file, path string) error) error {
	size := int64(0)
	for _, f := range files {
		if f.Size < 0 || f.Size > engineMost-size || !filepath.IsLocal(f.Name) {
			return damaged(engines + filepath.Base(dir) + "/" + recordName)
		}
		size += f.Size
	}
	if err := r.room(size); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(r.engines, ".new-") // as that of a build that the server brings
	if err != nil {
		return diskError(err, "make a directory in", r.engines)
	}
	defer os.RemoveAll(tmp) // nothing is left there after the rename
	for _, f := range files {
		path := filepath.Join(tmp, f.Name)
		if err := get(f, path); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(path, 0o755), disk.Sync(path), disk.Sync(filepath.Dir(path))); err != nil {
			return diskError(err, "write", path)
		}
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), disk.Sync(tmp)); err != nil {
		return diskError(err, "write", tmp)
	}
	err = os.Rename(tmp, dir)
	if errors.Is(err, fs.ErrExist) { // the server brought it meanwhile
		return nil
	}
	return diskError(err, "write", dir)
}
