package interp

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errKernelGone says that the kernel ended while something waited for it.
var errKernelGone = errors.New("the kernel ended")

// reapWithin is how long it takes at most to know how a process ended that has
// closed its connection.
const reapWithin = 5 * time.Second

// spec is what starts a kernel.
type spec struct {
	argv  []string
	cwd   string
	env   []string
	cred  *syscall.Credential
	start func(*exec.Cmd) (wait func() error, err error)
	why   func(pid int) string // it was killed, if somebody knows
	dir   string               // of all kernels
	log   *slog.Logger
}

// process is a kernel's process and what every kernel has.
type process struct {
	log *slog.Logger
	dir string // its sockets, pipes, files and log
	pid int

	restarting atomic.Bool   // it was ended in order to be replaced
	exited     chan struct{} // closed when the process is gone
	status     string        // how it ended, once exited is closed
	done       chan struct{} // closed when also everything it said was read
}

// newProcess makes the directory of a kernel to be.
func newProcess(s spec) (*process, error) {
	dir, err := os.MkdirTemp(s.dir, "k")
	if err != nil {
		return nil, err
	}
	p := &process{log: s.log, dir: dir, exited: make(chan struct{}), done: make(chan struct{})}
	return p, s.own(dir)
}

// own gives a file to the kernel's user.
func (s spec) own(path string) error {
	if s.cred == nil {
		return nil
	}
	return os.Chown(path, int(s.cred.Uid), int(s.cred.Gid))
}

// spawn starts the process. Without files of their own, its outputs go to the
// log.
func (p *process) spawn(s spec, stdout, stderr *os.File, args ...string) error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if stdout == nil {
		stdout, stderr = log, log
	}
	cmd := exec.Command(s.argv[0], append(s.argv[1:len(s.argv):len(s.argv)], args...)...)
	cmd.Dir, cmd.Env = s.cwd, s.env
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A group of its own: an interrupt reaches what the kernel started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.cred}
	wait, err := s.start(cmd)
	if err != nil {
		return err
	}
	p.pid = cmd.Process.Pid
	go func() {
		p.status = "exit status 0"
		if err := wait(); err != nil {
			p.status = err.Error()
		}
		p.kill() // what is left of its group, which may hold its sockets
		if reason := s.why(p.pid); reason != "" {
			p.status += ": " + reason
		}
		p.log.Info("kernel ended", "pid", p.pid, "status", p.status)
		close(p.exited)
	}()
	return nil
}

func (p *process) proc() *process { return p }

// ending says how the process ended. Its connection breaks a moment before
// somebody has waited for it.
func (p *process) ending() string {
	select {
	case <-p.exited:
		return p.status
	case <-time.After(reapWithin):
		return "its connection broke"
	}
}

func (p *process) kill() { p.signal(syscall.SIGKILL) }

// dead reports whether the process has ended, even where nobody was told yet.
func (p *process) dead() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD) || err == nil && info.Signo != 0
}

// signal reaches the kernel and what it started. The group outlives its
// leader while it has members, so a late call cannot hit another's processes
// unless ids have wrapped round in between.
func (p *process) signal(sig syscall.Signal) {
	if p.pid > 1 {
		_ = syscall.Kill(-p.pid, sig)
	}
}

// logTail is the end of what the kernel wrote to its log, for an error
// message.
func (p *process) logTail() string {
	b, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil || len(b) == 0 {
		return ""
	}
	return "\n" + string(b[max(0, len(b)-2000):])
}
