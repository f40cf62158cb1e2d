package loop

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Release unmounts the volumes in a directory, which may be missing, and lets
// writes go on that a killed process held.
func Release(dir string) error {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := unescape.Replace(f[4])
		if !strings.HasPrefix(at, dir+"/") {
			continue
		}
		if d, err := os.Open(at); err == nil {
			_ = thaw(d) // EINVAL where it is not frozen
			d.Close()
		}
		errs = append(errs, detach(at))
	}
	return errors.Join(errs...)
}

// detach unmounts a file system. Where a process has a file of it open, it goes
// with that one.
func detach(root string) error {
	err := unix.Unmount(root, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(root, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // it is not mounted
	}
	return err
}

// unescape reads a path as the kernel's lists of mounts have it.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func blocks(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks
	}
	return 0
}
