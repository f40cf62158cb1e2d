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
	err = e.cg.setShares(id, cpuShares(in.Limits))
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

// lowShares is the weight of what is restored in the background: little, and
// still enough to be done one day on a host that is never idle.
const lowShares = 64

// cpuShares is an instance's weight against others in need of processors.
func cpuShares(l cay.Limits) int { return 1024 * l.CPUs }

func (h hierarchy) setShares(id cay.InstanceID, shares int) error {
	file := "cpu.shares"
	if h.v2 { // as runsc turns one into the other
		file, shares = "cpu.weight", 1+(shares-2)*9999/262142
	}
	return writeTo(filepath.Join(h.dir("cpu", id), file), strconv.Itoa(shares))
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
