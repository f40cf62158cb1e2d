package enginetest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Builds has instances and snapshots of one build of an engine go on where new
// instances are of another, as after an upgrade and as after the way back. open is
// as for Run; its engine makes new instances with the build of that hash.
func Builds(t *testing.T, open func(t testing.TB, hash string) engine.Engine, one, other string) {
	image := rootImage(t)
	at := newSlot(t, 0)
	for _, c := range []struct{ of, under string }{{other, one}, {one, other}} {
		t.Run(c.of+" under "+c.under, func(t *testing.T) {
			s := &suite{image: image, dir: t.TempDir(), slots: []*slot{at}, Engine: open(t, c.of)}
			s.builds(t, c.of, c.under, open(t, c.under))
		})
	}
}

// builds starts an instance, which is of one build, and has all else done by the
// next engine, whose instances are of another.
func (s *suite) builds(t *testing.T, of, under string, next engine.Engine) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/make-memory", "mb", strconv.Itoa(privateMB))
	at.expect(t, "1", "/count")
	before, beforeDir := s.snapshot(t, id, true)
	s.Engine = next

	must(t, s.Adopt(t.Context(), id))
	at.expect(t, "2", "/count")
	must(t, s.Hold(t.Context(), id))
	must(t, s.Release(t.Context(), id))
	afterDir := t.TempDir()
	after, err := s.Checkpoint(t.Context(), id, afterDir, engine.Stays)
	must(t, err)
	after.ID = cay.NewSnapshotID()
	_, err = s.SnapshotFiles(t.Context(), id, afterDir)
	must(t, err)
	must(t, s.Release(t.Context(), id))
	at.expect(t, "3", "/count")
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)

	for _, w := range []way{eager, demand, shared} {
		t.Run(w.name, func(t *testing.T) {
			s.restoredElsewhere(t, w, before, beforeDir, "2", of)
			s.restoredElsewhere(t, w, after, afterDir, "3", of)
		})
	}

	id = s.bootFrom(t, afterDir, at)
	if booted, _ := s.snapshot(t, id, false); booted.EngineHash != under {
		t.Errorf("an instance that is booted is of %s, want %s", booted.EngineHash, under)
	}
}

// restoredElsewhere restores a snapshot of another build, and a snapshot of the restored
// instance, which is of that build too.
func (s *suite) restoredElsewhere(t *testing.T, w way, snap cay.Snapshot, from, count, of string) {
	t.Helper()
	at := s.slots[0]
	must(t, s.CanRestore(snap))
	id := s.resumeBy(t, w, snap, from, at)
	at.expect(t, count, "/count")
	live(t, at)
	set := filepath.Join(t.TempDir(), "set")
	if w.name != eager.name {
		var text bytes.Buffer
		must(t, s.RecordWorkingSet(t.Context(), id, &text))
		must(t, os.WriteFile(set, text.Bytes(), 0o600))
		must(t, s.LoadAll(t.Context(), id))
	}
	again, saved := s.snapshot(t, id, false)
	if snap.EngineHash != of || again.EngineHash != of {
		t.Errorf("the snapshots are of %s and %s, want %s", snap.EngineHash, again.EngineHash, of)
	}
	id = s.resume(t, again, saved, at)
	live(t, at)
	must(t, s.Kill(t.Context(), id))
	if w.name == eager.name {
		return
	}
	id = s.resumeBy(t, way{w.name, func(spec *engine.RestoreSpec) {
		w.set(spec)
		spec.WorkingSet = set
	}}, snap, from, at)
	at.expect(t, count, "/count")
	live(t, at)
	must(t, s.Kill(t.Context(), id))
}
