package build

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// tempPrefix begins the names of archives that are on their way.
const tempPrefix = ".tmp-"

// upload is the path of an archive. Teams' ids are UUIDs of our making.
func (b *Builder) upload(team cay.TeamID, hash string) string {
	return filepath.Join(b.contexts, string(team), hash)
}

// Uploaded reports whether a team's archive is there, and keeps it from being
// collected for a while.
func (b *Builder) Uploaded(team cay.TeamID, hash string) bool {
	now := time.Now()
	return os.Chtimes(b.upload(team, hash), now, now) == nil
}

// Upload takes an archive of so many bytes, or -1 for unknown: all of it, or
// nothing. One that is there is replaced.
func (b *Builder) Upload(ctx context.Context, team cay.TeamID, hash string, archive io.Reader, size int64) error {
	dir := filepath.Join(b.contexts, string(team))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return uploadError(err)
	}
	if err := disk.Room(dir, "the archive", size); err != nil {
		return err
	}
	ration := &disk.Ration{Disk: b.cfg.Disk, What: "archives for COPY", Held: func() int64 { return bytesIn(dir) }}
	if err := ration.Check(size); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return uploadError(err)
	}
	defer os.Remove(f.Name()) // fails when it has its name
	_, err = io.Copy(ration.Writer(f), archive)
	err = errors.Join(err, f.Close())
	if err == nil && ctx.Err() == nil {
		err = os.Rename(f.Name(), b.upload(team, hash))
	}
	return uploadError(errors.Join(err, ctx.Err()))
}

// bytesIn is how many bytes the files of a directory have.
func bytesIn(dir string) (sum int64) {
	entries, _ := os.ReadDir(dir) // what cannot be listed has none
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			sum += st.Size()
		}
	}
	return sum
}

func uploadError(err error) error {
	var ours *fs.PathError
	var known *cay.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &ours), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return disk.Error(err, "keep the archive")
	}
	return cay.Wrap(cay.Invalid, err, "the archive did not arrive as a whole")
}

// removeUploads removes archives that did not arrive as a whole.
func (b *Builder) removeUploads() error {
	return b.eachUpload(func(path string, _ fs.FileInfo) bool {
		return strings.HasPrefix(filepath.Base(path), tempPrefix)
	})
}

// eachUpload removes the archives that drop says yes to.
func (b *Builder) eachUpload(drop func(path string, st fs.FileInfo) bool) error {
	all, err := filepath.Glob(filepath.Join(b.contexts, "*", "*"))
	hidden, _ := filepath.Glob(filepath.Join(b.contexts, "*", tempPrefix+"*"))
	for _, name := range append(all, hidden...) {
		st, serr := os.Stat(name)
		if serr == nil && drop(name, st) {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// upload is the tar of an upload that is read, over its file.
type upload struct {
	io.Reader
	io.Closer
}

// openUpload opens an archive as the tar that it holds, which may be
// compressed.
func (b *Builder) openUpload(team cay.TeamID, hash string) (io.ReadCloser, error) {
	f, err := os.Open(b.upload(team, hash))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cay.Errorf(cay.Invalid, "the files of this step were never uploaded").WithHint("build again; the SDK uploads them")
	}
	if err != nil {
		return nil, disk.Error(err, "open an archive")
	}
	in := bufio.NewReaderSize(f, 1<<20)
	head, err := in.Peek(2)
	if err != nil && err != io.EOF {
		f.Close()
		return nil, disk.Error(err, "read an archive")
	}
	if len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return upload{in, f}, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		f.Close()
		return nil, badArchive(err)
	}
	return upload{z, f}, nil
}

// errDamaged is in errors that are an archive's own fault.
var errDamaged = errors.New("the archive is damaged")

func badArchive(err error) error {
	return cay.Wrap(cay.Invalid, errors.Join(err, errDamaged), "the archive of the step's files is damaged: %v", err).
		WithHint("build again; it is uploaded anew")
}

// forget removes an archive that turned out to be damaged: no build needs it, and
// clients do not send one again that is there.
func (b *Builder) forget(team cay.TeamID, hash string, err error) {
	if hash != "" && errors.Is(err, errDamaged) {
		_ = os.Remove(b.upload(team, hash)) // else it goes with time
	}
}
