package enginetest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Begun is told by an engine of each command that it has begun for an
// instance, with the command's process. The engine goes on when it returns.
type Begun func(id cay.InstanceID, verb string, pid int)

// Hook lets a test interfere with an engine's commands.
type Hook struct{ now atomic.Pointer[Begun] }

// Begun is what the engine is to call.
func (h *Hook) Begun(id cay.InstanceID, verb string, pid int) {
	if f := h.now.Load(); f != nil {
		(*f)(id, verb, pid)
	}
}

// once interferes with the next command of this name, and says when it did.
func (h *Hook) once(t *testing.T, verb string, do func(id cay.InstanceID, pid int)) *atomic.Bool {
	var did atomic.Bool
	f := Begun(func(id cay.InstanceID, v string, pid int) {
		if v == verb && did.CompareAndSwap(false, true) {
			do(id, pid)
		}
	})
	h.now.Store(&f)
	t.Cleanup(func() { h.now.Store(nil) })
	return &did
}

// interruptedSave kills what takes a snapshot, of an instance that is held and of one
// that it is to hold, at once and when it is at it: that is what a killed server does
// to its commands. The instance goes on as if nothing had been, and what claims to be
// a snapshot is one.
func (s *suite) interruptedSave(t *testing.T) {
	for _, then := range []engine.After{engine.GoesOn, engine.Stays} {
		for _, late := range []bool{false, true} {
			s.interruptedOnce(t, then, late)
		}
	}
}

func (s *suite) interruptedOnce(t *testing.T, then engine.After, late bool) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")
	if then == engine.GoesOn {
		must(t, s.Hold(t.Context(), id))
	}
	dir := t.TempDir()
	did := s.hook.once(t, "checkpoint", func(_ cay.InstanceID, pid int) {
		if late {
			soon(t, "the checkpoint has files", func() bool { return len(entries(dir)) > 1 || !alive(pid) })
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	})
	snap, err := s.Checkpoint(t.Context(), id, dir, then)
	if !did.Load() { // it may have ended before it was killed: then it is a snapshot
		t.Fatalf("late %v: no checkpoint was killed, and it ended with %v", late, err)
	}
	after := s.open(t) // the next server
	must(t, after.Adopt(t.Context(), id))
	must(t, after.Release(t.Context(), id))
	at.expect(t, "2", "/count")
	if err != nil {
		dir = t.TempDir()
		snap, err = after.Checkpoint(t.Context(), id, dir, then)
		must(t, err)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
	snap.ID = cay.NewSnapshotID()
	again := s.resume(t, snap, dir, at)
	text, _ := at.ask(t, "/count")
	if text != "2" && text != "3" {
		t.Errorf("late %v: the snapshot counts on with %s", late, text)
	}
	must(t, s.Kill(t.Context(), again))
}

// brokenSave kills the engine's process of an instance in the middle of what
// saves it: the instance is over and says so, nothing of it is left, and the
// one beside it does not notice.
func (s *suite) brokenSave(t *testing.T) {
	a, b := s.slots[0], s.slots[1]
	s.start(t, b)
	b.expect(t, "1", "/count")
	for verb, save := range map[string]func(cay.InstanceID, string) error{
		"checkpoint": func(id cay.InstanceID, dir string) error {
			_, err := s.Checkpoint(t.Context(), id, dir, engine.GoesOn)
			return err
		},
		"fscheckpoint": func(id cay.InstanceID, dir string) error {
			_, err := s.SnapshotFiles(t.Context(), id, dir)
			return err
		},
		"pause": func(id cay.InstanceID, _ string) error { return s.Hold(t.Context(), id) },
	} {
		const tries = 20 // on a busy machine a save is over before its instance is killed
		refused := false
		for try := 0; try < tries && !refused; try++ {
			refused = s.brokenOnce(t, a, verb, save) != nil
		}
		if !refused {
			t.Errorf("%s of an instance that was killed succeeded %d times", verb, tries)
		}
	}
	b.expect(t, "2", "/count")
}

// brokenOnce kills an instance while it is saved, and returns what became of the
// save.
func (s *suite) brokenOnce(t *testing.T, at *slot, verb string, save func(cay.InstanceID, string) error) error {
	id := s.start(t, at)
	death, err := s.Watch(id)
	must(t, err)
	s.hook.once(t, verb, func(id cay.InstanceID, pid int) { killBeside(t, id, pid) })
	saved := save(id, t.TempDir())
	if d := receive(t, death); d.Cause != cay.CauseEngine || d.Instance != id {
		t.Errorf("%s: death %+v", verb, d)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
	return saved
}

// brokenRestore kills a restore, and what a restore has made so far: nothing is
// left of it, and the snapshot is as good as before.
func (s *suite) brokenRestore(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")
	snap, dir := s.snapshot(t, id, false)
	for what, interfere := range map[string]func(cay.InstanceID, int){
		"the command at once": func(_ cay.InstanceID, pid int) { _ = unix.Kill(pid, unix.SIGKILL) },
		"the command": func(id cay.InstanceID, pid int) {
			soon(t, "something is restored", func() bool { return len(beside(id, pid)) > 0 || !alive(pid) })
			_ = unix.Kill(pid, unix.SIGKILL)
		},
		"what it made": func(id cay.InstanceID, pid int) {
			soon(t, "something is restored", func() bool { return len(beside(id, pid)) > 0 || !alive(pid) })
			killBeside(t, id, pid)
		},
	} {
		spec := s.restoreSpec(snap, dir, at)
		at.address(t)
		s.endWith(t, spec.ID)
		s.hook.once(t, "restore", interfere)
		err := s.Restore(t.Context(), spec)
		switch {
		case err == nil: // it was faster, and may have been killed since
			must(t, s.Kill(t.Context(), spec.ID))
		case strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "; the sandbox was ended by signal 9 (killed)") && !strings.Contains(err.Error(), "; the sandbox exited with "):
			t.Errorf("%s: the error does not say how the sandbox ended: %v", what, err)
		}
		s.gone(t, spec.ID)
		if left := beside(spec.ID, 0); len(left) > 0 {
			t.Errorf("%s: processes %v are left", what, left)
		}
	}
	s.resume(t, snap, dir, at)
	at.expect(t, "2", "/count")
}

// killBeside ends all processes of an instance but one, which stands still
// meanwhile and finds them gone.
func killBeside(t *testing.T, id cay.InstanceID, pid int) {
	_ = unix.Kill(pid, unix.SIGSTOP)
	defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	soon(t, "its processes are gone", func() bool {
		left := beside(id, pid)
		for _, other := range left {
			_ = unix.Kill(other, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// beside finds the living processes that bear an instance's name, but for one.
func beside(id cay.InstanceID, but int) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		text, _ := os.ReadFile(path)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && pid != but && bytes.Contains(text, []byte(id)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(text, []byte(") Z "))
}

func entries(dir string) []os.DirEntry {
	found, _ := os.ReadDir(dir)
	return found
}

// soon waits until something is so. It may run beside the test's goroutine.
func soon(t *testing.T, what string, so func() bool) {
	for deadline := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error(errors.New("in vain: " + what))
			return
		}
	}
}
