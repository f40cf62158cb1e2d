package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func open(t *testing.T, root string, recursive bool) *Watcher {
	t.Helper()
	w, err := Open(root, recursive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func take(t *testing.T, w *Watcher) []Event {
	t.Helper()
	events, err := w.Take()
	must(t, err)
	return events
}

// want compares all events so far. It needs no waiting: Take's promise is
// that what happened before it is there.
func want(t *testing.T, w *Watcher, events ...Event) {
	t.Helper()
	if got := take(t, w); !slices.Equal(got, events) {
		t.Fatalf("got %v, want %v", got, events)
	}
}

func TestTakeSeesWhatHappenedBefore(t *testing.T) {
	root := t.TempDir()
	w := open(t, root, false)
	for i := range 200 {
		name := fmt.Sprint(i)
		write(t, filepath.Join(root, name), "x")
		want(t, w, Event{name, Create}, Event{name, Write})
	}
}

func TestOperations(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "old"), "x")
	must(t, os.Mkdir(filepath.Join(root, "sub"), 0o755))
	w := open(t, root, false)

	must(t, os.Chmod(filepath.Join(root, "old"), 0o600))
	want(t, w, Event{"old", Chmod})
	must(t, os.Rename(filepath.Join(root, "old"), filepath.Join(root, "new")))
	want(t, w, Event{"old", Rename}, Event{"new", Create})
	must(t, os.Remove(filepath.Join(root, "new")))
	want(t, w, Event{"new", Remove})
	write(t, filepath.Join(root, "sub", "unseen"), "x")
	want(t, w)
	must(t, os.Chmod(root, 0o700))
	want(t, w, Event{".", Chmod})
}

func TestRecursive(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	w := open(t, root, true)

	write(t, filepath.Join(root, "a/b/f"), "x")
	want(t, w, Event{"a/b/f", Create}, Event{"a/b/f", Write})
	// A rename inside keeps the watch, under the new name.
	must(t, os.Rename(filepath.Join(root, "a"), filepath.Join(root, "c")))
	want(t, w, Event{"a", Rename}, Event{"c", Create})
	write(t, filepath.Join(root, "c/b/f"), "y")
	want(t, w, Event{"c/b/f", Write})
	// What left the tree is no longer of interest.
	outside := t.TempDir()
	must(t, os.Rename(filepath.Join(root, "c"), filepath.Join(outside, "c")))
	want(t, w, Event{"c", Rename})
	write(t, filepath.Join(outside, "c/b/f"), "z")
	want(t, w)
	// What comes in is new, with all that is in it.
	must(t, os.Rename(filepath.Join(outside, "c"), filepath.Join(root, "d")))
	want(t, w, Event{"d", Create}, Event{"d/b", Create}, Event{"d/b/f", Create}, Event{"d/b/f", Write})
	must(t, os.RemoveAll(filepath.Join(root, "d")))
	want(t, w, Event{"d/b/f", Remove}, Event{"d/b", Remove}, Event{"d", Remove})
	// The same name again is a new directory.
	must(t, os.Mkdir(filepath.Join(root, "d"), 0o755))
	want(t, w, Event{"d", Create})
	write(t, filepath.Join(root, "d/g"), "x")
	want(t, w, Event{"d/g", Create}, Event{"d/g", Write})
}

// Files appear in new directories as fast as they can be made, while the
// watcher is still learning of the directories. Each must be reported once.
func TestNoGapInNewDirectories(t *testing.T) {
	root := t.TempDir()
	w := open(t, root, true)
	made := map[string]bool{}
	for i := range 150 {
		dir := fmt.Sprintf("%d/x/y/z", i)
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		for d := dir; d != "."; d = filepath.Dir(d) {
			made[d] = true
		}
		for _, f := range []string{"1", "2"} {
			write(t, filepath.Join(root, dir, f), "x")
			made[filepath.Join(dir, f)] = true
		}
	}
	got := map[string]int{}
	for _, e := range take(t, w) {
		if e.Op == Create {
			got[e.Name]++
		}
	}
	for name := range made {
		if got[name] != 1 {
			t.Errorf("%s was reported %d times", name, got[name])
		}
	}
	if len(got) != len(made) {
		t.Errorf("%d names were reported, %d made", len(got), len(made))
	}
}

func TestLinkedRootAndLinkedDirectories(t *testing.T) {
	target, elsewhere := t.TempDir(), t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(target, link))
	must(t, os.Symlink(elsewhere, filepath.Join(target, "out")))
	w := open(t, link, true)
	write(t, filepath.Join(elsewhere, "f"), "x")
	want(t, w)
	write(t, filepath.Join(target, "f"), "")
	want(t, w, Event{"f", Create})
}

func TestRootRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(root, 0o755))
	w := open(t, root, true)
	must(t, os.Remove(root))
	if got := take(t, w); !slices.Contains(got, Event{".", Remove}) {
		t.Fatalf("got %v", got)
	}
}

func TestReady(t *testing.T) {
	root := t.TempDir()
	w := open(t, root, false)
	write(t, filepath.Join(root, "f"), "x")
	select {
	case <-w.Ready():
	case <-time.After(time.Minute):
		t.Fatal("never ready")
	}
	want(t, w, Event{"f", Create}, Event{"f", Write})
}

func TestTooManyEventsAreAnErrorOnce(t *testing.T) {
	root := t.TempDir()
	w := open(t, root, false)
	name := filepath.Join(root, "f")
	for range MaxQueued {
		write(t, name, "")
		must(t, os.Remove(name))
	}
	if _, err := w.Take(); !errors.Is(err, ErrLost) {
		t.Fatalf("got %v", err)
	}
	write(t, name, "")
	want(t, w, Event{"f", Create})
}

func TestOpenFails(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none"), true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, "x")
	if _, err := Open(file, true); err == nil {
		t.Error("a file can be watched")
	}
	w := open(t, t.TempDir(), true)
	must(t, w.Close())
	if _, err := w.Take(); err == nil {
		t.Error("a closed watcher answers")
	}
}
