package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// A volume reaches a guest in two steps. The node binds it at volumes/<n> below
// the directory that the guest sees as guest.ReservedMount: a mount that is made
// there appears in a guest that runs already. The agent then binds that to the
// path that was asked for. n is the volume's place in the spec, so it is the same
// after a resume, in a fork and after a rollback, whose memory has that mount.

// mountStep names the step in errors.
const mountStep = "mount its volumes"

// volumeError is an error that any instance with these volumes would have.
type volumeError struct{ error }

func (e volumeError) Unwrap() error { return e.error }

func isVolumeError(err error) bool {
	var v volumeError
	return errors.As(err, &v)
}

// canMount returns nil when an instance of a snapshot can have the volumes of
// its spec.
func canMount(spec cay.InstanceSpec, from source) error {
	if len(spec.Volumes) == 0 || from.cold || from.record.Agent >= guest.ProtocolMounts {
		return nil
	}
	return volumeError{errOldAgent(from.record.Agent)}
}

func errOldAgent(protocol int) error {
	return cay.Errorf(cay.Conflict, "its agent speaks protocol %d, which knows no volumes", protocol).
		WithHint("build the template again with this version of Cay, and create the sandbox from that")
}

// guestMounts are volumes as an agent hears of them.
func guestMounts(list []cay.VolumeMount) []guest.Mount {
	var out []guest.Mount
	for i, v := range list {
		out = append(out, guest.Mount{
			Source: filepath.Join(guest.ReservedMount, guest.Volumes, strconv.Itoa(i)), Path: v.Path, ReadOnly: v.ReadOnly,
		})
	}
	return out
}

// mountVolumes attaches the volumes of an instance and binds them where its
// guest sees them. After an error the owner's clear takes away what was done.
func (n *Node) mountVolumes(ctx context.Context, inst *instance) error {
	if len(inst.spec.Volumes) == 0 {
		return nil
	}
	if n.cfg.Volumes == nil {
		return volumeError{cay.Errorf(cay.Unsupported, "this server keeps no volumes")}
	}
	reserved := n.reserved(inst.spec.Instance)
	if err := shareInstance(reserved); err != nil {
		return fmt.Errorf("share %s: %w", reserved, err)
	}
	for i, v := range inst.spec.Volumes {
		dir, err := n.cfg.Volumes.Attach(ctx, v.Volume)
		if err == nil {
			inst.volumes = append(inst.volumes, v.Volume)
			err = n.bindVolume(dir, v, filepath.Join(guest.Volumes, strconv.Itoa(i)), reserved)
		}
		if err != nil {
			return volumeError{volumeFailure(i, v, err)}
		}
	}
	return nil
}

// volumeFailure names the volume that an error is about.
func volumeFailure(i int, v cay.VolumeMount, err error) error {
	out := failure(err, fmt.Sprintf("volumeMounts[%d] (volume %s at %s)", i, v.Name, v.Path))
	if out.Kind == cay.NotFound { // of the volume, not of the sandbox
		out.Kind = cay.Conflict
	}
	return out
}

// attachFound counts the volumes of an instance that an earlier node has
// mounted, and returns those that it could: until the instance has ended, no
// other storage may take a volume to be unused.
func (n *Node) attachFound(ctx context.Context, spec cay.InstanceSpec, alive bool) []cay.VolumeID {
	if len(spec.Volumes) == 0 || n.cfg.Volumes == nil {
		return nil
	}
	if mounted, _ := isMount(n.reserved(spec.Instance)); !alive && !mounted { // the host was started again
		return nil
	}
	var out []cay.VolumeID
	for i, v := range spec.Volumes {
		if _, err := n.cfg.Volumes.Attach(ctx, v.Volume); err != nil {
			n.cfg.Log.ErrorContext(ctx, "a volume of a sandbox that was found cannot be attached",
				"sandbox", spec.Sandbox, "instance", spec.Instance, "err", volumeFailure(i, v, err))
			continue
		}
		out = append(out, v.Volume)
	}
	return out
}

// detachVolumes says that an instance uses its volumes no more. Its mounts of
// them are gone.
func (n *Node) detachVolumes(inst *instance) {
	for _, id := range inst.volumes {
		n.cfg.Volumes.Detach(id)
	}
	inst.volumes = nil
}

// bindVolume has a directory of a volume appear at name below an instance's
// reserved directory. All of the volume is a guest's: a path in it is only
// walked by descriptors that cannot leave it.
func (n *Node) bindVolume(dir string, v cay.VolumeMount, name, reserved string) error {
	if err := n.makeReserved(filepath.Join(filepath.Base(reserved), name)); err != nil {
		return err
	}
	root, err := openSub(dir, v.SubPath)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	tree, err := unix.OpenTree(root, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open the volume's tree: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if v.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set the mount's attributes: %w", err)
	}
	target := filepath.Join(reserved, name)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the volume at %s: %w", target, err)
	}
	return nil
}

// makeReserved makes a directory below that of all reserved directories. The
// guest's view of it is read-only, so it is made beneath the instance's mount.
func (n *Node) makeReserved(name string) error {
	beneath, err := unix.OpenTree(unix.AT_FDCWD, n.cfg.Reserved, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open %s: %w", n.cfg.Reserved, err)
	}
	defer unix.Close(beneath)
	made := ""
	for part := range strings.SplitSeq(name, "/") {
		made = filepath.Join(made, part)
		if err := unix.Mkdirat(beneath, made, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return diskError(err)
		}
	}
	return nil
}

// volumeOwner has what a guest's users write to: that of E2B's volumes.
const volumeOwner = 1000

// openSub opens a directory of a volume and makes what is missing of it. A link
// of the guest's that leads out of the volume is an error.
func openSub(dir, sub string) (fd int, err error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || sub == "" {
		return root, err
	}
	defer unix.Close(root)
	if !filepath.IsLocal(sub) {
		return -1, cay.Errorf(cay.Invalid, "sub-path %q leads out of the volume", sub)
	}
	fd, err = openBeneath(root, sub)
	if errors.Is(err, unix.ENOENT) {
		fd, err = makeSub(root, sub)
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return -1, cay.Wrap(cay.Invalid, err, "sub-path %q is no directory of the volume", sub)
	case errors.Is(err, unix.ENAMETOOLONG):
		return -1, cay.Wrap(cay.Invalid, err, "sub-path %q is too long", sub)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return -1, cay.Wrap(cay.NoSpace, err, "the volume has no room for its sub-path %q", sub).
			WithHint("remove files from it, or make it larger")
	}
	return fd, err
}

// lookAgain is how often a walk begins anew because a rename came in between: a
// guest that renames for ever keeps no turn of the node.
const lookAgain = 100

func openBeneath(dir int, path string) (fd int, err error) {
	for range lookAgain {
		fd, err = unix.Openat2(dir, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, err
}

// makeSub makes a directory of a volume, one part after another.
func makeSub(root int, sub string) (int, error) {
	at, err := unix.Dup(root)
	for part := range strings.SplitSeq(filepath.Clean(sub), "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = stepInto(at, part)
		unix.Close(at)
		at = next
	}
	return at, err
}

// stepInto opens a directory's child and makes it when it is missing.
func stepInto(dir int, name string) (int, error) {
	fd, err := openBeneath(dir, name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err = openBeneath(dir, name)
	if err == nil {
		err = unix.Fchownat(fd, "", volumeOwner, volumeOwner, unix.AT_EMPTY_PATH)
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
		return -1, err
	}
	return fd, err
}

// shareInstance makes an instance's reserved directory a mount of its own, as
// the engine would: shared with its guest, read-only but for what is mounted
// below it.
func shareInstance(dir string) error {
	if is, err := isMount(dir); is || err != nil {
		return err
	}
	return errors.Join(
		unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
		unix.Mount("", dir, "", unix.MS_PRIVATE, ""),
		unix.Mount("", dir, "", unix.MS_SHARED, ""),
	)
}

// isMount reports whether a directory is the root of a mount.
func isMount(dir string) (bool, error) {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &s); err != nil {
		return false, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	return s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
