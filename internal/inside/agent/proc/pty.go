package proc

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

const (
	defaultCols = 80
	defaultRows = 24
	// ttyGroup is the group that owns terminals on every distribution.
	ttyGroup = 5
)

// openPTY makes a terminal for u: the agent's end and the process's.
func openPTY(u user.User, size *pb.PTY_Size) (_ ends, err error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return ends{}, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	file := os.NewFile(uintptr(master), "/dev/ptmx")
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return ends{}, os.NewSyscallError("unlock terminal", err)
	}
	number, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	if err != nil {
		return ends{}, os.NewSyscallError("name terminal", err)
	}
	path := "/dev/pts/" + strconv.FormatUint(uint64(number), 10)
	// Programs open their terminal by name, so it must be the user's. Where
	// that cannot be (a user namespace) the open descriptors still serve.
	if os.Chown(path, int(u.UID), ttyGroup) == nil {
		_ = os.Chmod(path, 0o620)
	}
	slave, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ends{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := resize(file, size); err != nil {
		_ = unix.Close(slave)
		return ends{}, err
	}
	return ends{file: file, fd: master, child: slave}, nil
}

// resize sets the size of a terminal, by its agent's end.
func resize(file *os.File, size *pb.PTY_Size) error {
	ws := unix.Winsize{
		Col: dimension(size.GetCols(), defaultCols),
		Row: dimension(size.GetRows(), defaultRows),
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &ws)
	}); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("resize terminal: %w", failed)
	}
	return nil
}

// sizeOf says how many columns and rows a terminal has; nothing when it is over.
func sizeOf(file *os.File) (size string) {
	raw, err := file.SyscallConn()
	if err != nil {
		return ""
	}
	_ = raw.Control(func(fd uintptr) { // fails where the file is closed
		if ws, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			size = fmt.Sprintf("%dx%d", ws.Col, ws.Row)
		}
	})
	return size
}

func dimension(n uint32, fallback uint16) uint16 {
	if n == 0 {
		return fallback
	}
	return uint16(min(n, 0xffff))
}
