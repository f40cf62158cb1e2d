package loopfs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

const (
	sysBlock = "/sys/block"
	sysDev   = "/sys/dev/block"

	// sector is what the device reads and writes at once. Disks of either
	// kind, of 512 bytes and of 4096, take that without a page of their own.
	sector = 4096

	loopHint = "load the module (modprobe loop); a container needs /dev/loop-control and the right to mount"
)

// attach mounts the file system in a file at a directory. The device goes with
// the mount.
func attach(file, dir string) error {
	loop, err := loopOf(file)
	if err != nil {
		return cay.Wrap(cay.Unsupported, err, "no loop device can be had for %s", file).WithHint(loopHint)
	}
	defer loop.Close()
	// A discard, which fstrim asks for every week, would give the file's room
	// back to the disk. The next mount takes it again where this fails.
	_ = os.WriteFile(filepath.Join(sysBlock, filepath.Base(loop.Name()), "queue", "discard_max_bytes"), []byte("0"), 0)
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

// loopOf makes a file a block device. One that is a device already, since it
// is mounted in another namespace, stays that one: two would ruin it.
func loopOf(file string) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	if loop := attached(back); loop != nil {
		return loop, unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0) // it may have grown
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(back.Fd()), Size: sector}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
		copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) { // else another took it first
			return nil, err
		}
	}
}

// attached finds the device that a file is.
func attached(back *os.File) *os.File {
	var want unix.Stat_t
	if unix.Fstat(int(back.Fd()), &want) != nil {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(sysBlock, "loop*", "loop"))
	for _, path := range found {
		loop, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return loop
		}
		loop.Close()
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
	back, err := os.ReadFile(filepath.Join(sysBlock, name, "loop", "backing_file"))
	return name, err == nil && filepath.Base(strings.TrimSuffix(strings.TrimSpace(string(back)), " (deleted)")) == fileName
}

// unescape reads a path as the kernel's lists of mounts have it.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
