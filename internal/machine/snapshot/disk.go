package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// diskError says what failed, and which disk is full if one is.
func diskError(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cay.Wrap(cay.Unavailable, err, format, args...)
	}
	return disk.Error(err, format, args...)
}

// lockPath takes the lock of a file or directory that only its writer has.
// The kernel drops it when the writer dies.
func lockPath(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockedTemp makes a temporary directory and locks it. An Open of another
// process may find it before it is locked and remove it; then the next try
// has another name.
func lockedTemp(dir string) (string, *os.File, error) {
	for {
		path, err := os.MkdirTemp(dir, tempPrefix)
		if err != nil {
			return "", nil, err
		}
		lock, err := lockPath(path)
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, errors.Join(err, os.Remove(path))
		}
		if _, err := os.Lstat(path); err == nil {
			return path, lock, nil
		}
		lock.Close()
	}
}

// removeLeftovers removes the temporary names in dir that no process works on.
func removeLeftovers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		lock, err := lockPath(path)
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // at work, or just gone
		}
		if err != nil {
			return err
		}
		err = os.RemoveAll(path)
		lock.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// hashFile returns the hexadecimal SHA-256 of a file.
func hashFile(ctx context.Context, path string) (string, error) {
	h := newSum()
	err := hashInto(ctx, h, path)
	return hex.EncodeToString(h.Sum(nil)), err
}

func newSum() hash.Hash { return sha256.New() }

// hashInto adds a file's content to a hash.
func hashInto(ctx context.Context, h hash.Hash, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
