package interp

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// How much of a kernel's log errors and warnings say, in bytes.
const lastWords, briefWords = 4000, 500

// spec is what starts a kernel.
type spec struct {
	argv  []string
	cwd   string
	env   []string
	cred  *syscall.Credential
	start func(*exec.Cmd) (wait func() error, err error)
	why   func(pid int) string // it was killed, as far as it is known
	dir   string               // of all kernels
	log   *slog.Logger
}

// process is a kernel's process and what every kernel has.
type process struct {
	log *slog.Logger
	dir string // its sockets, pipes, files and log
	pid int

	began time.Time

	restarting atomic.Bool   // it was ended in order to be replaced
	closing    atomic.Bool   // it was ended because its context is over
	blamed     atomic.Value  // why else it was ended here, a string
	exited     chan struct{} // closed when the process is gone
	status     string        // how it ended, once exited is closed
	words      string        // the end of its log, likewise
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
	p.pid, p.began = cmd.Process.Pid, time.Now()
	go func() {
		p.buried(wait(), s.why)
		close(p.exited)
	}()
	return nil
}

// buried keeps how the process ended and what it said last, and tells both to
// the log: as a warning, which reaches the sandbox's log, if nothing of ours
// asked for the end.
func (p *process) buried(err error, why func(pid int) string) {
	p.status = "exit status 0"
	if err != nil {
		p.status = err.Error()
	}
	p.kill() // the rest of its group, which may hold its sockets
	if reason := why(p.pid); reason != "" {
		p.status += ": " + reason
	}
	if reason, ok := p.blamed.Load().(string); ok {
		p.status += ": " + reason
	}
	p.words = p.logTail()
	if p.restarting.Load() || p.closing.Load() {
		p.log.Info("kernel ended", "pid", p.pid, "status", p.status)
		return
	}
	brief := p.words
	if len(brief) > briefWords { // a dump of stacks says most at its begin
		brief = strings.ToValidUTF8(brief[:briefWords], "")
	}
	p.log.Warn("kernel ended", "pid", p.pid, "status", p.status, "age", time.Since(p.began).Round(time.Millisecond),
		"log", brief, "end_of_log", tail(p.words[len(brief):], briefWords))
}

// blame notes why the process is about to be ended here.
func (p *process) blame(reason string) { p.blamed.CompareAndSwap(nil, reason) }

// end ends a kernel whose context is over.
func (p *process) end() {
	p.closing.Store(true)
	p.kill()
}

func (p *process) proc() *process { return p }

// ending says how the process ended and what it said last. Its connection
// breaks a moment before its status is there.
func (p *process) ending() (status, words string) {
	select {
	case <-p.exited:
		return p.status, p.words
	case <-time.After(reapWithin):
		return "its connection broke", ""
	}
}

func (p *process) kill() { p.signal(syscall.SIGKILL) }

// dead reports whether the process has ended, also before its end was told. In
// gVisor a process that was waited for is ESRCH.
func (p *process) dead() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD) || errors.Is(err, unix.ESRCH) || err == nil && info.Signo != 0
}

// signal reaches the kernel and what it started. The group outlives its
// leader while it has members, so a late call cannot hit another's processes
// unless ids have wrapped round in between.
func (p *process) signal(sig syscall.Signal) {
	if p.pid > 1 {
		_ = syscall.Kill(-p.pid, sig)
	}
}

// logTail is the end of what the kernel wrote to its log.
func (p *process) logTail() string {
	b, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return ""
	}
	return tail(strings.TrimSpace(string(b)), lastWords)
}

// tail is the end of a text, of so many bytes at most.
func tail(text string, bytes int) string {
	return strings.ToValidUTF8(text[max(0, len(text)-bytes):], "")
}

// notStarted is the error of a kernel that did not start.
func (p *process) notStarted(err error) error {
	if errors.Is(err, errKernelGone) {
		status, _ := p.ending()
		err = fmt.Errorf("%w (%s)", err, status)
	}
	if words := p.logTail(); words != "" {
		err = fmt.Errorf("%w\n%s", err, words)
	}
	return fmt.Errorf("the kernel did not start: %w", err)
}
