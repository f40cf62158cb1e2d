package runsc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// instance is a living one, as this Engine holds it.
type instance struct {
	*record
	pid   int
	asked atomic.Bool            // we end it
	disk  atomic.Pointer[string] // the overlay's file, once found
	dead  chan struct{}          // closed when death is set
	death cay.Death
}

// hold starts to watch a living sentry and lets the instance be used. The
// process descriptor makes sure that it is the sentry that is watched, however
// pids are reused.
func (e *Engine) hold(r *record, pid int) (*instance, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("sentry %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("sentry %d: %w", pid, err)
	}
	e.cg.offer(r.ID)
	in := &instance{record: r, pid: pid, dead: make(chan struct{})}
	e.mu.Lock()
	e.live[r.ID] = in
	e.mu.Unlock()
	go func() {
		defer file.Close()
		// A failing wait is a death too: nothing could tell of a later one.
		_ = conn.Read(ended)
		in.death = e.evidence(in)
		close(in.dead)
	}()
	return in, nil
}

// ended asks without waiting whether a process is over; the runtime's poller
// does the waiting.
func ended(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// evidence says why a sentry is gone, while its cgroup is still there.
func (e *Engine) evidence(in *instance) cay.Death {
	d := cay.Death{Instance: in.ID, At: time.Now()}
	switch kills := e.cg.oomKills(in.ID); {
	case kills > 0:
		d.Cause, d.Detail = cay.CauseOutOfMemory, fmt.Sprintf("oom_kill %d", kills)
	case in.asked.Load():
		d.Cause = cay.CauseAsked
	case e.loadStatus(in.record).failed:
		d.Cause, d.Detail = cay.CauseMemoryLost, pagesLost
	default:
		d.Cause, d.Detail = cay.CauseEngine, "the sandbox ended by itself"
		if text := e.panicked(in.record); len(text) > 0 {
			d.Detail, d.Trace = "the sentry failed: "+firstLine(text), string(text)
		}
	}
	return d
}

// Watch implements engine.Engine.
func (e *Engine) Watch(id cay.InstanceID) (<-chan cay.Death, error) {
	in, err := e.get(id)
	if err != nil {
		return nil, err
	}
	out := make(chan cay.Death, 1)
	go func() {
		<-in.dead
		out <- in.death
		close(out)
	}()
	return out, nil
}

// writes are paths of the files that have an instance's writes: those of its
// root, once found, and those of Docker's store.
func (in *instance) writes() []string {
	var out []string
	if path := in.overlay(); path != "" {
		out = append(out, path)
	}
	if in.Docker {
		out = append(out, filepath.Join(storeDir(in.Dir), ".gvisor.filestore."+string(in.ID)))
	}
	return out
}

// diskUse is what an instance's writes take on disk.
func (in *instance) diskUse() int64 {
	var bytes int64
	for _, path := range in.writes() {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			bytes += st.Blocks * 512
		}
	}
	return bytes
}

// overlay is a path of the file that has an instance's writes, or empty. The
// file has no name any more; the sentry's descriptor is the way to it.
func (in *instance) overlay() string {
	path := in.disk.Load()
	if path == nil {
		path = findOverlay(in.pid)
		if path == nil {
			return ""
		}
		in.disk.Store(path)
	}
	return *path
}

func findOverlay(pid int) *string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if target, err := os.Readlink(path); err == nil && strings.Contains(target, "/runsc-filestore-") {
			return &path
		}
	}
	return nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}
