package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const imageSuffix = ".erofs"

// AddImage takes a finished root image over: it moves the file to the name
// that its content gives it and returns the digest, hexadecimal SHA-256. The
// file must be on the disk of the data directory. An image that is known
// already is kept, and the file removed.
func (d *Dir) AddImage(tmpPath string) (digest string, err error) {
	digest, err = hashFile(context.Background(), tmpPath)
	if err != nil {
		return "", diskError(err, "read the image %s", tmpPath)
	}
	return digest, d.AddNamed(tmpPath, digest)
}

// AddNamed is AddImage for an image whose digest is that of its parts, which
// alone decide its contents: images of a base and layers, which are made in less
// time than it takes to read them.
func (d *Dir) AddNamed(tmpPath, digest string) error {
	if !validDigest(digest) {
		return cay.Errorf(cay.Internal, "%.80q is no digest", digest)
	}
	final := d.imagePath(digest)
	if _, err := os.Lstat(final); err == nil {
		if err := os.Remove(tmpPath); err != nil {
			return diskError(err, "remove %s", tmpPath)
		}
		return nil
	}
	if err := os.Chmod(tmpPath, 0o444); err != nil {
		return diskError(err, "seal %s", tmpPath)
	}
	if err := disk.Sync(tmpPath); err != nil {
		return diskError(err, "sync %s", tmpPath)
	}
	if err := os.Rename(tmpPath, final); err != nil {
		return diskError(err, "name the image %s", digest)
	}
	if err := disk.Sync(d.images); err != nil {
		return diskError(err, "sync %s", d.images)
	}
	return nil
}

// Image returns the path of a root image, or NotFound.
func (d *Dir) Image(digest string) (path string, err error) {
	if !validDigest(digest) {
		return "", cay.Errorf(cay.NotFound, "no root image %q", digest)
	}
	path = d.imagePath(digest)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", cay.Errorf(cay.NotFound, "no root image %s", digest)
	} else if err != nil {
		return "", diskError(err, "find the root image %s", digest)
	}
	return path, nil
}

// Images returns the digests of all root images.
func (d *Dir) Images() ([]string, error) {
	entries, err := os.ReadDir(d.images)
	if err != nil {
		return nil, diskError(err, "list root images")
	}
	var out []string
	for _, e := range entries {
		if digest, ok := strings.CutSuffix(e.Name(), imageSuffix); ok && validDigest(digest) {
			out = append(out, digest)
		}
	}
	return out, nil
}

// RemoveImage deletes a root image; that it is gone already is no error. The
// caller knows that no snapshot and no instance stands on it.
func (d *Dir) RemoveImage(digest string) error {
	if !validDigest(digest) {
		return cay.Errorf(cay.NotFound, "no root image %q", digest)
	}
	if err := os.Remove(d.imagePath(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError(err, "remove the root image %s", digest)
	}
	return nil
}

func (d *Dir) imagePath(digest string) string {
	return filepath.Join(d.images, digest+imageSuffix)
}

func validDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
