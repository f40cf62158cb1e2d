package main

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
)

const (
	// brakeTasks is how many tasks a guest may always have: what they cost is
	// in the fuse.
	brakeTasks = 100
	// brakeHeap is how much of the fuse this program's own memory may take, in
	// bytes. The rest is for what the host's kernel keeps of each process.
	brakeHeap = fuse / 8 * 5
	// brakeReserve is how much of its memory the guest must have left to make
	// one more task, in bytes, and brakeChild what must be left besides for each
	// process that is new: a forked one copies most of what it will as soon as it
	// runs, and when many wait for the processors that is after the next fork.
	brakeReserve = 64 << 20
	brakeChild   = 2 << 20
	// brakeNew is how long a process is new, at most; half of it at least. On a
	// busy host PID 1 may need as long to end a bomb.
	brakeNew = time.Minute
	// brakePause is how long a fork that failed takes for each process there is,
	// which leaves the guest a hundred tries a second: each copies the address
	// space before it is refused, a fork bomb tries again at once, and PID 1
	// needs the processors to end it.
	brakePause = 10 * time.Millisecond
	// brakeNotice is how often PID 1 hears of refusals, at most.
	brakeNotice = 100 * time.Millisecond
	// initID is PID 1. It is never refused: it starts what ends the trouble.
	initID = kernel.ThreadID(1)
)

// brake refuses a guest's forks, with EAGAIN, when one more task could take the
// sandbox beyond its cgroup's limit. A fork bomb takes hundreds of megabytes a
// second, most of them outside of what the guest is told it uses, and would be
// there before PID 1 had a turn. PID 1 is told by SIGUSR1 and chooses what to
// end (internal/inside/agent).
type brake struct {
	seccheck.SinkDefaults
	promised uint64 // what the guest is told that it has, in bytes; 0 if nothing is known
	noticed  atomic.Int64

	mu            sync.Mutex
	earlier, then int // how many processes there were when this was counted before, and at since
	since         time.Time
}

// install puts the brake into the kernel that this program is about to run.
// From brakeHeap on, memory is given back rather than collected at leisure.
func (b *brake) install() {
	debug.SetMemoryLimit(brakeHeap)
	points := []seccheck.PointReq{{Pt: seccheck.PointClone}}
	for _, number := range forkCalls {
		points = append(points, seccheck.PointReq{Pt: seccheck.GetPointForSyscall(seccheck.SyscallRawExit, number)})
	}
	seccheck.Global.AppendSink(b, points)
}

// Name implements seccheck.Sink.
func (b *brake) Name() string { return "brake" }

// Clone implements seccheck.Sink: it is asked before a new task begins to run.
func (b *brake) Clone(ctx context.Context, _ seccheck.FieldSet, info *pb.CloneInfo) error {
	t := kernel.TaskFromContext(ctx)
	if t == nil || t.ThreadGroup().ID() == initID {
		return nil
	}
	tasks := t.Kernel().TaskSet().Root
	if tasks.NumTasks() < brakeTasks {
		return nil
	}
	reserve := uint64(brakeReserve)
	if info.GetFlags()&linux.CLONE_VM == 0 {
		reserve += uint64(b.growth(len(tasks.ThreadGroups()))) * brakeChild
	}
	if heap() < brakeHeap && b.left(t) > reserve {
		return nil
	}
	b.notice(tasks.ThreadGroupWithID(initID))
	return linuxerr.EAGAIN
}

// RawSyscall implements seccheck.Sink: it is told when a fork has returned, and
// lets the caller of one that failed for want of room wait. A signal ends the wait.
func (b *brake) RawSyscall(ctx context.Context, _ seccheck.FieldSet, info *pb.Syscall) error {
	t := kernel.TaskFromContext(ctx)
	if t == nil || info.GetExit().GetErrorno() != int64(unix.EAGAIN) || t.ThreadGroup().ID() == initID {
		return nil
	}
	pause := brakePause * time.Duration(len(t.Kernel().TaskSet().Root.ThreadGroups()))
	_, _ = t.BlockWithTimeout(nil, true, pause)
	return nil
}

// growth is how many of the processes are new.
func (b *brake) growth(processes int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch age := time.Since(b.since); {
	case age > brakeNew:
		b.earlier, b.then, b.since = processes, processes, time.Now()
	case age > brakeNew/2:
		b.earlier, b.then, b.since = b.then, processes, time.Now()
	}
	return max(processes-min(b.earlier, b.then), 0)
}

// notice tells PID 1 that a fork was refused.
func (b *brake) notice(init *kernel.ThreadGroup) {
	now, last := time.Now().UnixNano(), b.noticed.Load()
	if init == nil || time.Duration(now-last) < brakeNotice || !b.noticed.CompareAndSwap(last, now) {
		return
	}
	_ = init.SendSignal(&linux.SignalInfo{Signo: int32(linux.SIGUSR1), Code: linux.SI_KERNEL}) // PID 1 that ends takes all with it
}

// left is how much of its memory the guest does not use.
func (b *brake) left(t *kernel.Task) uint64 {
	used, err := t.Kernel().MemoryFile().TotalUsage()
	if err != nil || b.promised == 0 {
		return 1 << 63
	}
	return b.promised - min(used, b.promised)
}

// heap is the memory of this program that its runtime holds.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}
