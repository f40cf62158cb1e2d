package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// tailSize is how much of a failed command's output an error keeps.
const tailSize = 4 << 10

// packageOf says what Debian package has a program that we run.
var packageOf = map[string]string{
	"mmdebstrap": "mmdebstrap",
	"mkfs.erofs": "erofs-utils",
	"unshare":    "util-linux",
	"cp":         "coreutils",
}

// need returns an error with what to install when a program is missing.
func need(programs ...string) error {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			return cay.Errorf(cay.Unsupported, "building an image needs %s, which this host lacks", p).
				WithHint("apt-get install %s", packageOf[p])
		}
	}
	return nil
}

// run runs a command and hands every line it writes to onLine. It ends with
// the context, and the command ends with this process.
func run(ctx context.Context, onLine func(string), dir string, env []string, name string, args ...string) error {
	// The kernel sends the signal when the thread ends that started the
	// command, so the thread must not go before the command does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	out := &lines{onLine: onLine}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	out.flush()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return cay.Wrap(cay.Unavailable, ctx.Err(), "%s was interrupted", name)
	}
	err = errors.Join(err, errors.New(string(out.tail)))
	if strings.Contains(string(out.tail), "No space left on device") {
		return cay.Wrap(cay.NoSpace, err, "%s failed, because the disk of the data directory is full: %s", name, out.last).WithHint("%s", disk.Cure)
	}
	return cay.Wrap(cay.Internal, err, "%s failed: %s", name, out.last)
}

// lines is a writer that splits what a command writes. Standard output and
// error share it, so exec writes from one goroutine.
type lines struct {
	onLine func(string)
	part   []byte
	tail   []byte
	last   string
}

func (l *lines) Write(p []byte) (int, error) {
	l.tail = append(l.tail, p...)
	if over := len(l.tail) - tailSize; over > 0 {
		l.tail = l.tail[over:]
	}
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			break
		}
		l.line(string(l.part[:i]))
		l.part = l.part[i+1:]
	}
	if len(l.part) > bufio.MaxScanTokenSize {
		l.flush()
	}
	return len(p), nil
}

func (l *lines) flush() {
	if len(l.part) > 0 {
		l.line(string(l.part))
		l.part = nil
	}
}

func (l *lines) line(s string) {
	s = strings.TrimSpace(s)
	if s == "" {
		return
	}
	l.last = s
	if l.onLine != nil {
		l.onLine(s)
	}
}

var _ io.Writer = (*lines)(nil)
