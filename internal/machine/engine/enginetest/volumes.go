package enginetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// mountVolume has a directory of the host appear as volumes/0 below an
// instance's reserved directory, as a node does before it starts the instance.
func mountVolume(t *testing.T, reserved, dir string) {
	t.Helper()
	at := filepath.Join(reserved, "volumes", "0")
	must(t, os.MkdirAll(at, 0o755))
	must(t, unix.Mount(reserved, reserved, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(reserved, unix.MNT_DETACH) })
	must(t, unix.Mount("", reserved, "", unix.MS_PRIVATE, ""))
	must(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
}

// withVolume boots an instance that has a directory of the host.
func (s *suite) withVolume(t *testing.T, dir string, at *slot) cay.InstanceID {
	t.Helper()
	spec := s.bootSpec(cay.NewInstanceID(), at)
	mountVolume(t, spec.Reserved, dir)
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Boot(t.Context(), spec))
	at.expect(t, "ok", "/health")
	return spec.ID
}

// resumeWith restores one.
func (s *suite) resumeWith(t *testing.T, dir string, snap cay.Snapshot, from string, at *slot) cay.InstanceID {
	t.Helper()
	spec := s.restoreSpec(snap, from, at)
	mountVolume(t, spec.Reserved, dir)
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Restore(t.Context(), spec))
	at.expect(t, "ok", "/health")
	return spec.ID
}

const volumeInside = "/.cay/volumes/0"

// volumes binds a directory that the host has mounted: PID 1 may, and nothing
// else may. The bind is in what is saved, and two instances see each other's
// files at once.
func (s *suite) volumes(t *testing.T) {
	a, b, dir := s.slots[0], s.slots[1], t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "note"), []byte("of the host"), 0o644))
	id := s.withVolume(t, dir, a)
	a.expect(t, "of the host", "/read", "path", volumeInside+"/note") // the host's mount was kept

	a.refused(t, "not permitted", "/bind", "source", "/etc", "path", "/srv")
	a.refused(t, "not permitted", "/mount", "path", "/srv")
	a.refused(t, "not permitted", "/unbind", "path", "/proc")
	a.refused(t, "not permitted", "/perform", "act", "bind")
	a.refused(t, "not permitted", "/run", "path", "/guest", "args", "bind") // root's child

	a.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
	a.expect(t, "of the host", "/read", "path", "/srv/note")
	a.expect(t, "", "/write", "path", "/srv/mine", "text", "of a guest")
	if text, err := os.ReadFile(filepath.Join(dir, "mine")); string(text) != "of a guest" {
		t.Errorf("the host reads %q, %v", text, err)
	}
	a.expect(t, "", "/bind", "source", volumeInside, "path", "/run", "readonly", "yes")
	a.refused(t, "read-only", "/write", "path", "/run/mine", "text", "x")
	a.expect(t, "", "/unbind", "path", "/run")
	a.refused(t, "no such file", "/read", "path", "/run/note")

	snap, from := s.snapshot(t, id, true)
	s.resumeWith(t, dir, snap, from, b)
	b.expect(t, "of a guest", "/read", "path", "/srv/mine")
	for range 20 { // open, read and replaced, in turns
		a.expect(t, "", "/write", "path", "/srv/turn", "text", "a")
		b.expect(t, "a", "/read", "path", "/srv/turn")
		b.expect(t, "", "/remove", "path", "/srv/turn")
		a.refused(t, "no such file", "/read", "path", "/srv/turn")
		b.expect(t, "", "/write", "path", "/srv/turn", "text", "by b")
		a.expect(t, "by b", "/read", "path", "/srv/turn")
	}
	b.expect(t, "", "/unbind", "path", "/srv")
	b.expect(t, "", "/read", "path", "/srv/inside") // what lay below
	a.expect(t, "of a guest", "/read", "path", "/srv/mine")

	files, layer := s.saveFiles(t, id)
	if files.Kind != cay.FilesSnapshot {
		t.Errorf("kind %s", files.Kind)
	}
	must(t, s.Kill(t.Context(), id))
	spec := s.bootSpec(cay.NewInstanceID(), a)
	spec.From, spec.Args = layer, nil
	a.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Boot(t.Context(), spec)) // without the volume
	a.expect(t, "ok", "/health")
	a.refused(t, "no such file", "/read", "path", "/srv/mine")
}

// stale saves and restores an instance while others change the files that it has
// open: it goes on, and what is gone fails when it is used.
func (s *suite) stale(t *testing.T) {
	at, dir := s.slots[0], t.TempDir()
	host := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	id := s.withVolume(t, dir, at)
	at.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
	must(t, os.MkdirAll(host("dir", "below"), 0o755))
	for _, name := range []string{"stays", "replaced", "removed", "later", "dir/below/deep", "becomes-dir"} {
		must(t, os.WriteFile(host(name), []byte("one"), 0o644))
		at.expect(t, "", "/keep", "path", "/srv/"+name)
		at.expect(t, "one", "/kept", "path", "/srv/"+name)
	}
	at.expect(t, "", "/keep", "path", "/srv/own")
	at.expect(t, "own", "/kept", "path", "/srv/own", "text", "own")
	at.expect(t, "", "/remove", "path", "/srv/own") // by itself: it is saved with it
	at.expect(t, "", "/keep", "path", "/srv/dir")

	// Before it is saved, and it has seen so.
	must(t, os.WriteFile(host("new"), []byte("two"), 0o644))
	must(t, os.Rename(host("new"), host("replaced")))
	must(t, os.Remove(host("removed")))
	at.expect(t, "two", "/read", "path", "/srv/replaced")
	at.refused(t, "no such file", "/read", "path", "/srv/removed")
	at.expect(t, "one", "/kept", "path", "/srv/replaced") // it has the old one open

	snap, from := s.snapshot(t, id, true)
	at.expect(t, "one", "/kept", "path", "/srv/replaced") // it went on
	at.expect(t, "own", "/kept", "path", "/srv/own")
	last, lastFrom := s.snapshot(t, id, false)

	// While it is paused.
	must(t, os.RemoveAll(host("dir")))
	must(t, os.Remove(host("later")))
	must(t, os.Remove(host("becomes-dir")))
	must(t, os.Mkdir(host("becomes-dir"), 0o755))
	must(t, os.WriteFile(host("stays"), []byte("one, and more"), 0o644))
	for range 2 { // what is restored is saved again
		id = s.resumeWith(t, dir, last, lastFrom, at)
		for _, name := range []string{"replaced", "removed", "later", "dir", "dir/below/deep", "becomes-dir"} {
			at.refused(t, "bad file descriptor", "/kept", "path", "/srv/"+name)
		}
		at.expect(t, "one, and more", "/kept", "path", "/srv/stays")
		at.expect(t, "own", "/kept", "path", "/srv/own")
		at.expect(t, "two", "/read", "path", "/srv/replaced")
		at.refused(t, "no such file", "/read", "path", "/srv/later")
		at.refused(t, "no such file", "/read", "path", "/srv/dir/below/deep")
		at.refused(t, "is a directory", "/read", "path", "/srv/becomes-dir")
		if names, err := os.ReadDir(dir); err != nil || len(names) != 3 {
			t.Errorf("the volume has %v, %v", names, err)
		}
		last, lastFrom = s.snapshot(t, id, false)
	}
	must(t, os.WriteFile(host("later"), []byte("anew"), 0o644))
	id = s.resumeWith(t, dir, last, lastFrom, at)
	at.expect(t, "anew", "/read", "path", "/srv/later")
	at.refused(t, "bad file descriptor", "/kept", "path", "/srv/later") // it is another file
	at.expect(t, "", "/write", "path", "/srv/fresh", "text", "x")
	must(t, s.Kill(t.Context(), id))

	// An empty volume is as good as any: nothing that was open is there.
	empty := t.TempDir()
	s.resumeWith(t, empty, snap, from, at)
	at.refused(t, "bad file descriptor", "/kept", "path", "/srv/stays")
	at.expect(t, "", "/write", "path", "/srv/stays", "text", "again")
	if _, err := os.Stat(filepath.Join(empty, "stays")); errors.Is(err, os.ErrNotExist) {
		t.Error("what it writes does not arrive")
	}
}
