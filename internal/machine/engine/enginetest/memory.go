package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/machine/engine"
)

// privateMB is how much private memory the guests of these cases have whose
// contents are known. They have half of that of shared kinds.
const privateMB = 16

// way is a way to restore.
type way struct {
	name string
	set  func(*engine.RestoreSpec)
}

var (
	eager  = way{"eager", func(*engine.RestoreSpec) {}}
	demand = way{"by demand", func(s *engine.RestoreSpec) { s.Loading = engine.Demand }}
	shared = way{"by demand, shared", func(s *engine.RestoreSpec) { s.Loading, s.Share = engine.Demand, true }}
)

// resumeBy restores an instance in some way; the test's end kills it.
func (s *suite) resumeBy(t *testing.T, w way, snap cay.Snapshot, from string, at *slot) cay.InstanceID {
	t.Helper()
	spec := s.restoreSpec(snap, from, at)
	w.set(&spec)
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Restore(t.Context(), spec))
	return spec.ID
}

// withMemory takes a snapshot of a guest with known memory.
func (s *suite) withMemory(t *testing.T, at *slot) (cay.Snapshot, string) {
	t.Helper()
	id := s.start(t, at)
	at.expect(t, "", "/make-memory", "mb", strconv.Itoa(privateMB))
	return s.snapshot(t, id, false)
}

// copied makes a copy of a snapshot that a test may spoil.
func copied(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(from)
	must(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(from, e.Name()))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, e.Name()), text, 0o600))
	}
	return to
}

func (s *suite) pending(t *testing.T, id cay.InstanceID) int64 {
	t.Helper()
	u, err := s.Usage(t.Context(), id)
	must(t, err)
	return u.MemoryPending
}

// live lets a guest do what may go wrong with memory, and compares.
func live(t *testing.T, at *slot) {
	t.Helper()
	at.expect(t, "", "/touch-memory", "pages", "64")
	at.expect(t, "", "/fork-memory", "children", "2")
	at.expect(t, "", "/touch-memory", "pages", "256")
	at.expect(t, "", "/check-memory")
}

// memoryByDemand compares, in each way to restore, what the guest sees with what
// it wrote before it was saved, with the snapshot's files gone; then the same of
// a checkpoint of it, taken when a part is loaded, restored in each other way.
func (s *suite) memoryByDemand(t *testing.T) {
	at := s.slots[0]
	snap, dir := s.withMemory(t, at)
	for _, w := range []way{eager, demand, shared} {
		t.Run(w.name, func(t *testing.T) {
			from := copied(t, dir)
			id := s.resumeBy(t, w, snap, from, at)
			must(t, os.RemoveAll(from))
			at.expect(t, "", "/touch-memory", "pages", "16")
			if pending := s.pending(t, id); (pending > 0) != (w.name != eager.name) {
				t.Errorf("%d bytes are not loaded", pending)
			}
			half, saved := s.snapshot(t, id, true)
			live(t, at)
			must(t, s.LoadAll(t.Context(), id))
			if pending := s.pending(t, id); pending != 0 {
				t.Errorf("%d bytes are not loaded after all was", pending)
			}
			live(t, at)
			must(t, s.Kill(t.Context(), id))
			for _, next := range []way{eager, shared} {
				id := s.resumeBy(t, next, half, saved, at)
				at.expect(t, "", "/check-memory")
				live(t, at)
				must(t, s.Kill(t.Context(), id))
			}
		})
	}
}

// untouched saves an instance that was restored by demand and left alone: it
// takes little memory, and what it never loaded is what the snapshot before has,
// and stays unloaded.
func (s *suite) untouched(t *testing.T) {
	at := s.slots[0]
	snap, dir := s.withMemory(t, at)
	used := func(id cay.InstanceID) int64 {
		t.Helper()
		at.expect(t, "ok", "/health")
		u, err := s.Usage(t.Context(), id)
		must(t, err)
		return u.MemoryUsed
	}
	id := s.resumeBy(t, eager, snap, dir, at)
	whole := used(id)
	must(t, s.Kill(t.Context(), id))
	id = s.resumeBy(t, demand, snap, dir, at)
	if idle := used(id); idle > whole-privateMB<<19 {
		t.Errorf("an idle instance takes %d bytes by demand, %d eagerly", idle, whole)
	}
	before := s.pending(t, id)
	second, saved := s.snapshot(t, id, true)
	if after := s.pending(t, id); after < before/2 {
		t.Errorf("a checkpoint loads memory: %d bytes were left, %d are", before, after)
	}
	must(t, s.Kill(t.Context(), id))
	// And of that, and so on: what was never touched is copied each time.
	id = s.resumeBy(t, shared, second, saved, at)
	at.expect(t, "ok", "/health")
	third, last := s.snapshot(t, id, false)
	for _, w := range []way{eager, demand} {
		id := s.resumeBy(t, w, third, last, at)
		at.expect(t, "", "/check-memory")
		must(t, s.Kill(t.Context(), id))
	}
}

// workingSet records what one instance used and has another load that first.
// A hint that is no use changes nothing.
func (s *suite) workingSet(t *testing.T) {
	at := s.slots[0]
	snap, dir := s.withMemory(t, at)
	id := s.resumeBy(t, shared, snap, dir, at)
	at.expect(t, "", "/touch-memory", "pages", "100")
	var set bytes.Buffer
	must(t, s.RecordWorkingSet(t.Context(), id, &set))
	if set.Len() == 0 || set.Len() > engine.MaxWorkingSet {
		t.Fatalf("the working set has %d bytes", set.Len())
	}
	// It is one of what was asked for, also when everything is there.
	must(t, s.LoadAll(t.Context(), id))
	var again bytes.Buffer
	must(t, s.RecordWorkingSet(t.Context(), id, &again))
	if again.Len() > 2*set.Len() {
		t.Errorf("the working set grew from %d to %d bytes by loading all", set.Len(), again.Len())
	}
	must(t, s.Kill(t.Context(), id))

	damaged := bytes.Clone(set.Bytes())
	damaged[len(damaged)/2] ^= 1
	for name, text := range map[string][]byte{
		"its own": set.Bytes(), "damaged": damaged, "cut off": set.Bytes()[:set.Len()-1],
		"empty": {}, "large": make([]byte, engine.MaxWorkingSet+1),
	} {
		path := filepath.Join(t.TempDir(), "set")
		must(t, os.WriteFile(path, text, 0o600))
		hinted := way{name, func(r *engine.RestoreSpec) { shared.set(r); r.WorkingSet = path }}
		id := s.resumeBy(t, hinted, snap, dir, at)
		at.expect(t, "", "/check-memory")
		must(t, s.Kill(t.Context(), id))
	}
	missing := way{"missing", func(r *engine.RestoreSpec) { demand.set(r); r.WorkingSet = filepath.Join(dir, "no such file") }}
	id = s.resumeBy(t, missing, snap, dir, at)
	at.expect(t, "ok", "/health")
	must(t, s.Kill(t.Context(), id))

	id = s.resumeBy(t, eager, snap, dir, at)
	if err := s.RecordWorkingSet(t.Context(), id, &set); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the working set of an eager restore: %v", err)
	}
	must(t, s.LoadAll(t.Context(), id))
}

// traced records the working set of an instance that reads single pages: it has
// what the guest touched, also where that is more than a third of the snapshot,
// and one that starts with it leaves the rest unloaded.
func (s *suite) traced(t *testing.T) {
	const touches = 512
	at := s.slots[0]
	snap, dir := s.withMemory(t, at)
	trace := way{"traced", func(r *engine.RestoreSpec) { demand.set(r); r.Trace = true }}
	id := s.resumeBy(t, trace, snap, dir, at)
	at.expect(t, "", "/touch-memory", "pages", "16")
	before := s.pending(t, id)
	at.expect(t, "", "/touch-memory", "pages", strconv.Itoa(touches))
	if loaded := before - s.pending(t, id); loaded > 2*touches*4096 {
		t.Errorf("%d touches of pages load %d bytes", touches, loaded)
	}
	at.expect(t, "", "/fork-memory", "children", "4") // they touch all private memory
	left := s.pending(t, id)
	if left < privateMB<<18 {
		t.Errorf("%d bytes are left of memory that nothing touches", left)
	}
	path := filepath.Join(t.TempDir(), "set")
	f, err := os.Create(path)
	must(t, err)
	must(t, s.RecordWorkingSet(t.Context(), id, f))
	must(t, f.Close())
	must(t, s.Kill(t.Context(), id))

	hinted := way{"hinted", func(r *engine.RestoreSpec) { demand.set(r); r.WorkingSet = path }}
	id = s.resumeBy(t, hinted, snap, dir, at)
	soon(t, "its working set is loaded", func() bool { return s.pending(t, id) <= left+privateMB<<17 })
	at.expect(t, "", "/fork-memory", "children", "4")
	if rest := s.pending(t, id); rest < left/2 {
		t.Errorf("one with a working set has %d bytes left, the one that it is of %d", rest, left)
	}
	at.expect(t, "", "/check-memory")
	must(t, s.Kill(t.Context(), id))
}

// lostMemory takes the pages away that an instance has not loaded: it ends, and
// says why.
func (s *suite) lostMemory(t *testing.T) {
	at := s.slots[0]
	snap, dir := s.withMemory(t, at)
	for _, w := range []way{demand, shared} {
		from := copied(t, dir)
		spec := s.restoreSpec(snap, from, at)
		w.set(&spec)
		at.address(t)
		s.endWith(t, spec.ID)
		must(t, s.Restore(t.Context(), spec))
		at.expect(t, "ok", "/health")
		death, err := s.Watch(spec.ID)
		must(t, err)
		must(t, os.Truncate(filepath.Join(from, largest(t, from)), 4096))
		// The guest may end before it answers.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if text, status, err := at.try(ctx, "/check-memory"); err == nil && status == 200 {
			t.Errorf("%s: a guest without its memory answers %q", w.name, text)
		}
		cancel()
		if d := receive(t, death); d.Cause != cay.CauseMemoryLost || d.Detail == "" {
			t.Errorf("%s: it ended by %q (%s)", w.name, d.Cause, d.Detail)
		}
		must(t, s.Kill(t.Context(), spec.ID))
		s.gone(t, spec.ID)

		// A save of one whose memory is gone fails.
		from = copied(t, dir)
		id := s.resumeBy(t, w, snap, from, at)
		at.expect(t, "ok", "/health")
		must(t, os.Truncate(filepath.Join(from, largest(t, from)), 4096))
		if _, err := s.Checkpoint(t.Context(), id, t.TempDir(), engine.GoesOn); err == nil {
			t.Errorf("%s: a checkpoint of memory that is lost succeeds", w.name)
		}
		must(t, s.Kill(t.Context(), id))
	}
	// Eagerly, nothing is left running.
	from := copied(t, dir)
	must(t, os.Truncate(filepath.Join(from, largest(t, from)), 4096))
	spec := s.restoreSpec(snap, from, at)
	if err := s.Restore(t.Context(), spec); err == nil {
		t.Error("an eager restore of a truncated snapshot succeeds")
	}
	s.gone(t, spec.ID)
}

// largest names the file of a snapshot that has the memory.
func largest(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	name, most := "", int64(-1)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		if info.Size() > most {
			name, most = e.Name(), info.Size()
		}
	}
	return name
}

// SoakMemory restores a snapshot again and again in every way, kills some at
// once and lets others live, saves and restores those, with files removed, hints
// good and bad and files that are not cached, and compares all memory each time.
func SoakMemory(t *testing.T, rounds int, open func(testing.TB) engine.Engine) {
	if os.Getuid() != 0 {
		t.Fatal("the engine's soak must run as root")
	}
	s := &suite{Engine: open(t), open: open, image: rootImage(t), dir: t.TempDir()}
	s.slots = []*slot{newSlot(t, 0), newSlot(t, 1)}
	snap, dir := s.withMemory(t, s.slots[0])
	hint := filepath.Join(t.TempDir(), "hint")
	for n := range rounds {
		t.Run(fmt.Sprint(n), func(t *testing.T) { snap, dir = s.soakRound(t, snap, dir, hint) })
	}
}

// soakRound is one round, and returns the snapshot for the next: the same, or
// one of an instance of it.
func (s *suite) soakRound(t *testing.T, snap cay.Snapshot, dir, hint string) (cay.Snapshot, string) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	w := []way{eager, demand, shared, shared}[r.IntN(4)]
	if r.IntN(2) == 0 {
		plain := w
		w = way{w.name + ", hinted", func(spec *engine.RestoreSpec) { plain.set(spec); spec.WorkingSet = hint }}
	}
	from, at := copied(t, dir), s.slots[0]
	if r.IntN(3) == 0 { // killed in the middle of reads
		id := s.resumeBy(t, w, snap, from, at)
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _, _ = at.try(ctx, "/check-memory")
		}()
		must(t, s.Kill(t.Context(), id))
		cancel() // a killed guest leaves the connection hanging
		<-asked
	}
	if r.IntN(2) == 0 {
		uncache(t, filepath.Join(from, largest(t, from)))
	}
	other := s.resumeBy(t, shared, snap, from, s.slots[1])
	id := s.resumeBy(t, w, snap, from, at)
	if r.IntN(2) == 0 {
		must(t, os.RemoveAll(from))
	}
	for range r.IntN(4) {
		at.expect(t, "", "/touch-memory", "pages", strconv.Itoa(1+r.IntN(400)))
		if r.IntN(2) == 0 {
			at.expect(t, "", "/fork-memory", "children", strconv.Itoa(1+r.IntN(2)))
		}
	}
	if r.IntN(4) == 0 {
		must(t, s.LoadAll(t.Context(), id))
	}
	if r.IntN(2) == 0 {
		f, err := os.Create(hint)
		must(t, err)
		if err := s.RecordWorkingSet(t.Context(), id, f); err != nil && cay.KindOf(err) != cay.Conflict { // of an eager one
			t.Error(err)
		}
		must(t, f.Close())
	}
	next, saved := snap, dir
	if r.IntN(2) == 0 {
		saved = filepath.Join(s.dir, string(cay.NewSnapshotID()))
		must(t, os.Mkdir(saved, 0o700))
		var err error
		next, err = s.Checkpoint(t.Context(), id, saved, engine.GoesOn)
		must(t, err)
		next.ID = cay.NewSnapshotID()
		must(t, os.RemoveAll(dir))
	}
	at.expect(t, "", "/check-memory")
	s.slots[1].expect(t, "", "/check-memory")
	must(t, s.Kill(t.Context(), id))
	must(t, s.Kill(t.Context(), other))
	return next, saved
}

// uncache has the host read a file from its disk again.
func uncache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	must(t, f.Sync()) // a page that is not written yet stays
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// memoryOnFullDisk fills the disk of an instance whose files are not loaded yet:
// their space is its own from the start.
func (s *suite) memoryOnFullDisk(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/make-memory", "mb", "4")
	at.expect(t, "", "/fill", "path", "/tmp/large", "mb", "12")
	snap, from := s.snapshot(t, id, false)

	small := smallDisk(t, 40)
	spec := s.restoreSpec(snap, from, at)
	demand.set(&spec)
	spec.Dir = filepath.Join(small, "instance")
	spec.Reserved = filepath.Join(s.dir, string(spec.ID), "reserved")
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Restore(t.Context(), spec))
	disktest.Fill(t, small)
	at.expect(t, "", "/check-memory")
	at.expect(t, "ok", "/health")
	if text, status := at.ask(t, "/read", "path", "/tmp/large"); status != 200 || len(text) != 1<<20 {
		t.Errorf("a file is not there on a full disk: %d, %d bytes", status, len(text))
	}
	must(t, s.LoadAll(t.Context(), spec.ID))
	must(t, s.Kill(t.Context(), spec.ID))

	// One that does not fit is not started.
	spec = s.restoreSpec(snap, from, at)
	demand.set(&spec)
	spec.Dir = filepath.Join(small, "second")
	spec.Reserved = filepath.Join(s.dir, string(spec.ID), "reserved")
	if err := s.Restore(t.Context(), spec); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("restore on a full disk: %v", err)
	}
	s.gone(t, spec.ID)

	// Nor is one that has no room for its log and its record: the error names the
	// disk.
	disktest.Fill(t, small)
	boot := s.bootSpec(cay.NewInstanceID(), at)
	boot.Dir = filepath.Join(small, "third")
	boot.Reserved = filepath.Join(s.dir, string(boot.ID), "reserved")
	s.endWith(t, boot.ID)
	if err := s.Boot(t.Context(), boot); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), small) {
		t.Errorf("boot on a full disk: %v", err)
	}
	s.gone(t, boot.ID)
}

// smallDisk mounts a file system of its own, in memory.
func smallDisk(t *testing.T, mb int) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("cay-enginetest", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mb)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
