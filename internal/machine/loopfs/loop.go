package loopfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/loopdev"
)

const sysDev = "/sys/dev/block"

// attach mounts the file system in a file at a directory. The device goes with
// the mount.
func attach(file, dir string) error {
	loop, err := loopdev.Attach(file)
	if err != nil {
		return cay.Wrap(cay.Unsupported, err, "no loop device can be had for %s", file).WithHint(loopdev.Hint)
	}
	defer loop.Close()
	// A discard, which fstrim asks for every week, would give the file's room
	// back to the disk. The next mount takes it again where this fails.
	loopdev.KeepRoom(loop)
	err = unix.Mount(loop.Name(), dir, "xfs", 0, "")
	switch {
	case errors.Is(err, unix.ENODEV):
		return cay.Wrap(cay.Unsupported, err, "this kernel has no XFS").WithHint("modprobe xfs, or use a kernel with CONFIG_XFS_FS")
	case errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EBADMSG):
		return cay.Wrap(cay.Internal, err, "the file system in %s is damaged", file).WithCode(cay.CodeStorageDown).
			WithHint("copy the file, if there is room, then: xfs_repair %s", file)
	case errors.Is(err, unix.EIO):
		return cay.Wrap(cay.Internal, err, "the file system in %s cannot be read or written", file).WithCode(cay.CodeStorageDown).
			WithHint("see what the kernel says of the disk (dmesg), and copy the file to a sound one")
	case err != nil:
		return failed(err, "mount %s at %s", file, dir)
	}
	return nil
}

// device names the block device that is mounted at a directory, if it is
// storage: a file with storage's name. It asks nothing of the file system,
// which may have broken down.
func device(dir string) (name string, mounted bool) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false
	}
	number := ""
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && unescape.Replace(f[4]) == dir {
			number = f[2] // the last one is on top
		}
	}
	link, err := os.Readlink(filepath.Join(sysDev, number))
	if number == "" || err != nil {
		return "", false
	}
	name = filepath.Base(link)
	back, err := os.ReadFile(filepath.Join(loopdev.SysBlock, name, "loop", "backing_file"))
	return name, err == nil && filepath.Base(strings.TrimSuffix(strings.TrimSpace(string(back)), " (deleted)")) == fileName
}

// unescape reads a path as the kernel's lists of mounts have it.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
