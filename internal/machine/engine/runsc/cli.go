package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// maxLog bounds what is read of a tool's complaints.
const maxLog = 64 << 10

// call runs one command of the build that owns an instance, for an instance
// that exists.
func (e *Engine) call(ctx context.Context, r *record, args ...string) ([]byte, error) {
	return e.output(ctx, r, e.command(r, args...), args)
}

// finish is call for a command that rewrites the instance's state: cut off in
// the middle it would leave a file that no command can read, and an instance
// that no build can drive. So it ends by itself when the server is killed, and
// the next command waits for it: it holds the lock that it is given.
func (e *Engine) finish(ctx context.Context, r *record, args ...string) ([]byte, error) {
	lock, err := e.lockState(r.ID)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	cmd := e.command(r, args...)
	cmd.SysProcAttr.Pdeathsig = 0
	cmd.ExtraFiles = []*os.File{lock}
	return e.output(ctx, r, cmd, args)
}

// stateWait is how long a command that takes milliseconds may take at worst.
const stateWait = 10 * time.Second

// lockState waits until no command is left that rewrites the instance's state,
// be it of a server that is gone, and keeps others away until it is closed.
func (e *Engine) lockState(id cay.InstanceID) (*os.File, error) {
	f, err := os.OpenFile(e.recordFile(id, "state.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(stateWait)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (e *Engine) output(ctx context.Context, r *record, cmd *exec.Cmd, args []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &limited{buf: &stderr}
	if err := waitFor(ctx, cmd, e.reportBegun(r, args, (*exec.Cmd).Start)); err != nil {
		return nil, fmt.Errorf("cay-runsc %s: %w: %s", verb(args), withCause(err, stderr.Bytes()), lastLines(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// withCause adds what a command says of a full disk to its exit status: the
// error itself stayed in the sentry's process.
func withCause(err error, stderr []byte) error {
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if bytes.Contains(stderr, []byte(full.Error())) {
			return errors.Join(err, full)
		}
	}
	return err
}

// start runs a command that leaves a sandbox behind. The sandbox inherits the
// three standard files, which are snapshot format, so they are /dev/null and
// complaints come through a log file.
func (e *Engine) start(ctx context.Context, r *record, image string, args ...string) error {
	root, err := os.Open(image)
	if err != nil {
		return cay.Wrap(cay.NotFound, err, "the root image of instance %s is missing", r.ID)
	}
	defer root.Close()
	log := e.recordFile(r.ID, "start.log")
	overlay := fmt.Sprintf("--overlay2=root:dir=%s,size=%dm", overlayDir(r.Dir), r.DiskMB)
	args = append([]string{overlay, "--log=" + log, "--panic-log=" + e.recordFile(r.ID, "panic.log")}, args...)
	cmd := e.command(r, args...)
	cmd.ExtraFiles = []*os.File{root}
	begin := (*exec.Cmd).Start
	if r.background {
		begin = startNice
	}
	if err := waitFor(ctx, cmd, e.reportBegun(r, args, begin)); err != nil {
		text := readTail(log)
		return fmt.Errorf("cay-runsc: %w: %s%s", withCause(err, text), lastLines(text), e.lastWords(r))
	}
	return nil
}

// pagesLost says of a sentry why it ended.
const pagesLost = "the pages of its snapshot could not be read"

// panicked is the beginning of what an instance's sentry wrote of its own failure.
func (e *Engine) panicked(r *record) []byte { return readHead(e.recordFile(r.ID, "panic.log")) }

// lastWords is what a sentry has left of why it ended, which the command that
// started it cannot know.
func (e *Engine) lastWords(r *record) string {
	var out string
	if e.loadStatus(r).failed {
		out = "; " + pagesLost
	}
	if text := e.panicked(r); len(text) > 0 {
		out += "; the sentry failed: " + string(text)
	}
	return out
}

func (e *Engine) command(r *record, args ...string) *exec.Cmd {
	all := append([]string{"--root=" + e.stateDir()}, r.Flags...)
	cmd := exec.Command(e.binary(r.EngineHash), append(all, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	// Its own session: a Ctrl-C for the server is not for sandboxes. And no
	// half-done command goes on when the server is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// reportBegun reports to the configured listener that a command has begun.
func (e *Engine) reportBegun(r *record, args []string, begin func(*exec.Cmd) error) func(*exec.Cmd) error {
	if e.cfg.Begun == nil {
		return begin
	}
	return func(cmd *exec.Cmd) error {
		err := begin(cmd)
		if err == nil {
			e.cfg.Begun(r.ID, verb(args), cmd.Process.Pid)
		}
		return err
	}
}

// waitFor runs cmd until it ends, or kills it when ctx does.
func waitFor(ctx context.Context, cmd *exec.Cmd, begin func(*exec.Cmd) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The parent-death signal follows the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := begin(cmd); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !stop() {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// limited keeps the first maxLog bytes and drops the rest.
type limited struct{ buf *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxLog - l.buf.Len(); room > 0 {
		l.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// verb finds the command's name among the flags, for messages.
func verb(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

func readTail(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return nil
		}
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxLog))
	return text
}

// readHead reads the beginning of a sentry's last words, which names the failure
// and where it was; the other goroutines come after.
func readHead(path string) []byte {
	const most = 8 << 10
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return text
}

// lastLines keeps the end of a log, where the reason is, and the start of its
// lines, where it is put in words.
func lastLines(text []byte) string {
	const lines, width = 3, 400
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := all[max(0, len(all)-lines):]
	for i, line := range last {
		last[i] = line[:min(len(line), width)]
	}
	return strings.Join(last, "; ")
}

// overlayDir is where an instance's writes go.
func overlayDir(dir string) string { return filepath.Join(dir, "overlay") }

// storeDir is where the pages of Docker's store go.
func storeDir(dir string) string { return filepath.Join(dir, "docker") }
