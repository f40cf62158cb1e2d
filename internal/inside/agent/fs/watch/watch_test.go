package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	// A directory that left the tree is no longer watched.
	outside := t.TempDir()
	must(t, os.Rename(filepath.Join(root, "c"), filepath.Join(outside, "c")))
	want(t, w, Event{"c", Rename})
	write(t, filepath.Join(outside, "c/b/f"), "z")
	want(t, w)
	// A directory that comes in is new, with all that is in it.
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

// The kernel queues the two halves of a rename one after the other: a reader
// may find the queue empty between them, or other events.
func TestHalvesOfARename(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "x/y"), 0o755))
	w := open(t, root, true)
	half := func(bits, cookie uint32, name string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		conn, err := w.file.SyscallConn()
		must(t, err)
		must(t, conn.Control(func(fd uintptr) {
			w.handle(int(fd), w.tree.wds[""], bits|unix.IN_ISDIR, cookie, name)
			w.drain(int(fd)) // finds nothing
		}))
	}
	half(unix.IN_MOVED_FROM, 1, "a")
	half(unix.IN_MOVED_FROM, 2, "x")
	half(unix.IN_MOVED_TO, 1, "c")
	half(unix.IN_MOVED_TO, 2, "z")
	want(t, w, Event{"a", Rename}, Event{"x", Rename}, Event{"c", Create}, Event{"z", Create})
	// The watches bear the new names; nothing moved on the disk.
	write(t, filepath.Join(root, "a/b/f"), "")
	write(t, filepath.Join(root, "x/y/f"), "")
	want(t, w, Event{"c/b/f", Create}, Event{"z/y/f", Create})
	if len(w.leaving) != 0 {
		t.Errorf("%v is still kept", w.leaving)
	}
}

// Renames inside the tree are never told with contents, and renames out of it
// are never kept, however the reader and the renames meet.
func TestRenamesBesideTake(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, d := range []string{"a", "x"} {
		must(t, os.MkdirAll(filepath.Join(root, d, "b"), 0o755))
		write(t, filepath.Join(root, d, "b/f"), "x")
	}
	w := open(t, root, true)
	done := make(chan error)
	rename := func(from, to string) {
		var err error
		for range 500 {
			err = errors.Join(err, os.Rename(from, to), os.Rename(to, from))
		}
		done <- err
	}
	go rename(filepath.Join(root, "a"), filepath.Join(root, "c"))
	go rename(filepath.Join(root, "x"), filepath.Join(root, "z"))
	var events []Event
	for left := 2; left > 0; {
		select {
		case err := <-done:
			must(t, err)
			left--
		default:
		}
		events = append(events, take(t, w)...)
	}
	events = append(events, take(t, w)...)
	for _, e := range events {
		if strings.Contains(e.Name, "/") {
			t.Fatalf("%v was told of a rename inside the tree", e)
		}
	}
	must(t, os.Rename(filepath.Join(root, "a"), filepath.Join(outside, "a")))
	want(t, w, Event{"a", Rename})
	if len(w.leaving) != 0 || w.tree.len() != 3 {
		t.Errorf("%d directories are watched, of which %d leave; want 3 and none", w.tree.len(), len(w.leaving))
	}
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
	for range MaxQueued/2 + 1 { // each is two events and more
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
