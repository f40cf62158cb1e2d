// Package reap starts processes and collects their exits. One goroutine
// collects for all: as PID 1 the agent must also bury orphans, and a second
// wait for "any child" would steal the exits that others wait for.
package reap

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper starts processes and collects their exits.
type Reaper struct {
	all bool

	// mu is held for reading while a process starts, so that no exit is
	// collected between its fork and its entry in children. Starts that go on
	// side by side share children under table, as do all changes of it.
	mu       sync.RWMutex
	table    sync.Mutex
	children map[int]*Child

	exits   chan os.Signal // SIGCHLD; unused with all
	started chan struct{}  // has an element when there may be a child to wait for
	closing chan struct{}
	stopped chan struct{}
}

// Child is a process that a Reaper started.
type Child struct {
	Pid int

	reaper *Reaper
	group  bool
	done   chan struct{}
	status syscall.WaitStatus
}

// New starts collecting. With all it also buries children that it did not
// start, as PID 1 must and no other process may.
func New(all bool) *Reaper {
	r := &Reaper{
		all:      all,
		children: map[int]*Child{},
		exits:    make(chan os.Signal, 1),
		started:  make(chan struct{}, 1),
		closing:  make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	if all {
		go r.waitForAny()
	} else {
		signal.Notify(r.exits, syscall.SIGCHLD)
		go r.waitForSignals()
	}
	return r
}

// Close stops collecting: no exit after it is taken. Processes go on. With all,
// a goroutine that waits for children which still run ends with the next exit,
// and leaves that to the next collector.
func (r *Reaper) Close() {
	signal.Stop(r.exits)
	r.mu.Lock()
	close(r.closing)
	r.mu.Unlock()
	if !r.all {
		<-r.stopped
	}
}

func (r *Reaper) waitForSignals() {
	defer close(r.stopped)
	for {
		select {
		case <-r.exits:
			r.collect()
		case <-r.closing:
			return
		}
	}
}

// waitForAny waits in the kernel for any child's exit. A signal would take half
// a millisecond more in gVisor, on its way through the runtime's threads.
func (r *Reaper) waitForAny() {
	defer close(r.stopped)
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			r.collect()
		case errors.Is(err, syscall.ECHILD):
			// Orphans come from children, so there will be one before them.
			select {
			case <-r.started:
			case <-r.closing:
			}
		}
		select {
		case <-r.closing:
			return
		default:
		}
	}
}

// signalStarted says that there is a child. Several starts may share one
// signal: its receiver looks for all children.
func (r *Reaper) signalStarted() {
	select {
	case r.started <- struct{}{}:
	default:
	}
}

// Start runs a program. attr.Sys must make it the leader of a process group
// where Signal is to reach the group.
func (r *Reaper) Start(path string, args []string, attr *syscall.ProcAttr) (*Child, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return nil, &os.PathError{Op: "exec", Path: path, Err: err}
	}
	c := &Child{Pid: pid, reaper: r, done: make(chan struct{})}
	if attr.Sys != nil {
		c.group = attr.Sys.Setsid || attr.Sys.Setpgid && attr.Sys.Pgid == 0
	}
	r.add(c)
	return c, nil
}

// Adopt takes a process that was not started here and whose parent has gone: as
// PID 1 its exit comes here too. The error is ECHILD while another is its parent,
// and where it has ended.
func (r *Reaper) Adopt(pid int) (*Child, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return nil, syscall.ECHILD // gVisor says ESRCH
	}
	r.table.Lock()
	c := r.children[pid]
	r.table.Unlock()
	if c != nil {
		return c, nil
	}
	c = &Child{Pid: pid, reaper: r, done: make(chan struct{})}
	r.add(c)
	return c, nil
}

// Started returns the processes that were started or adopted here and live. It waits
// for no start that is under way.
func (r *Reaper) Started() map[int]bool {
	r.table.Lock()
	defer r.table.Unlock()
	out := make(map[int]bool, len(r.children))
	for pid := range r.children {
		out[pid] = true
	}
	return out
}

// add notes a child whose start is under way; mu is held for reading.
func (r *Reaper) add(c *Child) {
	r.table.Lock()
	r.children[c.Pid] = c
	r.table.Unlock()
	r.signalStarted()
}

// collect takes every exit there is. It holds the lock throughout: a process
// whose start is under way must be in children before its exit is looked for,
// and Signal must never hit a pid that is free again.
func (r *Reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.closing:
		return
	default:
	}
	if r.all {
		for r.collectOne(-1) {
		}
		return
	}
	for pid := range r.children {
		r.collectOne(pid)
	}
}

// collectOne takes the exit of pid, of any child for -1, and reports whether
// there was one. The lock is held.
func (r *Reaper) collectOne(pid int) bool {
	var status syscall.WaitStatus
	got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
	for errors.Is(err, syscall.EINTR) {
		got, err = syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
	}
	if err != nil || got <= 0 {
		return false
	}
	r.table.Lock()
	c := r.children[got]
	delete(r.children, got)
	r.table.Unlock()
	if c != nil {
		c.status = status
		close(c.done)
	}
	return true
}

// Done is closed when the process has exited and is buried.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status says how the process ended. Done must be closed.
func (c *Child) Status() syscall.WaitStatus {
	<-c.done
	return c.status
}

// Signal signals the process, and its group where it leads one. It returns
// os.ErrProcessDone after the end.
func (c *Child) Signal(sig syscall.Signal) error {
	c.reaper.mu.RLock()
	defer c.reaper.mu.RUnlock()
	select {
	case <-c.done:
		return os.ErrProcessDone
	default:
	}
	if c.group && syscall.Kill(-c.Pid, sig) == nil {
		return nil
	}
	return syscall.Kill(c.Pid, sig)
}
