package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// drawers is a storage of volumes that are plain directories. It counts who has
// them.
type drawers struct {
	dir string

	mu   sync.Mutex
	held map[cay.VolumeID]int
	fail map[cay.VolumeID]error
}

func (d *drawers) Attach(_ context.Context, id cay.VolumeID) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fail[id]; err != nil {
		return "", err
	}
	d.held[id]++
	return d.path(id), nil
}

func (d *drawers) Detach(id cay.VolumeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[id]--
}

func (d *drawers) path(id cay.VolumeID, name ...string) string {
	return filepath.Join(append([]string{d.dir, string(id)}, name...)...)
}

func (d *drawers) count(id cay.VolumeID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[id]
}

// next is the storage as the next process has it: nothing is counted.
func (d *drawers) next() *drawers {
	return &drawers{dir: d.dir, held: map[cay.VolumeID]int{}, fail: d.fail}
}

// volumesOf gives a machine the volumes "one" and "two", and a snapshot of an
// agent that knows them.
func volumesOf(t *testing.T, m *machine) *drawers {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	d := (&drawers{dir: t.TempDir(), fail: map[cay.VolumeID]error{}}).next()
	for _, id := range []cay.VolumeID{"one", "two"} {
		must(t, os.Mkdir(d.path(id), 0o755))
		must(t, os.WriteFile(d.path(id, "name"), []byte(id), 0o644))
	}
	m.volumes = d
	m.saved["current"] = cay.Snapshot{ID: "current", Root: "digest", Agent: guest.ProtocolMounts, Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024}}
	t.Cleanup(func() {
		if left, err := mountsBelow(m.dir); err != nil || len(left) > 0 {
			t.Errorf("mounts left: %q, %v", left, err)
		}
		for _, id := range []cay.VolumeID{"one", "two"} {
			if text, err := os.ReadFile(d.path(id, "name")); string(text) != string(id) {
				t.Errorf("volume %s has lost its file: %q, %v", id, text, err)
			}
		}
	})
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounting asks for an instance with both volumes.
func mounting() cay.InstanceSpec {
	s := spec()
	s.Snapshot = "current"
	s.Volumes = []cay.VolumeMount{
		{Volume: "one", Name: "first", Path: "/mnt/one"},
		{Volume: "two", Name: "second", Path: "/mnt/two", SubPath: "deep/down", ReadOnly: true},
	}
	return s
}

// inside is where an instance sees its n-th volume.
func (m *machine) inside(id cay.InstanceID, n string, name ...string) string {
	return filepath.Join(append([]string{m.dir, "reserved", string(id), guest.Volumes, n}, name...)...)
}

// unused fails where anything of a volume is left.
func unused(t *testing.T, m *machine, d *drawers) {
	t.Helper()
	if left, err := mountsBelow(m.dir); err != nil || len(left) > 0 {
		t.Errorf("mounts left: %q, %v", left, err)
	}
	for _, id := range []cay.VolumeID{"one", "two"} {
		if c := d.count(id); c != 0 {
			t.Errorf("volume %s is attached %d times", id, c)
		}
	}
}

func TestVolumesAreMounted(t *testing.T) {
	m := newMachine(t)
	d := volumesOf(t, m)
	n := m.open(t)
	m.on("restore", func() error { // they are there before the guest is
		for _, dir := range []string{"0", "1"} {
			ids, err := names(filepath.Join(m.dir, "reserved"))
			must(t, err)
			if is, err := isMount(m.inside(cay.InstanceID(ids[0]), dir)); !is {
				t.Errorf("volume %s is not mounted: %v", dir, err)
			}
		}
		return nil
	})
	want := mounting()
	inst, err := n.Create(t.Context(), want)
	must(t, err)
	id := inst.Spec.Instance

	must(t, os.WriteFile(m.inside(id, "0", "new"), []byte("text"), 0o644))
	if text, err := os.ReadFile(d.path("one", "new")); string(text) != "text" {
		t.Errorf("what is written does not reach the volume: %q, %v", text, err)
	}
	if err := os.WriteFile(m.inside(id, "1", "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to a read-only mount: %v", err)
	}
	must(t, os.WriteFile(d.path("two", "deep/down/late"), []byte("late"), 0o644))
	if text, err := os.ReadFile(m.inside(id, "1", "late")); string(text) != "late" {
		t.Errorf("the sub-path shows %q, %v", text, err)
	}
	for _, dir := range []string{"deep", "deep/down"} {
		info, err := os.Stat(d.path("two", dir))
		must(t, err)
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != volumeOwner || owner.Gid != volumeOwner {
			t.Errorf("%s is of %d:%d", dir, owner.Uid, owner.Gid)
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "reserved", string(id), "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write beside the volumes: %v", err)
	}
	var s unix.Statfs_t
	must(t, unix.Statfs(m.inside(id, "0"), &s))
	if s.Flags&unix.ST_NOSUID == 0 || s.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags of a volume's mount: %#x", s.Flags)
	}
	got := m.inits[len(m.inits)-1].Mounts
	if len(got) != 2 || got[0] != (guest.Mount{Source: "/.cay/volumes/0", Path: "/mnt/one"}) ||
		got[1] != (guest.Mount{Source: "/.cay/volumes/1", Path: "/mnt/two", ReadOnly: true}) {
		t.Errorf("the agent is told %+v", got)
	}

	other, err := n.Prepare(t.Context(), func() cay.InstanceSpec { s := mounting(); s.Sandbox = inst.Spec.Sandbox; return s }())
	must(t, err)
	if c := d.count("one"); c != 2 {
		t.Errorf("attached %d times for two instances", c)
	}
	must(t, n.Kill(t.Context(), id, cay.CauseAsked))
	if text, err := os.ReadFile(m.inside(other.Spec.Instance, "0", "new")); string(text) != "text" {
		t.Errorf("after the other's end: %q, %v", text, err)
	}
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox}
	must(t, n.Checkpoint(t.Context(), other.Spec.Instance, record))
	if s := m.saved[record.ID]; len(s.Volumes) != 2 || s.Volumes[1] != want.Volumes[1] {
		t.Errorf("the snapshot names the volumes %+v", s.Volumes)
	}
	must(t, n.Kill(t.Context(), other.Spec.Instance, cay.CauseAsked))
	unused(t, m, d)
}

func TestAVolumeThatCannotBeMounted(t *testing.T) {
	gone := cay.Errorf(cay.NotFound, "no volume")
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *machine, d *drawers, s *cay.InstanceSpec)
		want  cay.Kind
		names string
	}{
		"no storage": {func(_ *testing.T, m *machine, _ *drawers, _ *cay.InstanceSpec) { m.volumes = nil }, cay.Unsupported, ""},
		"old agent": {func(_ *testing.T, m *machine, _ *drawers, s *cay.InstanceSpec) {
			old := m.saved["current"]
			old.Agent = 1
			m.saved["current"] = old
		}, cay.Conflict, "protocol 1"},
		"gone": {func(_ *testing.T, _ *machine, d *drawers, _ *cay.InstanceSpec) { d.fail["two"] = gone }, cay.Conflict, "volumeMounts[1] (volume second at /mnt/two)"},
		"link out": {func(t *testing.T, _ *machine, d *drawers, s *cay.InstanceSpec) {
			must(t, os.Symlink("/", d.path("one", "out")))
			s.Volumes[0].SubPath = "out/etc"
		}, cay.Invalid, "volumeMounts[0]"},
		"link out that dangles": {func(t *testing.T, _ *machine, d *drawers, s *cay.InstanceSpec) {
			must(t, os.Symlink(filepath.Join("..", "two", "made"), d.path("one", "out")))
			s.Volumes[0].SubPath = "out"
		}, cay.Invalid, "volumeMounts[0]"},
		"file": {func(_ *testing.T, _ *machine, _ *drawers, s *cay.InstanceSpec) {
			s.Volumes[1].SubPath = "name"
		}, cay.Invalid, "volumeMounts[1]"},
		"below a file": {func(_ *testing.T, _ *machine, _ *drawers, s *cay.InstanceSpec) {
			s.Volumes[1].SubPath = "name/below"
		}, cay.Invalid, "volumeMounts[1]"},
		"up": {func(_ *testing.T, _ *machine, _ *drawers, s *cay.InstanceSpec) { s.Volumes[1].SubPath = "../one" }, cay.Invalid, "volumeMounts[1]"},
		"too long": {func(_ *testing.T, _ *machine, _ *drawers, s *cay.InstanceSpec) {
			s.Volumes[1].SubPath = strings.Repeat("x", 300)
		}, cay.Invalid, "volumeMounts[1]"},
		"restore":  {func(_ *testing.T, m *machine, _ *drawers, _ *cay.InstanceSpec) { m.on("restore", failing) }, cay.Internal, ""},
		"identity": {func(_ *testing.T, m *machine, _ *drawers, _ *cay.InstanceSpec) { m.on("init", failing) }, cay.Internal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := volumesOf(t, m)
			s := mounting()
			c.spoil(t, m, d, &s)
			n := m.open(t)
			_, err := n.Create(t.Context(), s)
			if cay.KindOf(err) != c.want || !strings.Contains(err.Error(), c.names) {
				t.Errorf("%v, of kind %s", err, cay.KindOf(err))
			}
			if _, err := os.Lstat(d.path("two", "made")); err == nil {
				t.Error("a directory was made through a link that leads out")
			}
			nothingLeft(t, m, n)
			unused(t, m, d)
		})
	}
}

func failing() error { return errors.New("on purpose") }

func TestACrashWithVolumes(t *testing.T) {
	for _, step := range []string{"restore", "init", ""} {
		t.Run("at "+step, func(t *testing.T) {
			m := newMachine(t)
			d := volumesOf(t, m)
			first := m.open(t)
			kept, err := first.Create(t.Context(), mounting())
			must(t, err)
			second := d.next()
			m.volumes = second
			var n *Node
			if step == "" {
				must(t, first.Close())
				m.crash()
				n = m.open(t)
			} else {
				n = stall(t, m, first, step, func() error {
					_, err := first.Create(context.Background(), mounting())
					return err
				})
			}
			if _, ok := n.Lookup(kept.Spec.Sandbox); !ok {
				t.Fatal("an instance with volumes is not adopted")
			}
			if c := second.count("one"); c != 1 {
				t.Errorf("volume one is attached %d times for one instance", c)
			}
			if text, err := os.ReadFile(m.inside(kept.Spec.Instance, "0", "name")); string(text) != "one" {
				t.Errorf("the adopted instance sees %q, %v", text, err)
			}
			must(t, n.Kill(t.Context(), kept.Spec.Instance, cay.CauseAsked))
			unused(t, m, second)
		})
	}
}

// A sandbox with volumes is restored when the instance that it was paused from is gone, and
// with it the locks of its files: they would be taken for another sandbox's.
func TestARestoreAwaitsLocks(t *testing.T) {
	m := newMachine(t)
	volumesOf(t, m)
	n := m.open(t)
	first, err := n.Create(t.Context(), mounting())
	must(t, err)
	written, located := make(chan struct{}), make(chan struct{})
	m.on("files", func() error { <-written; return nil })
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot}
	must(t, n.Pause(t.Context(), first.Spec.Instance, record))
	m.on("canrestore", func() error { close(located); m.on("canrestore", nil); return nil })
	next := mounting()
	next.Snapshot = record.ID
	done := make(chan error)
	go func() {
		second, err := n.Create(context.Background(), next)
		next = second.Spec
		done <- err
	}()
	<-located
	before := len(m.happened())
	close(written)
	must(t, <-done)
	events := m.happened()[before:]
	if kill, restore := slices.Index(events, "kill"), slices.Index(events, "restore"); kill < 0 || restore < kill {
		t.Errorf("it is restored before the instance that was paused is gone: %q", events)
	}
	must(t, n.Kill(t.Context(), next.Instance, cay.CauseAsked))
}

// An instance whose volume is not to be had any more is ended, and what it had
// of others is given back.
func TestAdoptionWithoutAVolume(t *testing.T) {
	m := newMachine(t)
	d := volumesOf(t, m)
	first := m.open(t)
	inst, err := first.Create(t.Context(), mounting())
	must(t, err)
	must(t, first.Close())
	m.crash()
	second := d.next()
	second.fail["two"] = cay.Errorf(cay.NotFound, "no volume")
	m.volumes = second
	n := m.open(t)
	if _, ok := n.Lookup(inst.Spec.Sandbox); ok {
		t.Error("it is adopted")
	}
	if death := nextDeath(t, n); death.Sandbox != inst.Spec.Sandbox || death.Cause != cay.CauseHostLost {
		t.Errorf("death %+v", death)
	}
	unused(t, m, second)
}

func TestAWarmInstanceGetsVolumes(t *testing.T) {
	m := newMachine(t)
	d := volumesOf(t, m)
	synctest.Test(t, func(t *testing.T) {
		cfg := m.config()
		cfg.PoolMemory = 1 << 30
		n, err := Open(t.Context(), cfg)
		must(t, err)
		defer n.Close()
		shape := shape
		shape.Snapshot = "current"
		fill(t, n, shape, 1)
		want := mounting()
		want.Template, want.Build, want.Limits, want.Warm = shape.Template, shape.Build, shape.Limits, true
		inst := warm(t, n, want)
		settled()
		if text, err := os.ReadFile(m.inside(inst.Spec.Instance, "0", "name")); string(text) != "one" {
			t.Errorf("it sees %q, %v", text, err)
		}
		told := 0
		for _, in := range m.inits { // the pool makes the next one meanwhile
			if in.Mode == guest.ModeResume && in.EnvVars["E2B_SANDBOX_ID"] == string(inst.Spec.Sandbox) {
				told += len(in.Mounts)
			}
		}
		if told != 2 {
			t.Errorf("its agent is told %d mounts: %+v", told, m.inits)
		}
		r, _ := readJournal(n.journal(inst.Spec.Instance))
		if len(r.Spec.Volumes) != 2 {
			t.Errorf("its journal names %+v", r.Spec.Volumes)
		}
		must(t, n.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked))
		if c := d.count("one"); c != 0 {
			t.Errorf("attached %d times at the end", c)
		}
	})
}

func TestABorrowedInstanceHasVolumes(t *testing.T) {
	m := newMachine(t)
	d := volumesOf(t, m)
	n := m.open(t)
	want := bootable()
	want.Volumes = mounting().Volumes
	l, err := n.Borrow(t.Context(), want)
	must(t, err)
	if text, err := os.ReadFile(m.inside(l.inst.spec.Instance, "0", "name")); string(text) != "one" {
		t.Errorf("it sees %q, %v", text, err)
	}
	if got := m.inits[len(m.inits)-1].Mounts; len(got) != 2 {
		t.Errorf("its agent is told %+v", got)
	}
	if _, err := l.Save(t.Context(), cay.Snapshot{ID: cay.NewSnapshotID()}, nil); cay.KindOf(err) != cay.Invalid {
		t.Errorf("a template with volumes: %v", err)
	}
	l.Return()
	unused(t, m, d)
}

// A guest that swaps directories for links while the host walks them never leads
// it out.
func TestNoLinkLeadsOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners of directories need root")
	}
	outside, dir := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(outside, "b"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "real", "b"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, os.Symlink("real", filepath.Join(dir, "a")))
	var over atomic.Bool
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for !over.Load() {
			for _, to := range []string{outside, "real", "link", "../" + filepath.Base(outside)} {
				next := filepath.Join(dir, "next")
				_ = os.Symlink(to, next)
				_ = os.Rename(next, filepath.Join(dir, "a"))
			}
		}
	})
	defer swapping.Wait()
	defer over.Store(true)
	for range 2000 {
		for _, sub := range []string{"a", "a/b", "a/new/deep"} {
			fd, err := openSub(dir, sub)
			if err != nil {
				if cay.KindOf(err) != cay.Invalid {
					t.Fatalf("%s: %v", sub, err)
				}
				continue
			}
			at, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(fd)))
			unix.Close(fd)
			must(t, err)
			if !strings.HasPrefix(at, dir+"/") {
				t.Fatalf("%s leads to %s", sub, at)
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(outside, "new")); err == nil {
		t.Error("a directory was made outside")
	}
}

// BenchmarkMount is what a mount adds to a create before the guest is told.
func BenchmarkMount(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("only root mounts")
	}
	dir := b.TempDir()
	n := &Node{cfg: Config{Dir: dir, Reserved: filepath.Join(dir, "reserved")}}
	d := (&drawers{dir: filepath.Join(dir, "volumes")}).next()
	n.cfg.Volumes = d
	if err := os.MkdirAll(d.path("one"), 0o755); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		inst := newInstance(cay.InstanceSpec{Instance: cay.NewInstanceID(), Volumes: []cay.VolumeMount{{Volume: "one", SubPath: "sub"}}})
		reserved := n.reserved(inst.spec.Instance)
		err := os.MkdirAll(reserved, 0o755)
		if err == nil {
			err = n.mountVolumes(b.Context(), inst)
		}
		b.StopTimer()
		if err := errors.Join(err, removeMounted(reserved)); err != nil {
			b.Fatal(err)
		}
		n.detachVolumes(inst)
		b.StartTimer()
	}
}
