package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// guardReserve is how much memory must stay available: an engine that runs
	// out takes the whole sandbox with it.
	guardReserve = 24 * mib
	// guardRate is how fast a guest may plausibly fill its memory, in bytes a
	// second. The more is free, the longer the guard can sleep.
	guardRate = 1 << 30
	guardMin  = 25 * time.Millisecond
	guardMax  = 500 * time.Millisecond
	// guardSettle is how long a killed process may take to give its memory
	// back before another is killed.
	guardSettle = time.Second
)

// guard ends the biggest process when memory runs short.
type guard struct {
	proc  string // where /proc is
	self  int
	limit func() uint64 // what the host says there is, 0 for unknown
	kill  func(pid int) error
	blame func(pids []int, reason string)
}

// Guard watches the memory until ctx ends. Only PID 1 may call it: it kills
// whatever is biggest.
func (a *Agent) Guard(ctx context.Context) {
	g := &guard{
		proc: a.procRoot(),
		self: os.Getpid(),
		limit: func() uint64 {
			a.mu.RLock()
			defer a.mu.RUnlock()
			return a.limits.memory
		},
		kill: func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
		blame: func(pids []int, reason string) {
			a.log.Warn("guard", "reason", reason)
			a.procs.Blame(pids, reason)
		},
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(g.look(ctx))
		}
	}
}

// look acts if it must, and says when to look again.
func (g *guard) look(ctx context.Context) time.Duration {
	mem, err := readMemory(g.proc)
	if err != nil || mem.total == 0 {
		return guardMax
	}
	left := spare(mem, g.limit())
	if left > guardReserve {
		return guardPause(left - guardReserve)
	}
	v, ok := g.biggest()
	if !ok {
		return guardMin
	}
	g.blame(v.line, fmt.Sprintf("out of memory: process %d (%s) used %d MiB", v.pid, v.comm, v.rss/mib))
	if g.kill(v.pid) == nil {
		g.settle(ctx, v.pid)
	}
	return guardMin
}

// spare is how much memory can still be used. The engine's own share comes on
// top of what the host promised, so the promise is what counts.
func spare(mem memory, limit uint64) uint64 {
	left := mem.available
	if limit > 0 && limit < mem.total {
		used := mem.total - min(mem.available, mem.total)
		left = min(left, limit-min(used, limit))
	}
	return left
}

// guardPause is how long a guest needs to fill this much, within bounds.
func guardPause(left uint64) time.Duration {
	ms := left / (guardRate / 1000)
	return min(max(time.Duration(min(ms, 1000))*time.Millisecond, guardMin), guardMax)
}

// settle waits until a killed process is gone.
func (g *guard) settle(ctx context.Context, pid int) {
	ctx, cancel := context.WithTimeout(ctx, guardSettle)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if rss, ok := g.resident(pid); !ok || rss == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// victim is the process to end, and those it descends from, itself first.
type victim struct {
	pid  int
	comm string
	rss  uint64
	line []int
}

// biggest finds the process with the most memory. The agent is never one.
func (g *guard) biggest() (victim, bool) {
	var v victim
	for _, pid := range pids(g.proc) {
		if pid == g.self || pid == 1 {
			continue
		}
		if rss, ok := g.resident(pid); ok && rss > v.rss {
			v.pid, v.rss = pid, rss
		}
	}
	if v.pid == 0 {
		return victim{}, false
	}
	for pid := v.pid; pid > 1 && len(v.line) < 64; {
		v.line = append(v.line, pid)
		text, err := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(pid), "stat"))
		if err != nil {
			break
		}
		s := parseStat(text)
		if pid == v.pid {
			v.comm = s.comm
		}
		pid = s.ppid
	}
	return v, true
}

// resident returns the memory that a process occupies.
func (g *guard) resident(pid int) (uint64, bool) {
	text, err := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(text)
	if len(f) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseUint(string(f[1]), 10, 40)
	if err != nil {
		return 0, false
	}
	return pages * uint64(os.Getpagesize()), true
}
