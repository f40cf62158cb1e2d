package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// saveFiles saves the files of an instance into a fresh directory.
func (s *suite) saveFiles(t *testing.T, id cay.InstanceID) (cay.Snapshot, string) {
	t.Helper()
	dir := t.TempDir()
	snap, err := s.SnapshotFiles(t.Context(), id, dir)
	must(t, err)
	snap.ID = cay.NewSnapshotID()
	s.checkRecord(t, snap, dir)
	return snap, dir
}

// checkRecord compares a record with what lies in its directory.
func (s *suite) checkRecord(t *testing.T, snap cay.Snapshot, dir string) {
	t.Helper()
	for _, f := range snap.Files {
		if info, err := os.Stat(filepath.Join(dir, f.Name)); err != nil || info.Size() != f.Size || len(f.CRC32C) != 8 {
			t.Errorf("file of a snapshot: %+v, %v", f, err)
		}
	}
}

// tree asks for a description of all files.
func (s *suite) tree(t *testing.T, at *slot) string {
	t.Helper()
	text, status := at.ask(t, "/tree")
	if status != 200 {
		t.Fatalf("the guest cannot list its files: %s", text)
	}
	return text
}

func sameTree(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	lines := map[string]bool{}
	for _, line := range strings.Split(want, "\n") {
		lines[line] = true
	}
	for _, line := range strings.Split(got, "\n") {
		if !lines[line] {
			t.Errorf("now    %s", line)
		}
		delete(lines, line)
	}
	for line := range lines {
		t.Errorf("before %s", line)
	}
}

// files boots from a snapshot of files: all files are as they were, memory is
// new. Such an instance is saved and restored like any other.
func (s *suite) files(t *testing.T) {
	a, b := s.slots[0], s.slots[1]
	id := s.start(t, a)
	a.expect(t, "", "/shape")
	a.expect(t, "", "/fill", "path", "/tmp/big", "mb", "20")
	a.expect(t, "1", "/count")
	before := s.tree(t, a)
	bootID, _ := a.ask(t, "/boot-id")

	snap, dir := s.saveFiles(t, id)
	if snap.Root != "sha256-test" || snap.Kind != cay.FilesSnapshot || snap.Limits != limits || snap.Size() < 20<<20 {
		t.Errorf("record of a snapshot of files: %+v", snap)
	}
	must(t, s.CanBoot(snap))
	if err := s.CanRestore(snap); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a snapshot of files can be restored: %v", err)
	}
	older := snap
	older.EngineHash, older.Format, older.CPUFeatures = "0123456789abcdef", snap.Format-1, []string{"telepathy"}
	must(t, s.CanBoot(older))
	a.expect(t, "2", "/count") // it went on
	a.expect(t, "", "/remove", "path", "/tmp/big")

	s.bootFrom(t, dir, b)
	b.expect(t, "1", "/count")
	sameTree(t, s.tree(t, b), before)
	if now, _ := b.ask(t, "/boot-id"); now == bootID || len(now) < 36 {
		t.Errorf("boot id %q, before %q", now, bootID)
	}
	a.refused(t, "no such file", "/read", "path", "/tmp/big")

	must(t, s.Kill(t.Context(), id))
	s.filesAgain(t, before, dir)
}

// filesAgain saves what was booted from files, with and without memory.
func (s *suite) filesAgain(t *testing.T, before, dir string) {
	a, b := s.slots[0], s.slots[1]
	second := s.bootFrom(t, dir, a)
	a.expect(t, "", "/write", "path", "/srv/empty", "text", "changed")
	after := s.tree(t, a)
	_, again := s.saveFiles(t, second)
	memory, from := s.snapshot(t, second, false)
	third := s.bootFrom(t, again, a)
	sameTree(t, s.tree(t, a), after)
	must(t, s.Kill(t.Context(), third))
	s.resume(t, memory, from, a)
	sameTree(t, s.tree(t, a), after)
	sameTree(t, s.tree(t, b), before)
}

// filesOfMemory boots from the files of a memory snapshot, as when the build
// that took it is gone.
func (s *suite) filesOfMemory(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")
	at.expect(t, "", "/shape")
	before := s.tree(t, at)
	snap, dir := s.snapshot(t, id, true)
	if err := s.CanBoot(snap); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a snapshot of memory alone can be booted from: %v", err)
	}
	files, err := s.SnapshotFiles(t.Context(), id, dir)
	must(t, err)
	snap.Files = append(snap.Files, files.Files...)
	s.checkRecord(t, snap, dir)
	must(t, s.CanBoot(snap))
	must(t, s.Kill(t.Context(), id))

	cold := s.bootFrom(t, dir, at)
	at.expect(t, "1", "/count")
	sameTree(t, s.tree(t, at), before)
	must(t, s.Kill(t.Context(), cold))
	s.resume(t, snap, dir, at)
	at.expect(t, "2", "/count")
	sameTree(t, s.tree(t, at), before)
}

// filesHeld saves the files of a held guest, which stays held.
func (s *suite) filesHeld(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/write", "path", "/tmp/note", "text", "x")
	must(t, s.Hold(t.Context(), id))
	_, dir := s.saveFiles(t, id)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if text, _, err := at.try(ctx, "/health"); err == nil {
		t.Errorf("a held guest answers %q", text)
	}
	must(t, s.Release(t.Context(), id))
	at.expect(t, "x", "/read", "path", "/tmp/note")
	must(t, s.Kill(t.Context(), id))
	s.bootFrom(t, dir, at)
	at.expect(t, "x", "/read", "path", "/tmp/note")

	torn := s.bootSpec(cay.NewInstanceID(), at)
	torn.From = t.TempDir()
	if err := s.Boot(t.Context(), torn); cay.KindOf(err) != cay.NotFound {
		t.Errorf("boot without the snapshot's files: %v", err)
	}
	s.gone(t, torn.ID)
}
