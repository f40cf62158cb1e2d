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

	"golang.org/x/sys/unix"
)

const (
	// guardReserve is how much memory must stay available: an engine that runs
	// out takes the whole sandbox with it.
	guardReserve = 32 * mib
	// guardPerTask is what the engine itself spends on each of the guest's
	// tasks, measured; the first guardFreeTasks are in its own share.
	guardPerTask   = 320 << 10
	guardFreeTasks = 64
	// guardCalm is the longest pause between looks, guardBusy the shortest.
	// Every look of every idle sandbox costs its host a hundred microseconds.
	guardCalm = 500 * time.Millisecond
	guardBusy = 25 * time.Millisecond
	// guardFill is faster than a guest can fill memory, in bytes a second.
	guardFill = 2 << 30
	// guardForesight is how far ahead the guard thinks when there are many
	// tasks: its own turn comes that late.
	guardForesight = time.Second
	// guardStorm is how many processes a group must have, to be ended before
	// the memory is gone: a fork bomb on its way.
	guardStorm = 100
	// guardSettle is how long killed processes may take to give their memory
	// back before others are killed.
	guardSettle = time.Second
	// guardPatience is how many kills in guardMemory may fail to help before
	// everything goes: what forks faster than it is killed ends only at once.
	guardPatience = 3
	guardMemory   = 5 * time.Second
)

// guard ends what fills the memory when it runs short: the biggest process,
// or its group where the group is many, or, when that does not help, all.
type guard struct {
	proc   string // where /proc is
	self   int
	limit  func() uint64 // what the host says there is, 0 for unknown
	sample func() (sample, error)
	freeze func(bool)          // stops all processes but this one, or lets them go on
	kill   func(pid int) error // as kill(2): a group when negative, all when -1
	blame  func(pids []int, reason string)
	told   func(v victim, reason string) // it was ended
	kills  []time.Time                   // the latest, oldest first
	last   spare                         // what the latest look saw
}

// sample is what sysinfo(2) says. Unlike /proc/meminfo, whose figures gVisor
// works out by walking its memory, it costs microseconds.
type sample struct {
	total, free uint64 // bytes
	tasks       int
}

func takeSample() (sample, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return sample{}, err
	}
	unit := max(uint64(info.Unit), 1)
	return sample{uint64(info.Totalram) * unit, uint64(info.Freeram) * unit, int(info.Procs)}, nil
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
		sample: takeSample,
		freeze: freeze,
		kill:   func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
		blame: func(pids []int, reason string) {
			a.cfg.Log.Warn("guard", "reason", reason)
			a.procs.Blame(pids, reason)
		},
		told: func(v victim, reason string) {
			a.diary.note("process.killed", "warn", "guard", reason,
				"pid", strconv.Itoa(v.pid), "name", v.comm, "memoryMB", strconv.FormatUint(v.rss/mib, 10))
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

// freeze stops every process but this one, or lets them go on.
//
// gVisor finishes a fork whose parent was stopped meanwhile, so one signal
// leaves the children of a fork bomb at large, and it goes on with them. The
// signal is sent until the number of tasks stays.
func freeze(stop bool) {
	if !stop {
		_ = syscall.Kill(-1, syscall.SIGCONT) // fails where there is nobody
		return
	}
	const rounds, calm = 200, 4
	last, same := 0, 0
	for range rounds {
		_ = syscall.Kill(-1, syscall.SIGSTOP)
		time.Sleep(time.Millisecond)
		s, err := takeSample()
		if err != nil {
			return
		}
		if s.tasks != last {
			last, same = s.tasks, 0
			continue
		}
		if same++; same == calm {
			return
		}
	}
}

// spare is what is left of the guest's memory at a time, in bytes.
type spare struct {
	left  uint64
	at    time.Time
	tasks int
}

// look acts if it must, and says when to look again.
func (g *guard) look(ctx context.Context) time.Duration {
	now, ok := g.spare()
	if !ok {
		return guardCalm
	}
	before := g.last
	g.last = now
	if soon(before, now) > guardReserve {
		return pause(before, now)
	}
	g.act(ctx)
	return guardBusy
}

// pause is how long nothing can happen: until what is left could be filled, or
// hardly, where many tasks are up to something.
func pause(before, now spare) time.Duration {
	if now.tasks >= guardStorm && now.left != before.left {
		return guardBusy
	}
	left := float64(now.left - min(now.left, guardReserve))
	return min(max(time.Duration(left/guardFill*float64(time.Second)), guardBusy), guardCalm)
}

// soon is what will be left when the guard has its next turn, if the guest goes
// on as it did between two looks. Few tasks do not keep the guard from its turn.
func soon(before, now spare) uint64 {
	passed := now.at.Sub(before.at)
	if now.tasks < guardStorm || before.at.IsZero() || now.left >= before.left || passed <= 0 {
		return now.left
	}
	loss := float64(before.left-now.left) * float64(guardForesight) / float64(passed)
	return now.left - min(now.left, uint64(loss))
}

// act ends what fills the memory. Nothing of the guest runs while it looks: a
// fork bomb would fill what is left before two hundred processes are read.
func (g *guard) act(ctx context.Context) {
	g.freeze(true)
	defer g.freeze(false)
	now, ok := g.spare()
	if !ok {
		return
	}
	v, ok := g.biggest()
	if !ok {
		return
	}
	reason := fmt.Sprintf("out of memory: process %d (%s) used %d MiB", v.pid, v.comm, v.rss/mib)
	target := -v.pgrp
	if now.left > guardReserve {
		if len(v.group) < guardStorm || v.pgrp <= 1 {
			return // there is time yet
		}
		reason = fmt.Sprintf("%s, and its group of %d forks on", reason, len(v.group))
	} else {
		target = g.choose(v)
	}
	switch {
	case target == -1:
		g.blame(pids(g.proc), reason+"; ending processes one by one did not help")
	case target < 0:
		g.blame(append(v.line, v.group...), fmt.Sprintf("%s, its group %d MiB", reason, v.groupRSS/mib))
	default:
		g.blame(v.line, reason)
	}
	if g.kill(target) == nil {
		g.told(v, reason)
		g.settle(ctx, now.left)
	}
}

// spare is how much memory the guest can still use. The engine's own share
// comes on top of what the host promised, so the promise is what counts.
func (g *guard) spare() (spare, bool) {
	s, err := g.sample()
	if err != nil || s.total == 0 {
		return spare{}, false
	}
	used := s.total - min(s.free, s.total)
	used += uint64(max(s.tasks-guardFreeTasks, 0)) * guardPerTask
	total := s.total
	if limit := g.limit(); limit > 0 {
		total = min(total, limit)
	}
	return spare{total - min(used, total), time.Now(), s.tasks}, true
}

// choose says what to kill, as kill(2) takes it.
func (g *guard) choose(v victim) int {
	now := time.Now()
	for len(g.kills) > 0 && now.Sub(g.kills[0]) > guardMemory {
		g.kills = g.kills[1:]
	}
	g.kills = append(g.kills, now)
	switch {
	case len(g.kills) > guardPatience:
		g.kills = nil
		return -1
	case v.pgrp > 1 && v.rss < v.groupRSS/2:
		return -v.pgrp
	}
	return v.pid
}

// settle waits until memory comes back, or a while.
func (g *guard) settle(ctx context.Context, before uint64) {
	ctx, cancel := context.WithTimeout(ctx, guardSettle)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if now, ok := g.spare(); !ok || now.left > before+guardReserve || now.left < before/2 {
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// victim is the biggest process, those it descends from (itself first), and
// its process group.
type victim struct {
	pid, pgrp int
	comm      string
	rss       uint64
	line      []int
	group     []int
	groupRSS  uint64
}

// biggest finds the process with the most memory. The agent is never one.
func (g *guard) biggest() (victim, bool) {
	type member struct {
		stat
		pid int
		rss uint64
	}
	all := make(map[int]member)
	var v victim
	for _, pid := range pids(g.proc) {
		if pid == g.self || pid == 1 {
			continue
		}
		text, err := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it is gone
		}
		rss, ok := g.resident(pid)
		if !ok {
			continue
		}
		all[pid] = member{parseStat(text), pid, rss}
		if rss > v.rss {
			v.pid, v.rss = pid, rss
		}
	}
	if v.pid == 0 {
		return victim{}, false
	}
	v.comm, v.pgrp = all[v.pid].comm, all[v.pid].pgrp
	for m, ok := all[v.pid]; ok && len(v.line) < 64; m, ok = all[m.ppid] {
		v.line = append(v.line, m.pid)
	}
	for pid, m := range all {
		if m.pgrp == v.pgrp {
			v.group = append(v.group, pid)
			v.groupRSS += m.rss
		}
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
