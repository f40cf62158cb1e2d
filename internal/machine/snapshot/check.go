package snapshot

import (
	"context"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cay-run/cay"
)

// checkedFor is how long a file that was compared with its checksum counts as
// whole, unless it changes. It bounds what the disk may do to it unseen while
// it is in use, and spares those that start a hundred from one snapshot.
const checkedFor = 10 * time.Minute

func errDamaged(id cay.SnapshotID, name string) error {
	return cay.Errorf(cay.Internal, "snapshot %s is damaged: the checksum of %s differs from its record", id, name).
		WithCode(cay.CodeDamaged)
}

// castagnoli is a polynomial that processors know: 16 GB a second, where
// SHA-256 does one.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Check compares files of a snapshot with the quick checksum in its record,
// each once in ten minutes or when it has changed. The error names what is
// damaged.
func (d *Dir) Check(ctx context.Context, s cay.Snapshot, files []cay.SnapFile) error {
	for _, f := range files {
		path := filepath.Join(d.path(s.ID), f.Name)
		err := d.checks.once(ctx, path, func() error { return checkFile(ctx, path, s.ID, f) })
		if err != nil {
			return err
		}
	}
	return nil
}

func checkFile(ctx context.Context, path string, id cay.SnapshotID, f cay.SnapFile) error {
	h, want := hash.Hash(crc32.New(castagnoli)), f.CRC32C
	if want == "" { // of an older Cay
		h, want = newSum(), f.SHA256
	}
	if err := hashInto(ctx, h, path); err != nil {
		return diskError(err, "read %s of snapshot %s", f.Name, id)
	}
	if hex.EncodeToString(h.Sum(nil)) != want {
		return errDamaged(id, f.Name)
	}
	return nil
}

// stamp tells whether a file was changed.
type stamp struct {
	inode        uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(path string) (stamp, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return stamp{}, err
	}
	// The time of its inode changes with its name too, which Commit does to
	// the directory only.
	return stamp{inode: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// checks remembers which files are whole. Its zero value is ready.
type checks struct {
	mu    sync.Mutex
	files map[string]*checked
}

type checked struct {
	busy  chan struct{} // holds a value while a caller reads the file
	stamp stamp
	at    time.Time
}

func (c *checks) get(path string) *checked {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		c.files = map[string]*checked{}
	}
	f := c.files[path]
	if f == nil {
		f = &checked{busy: make(chan struct{}, 1)}
		c.files[path] = f
	}
	return f
}

// once checks a file, or waits for a check that is under way, or knows that the
// file is whole.
func (c *checks) once(ctx context.Context, path string, check func() error) error {
	f := c.get(path)
	select {
	case f.busy <- struct{}{}:
		defer func() { <-f.busy }()
	case <-ctx.Done():
		return cay.Wrap(cay.Unavailable, ctx.Err(), "check %s", filepath.Base(path))
	}
	now, err := stampOf(path)
	if err == nil && now == f.stamp && time.Since(f.at) < checkedFor {
		return nil
	}
	// A file that is not there is named by what reads it.
	if err := check(); err != nil {
		return err
	}
	f.stamp, f.at = now, time.Now()
	return nil
}

// passed says that the file at from, which gets another name, is whole.
func (c *checks) passed(name, from string) {
	s, err := stampOf(from)
	if err != nil {
		return
	}
	f := c.get(name)
	f.busy <- struct{}{}
	f.stamp, f.at = s, time.Now()
	<-f.busy
}

// forget drops what is known of the files of a directory.
func (c *checks) forget(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path := range c.files {
		if strings.HasPrefix(path, dir+"/") {
			delete(c.files, path)
		}
	}
}
