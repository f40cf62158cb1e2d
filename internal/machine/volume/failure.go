package volume

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Failure says what it means that a call on the files of a volume failed: the
// volume is full, or the disk that has it, or its file system has ended. It is nil
// for errors about none of these. dir is the root of the volume, as Attach returns
// it; the directory above is on the disk that has it.
func Failure(dir string, err error) *cay.Error {
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	ended := errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EUCLEAN)
	storage := filepath.Dir(dir)
	switch {
	case full && free(dir) <= free(storage): // of the two, the one with less room is full
		return Full(err)
	case full, ended && disk.Full(storage) != "":
		return disk.Error(errors.Join(&fs.PathError{Op: "write", Path: storage, Err: unix.ENOSPC}, err), "write to the volume")
	case ended:
		return cay.Wrap(cay.Unavailable, err, "the file system of the volume failed, as it does on a disk that is full or broken").
			WithHint("end or pause the sandboxes that mount it: the next use mounts it anew")
	}
	return nil
}

// Full is the error of a full volume.
func Full(err error) *cay.Error {
	return cay.Wrap(cay.NoSpace, err, "the volume is full").WithHint("remove files from it, or make it larger")
}

// free is how many bytes more a file system takes, 0 where it takes no more files.
func free(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Files > 0 && st.Ffree == 0 {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
