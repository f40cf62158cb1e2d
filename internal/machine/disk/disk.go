// Package disk serves packages that keep files: locks between processes, disk
// use, copies whose error names the side that failed.
package disk

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// pollEvery is how often a lock is asked for that another process holds.
const pollEvery = 200 * time.Millisecond

// Lock makes this process the only one that holds the lock of a directory,
// which lies in it as .lock. It waits until another lets go, and says so by
// calling waiting, once. The kernel drops the lock with the process.
func Lock(ctx context.Context, dir string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "lock %s", dir)
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, cay.Wrap(cay.Internal, err, "lock %s", dir)
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "%s is in use by another", dir)
		case <-time.After(pollEvery):
		}
	}
}

// Use is how many bytes a file, or a directory with all in it, takes on the
// disk. A file that cannot be seen, or is being removed, counts as nothing; one
// with several names counts once.
func Use(path string) int64 {
	var total int64
	seen := map[[2]uint64]bool{}
	_ = filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if id := [2]uint64{uint64(st.Dev), st.Ino}; st.Nlink > 1 && !e.IsDir() {
			if seen[id] {
				return nil
			}
			seen[id] = true
		}
		total += st.Blocks * 512
		return nil
	})
	return total
}

// runsAtOnce bounds how many runs of data Written looks at: a guest shapes its
// file, and may make as many as it has pages.
const runsAtOnce = 2_000

// Written is how many bytes of a file were written and are no holes. Room that
// is allocated and was not written yet counts as a hole, which Use counts. Where
// the file system does not tell, or the file has very many holes, what Use counts
// bounds the rest. A file that cannot be opened has nothing.
func Written(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	most := info.Size()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		most = min(most, st.Blocks*512)
	}
	var total, at int64
	for range runsAtOnce {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole is left
			return min(total, most)
		}
		if err != nil {
			return most
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return most
		}
		total += at - data
	}
	return min(total+info.Size()-at, most)
}

// Room fails where the disk of a directory has less free than so many bytes:
// what would fill it up is better not begun.
func Room(dir, what string, bytes int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil // a writer will get the error
	}
	if free := int64(st.Bavail) * st.Bsize; bytes > free {
		return cay.Errorf(cay.NoSpace, "%s has %d MB, and the disk at %s has %d MB free", what, bytes>>20, mountOf(dir), free>>20).
			WithHint("free space on the server's disk, or remove what is not needed (cay gc)")
	}
	return nil
}

// Copy is io.Copy that tells the two sides' errors apart: read is the reader's
// error, err that of the whole copy.
func Copy(w io.Writer, r io.Reader) (n int64, read, err error) {
	in := &witness{Reader: r}
	n, err = io.Copy(w, in)
	return n, in.err, err
}

// witness remembers the error of a reader.
type witness struct {
	io.Reader
	err error
}

func (w *witness) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// Sync makes the content of a file, or the names in a directory, survive a power cut.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
