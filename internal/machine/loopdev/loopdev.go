// Package loopdev makes files block devices.
package loopdev

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SysBlock is where the kernel tells of block devices.
	SysBlock = "/sys/block"

	// Sector is what a device reads and writes at once. Disks of either kind, of
	// 512 bytes and of 4096, take that without a page of their own.
	Sector = 4096

	// Hint says what lacks where no device can be had.
	Hint = "load the module (modprobe loop); a container needs /dev/loop-control and the right to mount"
)

// Attach makes a file a block device, which goes with its last user: a mount,
// or the returned file. Pages are kept in memory once, not twice, where the
// disk allows it. A file that is a device already stays that one, and its size
// is read again: two devices of one file would ruin it.
func Attach(file string) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	if loop := Find(back); loop != nil {
		return loop, unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0) // it may have grown
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for gone := 0; ; {
		loop, err := attachFree(control, back, file)
		switch {
		case errors.Is(err, unix.EBUSY): // another took it first
		case isGone(err) && gone < goneMost: // another makes it anew
			gone++
			time.Sleep(goneWait)
		default:
			return loop, err
		}
	}
}

// A device that renew makes anew elsewhere is not there for a moment; one that is not
// there for goneMost times goneWait never will be.
const (
	goneMost = 100
	goneWait = 5 * time.Millisecond
)

func isGone(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)
}

// attachFree makes a file the next free device.
func attachFree(control, back *os.File, file string) (*os.File, error) {
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, err
	}
	renew(control, n)
	loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(back.Fd()), Size: Sector}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		loop.Close()
		return nil, err
	}
	return loop, nil
}

// Find finds the device that a file is, nil where it is none.
func Find(back *os.File) *os.File {
	var want unix.Stat_t
	if unix.Fstat(int(back.Fd()), &want) != nil {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(SysBlock, "loop*", "loop"))
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

// KeepRoom has a device give nothing of what is discarded back to the disk.
func KeepRoom(loop *os.File) {
	_ = os.WriteFile(discards(filepath.Base(loop.Name())), []byte("0"), 0)
}

func discards(name string) string {
	return filepath.Join(SysBlock, name, "queue", "discard_max_bytes")
}

// renew makes a free device anew that was told to keep its room: it is so for
// the next file too, and cannot be told otherwise. Where this fails, the next
// file keeps its room.
func renew(control *os.File, n int) {
	if text, err := os.ReadFile(discards("loop" + strconv.Itoa(n))); err != nil || strings.TrimSpace(string(text)) != "0" {
		return
	}
	if unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, n) == nil {
		_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, n)
	}
}
