package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// lockFile lies in the data directory. The kernel drops the lock with the
// process that holds it and can say who that is, so it is never stale; the
// process id in the file is for people.
const lockFile = "lock"

// takeLock makes this process the only server of a data directory.
func takeLock(dir string) (io.Closer, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot open %s", path).
			WithHint("run as root, or set CAY_DATA_DIR")
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		pid, _ := holder(f)
		f.Close()
		return nil, cay.Errorf(cay.Conflict, "another server (process %d) uses %s", pid, dir).
			WithHint("stop it with `cay down`, or set CAY_DATA_DIR and CAY_RUN_DIR to others")
	}
	if err == nil {
		err = errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid())))
	}
	if err != nil {
		f.Close()
		return nil, cay.Wrap(cay.Internal, err, "cannot lock %s", path)
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// holder asks the kernel which process holds the lock; 0 is none.
func holder(f *os.File) (int, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lk); err != nil {
		return 0, err
	}
	if lk.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lk.Pid), nil
}

// Stop asks the server of a data directory to end and waits until it has.
// Without a server it does nothing.
func Stop(ctx context.Context, dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot look for a running server")
	}
	defer f.Close()
	told := 0
	for {
		pid, err := holder(f)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "cannot look for a running server")
		}
		if pid == 0 {
			return nil
		}
		if pid != told {
			if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				return cay.Wrap(cay.Denied, err, "cannot stop the server (process %d)", pid).
					WithHint("run as the user who started it")
			}
			told = pid
		}
		select {
		case <-ctx.Done():
			return cay.Wrap(cay.Unavailable, ctx.Err(), "the server (process %d) has not ended yet", pid)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
