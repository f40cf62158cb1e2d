package runsc

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Boot implements engine.Engine.
func (e *Engine) Boot(ctx context.Context, s engine.BootSpec) error {
	r := &record{
		ID: s.ID, EngineHash: e.cfg.Hash, Flags: flags(s.Docker), Dir: s.Dir, Reserved: s.Reserved,
		Root: s.Digest, Limits: s.Limits, DiskMB: s.Limits.DiskMB, CPUFeatures: e.features, Docker: s.Docker,
	}
	command := []string{"run", "--detach"}
	if s.From != "" {
		if err := checkLayer(s.From); err != nil {
			return err
		}
		command = append(command, "--fs-restore-image-path="+filepath.Join(s.From, layerName))
	}
	fresh := func(p place) (document, error) {
		args, err := s.Args, error(nil)
		if len(args) == 0 && s.From != "" {
			args, err = bootedWith(s.From)
		}
		if err == nil && len(args) == 0 {
			err = cay.Errorf(cay.Invalid, "a booted instance needs a program to run")
		}
		return newDocument(args, r.DiskMB, r.Docker, p), err
	}
	if err := e.launch(ctx, r, s.Root, s.Net, fresh, command...); err != nil || s.From == "" {
		return err
	}
	// The guest runs on files that are still being read. A return before
	// the last one is read would miss a failure.
	if _, err := e.call(ctx, r, "wait", "--fsrestore", string(s.ID)); err != nil {
		return errors.Join(cay.Wrap(cay.Internal, err, "instance %s did not get its files", s.ID), e.destroy(s.ID))
	}
	return nil
}

// Restore implements engine.Engine.
func (e *Engine) Restore(ctx context.Context, s engine.RestoreSpec) error {
	if err := e.CanRestore(s.Snapshot); err != nil {
		return err
	}
	r := &record{
		ID: s.ID, EngineHash: s.Snapshot.EngineHash, Flags: s.Snapshot.EngineFlags, Dir: s.Dir, Reserved: s.Reserved,
		Root: s.Snapshot.Root, Limits: s.Limits, DiskMB: s.Snapshot.Limits.DiskMB, CPUFeatures: s.Snapshot.CPUFeatures,
		Docker: s.Snapshot.Format == cay.DockerFormat, background: s.Background,
	}
	limit := e.restoreLimit(s.Background || s.Arriving)
	within, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	restore := e.restoreFrom
	if s.Arriving {
		restore = e.restoreArriving
	}
	err := restore(within, r, s)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(within), errLimit) {
		return cay.Wrap(cay.Unavailable, err, "the memory of snapshot %s was not restored in %s", s.Snapshot.ID, limit).
			WithCode(cay.CodeRestoreTimeout).
			WithHint("try again; if it does not end then either, resume it with memory set to false: it boots from its files")
	}
	return err
}

// restoreFrom restores from a snapshot of this machine.
func (e *Engine) restoreFrom(ctx context.Context, r *record, s engine.RestoreSpec) error {
	recorded := func(p place) (document, error) {
		d, err := readDocument(filepath.Join(s.From, bundleName))
		if errors.Is(err, os.ErrNotExist) {
			return nil, cay.Wrap(cay.NotFound, err, "the files of snapshot %s are missing", s.Snapshot.ID)
		}
		if err != nil {
			return nil, err
		}
		return d, d.put(p)
	}
	command := append([]string{"restore", "--detach", "--image-path=" + s.From}, e.demand(r, s)...)
	return e.launch(ctx, r, s.Root, s.Net, recorded, command...)
}

// A restore reads memory from a disk, which takes seconds for gigabytes, and
// more on a busy host. A guest can shape its memory so that a restore never
// ends.
const (
	restoreLimit    = 45 * time.Second // less than a client waits for a create
	backgroundLimit = 3 * time.Minute  // after everything else that the host does, or while the snapshot arrives
)

var errLimit = errors.New("the restore has no time left")

func (e *Engine) restoreLimit(background bool) time.Duration {
	if background {
		return cmp.Or(e.cfg.BackgroundLimit, backgroundLimit)
	}
	return cmp.Or(e.cfg.RestoreLimit, restoreLimit)
}

// launch makes an instance from nothing with one command; on any error nothing
// of it is left.
func (e *Engine) launch(ctx context.Context, r *record, image string, net engine.Net, bundle func(place) (document, error), command ...string) error {
	r.Reserved = cmp.Or(r.Reserved, filepath.Join(r.Dir, "reserved"))
	if err := check(r, net); err != nil {
		return err
	}
	ctx, finish, err := e.enter(ctx, r.ID)
	if err != nil {
		return err
	}
	defer finish()
	err = e.prepare(r, net, bundle)
	if err == nil {
		args := append(slices.Clone(command), "--bundle="+bundleDir(r.Dir), "--pid-file="+e.recordFile(r.ID, "pid"), string(r.ID))
		err = e.start(ctx, r, image, args...)
	}
	if err == nil {
		err = e.begin(r)
	}
	if err != nil {
		err = e.startError(ctx, r, err)
		if left := e.destroy(r.ID); left != nil {
			err = errors.Join(err, left)
		}
	}
	return err
}

// starting is a start under way, for a Kill that comes meanwhile.
type starting struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// enter claims an id for a start, which ends with finish.
func (e *Engine) enter(ctx context.Context, id cay.InstanceID) (_ context.Context, finish func(), _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := os.Stat(e.recordFile(id, "record.json"))
	if e.starting[id] != nil || err == nil {
		return nil, nil, cay.Errorf(cay.Conflict, "instance %s exists", id)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &starting{cancel: cancel, done: make(chan struct{})}
	e.starting[id] = s
	return ctx, func() {
		cancel()
		e.mu.Lock()
		delete(e.starting, id)
		e.mu.Unlock()
		close(s.done)
	}, nil
}

func check(r *record, net engine.Net) error {
	switch {
	case !cay.ValidID(string(r.ID)):
		return cay.Errorf(cay.Invalid, "%q is no instance id", r.ID)
	case r.Limits.CPUs < 1 || r.Limits.MemoryMB < 1 || r.DiskMB < 1:
		return cay.Errorf(cay.Invalid, "instance %s needs limits above zero, got %+v", r.ID, r.Limits)
	case !filepath.IsAbs(r.Dir) || !filepath.IsAbs(r.Reserved) || !filepath.IsAbs(net.Namespace):
		return cay.Errorf(cay.Invalid, "instance %s needs absolute paths for its directory, reserved mount and network namespace", r.ID)
	}
	return nil
}

// prepare writes all that the command reads, the record first.
func (e *Engine) prepare(r *record, net engine.Net, bundle func(place) (document, error)) error {
	e.mu.Lock() // so that tidy sees it
	err := e.save(r)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(overlayDir(r.Dir), 0o700); err != nil {
		return err
	}
	if err := shareReserved(r.Reserved); err != nil {
		return err
	}
	if r.Docker {
		if err := os.MkdirAll(storeDir(r.Dir), 0o700); err != nil {
			return err
		}
	}
	d, err := bundle(place{
		root:      filepath.Join(bundleDir(r.Dir), "root"),
		cgroup:    e.cg.path(r.ID),
		namespace: net.Namespace,
		reserved:  r.Reserved,
		store:     storeDir(r.Dir),
		limits:    r.Limits,
		low:       r.background,
	})
	if err != nil {
		return err
	}
	return writeBundle(bundleDir(r.Dir), d)
}

// begin takes over what the command left running.
func (e *Engine) begin(r *record) error {
	pid, err := e.pid(r.ID)
	if err != nil {
		return err
	}
	r.Started, r.Whole = time.Now(), true
	if err := e.save(r); err != nil {
		return err
	}
	_, err = e.hold(r, pid)
	return err
}

func (e *Engine) startError(ctx context.Context, r *record, err error) error {
	var known *cay.Error
	switch {
	case ctx.Err() != nil:
		return cay.Wrap(cay.Unavailable, err, "the start of instance %s was cut off", r.ID)
	case errors.As(err, &known):
		return err
	case e.cg.oomKills(r.ID) > 0:
		return cay.Wrap(cay.Exhausted, err, "instance %s does not fit in %d MB of memory", r.ID, r.Limits.MemoryMB)
	}
	// An engine that cannot write its log says nothing of a full disk.
	if dir := disk.Full(r.Dir, e.cfg.Run); dir != "" || isNoSpace(err) {
		return cay.Wrap(cay.NoSpace, err, "no disk space to start instance %s: the disk of %s is full", r.ID, cmp.Or(dir, r.Dir)).
			WithHint("%s", disk.Cure)
	}
	return cay.Wrap(cay.Internal, err, "instance %s did not start", r.ID)
}

// Adopt implements engine.Engine.
func (e *Engine) Adopt(_ context.Context, id cay.InstanceID) error {
	e.mu.Lock()
	_, held := e.live[id]
	e.mu.Unlock()
	if held {
		return nil
	}
	gone := func(why string, err error) error {
		return cay.Wrap(cay.NotFound, err, "instance %s is not alive: %s", id, why)
	}
	r, err := e.load(id)
	if err != nil {
		return gone("it has no record", err)
	}
	if !r.Whole {
		return gone("its start was never finished", nil)
	}
	pid, err := e.pid(id)
	if err != nil {
		return gone("it has no process", err)
	}
	// Only the cgroup says whose process this is today.
	if !slices.Contains(e.cg.procs(id), pid) {
		return gone("its process is over", nil)
	}
	lock, err := e.lockState(id) // a command of the server before may still be at it
	if err != nil {
		return gone("its state cannot be locked", err)
	}
	lock.Close()
	if _, err := e.hold(r, pid); err != nil {
		return gone("its process is over", err)
	}
	return nil
}

// Kill implements engine.Engine.
func (e *Engine) Kill(_ context.Context, id cay.InstanceID) error {
	if !cay.ValidID(string(id)) {
		return cay.Errorf(cay.Invalid, "%q is no instance id", id)
	}
	e.mu.Lock()
	s := e.starting[id]
	e.mu.Unlock()
	if s != nil {
		s.cancel()
		<-s.done
	}
	return e.destroy(id)
}

// destroy ends whatever there is of an instance, however far it came. The
// record goes last, so that a second try finds what the first one left.
func (e *Engine) destroy(id cay.InstanceID) error {
	e.mu.Lock()
	in := e.live[id]
	e.mu.Unlock()
	if in != nil {
		in.asked.Store(true)
	}
	if err := e.cg.killAll(id, engine.KillGrace); err != nil {
		return err
	}
	if in != nil {
		select {
		case <-in.dead: // its evidence is in the cgroup
		case <-time.After(engine.KillGrace):
			return cay.Errorf(cay.Unavailable, "the sentry of instance %s does not end", id)
		}
	}
	if err := e.cg.remove(id, engine.KillGrace); err != nil {
		return err
	}
	if r, err := e.load(id); err == nil {
		if err := unmount(r.Reserved); err != nil {
			return cay.Wrap(cay.Internal, err, "cannot release the reserved mount of instance %s", id)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.forget(id); err != nil {
		return cay.Wrap(cay.Internal, err, "cannot remove the state of instance %s", id)
	}
	delete(e.live, id)
	return nil
}

// shareReserved makes a directory a mount of its own: shared, so that what is
// mounted below it later appears inside, and read-only, so that the guest's
// root cannot write to the host's disk through it. One that is a mount already
// keeps what is mounted below it.
func shareReserved(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &s)
	if err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		err = unix.Mount(dir, dir, "", unix.MS_BIND, "")
	}
	return errors.Join(
		err,
		unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
		unix.Mount("", dir, "", unix.MS_PRIVATE, ""), // leave the parent's group first
		unix.Mount("", dir, "", unix.MS_SHARED, ""),
	)
}

// unmount takes away every mount at dir; none is fine.
func unmount(dir string) error {
	for {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func bundleDir(dir string) string { return filepath.Join(dir, "bundle") }
