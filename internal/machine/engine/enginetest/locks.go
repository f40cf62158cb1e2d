package enginetest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

const (
	lockFile = volumeInside + "/locked"
	taken    = "temporarily unavailable"
)

// locked has an instance with a volume, and a file of it that it keeps open.
func (s *suite) locked(t *testing.T, dir string, at *slot) cay.InstanceID {
	t.Helper()
	id := s.withVolume(t, dir, at)
	at.expect(t, "", "/keep", "path", lockFile)
	return id
}

// locks has two instances lock one file of a volume: a lock of one keeps the other
// out, in each of the ways to lock, until it is released or its instance ends.
func (s *suite) locks(t *testing.T) {
	a, b, dir := s.slots[0], s.slots[1], t.TempDir()
	s.locked(t, dir, a)
	other := s.locked(t, dir, b)
	for _, with := range []string{"flock", "fcntl", "ofd"} {
		change := func(kind string) []string { return []string{"path", lockFile, "with", with, "type", kind} }
		a.expect(t, "", "/lock", change("ex")...)
		b.refused(t, taken, "/lock", change("ex")...)
		b.refused(t, taken, "/lock", change("sh")...)
		b.expect(t, "signal: killed", "/waiter", "path", lockFile, "with", with)
		a.expect(t, "", "/lock", change("sh")...)
		b.expect(t, "", "/lock", change("sh")...)
		b.refused(t, taken, "/lock", change("ex")...)
		a.expect(t, "", "/lock", change("un")...)
		b.expect(t, "", "/lock", change("ex")...)
		a.refused(t, taken, "/lock", change("sh")...)
		b.expect(t, "", "/lock", change("un")...)
		s.takeTurns(t, with)
	}
	s.lockRanges(t, a, b)

	// A file has both kinds of locks, which do not meet.
	a.expect(t, "", "/lock", "path", lockFile, "with", "flock")
	b.expect(t, "", "/lock", "path", lockFile, "with", "fcntl")
	b.refused(t, taken, "/lock", "path", lockFile, "with", "flock")
	a.refused(t, taken, "/lock", "path", lockFile, "with", "ofd")
	must(t, s.Kill(t.Context(), other))
	a.expect(t, "", "/lock", "path", lockFile, "with", "ofd")

	// The host's kernel keeps the ranges, so that their number is bounded; the flock is one.
	a.expect(t, "", "/lock", "path", lockFile, "with", "ofd", "type", "un")
	a.expect(t, "16383, then no locks available", "/ranges", "path", lockFile)
	a.expect(t, "", "/lock", "path", lockFile, "with", "fcntl", "type", "un", "len", "0")
	a.expect(t, "", "/lock", "path", lockFile, "with", "ofd")

	// The host's users of the file meet them too, and what cannot be locked is not.
	f, err := os.OpenFile(filepath.Join(dir, "locked"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("the host takes a lock of an instance: %v", err)
	}
	a.expect(t, "", "/close", "path", lockFile)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	a.expect(t, "", "/keep", "path", volumeInside)
	a.refused(t, "no locks available", "/lock", "path", volumeInside, "with", "flock")
}

// takeTurns lets two instances wait for a lock in turns: neither has it before the
// other has released it.
func (s *suite) takeTurns(t *testing.T, with string) {
	t.Helper()
	here, there := s.slots[0], s.slots[1]
	here.expect(t, "", "/lock", "path", lockFile, "with", with)
	for range 10 {
		var released atomic.Bool
		early := make(chan bool, 1)
		go func() {
			_, status, err := there.try(t.Context(), "/lock", "path", lockFile, "with", with, "wait", "yes")
			early <- err != nil || status != http.StatusOK || !released.Load()
		}()
		released.Store(true)
		here.expect(t, "", "/lock", "path", lockFile, "with", with, "type", "un")
		if <-early {
			t.Fatalf("a lock with %s that another instance has is granted, or its wait fails", with)
		}
		here.refused(t, taken, "/lock", "path", lockFile, "with", with)
		here, there = there, here
	}
	here.expect(t, "", "/lock", "path", lockFile, "with", with, "type", "un")
}

// lockRanges locks ranges of a file separately.
func (s *suite) lockRanges(t *testing.T, a, b *slot) {
	t.Helper()
	part := func(kind, start, length string) []string {
		return []string{"path", lockFile, "with", "fcntl", "type", kind, "start", start, "len", length}
	}
	a.expect(t, "", "/lock", part("ex", "0", "100")...)
	a.expect(t, "", "/lock", part("un", "40", "20")...)
	a.expect(t, "", "/lock", part("sh", "80", "20")...)
	b.expect(t, "", "/lock", part("ex", "40", "20")...)
	b.expect(t, "", "/lock", part("sh", "90", "10")...)
	b.refused(t, taken, "/lock", part("ex", "39", "1")...)
	b.refused(t, taken, "/lock", part("ex", "85", "1")...)
	b.expect(t, "ex 0+40", "/holder", part("sh", "0", "0")...)
	b.expect(t, "sh 80+20", "/holder", part("ex", "80", "0")...)
	b.expect(t, "un 100+0", "/holder", part("ex", "100", "0")...)
	b.expect(t, "", "/lock", part("ex", "100", "0")...)
	a.refused(t, taken, "/lock", part("sh", "1000000", "1")...)
	a.expect(t, "", "/lock", part("un", "0", "0")...)
	b.expect(t, "", "/lock", part("un", "0", "0")...)
	b.expect(t, "", "/lock", part("ex", "0", "0")...)
	b.expect(t, "", "/lock", part("un", "0", "0")...)
}

// savedLocks saves instances that have locks. One that is restored has them again if
// no other had them since; otherwise it knows. Copies do not have them.
func (s *suite) savedLocks(t *testing.T) {
	a, b, dir := s.slots[0], s.slots[1], t.TempDir()
	for _, with := range []string{"flock", "fcntl", "ofd"} {
		lock := []string{"path", lockFile, "with", with}
		id := s.locked(t, dir, a)
		a.expect(t, "", "/lock", lock...)
		a.expect(t, "", "/keep", "path", volumeInside+"/guarded")

		// It continues after a save: what was saved is a copy, and lost the lock.
		copied, copiedFrom := s.snapshot(t, id, true)
		fork := s.resumeWith(t, dir, copied, copiedFrom, b)
		b.refused(t, "input/output error", "/kept", "path", volumeInside+"/guarded")
		a.expect(t, "", "/kept", "path", volumeInside+"/guarded")
		must(t, s.Kill(t.Context(), fork))

		// It ends: the lock is free until it is restored, and then its own again.
		last, lastFrom := s.snapshot(t, id, false)
		id = s.resumeWith(t, dir, last, lastFrom, a)
		other := s.locked(t, dir, b)
		b.refused(t, taken, "/lock", lock...)
		a.expect(t, "", "/kept", "path", volumeInside+"/guarded")

		// Another has it meanwhile, and releases it.
		last, lastFrom = s.snapshot(t, id, false)
		b.expect(t, "", "/lock", lock...)
		b.expect(t, "", "/lock", append(lock, "type", "un")...)
		id = s.resumeWith(t, dir, last, lastFrom, a)
		b.expect(t, "", "/lock", lock...)
		a.refused(t, "input/output error", "/kept", "path", volumeInside+"/guarded")
		a.refused(t, "input/output error", "/lock", lock...)
		a.expect(t, "", "/keep", "path", lockFile)
		a.refused(t, taken, "/lock", lock...)
		must(t, s.Kill(t.Context(), other))
		a.expect(t, "", "/lock", lock...)
		s.heldLock(t, dir, id, lock)
	}
}

// heldLock saves an instance that has a lock and is held: it is restored with it, or it
// continues with it.
func (s *suite) heldLock(t *testing.T, dir string, id cay.InstanceID, lock []string) {
	t.Helper()
	a, b := s.slots[0], s.slots[1]
	save := func() (cay.Snapshot, string) {
		at := t.TempDir()
		snap, err := s.Checkpoint(t.Context(), id, at, engine.Stays)
		must(t, err)
		snap.ID = cay.NewSnapshotID()
		return snap, at
	}
	old, oldFrom := save()
	must(t, s.Release(t.Context(), id))
	a.expect(t, "", "/kept", "path", lockFile)
	snap, from := save()
	must(t, s.Kill(t.Context(), id))
	id = s.resumeWith(t, dir, snap, from, a)
	a.expect(t, "", "/kept", "path", lockFile)
	copied := s.resumeWith(t, dir, old, oldFrom, b)
	b.refused(t, "input/output error", "/kept", "path", lockFile)
	b.expect(t, "", "/keep", "path", lockFile)
	b.refused(t, taken, "/lock", lock...)
	must(t, s.Kill(t.Context(), id))
	b.expect(t, "", "/lock", lock...)
	must(t, s.Kill(t.Context(), copied))
}

// mutexesOfOthers lets an instance wait for a word in shared memory that another sets.
func (s *suite) mutexesOfOthers(t *testing.T) {
	here, there, dir := s.slots[0], s.slots[1], t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "words"), make([]byte, os.Getpagesize()), 0o644))
	s.withVolume(t, dir, here)
	s.withVolume(t, dir, there)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 20 {
		woken := make(chan error, 1)
		go func() {
			text, status, err := there.try(ctx, "/await", "path", volumeInside+"/words")
			if err == nil && status != http.StatusOK {
				err = errors.New(text)
			}
			woken <- err
		}()
		here.expect(t, "", "/set", "path", volumeInside+"/words")
		must(t, <-woken)
		here, there = there, here
	}
}
