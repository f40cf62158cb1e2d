package main

import (
	"math"
	"runtime/debug"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
)

const (
	// watchReserve, watchPerTask, watchFreeTasks and watchFill are the guard's
	// figures (internal/inside/agent/guard.go): below the reserve it ends
	// processes, each task beyond the free ones costs that much, and a guest
	// fills no more in a second.
	watchReserve   = 32 << 20
	watchPerTask   = 320 << 10
	watchFreeTasks = 64
	watchFill      = 2 << 30
	// watchMark is what is left of a guest's memory when the guard is woken, and
	// watchAhead how long before that, if the guest goes on as it does: the
	// guard's turn may come half a second late. A small guest has a lower mark,
	// or its guard would never sleep.
	watchMark      = 128 << 20
	watchMarkSmall = 48 << 20
	watchAhead     = time.Second
	// watchStorm is from how many tasks on the guard is awake whenever they do
	// something.
	watchStorm = 100
	// watchStep is how much less must be left than when the guard was woken last,
	// for it to be woken again while its reserve is whole.
	watchStep = 1 << 20
	// watchBusy is the shortest pause between looks, watchCalm the longest, and
	// watchNotice the shortest between two wakes. A guest that sleeps is not
	// looked at.
	watchBusy   = 25 * time.Millisecond
	watchCalm   = 500 * time.Millisecond
	watchNotice = 100 * time.Millisecond
	// watchCrowd is how many processes stand still from the mark on until the
	// guard has looked: so many that are busy keep PID 1 from the processors while
	// they fill the rest and the fuse.
	watchCrowd = 25

	// startGC is how far the heap may grow, in hundredths, while a snapshot is
	// restored: nearly all of what that allocates stays. usualGC is the usual
	// figure again, startTime after the guest's begin. Then the memory that only
	// the restore needed goes back to the host; a life that is over by then does
	// not pay for that.
	startGC   = 800
	usualGC   = 100
	startTime = 500 * time.Millisecond
)

// watch looks at the guest's memory while the guest runs, and wakes the guard of
// PID 1 by SIGWINCH before it gets short. A guard that looked by itself would
// wake each sleeping guest for nothing, at ten times the price of a look here.
// A crowd stands still from then on until the guard has had its turn.
type watch struct {
	promised uint64 // what the guest is told that it has, in bytes; 0 if nothing is known
	mark     uint64
	last     look
	told     uint64    // what was left when the guard was woken last, since it was plenty
	woken    time.Time // when that was
}

// look is what is left of a guest's memory at a time.
type look struct {
	left  uint64
	tasks int
	at    time.Time
}

// install has the kernel that this program is about to run watched.
func (w *watch) install() {
	debug.SetGCPercent(startGC)
	w.mark = min(watchMark, max(w.promised/4, watchMarkSmall))
	w.told = math.MaxUint64
	kernel.OnStart = func(k *kernel.Kernel) {
		time.AfterFunc(startTime, func() {
			debug.SetGCPercent(usualGC)
			debug.FreeOSMemory()
		})
		if w.promised > 0 {
			go w.run(k)
		}
	}
}

// run looks as long as there is a guest.
func (w *watch) run(k *kernel.Kernel) {
	never := make(chan struct{})
	pause := watchBusy
	for {
		k.WaitForTaskActivity(never)
		time.Sleep(pause)
		now, ok := w.look(k)
		if !ok {
			continue
		}
		var wake bool
		wake, pause = w.judge(now)
		init := k.TaskSet().Root.ThreadGroupWithID(initID)
		if !wake || init == nil {
			continue
		}
		if now.left <= w.mark && hold(k, init) {
			continue
		}
		tell(k, init, linux.SIGWINCH) // PID 1 that has no handler for it does not notice it
	}
}

// hold stops the processes of a crowd, and tells PID 1 as the brake does: it looks
// at the memory and lets all that it leaves go on, those too that a user had
// stopped before. It reports whether there was a crowd.
func hold(k *kernel.Kernel, init *kernel.ThreadGroup) bool {
	crowd := k.TaskSet().Root.ThreadGroups()
	if len(crowd) < watchCrowd {
		return false
	}
	// PID 1 hears of it before too, because a snapshot may be taken meanwhile.
	tell(k, init, linux.SIGUSR1)
	own := memory(init)
	for _, tg := range crowd {
		// A child of PID 1 that has its memory is about to begin a program, and PID 1
		// waits for that.
		if tg != init && memory(tg) != own {
			tell(k, tg, linux.SIGSTOP)
		}
	}
	tell(k, init, linux.SIGUSR1)
	return true
}

// memory is the address space of a process.
func memory(tg *kernel.ThreadGroup) (found *mm.MemoryManager) {
	if leader := tg.Leader(); leader != nil {
		leader.WithMuLocked(func(t *kernel.Task) { found = t.MemoryManager() })
	}
	return found
}

// tell sends a signal, but not while a snapshot is taken: that is what the kernel's
// own lock is for. A process that ends needs none.
func tell(k *kernel.Kernel, tg *kernel.ThreadGroup, signal linux.Signal) {
	_ = k.SendExternalSignalThreadGroup(tg, &linux.SignalInfo{Signo: int32(signal), Code: linux.SI_KERNEL})
}

func (w *watch) look(k *kernel.Kernel) (look, bool) {
	used, err := k.MemoryFile().TotalUsage()
	if err != nil {
		return look{}, false
	}
	tasks := k.TaskSet().Root.NumTasks()
	used += uint64(max(tasks-watchFreeTasks, 0)) * watchPerTask
	return look{w.promised - min(used, w.promised), tasks, time.Now()}, true
}

// judge says whether the guard is to be woken, and when to look again.
func (w *watch) judge(now look) (wake bool, pause time.Duration) {
	before := w.last
	w.last = now
	storm := now.tasks >= watchStorm && (now.tasks != before.tasks || now.left != before.left)
	short := min(now.left, soon(before, now)) <= w.mark
	switch {
	case !short:
		w.told = math.MaxUint64
		wake = storm
	case storm, now.left <= watchReserve, now.left+watchStep <= w.told:
		wake = true
	}
	pause = watchBusy
	if !storm && !short {
		free := time.Duration(float64(now.left-w.mark) / watchFill * float64(time.Second))
		pause = min(max(free, watchBusy), watchCalm)
	}
	if !wake || now.at.Sub(w.woken) < watchNotice {
		return false, pause
	}
	w.woken = now.at
	if short {
		w.told = now.left
	}
	return true, pause
}

// soon is what is left after watchAhead, if the guest goes on as it did.
func soon(before, now look) uint64 {
	passed := now.at.Sub(before.at)
	if before.at.IsZero() || now.left >= before.left || passed <= 0 {
		return now.left
	}
	loss := float64(before.left-now.left) * float64(watchAhead) / float64(passed)
	return now.left - min(now.left, uint64(loss))
}
