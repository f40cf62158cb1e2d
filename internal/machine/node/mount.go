package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ShareMount makes dir a mount point of its own whose later mounts appear in
// the sandboxes that have a directory below it. It may be called again.
func ShareMount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if !slices.Contains(mounts, filepath.Clean(dir)) {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	// Shared within, private from what is around it.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make %s shared: %w", dir, err)
	}
	return nil
}

// UnshareMount removes dir with all that is mounted on or below it.
func UnshareMount(dir string) error { return removeMounted(dir) }

// removeMounted removes a directory after unmounting all below it. It removes no
// file while a mount is left: that may be a volume of a user.
func removeMounted(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) { // the youngest lies on top
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	if mounts, err = mountsBelow(dir); err != nil || len(mounts) > 0 {
		return errors.Join(fmt.Errorf("%s has mounts still: %q", dir, mounts), err)
	}
	return os.RemoveAll(dir)
}

// mountsBelow lists the mount points at or below dir, oldest first.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir = filepath.Clean(dir)
	var out []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 5 {
			continue
		}
		point := unescape.Replace(words[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			out = append(out, point)
		}
	}
	return out, lines.Err()
}

// unescape undoes what the kernel does to spaces in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
