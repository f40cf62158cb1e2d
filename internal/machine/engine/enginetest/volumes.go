package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
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
	s.excludes(t, a, b)
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

// errorsOfSyncs has a volume on a disk that promises more room than there is: what is
// written is taken, and only its sync tells that it has no place. That keeps no
// instance from being saved.
func (s *suite) errorsOfSyncs(t *testing.T) {
	at, under := s.slots[0], disktest.Ext4(t, 32<<20)
	dir := disktest.Ext4On(t, under, 256<<20)
	id := s.withVolume(t, dir, at)
	at.expect(t, "", "/fill", "path", volumeInside+"/fits", "mb", "1")
	empty := disktest.Fill(t, under)
	for _, name := range []string{"fits", "new"} {
		if text, status := at.ask(t, "/fill", "path", volumeInside+"/"+name, "mb", "8"); status == http.StatusOK {
			t.Errorf("a sync of %s without room tells success: %s", name, text)
		}
	}
	s.snapshot(t, id, true)
	empty()
	at.expect(t, "", "/fill", "path", volumeInside+"/again", "mb", "1")
}

// byAgent has the real agent mount volumes: what a resume tells again is there
// already, and what it tells no more goes.
func (s *suite) byAgent(t *testing.T) {
	at, dir := s.slots[0], t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "note"), []byte("of the host"), 0o644))
	spec := s.bootSpec(cay.NewInstanceID(), at)
	spec.Args = []string{"/cay-agent"}
	mountVolume(t, spec.Reserved, dir)
	at.address(t)
	s.endWith(t, spec.ID)
	must(t, s.Boot(t.Context(), spec))

	agent := toagent.New(at.guest)
	defer agent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, agent.WaitReady(ctx, guest.AgentPort))
	tell := func(mode guest.Mode, list ...guest.Mount) error {
		reply, err := agent.Init(ctx, "", guest.Init{Mode: mode, Timestamp: time.Now(), Mounts: list})
		if err == nil && reply.Protocol < guest.ProtocolMounts {
			t.Errorf("the agent speaks %d", reply.Protocol)
		}
		return err
	}
	mounts := []guest.Mount{{Source: volumeInside, Path: "/mnt/deep/volume"}, {Source: volumeInside, Path: "/srv", ReadOnly: true}}
	must(t, tell(guest.ModeBuild, mounts...))
	at.hasFile(t, "/mnt/deep/volume/note", "of the host")
	at.hasFile(t, "/srv/note", "of the host")
	at.hasFile(t, "/srv/inside", "") // it is hidden
	must(t, os.WriteFile(filepath.Join(dir, "note"), []byte("written later"), 0o644))
	at.hasFile(t, "/srv/note", "written later")
	err := tell(guest.ModeResume, guest.Mount{Source: volumeInside, Path: "/etc/old"})
	if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), "/etc/old") {
		t.Errorf("a mount over a file: %v", err)
	}
	must(t, tell(guest.ModeResume, mounts...))

	snap, from := s.snapshot(t, spec.ID, false)
	next := s.restoreSpec(snap, from, at)
	mountVolume(t, next.Reserved, dir)
	at.address(t)
	s.endWith(t, next.ID)
	must(t, s.Restore(t.Context(), next))
	must(t, agent.WaitReady(ctx, guest.AgentPort))
	at.hasFile(t, "/srv/note", "written later") // it is in the memory
	must(t, tell(guest.ModeResume, mounts...))
	at.hasFile(t, "/mnt/deep/volume/note", "written later")
	must(t, tell(guest.ModeResume, mounts[0]))
	at.hasFile(t, "/mnt/deep/volume/note", "written later")
	if _, status := at.file(t, "/srv/note"); status != http.StatusNotFound {
		t.Errorf("a mount that is told no more: %d", status)
	}
}

// file asks the agent for a file.
func (s *slot) file(t *testing.T, path string) (string, int) {
	t.Helper()
	u := "http://" + net.JoinHostPort(s.guest.String(), strconv.Itoa(guest.AgentPort)) + guest.FilesPath + "?username=root&path=" + url.QueryEscape(path)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(req)
	must(t, err)
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
	must(t, err)
	return string(text), reply.StatusCode
}

func (s *slot) hasFile(t *testing.T, path, want string) {
	t.Helper()
	text, status := s.file(t, path)
	if want == "" && status == http.StatusNotFound {
		return
	}
	if status != http.StatusOK || text != want {
		t.Fatalf("the agent shows %s as %q, %d; want %q", path, text, status, want)
	}
}

// excludes sees that O_EXCL and mkdir keep two instances from doing the same at
// once.
func (s *suite) excludes(t *testing.T, a, b *slot) {
	t.Helper()
	var made atomic.Int32
	var both sync.WaitGroup
	for i := range 20 {
		path := fmt.Sprintf("/srv/alone-%d", i)
		for _, at := range []*slot{a, b} {
			both.Go(func() {
				switch _, status, err := at.try(t.Context(), "/alone", "path", path); {
				case err != nil:
					t.Errorf("%s: %v", path, err)
				case status == http.StatusOK:
					made.Add(1)
				}
			})
		}
		both.Wait()
	}
	if made.Load() != 20 {
		t.Errorf("20 files were made %d times with O_EXCL", made.Load())
	}
	a.expect(t, "", "/mkdir", "path", "/srv/lock")
	b.refused(t, "file exists", "/mkdir", "path", "/srv/lock")
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

// others has one instance see what another does to a volume while the first
// looks again and again, so that its engine knows all the directories: a file at
// the next call, also by a name that is new to it, a directory on the way to it
// within a moment.
func (s *suite) others(t *testing.T) {
	a, b, dir := s.slots[0], s.slots[1], t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "one", "two"), 0o755))
	for _, at := range []*slot{a, b} {
		s.withVolume(t, dir, at)
		at.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
		name := "/srv/of-" + at.guest.String()
		at.expect(t, "", "/mkdir", "path", name)
		at.expect(t, "", "/opens", "path", name)
	}
	const file = "/srv/one/two/file"
	for range 10 {
		a.refused(t, "no such file", "/read", "path", file)
		b.expect(t, "", "/alone", "path", file)
		a.refused(t, "file exists", "/alone", "path", file)
		a.expect(t, "-rw-r--r-- 0", "/stat", "path", file)
		a.expect(t, "", "/keep", "path", file)
		b.expect(t, "", "/write", "path", file, "text", "longer")
		a.expect(t, "longer, by a", "/kept", "path", file, "text", ", by a")
		b.expect(t, "", "/chmod", "path", file, "mode", "600")
		a.expect(t, "-rw------- 12", "/stat", "path", file)
		b.expect(t, "longer, by a", "/read", "path", file)
		b.expect(t, "", "/write", "path", "/srv/one/two/new", "text", "another")
		b.expect(t, "", "/rename", "path", "/srv/one/two/new", "to", file)
		a.expect(t, "another", "/read", "path", file)
		a.expect(t, "longer, by a", "/kept", "path", file)
		b.expect(t, "", "/remove", "path", file)
		a.refused(t, "no such file", "/stat", "path", file)
	}
	for i := range 3 { // a file that a knows, by a name that it does not know
		draft, final := "/srv/one/two/draft", fmt.Sprint("/srv/one/two/final-", i)
		b.expect(t, "", "/write", "path", draft, "text", "")
		a.expect(t, "-rw-r----- 0", "/stat", "path", draft)
		b.expect(t, "", "/write", "path", draft, "text", "whole")
		b.expect(t, "", "/chmod", "path", draft, "mode", "600")
		b.expect(t, "", "/rename", "path", draft, "to", final)
		a.expect(t, "-rw------- 5", "/stat", "path", final)
		link := fmt.Sprint("link-", i)
		must(t, os.Link(filepath.Join(dir, "one", "two", filepath.Base(final)), filepath.Join(dir, link)))
		b.expect(t, "", "/chmod", "path", final, "mode", "604")
		a.expect(t, "-rw----r-- 5", "/stat", "path", "/srv/"+link)
	}
	a.expect(t, "", "/alone", "path", file)
	for i := range 3 { // a directory goes, another comes in its place
		text := fmt.Sprint("new ", i)
		a.expect(t, "", "/read", "path", file)
		b.expect(t, "", "/rename", "path", "/srv/one", "to", "/srv/old")
		b.expect(t, "", "/mkdir", "path", "/srv/one")
		b.expect(t, "", "/mkdir", "path", "/srv/one/two")
		b.expect(t, "", "/write", "path", file, "text", "")
		b.expect(t, "", "/write", "path", "/srv/one/two/note", "text", text)
		a.soon(t, text, "/read", "path", "/srv/one/two/note")
		b.expect(t, "", "/remove", "path", "/srv/old")
		a.refused(t, "no such file", "/stat", "path", "/srv/old")
	}
	b.expect(t, "", "/remove", "path", "/srv/one")
	a.soonRefused(t, "no such file", "/read", "path", file)
}

// linksToMoved has an instance link a file that it knows by a name which another
// user of the volume has since given to another file, and to a directory that the
// link goes into. A link is of the file itself, and the call returns.
func (s *suite) linksToMoved(t *testing.T) {
	for _, there := range []string{"file", "directory"} {
		t.Run(there, func(t *testing.T) {
			a, dir := s.slots[0], t.TempDir()
			s.withVolume(t, dir, a)
			a.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
			name, to := filepath.Join(dir, "name"), "/srv/link"
			a.expect(t, "", "/write", "path", "/srv/name", "text", "the file")
			a.expect(t, "", "/keep", "path", "/srv/name")
			must(t, os.Rename(name, filepath.Join(dir, "moved")))
			if there == "file" {
				must(t, os.WriteFile(name, []byte("another"), 0o644))
			} else {
				must(t, os.Mkdir(name, 0o777))
				to = "/srv/name/link"
			}
			a.expect(t, "", "/link", "path", "/srv/moved", "to", to)
			a.expect(t, "the file", "/read", "path", to)
		})
	}
}

// renamesIntoMoved has an instance rename into a directory that it has open, and
// that another user of the volume has since moved away and replaced. A directory
// moves that has the name of one above, or a file by the name that it has already:
// the call returns, the file is in the directory that is open, and later calls
// return too.
func (s *suite) renamesIntoMoved(t *testing.T) {
	for _, c := range []struct {
		what, open, path, to string // what is kept open, what is renamed into it, and its name there
	}{
		{"under what has the name of its parent", "/dir/below", "/dir", "there"},
		{"under its own name", "/dir/below", "/dir/below", "there"},
		{"by the name that it has", "/dir/below", "/dir/below/note", "note"},
	} {
		t.Run(c.what, func(t *testing.T) {
			a, dir := s.slots[0], t.TempDir()
			s.withVolume(t, dir, a)
			a.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
			must(t, os.MkdirAll(filepath.Join(dir, "dir", "below"), 0o755))
			a.expect(t, "", "/keep", "path", "/srv"+c.open)
			must(t, os.Rename(filepath.Join(dir, "dir"), filepath.Join(dir, "moved")))
			must(t, os.MkdirAll(filepath.Join(dir, "dir", "below"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "dir", "below", "note"), []byte("text"), 0o644))
			a.expect(t, "text", "/read", "path", "/srv/dir/below/note")
			a.expect(t, "", "/rename", "path", "/srv"+c.path, "into", "/srv"+c.open, "to", c.to)
			if _, err := os.Lstat(filepath.Join(dir, c.path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what is renamed is there still: %v", err)
			}
			rest, _ := filepath.Rel(c.path, "/dir/below/note")
			at := filepath.Join("moved/below", c.to, rest)
			a.expect(t, "text", "/read", "path", "/srv/"+at)
			if text, err := os.ReadFile(filepath.Join(dir, at)); string(text) != "text" {
				t.Errorf("the host reads %q, %v", text, err)
			}
			a.expect(t, "", "/write", "path", "/srv/note", "text", "one")
			a.expect(t, "", "/rename", "path", "/srv/note", "to", "/srv/last")
			a.expect(t, "one", "/read", "path", "/srv/last")
		})
	}
}

// targetsOfLinks has an instance remove a symbolic link from a directory that it has
// open, and that another user of the volume has moved away and replaced: the link of
// that name in the new directory leads where it did.
func (s *suite) targetsOfLinks(t *testing.T) {
	a, dir := s.slots[0], t.TempDir()
	s.withVolume(t, dir, a)
	a.expect(t, "", "/bind", "source", volumeInside, "path", "/srv")
	a.expect(t, "", "/mkdir", "path", "/srv/dir")
	a.expect(t, "", "/symlink", "text", "old", "path", "/srv/dir/link")
	a.expect(t, "", "/keep", "path", "/srv/dir")
	a.expect(t, "old", "/target", "path", "/srv/dir/link")
	must(t, os.Rename(filepath.Join(dir, "dir"), filepath.Join(dir, "moved")))
	must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	must(t, os.Symlink("new", filepath.Join(dir, "dir", "link")))
	a.expect(t, "new", "/target", "path", "/srv/dir/link")
	a.expect(t, "", "/unlink", "from", "/srv/dir", "name", "link")
	a.refused(t, "no such file", "/target", "path", "/srv/moved/link")
	a.expect(t, "new", "/target", "path", "/srv/dir/link")
}

// soon asks until the answer is this one: what another instance did is seen after
// a moment. soonRefused waits for an error with a text in it.
func (s *slot) soon(t *testing.T, want, path string, args ...string) {
	t.Helper()
	s.until(t, path, args, func(text string, status int) bool { return status == http.StatusOK && text == want })
}

func (s *slot) soonRefused(t *testing.T, want, path string, args ...string) {
	t.Helper()
	s.until(t, path, args, func(text string, status int) bool {
		return status == http.StatusConflict && strings.Contains(text, want)
	})
}

func (s *slot) until(t *testing.T, path string, args []string, good func(string, int) bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		text, status := s.ask(t, path, args...)
		if good(text, status) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("guest goes on answering %s %q with %d %.200q", path, args, status, text)
		}
	}
}
