package snapshot

import (
	"context"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cay-run/cay"
)

const (
	// checkedFor is how long a file that was compared with its checksum counts as
	// whole, unless it changes. It bounds what the disk may do to it unseen while
	// it is in use, and spares those that start a hundred from one snapshot.
	checkedFor = 10 * time.Minute
	// largeFile is the size from which CheckOnce reads a file once only: one of
	// this size takes a millisecond.
	largeFile = 8 << 20
)

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
	return d.check(ctx, s, files, func(cay.SnapFile) bool { return false })
}

// CheckOnce is Check for a start that does not read all of the files at once:
// large ones are compared once in each run of the host's kernel, or when they
// have changed, because to read one takes longer than such a start.
func (d *Dir) CheckOnce(ctx context.Context, s cay.Snapshot, files []cay.SnapFile) error {
	return d.check(ctx, s, files, func(f cay.SnapFile) bool { return f.Size >= largeFile })
}

func (d *Dir) check(ctx context.Context, s cay.Snapshot, files []cay.SnapFile, once func(cay.SnapFile) bool) error {
	dir := d.path(s.ID)
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		within := checkedFor
		if once(f) {
			within = forEver
			d.checks.recall(dir, f.Name)
		}
		read, err := d.checks.once(ctx, path, within, func() error { return checkFile(ctx, path, s.ID, f) })
		if err != nil {
			return err
		}
		if read && f.Size >= largeFile {
			d.checks.keep(dir, f.Name)
		}
	}
	return nil
}

// CheckBegun compares the files of a snapshot in a directory of Begin's with the checksums in its record.
func (d *Dir) CheckBegun(ctx context.Context, tmp string, s cay.Snapshot) error {
	for _, f := range s.Files {
		if err := checkFile(ctx, filepath.Join(tmp, f.Name), s.ID, f); err != nil {
			return err
		}
	}
	return nil
}

func checkFile(ctx context.Context, path string, id cay.SnapshotID, f cay.SnapFile) error {
	c := NewComparison(id, f)
	if err := hashInto(ctx, c, path); err != nil {
		return diskError(err, "read %s of snapshot %s", f.Name, id)
	}
	return c.Err()
}

// Comparison compares what is written to it with the checksum that a record has of a file.
type Comparison struct {
	hash.Hash
	id   cay.SnapshotID
	name string
	want string
}

// NewComparison returns a comparison with a file of a snapshot.
func NewComparison(id cay.SnapshotID, f cay.SnapFile) Comparison {
	if f.CRC32C == "" { // of an older Cay
		return Comparison{newSum(), id, f.Name, f.SHA256}
	}
	return Comparison{crc32.New(castagnoli), id, f.Name, f.CRC32C}
}

// Err says whether what was written is damaged.
func (c Comparison) Err() error {
	if hex.EncodeToString(c.Sum(nil)) != c.want {
		return errDamaged(c.id, c.name)
	}
	return nil
}

// stamp tells whether a file was changed.
type stamp struct {
	Inode        uint64
	Size         int64
	Mtime, Ctime syscall.Timespec
}

func stampOf(path string) (stamp, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return stamp{}, err
	}
	// The time of its inode changes with its name too, which Commit does to
	// the directory only.
	return stamp{Inode: st.Ino, Size: st.Size, Mtime: st.Mtim, Ctime: st.Ctim}, nil
}

// checks remembers which files are whole. Its zero value is ready.
type checks struct {
	mu    sync.Mutex
	files map[string]*checked

	keeping sync.Mutex // while a list of what was checked is written
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

// forEver is longer than any machine runs.
const forEver = time.Duration(math.MaxInt64)

// once checks a file, or waits for a check that is under way, or knows that the
// file was whole within a time. It reports whether the file was read.
func (c *checks) once(ctx context.Context, path string, within time.Duration, check func() error) (read bool, err error) {
	f := c.get(path)
	select {
	case f.busy <- struct{}{}:
		defer func() { <-f.busy }()
	case <-ctx.Done():
		return false, cay.Wrap(cay.Unavailable, ctx.Err(), "check %s", filepath.Base(path))
	}
	now, err := stampOf(path)
	if err == nil && now == f.stamp && time.Since(f.at) < within {
		return false, nil
	}
	// A file that is not there is named by what reads it.
	if err := check(); err != nil {
		return false, err
	}
	f.stamp, f.at = now, time.Now()
	return true, nil
}

// passed says that the file at from, which gets another name, is whole.
func (c *checks) passed(name, from string) (stamp, error) {
	s, err := stampOf(from)
	if err != nil {
		return s, err
	}
	f := c.get(name)
	f.busy <- struct{}{}
	f.stamp, f.at = s, time.Now()
	<-f.busy
	return s, nil
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
