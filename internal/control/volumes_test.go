package control_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// files are volumes in memory, which the instances of a node use.
type files struct {
	w *world

	mu   sync.Mutex
	size map[cay.VolumeID]int
	full error // of what is made

	// made and resized, where they are not nil, are called with what was done.
	made, resized func(id cay.VolumeID) error
}

func told(f func(cay.VolumeID) error, id cay.VolumeID) error {
	if f == nil {
		return nil
	}
	return f(id)
}

func (f *files) has(id cay.VolumeID) error {
	if f.size[id] == 0 {
		return cay.Errorf(cay.NotFound, "there is no volume %s", id)
	}
	return nil
}

func (f *files) Failure(cay.VolumeID, error) *cay.Error { return nil }

func (f *files) Create(_ context.Context, id cay.VolumeID, sizeMB int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full == nil {
		f.size[id] = sizeMB
	}
	return f.full
}

func (f *files) Clone(ctx context.Context, from, id cay.VolumeID) error {
	f.mu.Lock()
	size := f.size[from]
	f.mu.Unlock()
	if err := f.Create(ctx, id, size); err != nil {
		return err
	}
	return told(f.made, id)
}

func (f *files) Replace(context.Context, cay.VolumeID, cay.VolumeID) error { return nil }

func (f *files) Resize(_ context.Context, id cay.VolumeID, sizeMB int) error {
	f.mu.Lock()
	err := f.has(id)
	if err == nil {
		f.size[id] = sizeMB
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return told(f.resized, id)
}

func (f *files) Delete(_ context.Context, id cay.VolumeID) error {
	for _, i := range f.w.node.Alive() {
		if slices.ContainsFunc(i.Spec.Volumes, func(m cay.VolumeMount) bool { return m.Volume == id }) {
			return cay.Errorf(cay.Conflict, "volume %s is attached", id)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.size, id)
	return nil
}

func (f *files) Attach(_ context.Context, id cay.VolumeID) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "/nowhere", f.has(id)
}

func (f *files) Detach(cay.VolumeID) {}

func (f *files) Usage(_ context.Context, id cay.VolumeID) (cay.VolumeUsage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cay.VolumeUsage{Size: int64(f.size[id]) << 20, Stored: 1 << 20}, f.has(id)
}

func (f *files) List(context.Context) ([]cay.VolumeID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []cay.VolumeID
	for id := range f.size {
		out = append(out, id)
	}
	return out, nil
}

// withVolumes is a world whose server keeps volumes.
func withVolumes(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.files = &files{w: w, size: map[cay.VolumeID]int{}}
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		for _, m := range spec.Volumes {
			if _, err := w.files.Attach(t.Context(), m.Volume); err != nil {
				return cay.Wrap(cay.Conflict, err, "mount its volumes: %v", err)
			}
		}
		return nil
	}
	w.restart()
	return w
}

func (w *world) volume(name string) cay.Volume {
	w.Helper()
	v, err := w.c.Vols.Create(w.Context(), w.who(), name, 100)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// lose has a volume be gone, as no caller can while a sandbox mounts it.
func (w *world) lose(v cay.Volume) {
	w.Helper()
	if err := w.store.RemoveVolume(w.Context(), v.Team, v.ID); err != nil {
		w.Fatal(err)
	}
	w.files.mu.Lock()
	defer w.files.mu.Unlock()
	delete(w.files.size, v.ID)
}

// mounted creates a sandbox.
func (w *world) mounted(mounts ...cay.MountSpec) (cay.Sandbox, error) {
	spec := w.spec(time.Hour)
	spec.Volumes = mounts
	return w.c.Create(w.Context(), w.who(), spec)
}

// TestVolumesInEveryVerb has sandboxes with each kind of mount go through all
// that can be done with them: the mounts stay, and the volumes are kept.
func TestVolumesInEveryVerb(t *testing.T) {
	options := map[string]func(a, b cay.Volume) []cay.MountSpec{
		"plain": func(a, b cay.Volume) []cay.MountSpec { return []cay.MountSpec{{Volume: a.Name, Path: "/mnt"}} },
		"by id": func(a, b cay.Volume) []cay.MountSpec { return []cay.MountSpec{{Volume: string(a.ID), Path: "/mnt/x"}} },
		"read-only": func(a, b cay.Volume) []cay.MountSpec {
			return []cay.MountSpec{{Volume: a.Name, Path: "/mnt", ReadOnly: true}}
		},
		"sub-path": func(a, b cay.Volume) []cay.MountSpec {
			return []cay.MountSpec{{Volume: a.Name, Path: "/mnt", SubPath: "x/y"}}
		},
		"two": func(a, b cay.Volume) []cay.MountSpec {
			return []cay.MountSpec{{Volume: b.Name, Path: "/b"}, {Volume: a.Name, Path: "/a"}}
		},
		"twice": func(a, b cay.Volume) []cay.MountSpec {
			return []cay.MountSpec{{Volume: a.Name, Path: "/mnt", SubPath: "x"}, {Volume: a.Name, Path: "/opt", ReadOnly: true}}
		},
	}
	type verb struct {
		name string
		do   func(w *world, s cay.Sandbox) (cay.Sandbox, error)
	}
	resumed := func(w *world, s cay.Sandbox, kind cay.SnapshotKind, memory bool) (cay.Sandbox, error) {
		if err := w.c.Pause(w.Context(), w.who(), s.ID, kind, false); err != nil {
			return s, err
		}
		w.refuses(s)
		s, _, err := w.c.Connect(w.Context(), w.who(), s.ID, time.Hour, memory)
		return s, err
	}
	only := func(forks []cay.Sandbox, err error) (cay.Sandbox, error) {
		if err != nil || len(forks) != 1 {
			return cay.Sandbox{}, fmt.Errorf("%d forks, %w", len(forks), err)
		}
		return forks[0], nil
	}
	verbs := []verb{
		{"connect", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			s, _, err := w.c.Connect(w.Context(), w.who(), s.ID, time.Hour, true)
			return s, err
		}},
		{"timeout", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			return s, w.c.SetTimeout(w.Context(), w.who(), s.ID, 2*time.Hour)
		}},
		{"pause and resume", func(w *world, s cay.Sandbox) (cay.Sandbox, error) { return resumed(w, s, cay.MemorySnapshot, true) }},
		{"pause of files and resume", func(w *world, s cay.Sandbox) (cay.Sandbox, error) { return resumed(w, s, cay.FilesSnapshot, true) }},
		{"pause and reboot", func(w *world, s cay.Sandbox) (cay.Sandbox, error) { return resumed(w, s, cay.MemorySnapshot, false) }},
		{"fork", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			forks, err := w.c.Fork(w.Context(), w.who(), s.ID, 1, time.Hour)
			var out []cay.Sandbox
			for _, f := range forks {
				if out = append(out, f.Sandbox); f.Err != nil {
					err = f.Err
				}
			}
			return only(out, err)
		}},
		{"rollback", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			s, _, err := w.c.Rollback(w.Context(), w.who(), s.ID, w.checkpoint(s, "here").ID)
			return s, err
		}},
		{"rollback while paused", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			n := w.checkpoint(s, "there")
			if err := w.c.Pause(w.Context(), w.who(), s.ID, cay.MemorySnapshot, false); err != nil {
				return s, err
			}
			if _, _, err := w.c.Rollback(w.Context(), w.who(), s.ID, n.ID); err != nil {
				return s, err
			}
			s, _, err := w.c.Connect(w.Context(), w.who(), s.ID, time.Hour, true)
			return s, err
		}},
		{"fork of a checkpoint", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			forks, err := w.c.ForkCheckpoint(w.Context(), w.who(), w.checkpoint(s, "x").ID, 1, time.Hour)
			var out []cay.Sandbox
			for _, f := range forks {
				if out = append(out, f.Sandbox); f.Err != nil {
					err = f.Err
				}
			}
			return only(out, err)
		}},
		{"snapshot", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			snap, err := w.c.Snapshot(w.Context(), w.who(), s.ID, "", cay.MemorySnapshot)
			if err != nil {
				return s, err
			}
			spec := w.spec(time.Hour)
			spec.Template = string(snap.ID)
			return w.c.Create(w.Context(), w.who(), spec)
		}},
		{"restart of the server", func(w *world, s cay.Sandbox) (cay.Sandbox, error) {
			w.restart()
			return w.c.Get(w.Context(), w.who(), s.ID)
		}},
	}
	for name, option := range options {
		t.Run(name, func(t *testing.T) {
			w := withVolumes(t)
			a, b := w.volume("a"), w.volume("b")
			asked := option(a, b)
			box, err := w.mounted(asked...)
			if err != nil {
				t.Fatal(err)
			}
			var want []cay.VolumeMount
			for _, m := range asked {
				v := a
				if m.Volume == b.Name {
					v = b
				}
				want = append(want, cay.VolumeMount{Volume: v.ID, Name: v.Name, Path: m.Path, SubPath: m.SubPath, ReadOnly: m.ReadOnly})
			}
			all := map[cay.SandboxID]bool{box.ID: true}
			check := func(verb string, s cay.Sandbox) {
				t.Helper()
				all[s.ID] = true
				got := w.alive(s)
				row, err := w.store.Sandbox(t.Context(), s.Team, s.ID)
				if err != nil || !slices.Equal(got.Volumes, want) || !slices.Equal(row.Volumes, want) {
					t.Errorf("%s: it has %+v, recorded %+v, %v", verb, got.Volumes, row.Volumes, err)
				}
				if spec := w.instance(got); !slices.Equal(spec.Volumes, want) {
					t.Errorf("%s: its instance has %+v", verb, spec.Volumes)
				}
				if got.Notice != "" {
					t.Errorf("%s: %s", verb, got.Notice)
				}
				w.refuses(got)
			}
			check("create", box)
			for _, verb := range verbs {
				s, err := verb.do(w, box)
				if err != nil {
					t.Fatalf("%s: %v", verb.name, err)
				}
				check(verb.name, s)
			}
			for id := range all {
				if err := w.c.Kill(t.Context(), w.who(), id); err != nil {
					t.Error(err)
				}
			}
			for _, v := range []cay.Volume{a, b} {
				if err := w.c.Vols.Delete(t.Context(), w.who(), v.Name); err != nil {
					t.Errorf("no sandbox mounts %s any more: %v", v.Name, err)
				}
			}
		})
	}
}

// refuses checks that no volume of a sandbox can be deleted, by its own team and
// by others.
func (w *world) refuses(s cay.Sandbox) {
	w.Helper()
	for _, m := range s.Volumes {
		err := w.c.Vols.Delete(w.Context(), w.who(), string(m.Volume))
		if cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != cay.CodeVolumeInUse || !strings.Contains(err.Error(), string(s.ID)) {
			w.Errorf("a volume of %s is deleted: %v", s.ID, err)
		}
		if err := w.c.Vols.Delete(w.Context(), cay.ForTeam(cay.NewTeamID()), string(m.Volume)); cay.KindOf(err) != cay.NotFound {
			w.Errorf("another team deletes it: %v", err)
		}
	}
}

func TestMountsThatCannotBe(t *testing.T) {
	w := withVolumes(t)
	w.volume("mine")
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := w.store.AddTeam(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	theirs, err := w.c.Vols.Create(t.Context(), cay.ForTeam(other.ID), "theirs", 100)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.mounted(
		cay.MountSpec{Volume: "mine", Path: "/ok"}, cay.MountSpec{Volume: "theirs", Path: "/a"}, cay.MountSpec{Volume: string(theirs.ID), Path: "/b"},
		cay.MountSpec{Volume: "mine", Path: "/proc/x"}, cay.MountSpec{Volume: "mine", Path: "/ok/below"}, cay.MountSpec{Volume: "", Path: "/c"},
		cay.MountSpec{Volume: "mine", Path: "/ok"}, cay.MountSpec{Volume: "mine", Path: "relative"}, cay.MountSpec{Volume: "mine", Path: "/d", SubPath: "../up"},
		cay.MountSpec{Volume: "mine", Path: "/e/../f"}, cay.MountSpec{Volume: "mine", Path: "/"}, cay.MountSpec{Volume: "mine", Path: "/\xff"},
		cay.MountSpec{Volume: "mine", Path: "/.cay"},
	)
	if cay.KindOf(err) != cay.Invalid || strings.HasPrefix(err.Error(), "volumeMounts[0]") || strings.Contains(err.Error(), string(other.ID)) {
		t.Errorf("bad mounts: %v", err)
	}
	for i := 1; i <= 12; i++ {
		if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("volumeMounts[%d]", i)) {
			t.Errorf("mount %d is not listed: %v", i, err)
		}
	}
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances", n)
	}
	many := make([]cay.MountSpec, cay.MaxVolumeMounts+1)
	if _, err := w.mounted(many...); cay.KindOf(err) != cay.Invalid {
		t.Errorf("too many: %v", err)
	}
}

// A volume that is gone is told, and only a boot goes on without it.
func TestVolumesThatAreGone(t *testing.T) {
	w := withVolumes(t)
	kept, lost := w.volume("kept"), w.volume("lost")
	box, err := w.mounted(cay.MountSpec{Volume: "kept", Path: "/k"}, cay.MountSpec{Volume: "lost", Path: "/l"})
	if err != nil {
		t.Fatal(err)
	}
	both := box.Volumes
	n := w.checkpoint(box, "with both")
	snap, err := w.c.Snapshot(t.Context(), w.who(), box.ID, "", cay.MemorySnapshot)
	if err != nil {
		t.Fatal(err)
	}
	w.pause(box)
	w.lose(lost)
	tells := func(what string, err error) {
		t.Helper()
		if cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != cay.CodeVolumeGone || !strings.Contains(err.Error(), string(lost.ID)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err = w.c.Connect(t.Context(), w.who(), box.ID, time.Hour, true)
	tells("a resume", err)
	spec := w.spec(time.Hour)
	spec.Template = string(snap.ID)
	_, err = w.c.Create(t.Context(), w.who(), spec)
	tells("a create of its snapshot", err)
	forks, err := w.c.ForkCheckpoint(t.Context(), w.who(), n.ID, 1, time.Hour)
	if err == nil {
		err = forks[0].Err
	}
	tells("a fork of its checkpoint", err)
	if got := w.is(box, cay.Paused); !slices.Equal(got.Volumes, both) {
		t.Errorf("it has %+v", got.Volumes)
	}
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return cay.Errorf(cay.Internal, "broken") }
	if _, _, err = w.c.Connect(t.Context(), w.who(), box.ID, time.Hour, false); err == nil {
		t.Error("a boot that cannot be succeeds")
	}
	w.node.OnCreate = nil
	if got := w.is(box, cay.Paused); !slices.Equal(got.Volumes, both) {
		t.Errorf("after a failed boot it has %+v", got.Volumes)
	}
	got, _, err := w.c.Connect(t.Context(), w.who(), box.ID, time.Hour, false)
	if err != nil || len(got.Volumes) != 1 || got.Volumes[0].Volume != kept.ID || !strings.Contains(got.Notice, "lost at /l") {
		t.Errorf("a boot: %+v, %q, %v", got.Volumes, got.Notice, err)
	}
	if spec := w.instance(w.alive(got)); len(spec.Volumes) != 1 {
		t.Errorf("its instance has %+v", spec.Volumes)
	}
	_, _, err = w.c.Rollback(t.Context(), w.who(), box.ID, n.ID)
	tells("a rollback", err)
	if got := w.alive(box); len(got.Volumes) != 1 {
		t.Errorf("after a refused rollback it has %+v", got.Volumes)
	}
}

// However deletions and creates meet, no volume in use is deleted and no sandbox
// has one that was.
func TestDeletionsMeetCreates(t *testing.T) {
	w := withVolumes(t)
	for range 40 {
		v := w.volume("v")
		var made cay.Sandbox
		var created, deleted error
		var wg sync.WaitGroup
		wg.Go(func() {
			if made, created = w.mounted(cay.MountSpec{Volume: "v", Path: "/v"}); created == nil {
				created = w.c.Pause(t.Context(), w.who(), made.ID, cay.MemorySnapshot, false)
			}
		})
		wg.Go(func() { deleted = w.c.Vols.Delete(t.Context(), w.who(), "v") })
		wg.Wait()
		switch {
		case created == nil && deleted == nil:
			t.Fatal("a volume was deleted that a sandbox mounts")
		case created != nil && deleted != nil:
			t.Fatalf("neither came: %v, %v", created, deleted)
		case deleted != nil && cay.CodeOf(deleted) != cay.CodeVolumeInUse:
			t.Errorf("deleted: %v", deleted)
		case created != nil && cay.KindOf(created) != cay.Invalid && cay.CodeOf(created) != cay.CodeVolumeGone:
			t.Errorf("created: %v", created)
		}
		if created == nil {
			if _, _, err := w.c.Connect(t.Context(), w.who(), made.ID, time.Hour, true); err != nil {
				t.Fatal(err)
			}
			if err := w.c.Kill(t.Context(), w.who(), made.ID); err != nil {
				t.Fatal(err)
			}
			if err := w.c.Vols.Delete(t.Context(), w.who(), string(v.ID)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(w.files.size) > 0 {
		t.Errorf("files are left: %v", w.files.size)
	}
}

// A crash while a volume is made leaves files, which go at the next start.
func TestVolumesAfterACrash(t *testing.T) {
	w := withVolumes(t)
	kept := w.volume("kept")
	if err := w.files.Create(t.Context(), cay.NewVolumeID(), 10); err != nil {
		t.Fatal(err)
	}
	garbage, err := w.c.Vols.Sweep(t.Context(), true)
	if err != nil || len(garbage) != 1 || garbage[0].Kind != "volume" || garbage[0].Bytes == 0 || len(w.files.size) != 2 {
		t.Errorf("garbage: %+v, %v", garbage, err)
	}
	w.restart()
	if len(w.files.size) != 1 || w.files.size[kept.ID] == 0 {
		t.Errorf("files: %v", w.files.size)
	}
	w.files.full = cay.Errorf(cay.NoSpace, "the disk is full")
	if _, err := w.c.Vols.Create(t.Context(), w.who(), "more", 100); cay.StatusOf(err) != 507 {
		t.Errorf("on a full disk: %v", err)
	}
	if list, err := w.c.Vols.List(t.Context(), w.who()); len(list) != 1 || err != nil {
		t.Errorf("volumes: %+v, %v", list, err)
	}
}

func TestVolumesAreLimited(t *testing.T) {
	w := withVolumes(t)
	w.limit(cay.LimitVolumes, 2, cay.LimitVolumeMB, 250)
	a := w.volume("a")
	if _, err := w.c.Vols.Resize(t.Context(), w.who(), "a", 251); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("too large: %v", err)
	}
	if _, err := w.c.Vols.Create(t.Context(), w.who(), "b", 151); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("too large in all: %v", err)
	}
	w.volume("b")
	if _, err := w.c.Vols.Create(t.Context(), w.who(), "c", 16); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("too many: %v", err)
	}
	if _, err := w.c.Vols.Resize(t.Context(), w.who(), string(a.ID), 150); err != nil {
		t.Errorf("as large as can be: %v", err)
	}
	use, err := w.c.Limits(t.Context(), w.who())
	if err != nil || use[cay.LimitVolumes].Used != 2 || use[cay.LimitVolumeMB].Used != 250 {
		t.Errorf("used: %+v, %v", use, err)
	}
	for _, bad := range []string{"", "a/b", "..", "ü", strings.Repeat("x", 129), string(a.ID), "a", "x y"} {
		if _, err := w.c.Vols.Create(t.Context(), w.who(), bad, 16); cay.StatusOf(err) != 400 {
			t.Errorf("the name %q: %v", bad, err)
		}
	}
}

// A size counts before the record of the volume that grows has it, and one volume
// changes in one way at a time: callers at once get no more than a team may have.
func TestVolumesThatGrowAtOnce(t *testing.T) {
	w := withVolumes(t)
	w.limit(cay.LimitVolumeMB, 300)
	a, b := w.volume("a"), w.volume("b")
	resize := func(v cay.Volume, sizeMB int) error {
		_, err := w.c.Vols.Resize(t.Context(), w.who(), string(v.ID), sizeMB)
		return err
	}
	grows, goOn := make(chan struct{}), make(chan error)
	w.files.resized = func(cay.VolumeID) error {
		close(grows)
		return <-goOn
	}
	for _, failed := range []error{cay.Errorf(cay.NoSpace, "the disk is full"), nil} {
		grows = make(chan struct{})
		ended := make(chan error, 1)
		go func() { ended <- resize(a, 200) }()
		<-grows
		if err := resize(b, 101); cay.CodeOf(err) != cay.CodeTeamLimit {
			t.Errorf("another grows: %v", err)
		}
		if _, err := w.c.Vols.Create(t.Context(), w.who(), "c", 16); cay.CodeOf(err) != cay.CodeTeamLimit {
			t.Errorf("another is made: %v", err)
		}
		if _, err := w.c.Vols.Snapshot(t.Context(), w.who(), "b", ""); cay.CodeOf(err) != cay.CodeTeamLimit {
			t.Errorf("a snapshot: %v", err)
		}
		if err := resize(a, 150); cay.CodeOf(err) != cay.CodeVolumeInUse {
			t.Errorf("the same grows: %v", err)
		}
		goOn <- failed
		if err := <-ended; cay.KindOf(err) != cay.KindOf(failed) {
			t.Errorf("it ended with %v, and not with %v", err, failed)
		}
	}
	w.files.resized = nil
	if err := resize(b, 101); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("beyond what is recorded: %v", err)
	}
	if err := w.c.Vols.Delete(t.Context(), w.who(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := resize(b, 300); err != nil {
		t.Errorf("with the room of what is deleted: %v", err)
	}
}

// A copy that takes long holds up no other team, nor its own; what it is made of
// stays, and so do its files, which have no record yet.
func TestSlowCopiesHoldNothingUp(t *testing.T) {
	w := withVolumes(t)
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := w.store.AddTeam(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	from := w.volume("from")
	w.volume("spare")
	for _, copying := range []func(name string) error{
		func(name string) error {
			_, err := w.c.Vols.Clone(t.Context(), w.who(), "from", "", name)
			return err
		},
		func(name string) error {
			_, err := w.c.Vols.Snapshot(t.Context(), w.who(), "from", name)
			return err
		},
	} {
		copies, goOn, ended := make(chan cay.VolumeID, 1), make(chan struct{}), make(chan error, 1)
		w.files.made = func(id cay.VolumeID) error {
			copies <- id
			<-goOn
			return nil
		}
		go func() { ended <- copying("copy") }()
		id := <-copies
		if err := w.c.Vols.Delete(t.Context(), w.who(), "from"); cay.CodeOf(err) != cay.CodeVolumeInUse {
			t.Errorf("its source is deleted: %v", err)
		}
		left, err := w.c.Vols.Sweep(t.Context(), false)
		if err != nil || len(left) != 0 {
			t.Errorf("swept: %+v, %v", left, err)
		}
		for _, team := range []cay.TeamID{other.ID, from.Team} {
			who := cay.ForTeam(team)
			_, err := w.c.Vols.Create(t.Context(), who, "meanwhile", 16)
			if err == nil {
				err = w.c.Vols.Delete(t.Context(), who, "meanwhile")
			}
			if err != nil {
				t.Errorf("meanwhile: %v", err)
			}
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
		if _, err := w.files.Usage(t.Context(), id); err != nil {
			t.Errorf("its files: %v", err)
		}
	}
}

// The disk that volumes take is counted.
func TestVolumesAreMetered(t *testing.T) {
	w := withVolumes(t)
	w.volume("a")
	kept, err := w.c.Vols.Kept(t.Context())
	if err != nil || kept[w.team.ID] != 1<<20 || len(kept) != 1 {
		t.Fatalf("kept: %v, %v", kept, err)
	}
	count := func() {
		t.Helper()
		if err := w.store.CountKept(t.Context(), "n", []store.Kept{{Account: cay.Account{Team: w.team.ID}, Volumes: 1 << 40}}); err != nil {
			t.Fatal(err)
		}
	}
	count()
	for begun := time.Now(); time.Since(begun) < 2*time.Millisecond; {
	}
	count()
	rows, err := w.store.Usage(t.Context(), store.UsageQuery{Team: w.team.ID, To: time.Now().Add(time.Hour)})
	if err != nil || len(rows) != 1 || rows[0].Amounts.Volume <= 0 || rows[0].Amounts.Storage != 0 {
		t.Errorf("counted: %+v, %v", rows, err)
	}
}
