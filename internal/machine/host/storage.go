package host

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/embedded"
	"github.com/cay-run/cay/internal/machine/engine/runsc"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/machine/volume/loop"
)

// Take mounts the data directory's storage, if it has any, and makes this
// process the only server of it.
func Take(ctx context.Context, cfg Config) (io.Closer, error) {
	if err := makeDirs(cfg); err != nil {
		return nil, err
	}
	for {
		if err := loopfs.Mount(ctx, cfg.Data); err != nil {
			return nil, err
		}
		lock, err := takeLock(cfg.Data)
		if err != nil || !loopfs.Waiting(cfg.Data) {
			return lock, err
		}
		lock.Close() // it was made, or unmounted, between the two
	}
}

// CreateStorage gives the data directory a file system of its own whose files
// share blocks, and moves its contents into it. No server and no sandbox of it
// may run.
func CreateStorage(ctx context.Context, cfg Config, size int64) error {
	if err := makeDirs(cfg); err != nil {
		return err
	}
	if !loopfs.Waiting(cfg.Data) { // else it is refused below
		lock, err := takeLock(cfg.Data)
		if err != nil {
			return err
		}
		defer lock.Close()
		if err := loop.Release(cfg.Volumes()); err != nil {
			return cay.Wrap(cay.Internal, err, "unmount the volumes")
		}
		for _, dir := range []string{cfg.Instances(), filepath.Join(cfg.Data, "building")} {
			if left, err := os.ReadDir(dir); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				return cay.Wrap(cay.Conflict, err, "sandboxes use %s", cfg.Data).WithHint("end them first: cay down")
			}
		}
	}
	return loopfs.Create(ctx, cfg.Data, size)
}

// LetGo ends the processes that use a data directory whose file system is down,
// and unmounts that. No file in the directory can be read, so it finds the
// server by its socket, and sandboxes by their cgroups, with a copy of the
// engine.
func LetGo(ctx context.Context, cfg Config) error {
	if err := stopServing(ctx, cfg); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cfg.Run, "down-")
	if err != nil {
		return cay.Wrap(cay.Internal, err, "make a directory in %s", cfg.Run)
	}
	defer os.RemoveAll(tmp)
	binaries, err := embedded.Unpack(tmp)
	if err != nil {
		return err
	}
	e, err := runsc.Open(runsc.Config{Engines: binaries.EngineDir, Hash: binaries.EngineHash, Run: cfg.Run, Cgroup: cfg.NetworkName})
	if err != nil {
		return err
	}
	if err := EndAll(ctx, e); err != nil {
		return err
	}
	return loopfs.Unmount(ctx, cfg.Data)
}

// stopServing asks the server that answers in the run directory to end, and
// waits until it has.
func stopServing(ctx context.Context, cfg Config) error {
	c, err := new(net.Dialer).DialContext(ctx, "unix", cfg.Operator())
	if err != nil {
		return nil // no server answers
	}
	pid, err := peer(c.(*net.UnixConn))
	c.Close()
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot look for a running server")
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot look at the server (process %d)", pid)
	}
	defer unix.Close(handle)
	if err := unix.PidfdSendSignal(handle, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return cay.Wrap(cay.Denied, err, "cannot stop the server (process %d)", pid)
	}
	for {
		ended := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
		if n, err := unix.Poll(ended, int(100*time.Millisecond/time.Millisecond)); n > 0 {
			return nil
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			return cay.Wrap(cay.Internal, err, "wait for the server (process %d)", pid)
		}
		if err := ctx.Err(); err != nil {
			return cay.Wrap(cay.Unavailable, err, "the server (process %d) has not ended yet", pid)
		}
	}
}

// peer says which process listens on a socket.
func peer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, err
	}
	return int(who.Pid), nil
}
