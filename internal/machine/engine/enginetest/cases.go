package enginetest

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

func (s *suite) boot(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "cay", "/host")
	at.expect(t, "from the image", "/read", "path", "/etc/old")
	at.refused(t, "not permitted", "/mount", "path", "/run")
	at.refused(t, "read-only", "/write", "path", "/.cay/mine", "text", "x")

	listener, err := net.Listen("tcp", net.JoinHostPort(at.host.String(), "0"))
	must(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("from the host"))
			conn.Close()
		}
	}()
	at.expect(t, "from the host", "/dial", "addr", listener.Addr().String())

	u, err := s.Usage(t.Context(), id)
	must(t, err)
	if u.CPUTime <= 0 || u.MemoryUsed <= 0 || u.Tasks <= 0 || u.At.IsZero() {
		t.Errorf("usage of a living instance: %+v", u)
	}
	if u.MemoryMax != int64(limits.MemoryMB)<<20 || u.DiskMax != int64(limits.DiskMB)<<20 {
		t.Errorf("limits in usage: %+v", u)
	}
	ids, err := s.List(t.Context())
	must(t, err)
	if !slices.Contains(ids, id) {
		t.Errorf("%s is not in %s", id, ids)
	}

	death, err := s.Watch(id)
	must(t, err)
	must(t, s.Kill(t.Context(), id))
	if d := receive(t, death); d.Cause != cay.CauseAsked || d.Instance != id || d.At.IsZero() {
		t.Errorf("death of a killed instance: %+v", d)
	}
	must(t, s.Kill(t.Context(), id)) // again is fine
	s.gone(t, id)
	if _, err := s.Usage(t.Context(), id); cay.KindOf(err) != cay.NotFound {
		t.Errorf("usage of a dead instance: %v", err)
	}
}

func (s *suite) restore(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")
	at.expect(t, "", "/write", "path", "/tmp/note", "text", "before")

	kept, keptDir := s.snapshot(t, id, true)
	at.expect(t, "2", "/count") // it went on
	if kept.Root != "sha256-test" || kept.Kind != cay.MemorySnapshot || kept.Limits != limits || kept.Size() == 0 {
		t.Errorf("record of a snapshot: %+v", kept)
	}
	for _, f := range kept.Files {
		if info, err := os.Stat(filepath.Join(keptDir, f.Name)); err != nil || info.Size() != f.Size || len(f.CRC32C) != 8 {
			t.Errorf("file of a snapshot: %+v, %v", f, err)
		}
	}
	last, lastDir := s.snapshot(t, id, false)
	s.gone(t, id)

	again := s.resume(t, last, lastDir, at)
	at.expect(t, "3", "/count")
	at.expect(t, "before", "/read", "path", "/tmp/note")
	must(t, s.Kill(t.Context(), again))

	s.resume(t, kept, keptDir, at)
	at.expect(t, "2", "/count")
	at.expect(t, "before", "/read", "path", "/tmp/note")
}

func (s *suite) twins(t *testing.T) {
	a, b := s.slots[0], s.slots[1]
	id := s.start(t, a)
	a.expect(t, "1", "/count")
	snap, dir := s.snapshot(t, id, false)

	s.resume(t, snap, dir, a)
	second := s.resume(t, snap, dir, b)
	a.expect(t, "2", "/count")
	a.expect(t, "3", "/count")
	b.expect(t, "2", "/count")
	a.expect(t, "", "/write", "path", "/tmp/mine", "text", "a")
	b.refused(t, "no such file", "/read", "path", "/tmp/mine")

	// A snapshot of a restored instance restores as well.
	grandchild, from := s.snapshot(t, second, false)
	s.resume(t, grandchild, from, b)
	b.expect(t, "3", "/count")
	a.expect(t, "4", "/count")
}

func (s *suite) strangers(t *testing.T) {
	at := s.slots[0]
	snap, dir := s.snapshot(t, s.start(t, at), false)
	must(t, s.CanRestore(snap))
	for name, spoil := range map[string]func(*cay.Snapshot){
		"engine":  func(s *cay.Snapshot) { s.Engine = "another" },
		"build":   func(s *cay.Snapshot) { s.EngineHash = "0123456789abcdef" },
		"format":  func(s *cay.Snapshot) { s.Format = 999 },
		"kind":    func(s *cay.Snapshot) { s.Kind = cay.FilesSnapshot },
		"feature": func(s *cay.Snapshot) { s.CPUFeatures = append(slices.Clone(s.CPUFeatures), "telepathy") },
	} {
		bad := snap
		spoil(&bad)
		if err := s.CanRestore(bad); cay.KindOf(err) != cay.Conflict {
			t.Errorf("wrong %s: CanRestore says %v", name, err)
		} else if lacks := cay.CodeOf(err) == cay.CodeProcessor; lacks != (name == "feature") {
			t.Errorf("wrong %s: CanRestore has the code %q", name, cay.CodeOf(err))
		}
		spec := s.restoreSpec(bad, dir, at)
		if err := s.Restore(t.Context(), spec); cay.KindOf(err) != cay.Conflict {
			t.Errorf("wrong %s: Restore says %v", name, err)
		}
		s.gone(t, spec.ID)
	}
}

func (s *suite) adopt(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "1", "/count")

	next := s.open(t)
	if _, err := next.Usage(t.Context(), id); cay.KindOf(err) != cay.NotFound {
		t.Errorf("usage before adoption: %v", err)
	}
	ids, err := next.List(t.Context())
	must(t, err)
	if !slices.Contains(ids, id) {
		t.Fatalf("%s is not in %s", id, ids)
	}
	must(t, next.Adopt(t.Context(), id))
	must(t, next.Adopt(t.Context(), id)) // again is fine
	at.expect(t, "2", "/count")
	death, err := next.Watch(id)
	must(t, err)
	snap, err := next.Checkpoint(t.Context(), id, t.TempDir(), engine.GoesOn)
	must(t, err)
	if len(snap.CPUFeatures) == 0 || snap.EngineHash == "" {
		t.Errorf("record of an adopted instance's snapshot: %+v", snap)
	}
	at.expect(t, "3", "/count")
	must(t, next.Kill(t.Context(), id))
	receive(t, death)
	if err := next.Adopt(t.Context(), id); cay.KindOf(err) != cay.NotFound {
		t.Errorf("adopting a dead instance: %v", err)
	}
	s.gone(t, id)
}

// halfMade kills an instance behind an engine that never heard of it.
func (s *suite) halfMade(t *testing.T) {
	id := s.start(t, s.slots[0])
	next := s.open(t)
	must(t, next.Kill(t.Context(), id))
	s.gone(t, id)
	must(t, next.Kill(t.Context(), cay.NewInstanceID())) // never existed
	if err := next.Adopt(t.Context(), cay.NewInstanceID()); cay.KindOf(err) != cay.NotFound {
		t.Errorf("adopting nothing: %v", err)
	}
}

func (s *suite) pause(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	must(t, s.Hold(t.Context(), id))
	must(t, s.Hold(t.Context(), id))
	at.still(t)
	must(t, s.Release(t.Context(), id))
	must(t, s.Release(t.Context(), id))
	at.expect(t, "ok", "/health")

	// A save may hold it first, also one that is held already, and leaves it held.
	at.expect(t, "1", "/count")
	var snap cay.Snapshot
	var dir string
	for range 2 {
		dir = t.TempDir()
		var err error
		snap, err = s.Checkpoint(t.Context(), id, dir, engine.Stays)
		must(t, err)
		at.still(t)
	}
	must(t, s.Release(t.Context(), id))
	at.expect(t, "2", "/count")
	must(t, s.Kill(t.Context(), id))
	snap.ID = cay.NewSnapshotID()
	id = s.resume(t, snap, dir, at)
	at.expect(t, "2", "/count")

	// One that fails leaves it held, too.
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := s.Checkpoint(t.Context(), id, file, engine.Stays); err == nil {
		t.Error("it is saved into a file")
	}
	must(t, s.Release(t.Context(), id))
	at.expect(t, "3", "/count")
}

// still expects a guest that is held.
func (s *slot) still(t *testing.T) {
	t.Helper()
	// It never answers, however slow this machine is, so this cannot flake.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if text, _, err := s.try(ctx, "/health"); err == nil {
		t.Errorf("a held guest answers %q", text)
	}
}

// freeze also makes sure that what is frozen can be killed, and that what was
// restored in the background can be used like any other.
func (s *suite) freeze(t *testing.T) {
	at := s.slots[0]
	snap, from := s.snapshot(t, s.start(t, at), false)
	for _, last := range []string{"thawed", "frozen"} {
		spec := s.restoreSpec(snap, from, at)
		spec.Background = true
		at.address(t)
		s.endWith(t, spec.ID)
		must(t, s.Restore(t.Context(), spec))
		at.expect(t, "ok", "/health")
		err := s.Freeze(t.Context(), spec.ID)
		if cay.KindOf(err) == cay.Unsupported {
			t.Skip(err)
		}
		must(t, err)
		must(t, s.Freeze(t.Context(), spec.ID))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if text, _, err := at.try(ctx, "/health"); err == nil {
			t.Errorf("a frozen guest answers %q", text)
		}
		cancel()
		if last == "thawed" {
			must(t, s.Thaw(t.Context(), spec.ID))
			must(t, s.Thaw(t.Context(), spec.ID))
			at.expect(t, "ok", "/health")
		}
		must(t, s.Kill(t.Context(), spec.ID))
		s.gone(t, spec.ID)
	}
}

// frozenWhileItMaps freezes a guest again and again while it maps and unmaps
// memory. An engine has parts of itself wait for each other meanwhile, and a
// freeze may interrupt each of these waits.
func (s *suite) frozenWhileItMaps(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	answer := make(chan error, 1)
	go func() {
		text, _, err := at.try(t.Context(), "/remap", "times", "5000")
		if err == nil && text != "mapped" {
			err = errors.New(text)
		}
		answer <- err
	}()
	for freezes := 0; ; freezes++ {
		err := s.Freeze(t.Context(), id)
		if cay.KindOf(err) == cay.Unsupported {
			t.Skip(err)
		}
		must(t, err)
		must(t, s.Thaw(t.Context(), id))
		select {
		case err := <-answer:
			if err != nil {
				t.Errorf("after %d freezes: %v", freezes, err)
			}
			t.Logf("%d freezes", freezes)
			return
		default:
		}
	}
}

// reserved mounts something on the host that must appear in a running guest.
func (s *suite) reserved(t *testing.T) {
	at := s.slots[0]
	id := cay.NewInstanceID()
	spec := s.bootSpec(id, at)
	later := filepath.Join(spec.Reserved, "later")
	must(t, os.MkdirAll(later, 0o755))
	at.address(t)
	s.endWith(t, id)
	must(t, s.Boot(t.Context(), spec))
	at.refused(t, "no such file", "/read", "path", "/.cay/later/note")
	must(t, unix.Mount("cayet", later, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(later, unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(later, "note"), []byte("volume"), 0o644))
	at.expect(t, "volume", "/read", "path", "/.cay/later/note")
}

func (s *suite) changes(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/write", "path", "/etc/new", "text", "hello")
	at.expect(t, "", "/fill", "path", "/tmp/big", "mb", "3")
	at.expect(t, "", "/remove", "path", "/etc/old")
	at.expect(t, "", "/remove", "path", "/srv") // and made again, without its file
	at.expect(t, "", "/mkdir", "path", "/srv")

	stream, err := s.Changes(t.Context(), id)
	must(t, err)
	defer stream.Close()
	found := make(map[string]string)
	for in := tar.NewReader(stream); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		text, err := io.ReadAll(in)
		must(t, err)
		found[h.Name] = string(text)
		if h.Name == "etc/new" && (h.Mode != 0o640 || h.Uid != 0) {
			t.Errorf("a changed file's header: %+v", h)
		}
	}
	must(t, stream.Close())
	s.sameFiles(t, id, found)
	if found["etc/new"] != "hello" {
		t.Errorf("changed file: %q", found["etc/new"])
	}
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	if found["tmp/big"] != strings.Repeat(string(block), 3) {
		t.Errorf("changed big file: %d bytes, or wrong ones", len(found["tmp/big"]))
	}
	for _, name := range []string{"etc/.wh.old", "srv/", "srv/.wh..wh..opq"} {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is not among the changes", name)
		}
	}
	for _, name := range []string{"guest", "etc/hosts", "etc/old", "srv/inside"} {
		if _, ok := found[name]; ok {
			t.Errorf("%s is among the changes", name)
		}
	}
	at.expect(t, "hello", "/read", "path", "/etc/new") // it went on
}

// sameFiles saves the files of an instance and reads of them what its changes
// are. Bodies that are not asked for are passed over.
func (s *suite) sameFiles(t *testing.T, id cay.InstanceID, want map[string]string) {
	t.Helper()
	_, dir := s.saveFiles(t, id)
	got := make(map[string]string)
	must(t, s.ReadFiles(dir, func(h *tar.Header, body io.Reader) error {
		got[h.Name] = want[h.Name]
		if len(h.Name)%2 == 0 {
			return nil
		}
		text, err := io.ReadAll(body)
		got[h.Name] = string(text)
		return err
	}))
	if !maps.Equal(got, want) {
		t.Errorf("%d files were saved, and not the %d that were changed", len(got), len(want))
	}
	stop := errors.New("enough")
	if err := s.ReadFiles(dir, func(*tar.Header, io.Reader) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a reader that stopped got %v", err)
	}
	if err := s.ReadFiles(t.TempDir(), nil); cay.KindOf(err) != cay.NotFound {
		t.Errorf("files that are not there: %v", err)
	}
}

// elevate runs a set-uid program as another user, as sudo does.
func (s *suite) elevate(t *testing.T) {
	at := s.slots[0]
	s.start(t, at)
	at.expect(t, "0", "/elevate", "path", "/guest-suid")
	at.expect(t, "1000", "/elevate", "path", "/guest")
}

func (s *suite) ownEnd(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	death, err := s.Watch(id)
	must(t, err)
	at.expect(t, "", "/exit", "code", "3")
	if d := receive(t, death); d.Cause != cay.CauseEngine || d.Detail == "" {
		t.Errorf("death by its own end: %+v", d)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
}

func (s *suite) outOfMemory(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	death, err := s.Watch(id)
	must(t, err)
	go func() { _, _, _ = at.try(t.Context(), "/eat", "mb", "2000") }() // its answer never comes
	if d := receive(t, death); d.Cause != cay.CauseOutOfMemory || d.Detail == "" {
		t.Errorf("death out of memory: %+v", d)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
}

func (s *suite) diskFull(t *testing.T) {
	at := s.slots[0]
	id := s.start(t, at)
	at.expect(t, "", "/fill", "path", "/tmp/part", "mb", "20")
	u, err := s.Usage(t.Context(), id)
	must(t, err)
	if u.DiskUsed < 20<<20 {
		t.Errorf("usage after writing 20 MB: %d bytes of disk", u.DiskUsed)
	}
	s.reservedRoom(t, id, at)
	at.refused(t, "no space left", "/fill", "path", "/tmp/rest", "mb", "100")
	at.expect(t, "", "/remove", "path", "/tmp/rest")
	at.expect(t, "", "/write", "path", "/tmp/after", "text", "x")
}

// reservedRoom is taken from the disk, but no save writes it.
func (s *suite) reservedRoom(t *testing.T, id cay.InstanceID, at *slot) {
	t.Helper()
	at.expect(t, "", "/reserve", "path", "/tmp/reserved", "mb", "30")
	u, err := s.Usage(t.Context(), id)
	must(t, err)
	size, err := s.SaveSize(t.Context(), id, true)
	must(t, err)
	if u.DiskUsed < 50<<20 || size < 20<<20 || size > 25<<20 {
		t.Errorf("20 MB are written and 30 reserved: %d bytes of disk are used, a save has %d", u.DiskUsed, size)
	}
	snap, _ := s.saveFiles(t, id)
	if snap.Size() > size+1<<20 {
		t.Errorf("a save was said to have %d bytes, and has %d", size, snap.Size())
	}
	if whole, err := s.SaveSize(t.Context(), id, false); err != nil || whole <= size {
		t.Errorf("a save with memory has %d bytes, one of files %d: %v", whole, size, err)
	}
	at.expect(t, "", "/remove", "path", "/tmp/reserved")
}

// failedStarts tries starts that cannot succeed: nothing of them may be left.
func (s *suite) failedStarts(t *testing.T) {
	at := s.slots[0]
	id := cay.NewInstanceID()
	at.address(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Boot(ctx, s.bootSpec(id, at)); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("boot with an ended context: %v", err)
	}
	s.gone(t, id)

	missing := s.bootSpec(cay.NewInstanceID(), at)
	missing.Root = filepath.Join(s.dir, "nothing.erofs")
	if err := s.Boot(t.Context(), missing); cay.KindOf(err) != cay.NotFound {
		t.Errorf("boot without its root image: %v", err)
	}
	s.gone(t, missing.ID)

	snap, dir := s.snapshot(t, s.start(t, at), false)
	lost := s.restoreSpec(snap, t.TempDir(), at)
	if err := s.Restore(t.Context(), lost); cay.KindOf(err) != cay.NotFound {
		t.Errorf("restore without the snapshot's files: %v", err)
	}
	s.gone(t, lost.ID)

	// A sentry that cannot read the head of its state says so, and does not fail.
	state := filepath.Join(dir, "checkpoint.img")
	whole, err := os.ReadFile(state)
	must(t, err)
	for text, want := range map[string]string{"": "cannot be empty", "no state": "bad magic header"} {
		must(t, os.WriteFile(state, []byte(text), 0o600))
		broken := s.restoreSpec(snap, dir, at)
		if err := s.Restore(t.Context(), broken); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "panic") {
			t.Errorf("restore of a state %q: %v", text, err)
		}
		s.gone(t, broken.ID)
	}
	must(t, os.WriteFile(state, whole, 0o600))
	must(t, s.Kill(t.Context(), s.resume(t, snap, dir, at)))

	torn := s.bootSpec(cay.NewInstanceID(), at)
	torn.Args = []string{"/no/such/program"}
	if err := s.Boot(t.Context(), torn); err == nil {
		t.Error("boot of a program that is not there: no error")
	}
	s.gone(t, torn.ID)
}

// killedStart kills an instance that is being made.
func (s *suite) killedStart(t *testing.T) {
	at := s.slots[0]
	id := cay.NewInstanceID()
	at.address(t)
	s.endWith(t, id)
	booted := make(chan error, 1)
	go func() { booted <- s.Boot(t.Context(), s.bootSpec(id, at)) }()
	for listed := false; !listed; {
		ids, err := s.List(t.Context())
		must(t, err)
		listed = slices.Contains(ids, id)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
	// It may have been whole already: then it was a common kill.
	if err := <-booted; err != nil && cay.KindOf(err) != cay.Unavailable {
		t.Errorf("boot of a killed instance: %v", err)
	}
	s.gone(t, id)
}

// receive waits for the one death that a channel brings, and for its close.
func receive(t *testing.T, ch <-chan cay.Death) cay.Death {
	t.Helper()
	timeout := time.After(patience)
	var d cay.Death
	for n := 0; ; n++ {
		select {
		case next, open := <-ch:
			if !open && n == 1 {
				return d
			}
			if !open || n > 0 {
				t.Fatal(errors.New("a death must be told once"))
			}
			d = next
		case <-timeout:
			t.Fatal("no death was told")
		}
	}
}
