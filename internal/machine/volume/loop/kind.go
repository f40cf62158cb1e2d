package loop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/loopdev"
	"github.com/cay-run/cay/internal/spawn"
)

// kind is a kind of file system.
type kind struct {
	name    string
	file    string
	needs   string // the package of its tools
	options string // of its mounts
	args    []string
	inodes  int64 // that an empty one counts

	// blocks reads from the beginning of the file how many blocks of how many
	// bytes the file system has.
	blocks func(head []byte) (n, size int64)
	// enlarge has a mounted one take so many blocks.
	enlarge func(root *os.File, blocks int64) error
	// aside has one that is not mounted fill its file, where enlarge may lack the
	// right to; nil where that cannot be.
	aside func(ctx context.Context, file string) error
}

// xfs takes as many files as it has room for; ext4 says when it is made how
// many, and is for volumes too small for XFS. XFS shares no blocks inside, which
// no guest could ask for, and keeps that room for files.
var (
	xfs = &kind{
		name: "xfs", file: "fs.xfs", needs: "xfsprogs",
		options: "nouuid,discard", // a clone has its source's UUID
		args:    []string{"mkfs.xfs", "-q", "-f", "-s", fmt.Sprintf("size=%d", loopdev.Sector), "-m", "reflink=0", "-i", fmt.Sprintf("maxpct=%d", xfsInodes)},
		inodes:  3,
		blocks: func(head []byte) (int64, int64) {
			return int64(binary.BigEndian.Uint64(head[8:])), int64(binary.BigEndian.Uint32(head[4:]))
		},
		enlarge: growXFS,
	}
	ext4 = &kind{
		name: "ext4", file: "fs.ext4", needs: "e2fsprogs",
		options: "discard,errors=remount-ro,noinit_itable", // the tables of inodes are holes until they are used
		args:    []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-i", "4096", "-E", "nodiscard"},
		inodes:  10,
		blocks: func(head []byte) (int64, int64) {
			super := head[1024:]
			n := int64(binary.LittleEndian.Uint32(super[4:])) | int64(binary.LittleEndian.Uint32(super[0x150:]))<<32
			return n, 1024 << binary.LittleEndian.Uint32(super[0x18:])
		},
		enlarge: growExt4, // needs CAP_SYS_RESOURCE, which a container may lack
		aside: func(ctx context.Context, file string) error {
			return tool(ctx, "make the file system of a volume larger", "resize2fs", "-f", file)
		},
	}
	kinds = []*kind{xfs, ext4}
)

const (
	// xfsFrom is the size from which XFS keeps less than a tenth for itself: its
	// log takes 64 MB. It makes none below 300 MB.
	xfsFrom   = 1024
	xfsInodes = 50 // per cent of the room that may be inodes
	headBytes = 4096
)

// kindFor chooses the file system of a new volume.
func (s *Storage) kindFor(sizeMB int) *kind {
	if _, err := exec.LookPath(xfs.args[0]); err == nil && sizeMB >= s.xfsFrom {
		return xfs
	}
	return ext4
}

// format makes the file system in a file.
func (k *kind) format(ctx context.Context, file string) error {
	if _, err := exec.LookPath(k.args[0]); err != nil {
		return cay.Wrap(cay.Unsupported, err, "volumes need %s", k.args[0]).WithHint("apt-get install -y %s", k.needs)
	}
	return tool(ctx, "make the file system of a volume", append(slices.Clone(k.args), file)...)
}

// tool runs a program.
func tool(ctx context.Context, what string, args ...string) error {
	out, err := spawn.Command(ctx, args[0], args[1:]...).CombinedOutput()
	if err == nil {
		return nil
	}
	if text := string(out); strings.Contains(text, unix.ENOSPC.Error()) {
		err = errors.Join(err, unix.ENOSPC)
	}
	return disk.Error(err, "%s: %s: %.300s", what, args[0], strings.TrimSpace(string(out)))
}

const (
	mountTime  = 10 * time.Second
	mountAgain = 20 * time.Millisecond
)

// mount mounts the file system in a file, and has it fill the file, which a
// crash may have left larger.
func (k *kind) mount(ctx context.Context, file, root string) error {
	if err := k.mountSoon(ctx, file, root); err != nil {
		return err
	}
	err := k.fill(file, root)
	if errors.Is(err, unix.EPERM) && k.aside != nil {
		err = k.fillAside(ctx, file, root)
	}
	if err != nil {
		return errors.Join(err, detach(root))
	}
	return nil
}

// mountSoon mounts. The device of a mount that another process ends just now is
// neither there nor gone.
func (k *kind) mountSoon(ctx context.Context, file, root string) error {
	for begun := time.Now(); ; {
		err := k.mountOnce(file, root)
		if err == nil {
			return nil
		}
		passing := errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO)
		if !passing || time.Since(begun) > mountTime {
			return k.explain(err, file)
		}
		select {
		case <-ctx.Done():
			return cay.Wrap(cay.Unavailable, err, "mount %s", file)
		case <-time.After(mountAgain):
		}
	}
}

func (k *kind) mountOnce(file, root string) error {
	loop, err := loopdev.Attach(file)
	if err != nil {
		return fmt.Errorf("make it a device: %w", err)
	}
	defer loop.Close()
	return unix.Mount(loop.Name(), root, k.name, unix.MS_NOSUID|unix.MS_NODEV, k.options)
}

func (k *kind) explain(err error, file string) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return cay.Wrap(cay.Unsupported, err, "this kernel cannot mount %s", k.name).WithHint("modprobe %s", k.name)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOENT):
		return cay.Wrap(cay.Unsupported, err, "the file system of a volume, %s, cannot be mounted", file).WithHint(loopdev.Hint)
	}
	if disk.Full(filepath.Dir(file)) != "" { // a mount writes what the log holds
		return disk.Error(errors.Join(&fs.PathError{Op: "write", Path: file, Err: unix.ENOSPC}, err), "mount a volume")
	}
	return cay.Wrap(cay.Internal, err, "the file system of a volume, %s, cannot be mounted", file).
		WithHint("see what the kernel says of it (dmesg)")
}

// fillAside has a file system grow while it is not mounted, if no other process
// has it mounted either; else it stays as it is.
func (k *kind) fillAside(ctx context.Context, file, root string) error {
	if err := detach(root); err != nil {
		return cay.Wrap(cay.Internal, err, "unmount a volume")
	}
	if !isDevice(file) {
		if err := k.aside(ctx, file); err != nil {
			return err
		}
	}
	return k.mountSoon(ctx, file, root)
}

func isDevice(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return true
	}
	defer f.Close()
	loop := loopdev.Find(f)
	if loop == nil {
		return false
	}
	loop.Close()
	return true
}

// fill has a file system that is smaller than its file grow.
func (k *kind) fill(file, root string) error {
	f, err := os.Open(file)
	if err != nil {
		return disk.Error(err, "open the file of a volume")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return disk.Error(err, "look at the file of a volume")
	}
	head := make([]byte, headBytes)
	if _, err := f.ReadAt(head, 0); err != nil {
		return disk.Error(err, "read the file of a volume")
	}
	has, size := k.blocks(head)
	if size == 0 || info.Size()/size <= has {
		return nil
	}
	return k.resize(root, info.Size()/size)
}

// grow has a mounted file system take all of its file, which has grown.
func (k *kind) grow(file, root string) error {
	loop, err := loopdev.Attach(file) // which tells the device of the size
	if err != nil {
		return cay.Wrap(cay.Internal, err, "tell the device of a volume's size")
	}
	defer loop.Close()
	return k.fill(file, root)
}

func (k *kind) resize(root string, blocks int64) error {
	d, err := os.Open(root)
	if err != nil {
		return disk.Error(err, "open a volume")
	}
	defer d.Close()
	if err := k.enlarge(d, blocks); err != nil {
		return disk.Error(&fs.PathError{Op: "grow", Path: filepath.Dir(root), Err: err}, "make the file system of a volume larger")
	}
	return nil
}

// The kernel's ioctls, of linux/fs.h, xfs_fs.h and ext4.h.
const (
	fiFreeze     = 0xc0045877
	fiThaw       = 0xc0045878
	xfsGrowData  = 0x4010586e
	ext4ResizeFS = 0x40086610
	growTime     = 10 * time.Second
	growAgain    = 20 * time.Millisecond
)

func growXFS(root *os.File, blocks int64) error {
	ask := struct {
		blocks uint64
		maxpct uint32
		_      uint32
	}{blocks: uint64(blocks), maxpct: xfsInodes}
	return again(func() error { return ioctl(root, xfsGrowData, unsafe.Pointer(&ask)) })
}

func growExt4(root *os.File, blocks int64) error {
	ask := uint64(blocks)
	return again(func() error { return ioctl(root, ext4ResizeFS, unsafe.Pointer(&ask)) })
}

// again does what another grows at the same moment.
func again(do func() error) error {
	for begun := time.Now(); ; time.Sleep(growAgain) {
		err := do()
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Since(begun) > growTime {
			return err
		}
	}
}

func freeze(root *os.File) error { return ioctl(root, fiFreeze, nil) }

func thaw(root *os.File) error { return ioctl(root, fiThaw, nil) }

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
