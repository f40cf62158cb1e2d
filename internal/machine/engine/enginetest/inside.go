package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// namespaces saves an instance with sockets in every state in a network
// namespace that an account without privileges made: the instance that goes on,
// and what is restored, have the namespace's loopback as it was.
func (s *suite) namespaces(t *testing.T) {
	a, b := s.slots[0], s.slots[1]
	id := s.start(t, a)
	a.expect(t, "ready\n", "/begin", "act", "network")
	a.expect(t, "fine\n", "/tell")
	kept, keptDir := s.snapshot(t, id, true)
	a.expect(t, "fine\n", "/tell")
	must(t, s.Hold(t.Context(), id)) // as a pause does it
	held, heldDir := s.snapshot(t, id, true)
	must(t, s.Release(t.Context(), id))
	a.expect(t, "fine\n", "/tell")
	last, lastDir := s.snapshot(t, id, false)

	s.resume(t, last, lastDir, a)
	a.expect(t, "fine\n", "/tell")
	for _, saved := range []struct {
		snap cay.Snapshot
		dir  string
	}{{kept, keptDir}, {held, heldDir}} {
		again := s.resume(t, saved.snap, saved.dir, b)
		b.expect(t, "fine\n", "/tell")
		b.expect(t, "fine\n", "/tell")
		grandchild, from := s.snapshot(t, again, true) // of a stack that was restored itself
		b.expect(t, "fine\n", "/tell")
		must(t, s.Kill(t.Context(), again))
		third := s.resume(t, grandchild, from, b)
		b.expect(t, "fine\n", "/tell")
		must(t, s.Kill(t.Context(), third))
	}
	a.expect(t, "fine\n", "/tell")
}

// bridges saves an instance in which a user has made a bridge that packets have
// passed. A restored one has no bridge, and its processes go on.
func (s *suite) bridges(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "ready\n", "/begin", "act", "bridge")
	for _, keep := range []bool{true, false} {
		saved, dir := s.snapshot(t, id, keep)
		if keep {
			at.expect(t, "fine\n", "/tell")
			must(t, s.Kill(t.Context(), id))
		}
		id = s.resume(t, saved, dir, at)
		at.expect(t, "fine\n", "/tell")
	}
}

// renames renames over names that were renamed away, as an account without
// privileges, in a directory that is root's and sticky.
func (s *suite) renames(t *testing.T) {
	at := s.slots[0]
	s.start(t, at)
	at.expect(t, "", "/perform", "act", "renames")
}

// loopbackAddress gives the loopback of a new network namespace its address, as
// bubblewrap does.
func (s *suite) loopbackAddress(t *testing.T) {
	at := s.slots[0]
	s.start(t, at)
	at.expect(t, "", "/perform", "act", "loopback", "unshared", "yes")
}

// bootID writes another boot_id, which is in what is restored from then on.
func (s *suite) bootID(t *testing.T) {
	const path, mine = "/proc/sys/kernel/random/boot_id", "01234567-89ab-4def-8123-456789abcdef"
	at := s.slots[0]
	id := s.start(t, at)
	at.refused(t, "invalid argument", "/write", "path", path, "text", "mine")
	at.expect(t, "", "/write", "path", path, "text", mine)
	at.expect(t, mine+"\n", "/boot-id")
	snap, dir := s.snapshot(t, id, false)
	s.resume(t, snap, dir, at)
	at.expect(t, mine+"\n", "/boot-id")
}

// inotifyLimits reads what watchers of files ask for, and writes what editors advise.
func (s *suite) inotifyLimits(t *testing.T) {
	const dir = "/proc/sys/fs/inotify/"
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "16384\n", "/read", "path", dir+"max_queued_events")
	at.expect(t, "8192\n", "/read", "path", dir+"max_user_instances")
	at.expect(t, "1048576\n", "/read", "path", dir+"max_user_watches")
	at.expect(t, "", "/write", "path", dir+"max_user_watches", "text", "524288\n")
	at.refused(t, "invalid argument", "/write", "path", dir+"max_user_watches", "text", "-1\n")
	snap, dirOf := s.snapshot(t, id, false)
	s.resume(t, snap, dirOf, at)
	at.expect(t, "524288\n", "/read", "path", dir+"max_user_watches")
}

// ends runs the tests of the agent's reaper inside: how a process ended is told
// otherwise there than on the host.
func (s *suite) ends(t *testing.T) {
	at := s.slots[0]
	s.start(t, at)
	text, status := at.ask(t, "/run", "path", "/reap.test", "args", "-test.run=TestSpawn -test.count=3")
	if status != 200 || !strings.Contains(text, "PASS") {
		t.Errorf("the reaper's tests inside: %s", text)
	}
}

// hostRoom boots an instance whose disk lies on a file system of the host that
// is smaller than its limit.
func (s *suite) hostRoom(t *testing.T) {
	const room = 24 << 20
	at := s.slots[0]
	id := cay.NewInstanceID()
	spec := s.bootSpec(id, at)
	must(t, os.MkdirAll(spec.Dir, 0o755))
	must(t, unix.Mount("cayet", spec.Dir, "tmpfs", 0, "size="+strconv.Itoa(room)))
	t.Cleanup(func() { _ = unix.Unmount(spec.Dir, unix.MNT_DETACH) })
	at.address(t)
	s.endWith(t, id)
	must(t, s.Boot(t.Context(), spec))
	left := func() int {
		text, _ := at.ask(t, "/room", "path", "/")
		n, err := strconv.Atoi(text)
		must(t, err)
		return n
	}
	if got := left(); got <= 0 || got > room {
		t.Errorf("statfs inside says that %d bytes are left; the host has %d", got, room)
	}
	at.expect(t, "", "/fill", "path", "/tmp/part", "mb", "8")
	if got := left(); got > room-8<<20 {
		t.Errorf("after 8 MB statfs inside says that %d bytes are left of %d", got, room)
	}
}

// firstToGo looks at what the host's kernel ends first when its memory is
// short: all processes of an instance, be it booted, restored or adopted.
func (s *suite) firstToGo(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	s.offersItself(t, id)
	snap, dir := s.snapshot(t, id, false)
	again := s.resume(t, snap, dir, at)
	at.expect(t, "1", "/count")
	s.offersItself(t, again)
}

func (s *suite) offersItself(t *testing.T, id cay.InstanceID) {
	t.Helper()
	pids := beside(id, 0)
	if len(pids) == 0 {
		t.Fatal("it has no process")
	}
	for _, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"))
		if os.IsNotExist(err) {
			continue // it has ended since
		}
		must(t, err)
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < 500 {
			t.Errorf("process %d has oom_score_adj %s", pid, text)
		}
	}
}

// endlessRestore stops what a restore has made so far, for good: the restore
// ends with a typed error, nothing of it is left, and the next one succeeds.
func (s *suite) endlessRestore(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")
	snap, dir := s.snapshot(t, id, false)
	for _, background := range []bool{false, true} {
		spec := s.restoreSpec(snap, dir, at)
		spec.Background = background
		at.address(t)
		s.endWith(t, spec.ID)
		s.hook.once(t, "restore", func(id cay.InstanceID, pid int) {
			stop := func() bool {
				found := beside(id, pid)
				for _, other := range found {
					_ = unix.Kill(other, unix.SIGSTOP)
				}
				return len(found) > 0
			}
			// The command goes on in short turns and stands while the test looks, so
			// that it cannot end before the test sees anything that it made.
			soon(t, "something is restored", func() bool {
				_ = unix.Kill(pid, unix.SIGCONT)
				time.Sleep(time.Millisecond)
				_ = unix.Kill(pid, unix.SIGSTOP)
				return stop()
			})
			for until := time.Now().Add(hastyLimit / 2); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
				stop() // a process that starts after the first may do without it
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := s.hasty(t).Restore(ctx, spec)
		early := ctx.Err() == nil
		cancel()
		if cay.CodeOf(err) != cay.CodeRestoreTimeout || cay.KindOf(err) != cay.Unavailable || !early {
			t.Errorf("a restore that does not end: %v", err)
		}
		s.gone(t, spec.ID)
		if left := beside(spec.ID, 0); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	}
	s.resume(t, snap, dir, at)
	at.expect(t, "2", "/count")
}

// RestoreLimit is what an engine under test should allow a restore: too little
// for one that does not end, and enough for any other on a busy machine.
const RestoreLimit = patience / 3

// hastyLimit is for a restore that does not end: time enough to begin, which is all
// that it has to do.
const hastyLimit = patience / 10
