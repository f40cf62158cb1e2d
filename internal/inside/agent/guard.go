package agent

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	// Every look of an idle sandbox costs its host more than a millisecond.
	guardCalm = 500 * time.Millisecond
	guardBusy = 25 * time.Millisecond
	// guardAwake is how long the guard goes on so after the engine has woken it,
	// and guardAsleep the pause between looks then, as a fuse: an engine that
	// watches the memory itself (cmd/cay-runsc/sentry) wakes the guard in time.
	guardAwake  = 2 * time.Second
	guardAsleep = 10 * time.Second
	// guardFill is faster than a guest can fill memory, in bytes a second.
	guardFill = 2 << 30
	// guardForesight is how far ahead the guard thinks when there are guardStorm
	// tasks: its own turn comes that late. guardForesightCrowd is the same from
	// guardCrowd tasks on.
	guardForesight      = time.Second
	guardForesightCrowd = 500 * time.Millisecond
	// guardStorm is how many processes must belong together to be ended before
	// the memory is gone: a fork bomb on its way.
	guardStorm = 100
	// guardCrowd is how many processes of one group the guard ends together when
	// the memory goes faster than it could react. The engine refuses no fork below
	// a hundred tasks (cmd/cay-runsc/sentry), and about as many copies of a process
	// with 150 MB took 2.4 GB before the guard had its turn.
	guardCrowd = 25
	// guardSettle is how long killed processes may take to give their memory
	// back before others are killed.
	guardSettle = time.Second
	// guardFew is up to how many processes the guard looks for those that a user
	// has stopped, before it stops them all.
	guardFew = 20
	// guardSweep is how long the children of unfinished forks may take to come,
	// and guardCalmRounds how often none must have come.
	guardSweep      = 10 * time.Second
	guardCalmRounds = 20
	// guardPatience is how many kills in guardMemory may fail to help before
	// everything goes: what forks faster than it is killed ends only at once.
	guardPatience = 3
	guardMemory   = 5 * time.Second
)

// guard ends processes when the memory runs short: the biggest one, or its
// group where the group is many, or, when that does not help, all.
type guard struct {
	proc   string // where /proc is
	self   int
	limit  func() uint64 // the memory that the host promised, 0 for unknown
	sample func() (sample, error)
	// freeze stops all processes but this one and returns what lets them go on; with
	// spare those stay stopped that a user had stopped before.
	freeze func(spare bool) (thaw func())
	kill   func(pid int) error // as kill(2): a group when negative, all when -1
	// started is the processes that PID 1 itself has started: each is one of its own
	// and not of a crowd, whatever its name.
	started func() map[int]bool
	blame   func(pids []int, reason string)
	// told: a process, or one and those that belong to it, was ended with so
	// many bytes.
	told  func(pid int, comm string, used uint64, reason string)
	kills []time.Time // the latest, oldest first
	last  spare       // as the latest look saw it
	slots int         // how many processes there can be

	watched bool      // the engine wakes the guard
	woken   time.Time // when it did
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

// Guard watches the memory until ctx ends, and sleeps while there is plenty if the
// engine is watching too. Only PID 1 may call it: it kills whatever is biggest.
func (a *Agent) Guard(ctx context.Context, watched bool) {
	g := &guard{
		proc:    a.procRoot(),
		self:    os.Getpid(),
		limit:   a.promised,
		sample:  takeSample,
		freeze:  freezer("/proc"),
		slots:   processLimit(),
		watched: watched,
		kill:    func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
		started: a.cfg.Reaper.Started,
		blame: func(pids []int, reason string) {
			a.cfg.Log.Warn("guard", "reason", reason)
			a.procs.Blame(pids, reason)
			a.ended.note(pids, reason)
		},
		told: func(pid int, comm string, used uint64, reason string) {
			a.ended.over()
			a.diary.note("process.killed", "warn", "guard", reason,
				"pid", strconv.Itoa(pid), "name", comm, "memoryMB", strconv.FormatUint(used/mib, 10))
		},
	}
	// The engine says so when it refuses a fork or has stopped a crowd, and when the
	// memory may get short (cmd/cay-runsc/sentry).
	refused, woken := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(refused, syscall.SIGUSR1)
	defer signal.Stop(refused)
	signal.Notify(woken, syscall.SIGWINCH)
	defer signal.Stop(woken)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-refused:
			g.woken = time.Now()
			g.act(ctx, true)
			timer.Reset(guardBusy)
		case <-woken:
			g.woken = time.Now()
			timer.Reset(min(g.look(ctx), guardBusy)) // two looks show how fast it goes
		case <-timer.C:
			timer.Reset(g.rest(g.look(ctx)))
		}
	}
}

// promised is the memory that the host promised, 0 for unknown.
func (a *Agent) promised() uint64 {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.limits.memory
}

// processLimit is how many processes one account may have, 0 for unknown.
func processLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &l) != nil || l.Cur > math.MaxInt32 {
		return 0
	}
	return int(l.Cur)
}

// freezer returns what stops every process but this one, and lets those go on
// that it stopped. Without spare it lets all go on: the engine has stopped some.
//
// Nothing of ours may be between fork and exec then: Go's thread that forked
// waits for its child outside the runtime's control, so a child that stands
// still would stop the whole agent at its next garbage collection, and nothing
// would be left to let it go on. The lock keeps forks away until then.
func freezer(proc string) func(spare bool) (thaw func()) {
	return func(spare bool) func() {
		syscall.ForkLock.RLock()
		var stopped map[int]bool // by their user, before
		if spare {
			stopped = alreadyStopped(proc)
		}
		standStill()
		return func() {
			letGo(proc, stopped)
			syscall.ForkLock.RUnlock()
		}
	}
}

// alreadyStopped finds the processes that a user has stopped: a job with Ctrl-Z,
// a program in a debugger. Beyond guardFew processes it does not look, because a
// fork bomb would fill the memory meanwhile: each look is a file to read.
func alreadyStopped(proc string) map[int]bool {
	all := pids(proc)
	if len(all) > guardFew {
		return nil
	}
	found := map[int]bool{}
	for _, pid := range all {
		text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
		state := string(text[strings.LastIndexByte(string(text), ')')+1:]) // a name may hold anything
		if err == nil && (strings.HasPrefix(state, " T ") || strings.HasPrefix(state, " t ")) {
			found[pid] = true
		}
	}
	return found
}

// standStill stops all processes. gVisor finishes a fork whose parent was
// stopped meanwhile, so one signal leaves the children of a fork bomb at large,
// and it goes on with them. The signal is sent until the number of tasks stays.
func standStill() {
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

// letGo lets all processes go on but some. They stand still, so no other comes
// before it is through.
func letGo(proc string, but map[int]bool) {
	if len(but) == 0 {
		_ = syscall.Kill(-1, syscall.SIGCONT) // fails where there is none
		return
	}
	for _, pid := range pids(proc) {
		if pid > 1 && !but[pid] {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may be gone
		}
	}
}

// spare is what is left of the guest's memory at a time, in bytes.
type spare struct {
	left  uint64
	at    time.Time
	tasks int
}

// look acts if memory or processes run short, and returns when to look again.
func (g *guard) look(ctx context.Context) time.Duration {
	now, ok := g.spare()
	if !ok {
		return guardCalm
	}
	before := g.last
	g.last = now
	switch {
	case soon(before, now) <= guardReserve:
		g.act(ctx, false)
		return guardBusy
	case g.full(now):
		g.act(ctx, true)
	}
	return pause(before, now)
}

// rest is the pause before the next look. An engine that does not watch, and one
// that has just woken the guard, leave it to the guard.
func (g *guard) rest(pause time.Duration) time.Duration {
	if !g.watched || time.Since(g.woken) < guardAwake {
		return pause
	}
	return guardAsleep
}

// full reports whether the process table is nearly full: a program that ends the
// others could not start.
func (g *guard) full(now spare) bool {
	most := g.slots / 10 * 9
	return g.slots > 0 && now.tasks >= most && len(pids(g.proc)) >= most
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
	if now.tasks < guardCrowd || before.at.IsZero() || now.left >= before.left || passed <= 0 {
		return now.left
	}
	ahead := guardForesight
	if now.tasks < guardStorm {
		ahead = guardForesightCrowd
	}
	loss := float64(before.left-now.left) * float64(ahead) / float64(passed)
	return now.left - min(now.left, uint64(loss))
}

// act ends the processes that fill the memory, or, where processes crowd, the
// crowd. Then the engine may have stopped them, and all that are left go on. The guest's processes stand still while it looks: a fork bomb would
// fill the rest before two hundred processes are read.
func (g *guard) act(ctx context.Context, crowded bool) {
	defer g.freeze(!crowded)()
	now, ok := g.spare()
	if !ok {
		return
	}
	all := takeCensus(g.proc, g.self)
	v, ok := all.biggest()
	if !ok {
		return
	}
	crowd := all.crowd(g.started())
	short, tight := now.left <= guardReserve, now.left <= 2*guardReserve
	switch {
	case crowded && crowd != nil && (!tight || all.cost(crowd) > v.rss):
		g.disperse(ctx, all, crowd, now)
	case short:
		g.relieve(ctx, all, v, now)
	case !crowded && len(v.group) >= guardCrowd && v.pgrp > 1:
		g.disperse(ctx, all, v.group, now)
	}
}

// disperse ends processes that are too many.
func (g *guard) disperse(ctx context.Context, all census, crowd []int, now spare) {
	first := all[slices.Min(crowd)]
	cost := all.cost(crowd)
	reason := crowdReason(len(crowd), first, cost, now)
	g.blame(append(all.line(first.pid), crowd...), reason)
	for _, pid := range crowd {
		_ = g.kill(pid) // it may be gone
	}
	g.sweep(ctx, all)
	g.told(first.pid, first.comm, cost, reason)
	g.awaitMemory(ctx, now.left)
}

// crowdReason says why a crowd ends. Where memory is left, it is the forks that are too
// many: the engine refuses them while there is still enough for what they copy.
func crowdReason(n int, first member, cost uint64, now spare) string {
	what := fmt.Sprintf("%d processes that belong to process %d (%s)", n, first.pid, first.comm)
	if now.left <= 2*guardReserve {
		return fmt.Sprintf("out of memory: %s used %d MiB and forked on", what, cost/mib)
	}
	return fmt.Sprintf("too many processes: %s forked on, with %d MiB of memory left", what, now.left/mib)
}

// sweep ends processes that appear while all others stand still: children of
// forks that were under way, each of which would start the bomb anew.
func (g *guard) sweep(ctx context.Context, known census) {
	ctx, cancel := context.WithTimeout(ctx, guardSweep)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for calm := 0; calm < guardCalmRounds; calm++ {
		for _, pid := range pids(g.proc) {
			if _, ok := known[pid]; !ok && pid != 1 && pid != g.self {
				known[pid] = member{pid: pid}
				_ = g.kill(pid)
				calm = 0
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// relieve ends what is biggest.
func (g *guard) relieve(ctx context.Context, all census, v victim, now spare) {
	reason := fmt.Sprintf("out of memory: process %d (%s) used %d MiB", v.pid, v.comm, v.rss/mib)
	target := g.choose(v)
	switch {
	case target == -1:
		g.blame(pids(g.proc), reason+"; ending processes one by one did not help")
	case target < 0:
		g.blame(append(v.line, v.group...), fmt.Sprintf("%s, its group %d MiB", reason, v.groupRSS/mib))
	default:
		g.blame(v.line, reason)
	}
	if g.kill(target) == nil {
		if target < 0 {
			g.sweep(ctx, all)
		}
		g.told(v.pid, v.comm, v.rss, reason)
		g.awaitMemory(ctx, now.left)
	}
}

// spare is how much memory the guest can still use. The engine's own share
// comes on top of what the host promised, so the promise is what counts.
func (g *guard) spare() (spare, bool) {
	s, err := g.sample()
	if err != nil {
		return spare{}, false
	}
	return s.spare(g.limit())
}

func (s sample) spare(limit uint64) (spare, bool) {
	if s.total == 0 {
		return spare{}, false
	}
	used := s.total - min(s.free, s.total)
	used += uint64(max(s.tasks-guardFreeTasks, 0)) * guardPerTask
	total := s.total
	if limit > 0 {
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

// awaitMemory waits until memory comes back, for guardSettle at most.
func (g *guard) awaitMemory(ctx context.Context, before uint64) {
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
