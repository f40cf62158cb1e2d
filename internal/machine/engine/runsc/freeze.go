package runsc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// freezeWait is how long the kernel may take to stop the last process.
const freezeWait = 5 * time.Second

// Freeze implements engine.Engine.
func (e *Engine) Freeze(_ context.Context, id cay.InstanceID) error {
	if _, err := e.get(id); err != nil {
		return err
	}
	err := e.cg.freeze(id, true)
	for begun := time.Now(); err == nil && !e.cg.frozen(id); time.Sleep(time.Millisecond) {
		if time.Since(begun) > freezeWait {
			err = errors.Join(errors.New("some of its processes go on"), e.cg.freeze(id, false))
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return cay.Wrap(cay.Unsupported, err, "this host cannot freeze instances")
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot freeze instance %s", id)
	}
	return nil
}

// Thaw implements engine.Engine.
func (e *Engine) Thaw(_ context.Context, id cay.InstanceID) error {
	in, err := e.get(id)
	if err != nil {
		return err
	}
	err = e.cg.setShare(id, fullShare(in.Limits))
	if thawed := e.cg.freeze(id, false); !errors.Is(thawed, os.ErrNotExist) {
		err = errors.Join(err, thawed)
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot thaw instance %s", id)
	}
	return nil
}

// freeze has every process of an instance stopped, which takes the kernel a
// moment, or woken.
func (h hierarchy) freeze(id cay.InstanceID, frozen bool) error {
	file, text := "cgroup.freeze", "0"
	if frozen {
		text = "1"
	}
	if !h.v2 {
		file, text = "freezer.state", "THAWED"
		if frozen {
			text = "FROZEN"
		}
	}
	return writeTo(filepath.Join(h.dir("freezer", id), file), text)
}

// frozen reports whether the last process has stopped.
func (h hierarchy) frozen(id cay.InstanceID) bool {
	if h.v2 {
		return keyed(filepath.Join(h.dir("", id), "cgroup.events"), "frozen") == 1
	}
	text, _ := os.ReadFile(filepath.Join(h.dir("freezer", id), "freezer.state"))
	return strings.TrimSpace(string(text)) == "FROZEN"
}

// share is what an instance gets of the processors: a weight against others in
// need of them, and at most quota in each period, both in microseconds.
type share struct{ weight, quota, period int }

// lowShare is that of what is restored in the background. A weight alone is
// not enough: the server, and the commands that it starts, are weighed
// against all instances together, so the hand-overs of a create would each wait
// for a turn of the restore beside it. Half a processor in short turns leaves
// it one that is free.
var lowShare = share{weight: 64, quota: 5_000, period: 10_000}

func fullShare(l cay.Limits) share {
	const period = 100_000
	return share{weight: 1024 * l.CPUs, quota: period * l.CPUs, period: period}
}

func (h hierarchy) setShare(id cay.InstanceID, s share) error {
	dir := h.dir("cpu", id)
	if h.v2 { // the weight as runsc turns one into the other
		return errors.Join(
			writeTo(filepath.Join(dir, "cpu.max"), strconv.Itoa(s.quota)+" "+strconv.Itoa(s.period)),
			writeTo(filepath.Join(dir, "cpu.weight"), strconv.Itoa(1+(s.weight-2)*9999/262142)))
	}
	return errors.Join(
		writeTo(filepath.Join(dir, "cpu.cfs_period_us"), strconv.Itoa(s.period)),
		writeTo(filepath.Join(dir, "cpu.cfs_quota_us"), strconv.Itoa(s.quota)),
		writeTo(filepath.Join(dir, "cpu.shares"), strconv.Itoa(s.weight)))
}

// writeTo writes to a file that is there.
func writeTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// startNice starts a command that gives way to all others. It takes the
// priority of the thread that starts it, which is the caller's alone.
func startNice(cmd *exec.Cmd) error {
	const low = 15
	thread := unix.Gettid()
	if err := unix.Setpriority(unix.PRIO_PROCESS, thread, low); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.Setpriority(unix.PRIO_PROCESS, thread, 0))
}
