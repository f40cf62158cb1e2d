package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/guest"
)

// mountError is why a directory cannot appear where the host wants it: for a
// reason that lies in the sandbox's files.
type mountError struct {
	path string
	err  error
}

func (e *mountError) Error() string { return fmt.Sprintf("mount at %s: %v", e.path, e.err) }
func (e *mountError) Unwrap() error { return e.err }

// mounted is a mount that was made, and the place that its path led to then.
type mounted struct {
	guest.Mount
	at string // as this process names it
}

// remount has the mounts be those that the host wants: those of a call before
// that are wanted still stay, in a memory snapshot too, and all others go. After
// an error nothing is there that was not before.
func (a *Agent) remount(want []guest.Mount) error {
	var stay, added []mounted
	for _, m := range slices.Backward(a.mounts) { // one may lie below an older one
		if slices.Contains(want, m.Mount) {
			stay = append(stay, m)
			continue
		}
		if err := unmount(m.at); err != nil {
			return &mountError{m.Path, fmt.Errorf("take away the one before: %w", err)}
		}
	}
	slices.Reverse(stay)
	a.mounts = stay
	for _, m := range want {
		if slices.ContainsFunc(stay, func(old mounted) bool { return old.Mount == m }) {
			continue
		}
		at, err := a.mount(m)
		if err != nil {
			for _, made := range slices.Backward(added) {
				err = errors.Join(err, unmount(made.at))
			}
			return &mountError{m.Path, err}
		}
		added = append(added, mounted{m, at})
	}
	a.mounts = append(a.mounts, added...)
	return nil
}

// mount binds a directory of the reserved mount to a path, which it makes as the
// default user's, and tells where that is. A link on the way is followed inside
// the sandbox, and what it leads to is looked at before anything is mounted there.
func (a *Agent) mount(m guest.Mount) (at string, err error) {
	source, path := a.path(m.Source), a.path(m.Path)
	if err := a.makeDirs(m.Path); err != nil {
		return "", err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	target := "/proc/self/fd/" + strconv.Itoa(fd)
	if at, err = os.Readlink(target); err != nil {
		return "", err
	}
	if real := a.inside(at); reserved(real) {
		return "", fmt.Errorf("it is %s, which is not to be mounted over", real)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return "", err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if m.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", at, "", flags, ""); err != nil {
		return "", errors.Join(fmt.Errorf("set its flags: %w", err), unmount(at))
	}
	return at, nil
}

// inside is the name in the sandbox of a path of this process.
func (a *Agent) inside(path string) string {
	return filepath.Join("/", strings.TrimPrefix(path, filepath.Join("/", a.cfg.Root)))
}

// makeDirs makes what is missing of a directory, as the default user's.
func (a *Agent) makeDirs(name string) error {
	path := a.path(name)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return unix.ENOTDIR
	case !errors.Is(err, os.ErrNotExist) || name == "/":
		return err
	}
	if err := a.makeDirs(filepath.Dir(name)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	account, _ := a.defaults()
	u, err := a.users.Lookup(account)
	if err != nil { // an image without accounts: it is root's
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil { // a user has put something else in its place
		return err
	}
	defer unix.Close(fd)
	return unix.Fchown(fd, int(u.UID), int(u.GID))
}

// unmount takes a mount away; one that is gone is no error.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// unmountable are the directories that a sandbox cannot do without.
var unmountable = []string{"/proc", "/sys", "/dev", guest.ReservedMount}

// reserved reports whether a mount at a path would hide one of them, or lie in
// one.
func reserved(path string) bool {
	for _, dir := range unmountable {
		if path == "/" || path == dir || strings.HasPrefix(path, dir+"/") || strings.HasPrefix(dir, path+"/") {
			return true
		}
	}
	return false
}

// checkMounts refuses what no honest host asks for.
func checkMounts(list []guest.Mount) error {
	for i, m := range list {
		below, ok := strings.CutPrefix(m.Source, guest.ReservedMount+"/")
		if !ok || !filepath.IsLocal(below) || filepath.Clean(m.Source) != m.Source {
			return fmt.Errorf("mounts[%d]: source %q is not below %s", i, m.Source, guest.ReservedMount)
		}
		if !filepath.IsAbs(m.Path) || filepath.Clean(m.Path) != m.Path || reserved(m.Path) {
			return fmt.Errorf("mounts[%d]: path %q cannot be mounted over", i, m.Path)
		}
		for j, other := range list[:i] {
			if m.Path == other.Path {
				return fmt.Errorf("mounts[%d]: path %q is that of mounts[%d] too", i, m.Path, j)
			}
		}
	}
	return nil
}
