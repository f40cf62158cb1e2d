package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// lazy is a machine that restores by demand, whose instances have not loaded
// pending bytes.
func lazy(t *testing.T, pending int64) *machine {
	m := newMachine(t)
	m.loading, m.ownLoading, m.pending, m.reserve = engine.Demand, engine.Demand, pending, 20
	return m
}

// saved adds a snapshot to a machine and returns what asks for an instance of it.
func (m *machine) ofSize(bytes int64) cay.InstanceSpec {
	s := spec()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved[s.Snapshot] = cay.Snapshot{
		ID: s.Snapshot, Sandbox: "of-another-team", Root: "digest", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
		Files: []cay.SnapFile{{Name: "pages", Size: bytes}, {Name: "files/layer", Size: 1 << 40}},
	}
	return s
}

func (m *machine) held(id cay.SnapshotID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds[id]
}

func mustCreate(t *testing.T, n *Node, s cay.InstanceSpec) cay.Instance {
	t.Helper()
	inst, err := n.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

// TestMappedFilesStay: the files of a snapshot are kept as long as an instance
// reads them, in each way that an instance begins and ends.
func TestMappedFilesStay(t *testing.T) {
	for _, tc := range []struct {
		name    string
		loading engine.Loading
		cold    bool
		pending int64
		want    int
	}{
		{"by demand", engine.Demand, false, 100, 1},
		{"by demand, loaded already", engine.Demand, false, 0, 0},
		{"eager", engine.Eager, false, 0, 0},
		{"booted from its files", engine.Demand, true, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := lazy(t, tc.pending)
			m.loading, m.ownLoading = tc.loading, tc.loading
			n := m.open(t)
			s := m.ofSize(100)
			s.FilesOnly = tc.cold
			for _, end := range []func(cay.InstanceID){
				func(id cay.InstanceID) { _ = n.Kill(t.Context(), id, cay.CauseAsked) },
				func(id cay.InstanceID) { m.die(id, cay.Death{Cause: cay.CauseOutOfMemory}) },
				func(id cay.InstanceID) {
					record := cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.FilesSnapshot, Sandbox: s.Sandbox}
					if err := n.Pause(t.Context(), id, record); err != nil {
						t.Error(err)
					}
				},
			} {
				s.Instance = cay.NewInstanceID()
				inst := mustCreate(t, n, s)
				if got := m.held(s.Snapshot); got != tc.want {
					t.Errorf("%d instances hold the files, want %d", got, tc.want)
				}
				end(inst.Spec.Instance)
				n.mu.Lock()
				i := n.instances[inst.Spec.Instance]
				n.mu.Unlock()
				if i != nil {
					<-i.gone
				}
				nothingLeft(t, m, n)
			}
		})
	}
}

// TestRemovedAndMapped: a removed snapshot is told until its last instance is
// over, or has loaded everything.
func TestRemovedAndMapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lazy(t, 100)
		n, err := Open(t.Context(), m.config())
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		s := m.ofSize(100)
		one := mustCreate(t, n, s)
		s.Instance, s.Sandbox = cay.NewInstanceID(), cay.NewSandboxID()
		two := mustCreate(t, n, s)
		if err := (*shelf)(m).Remove(s.Snapshot); err != nil {
			t.Fatal(err)
		}
		told := func(instances, removed int, pending int64) {
			t.Helper()
			l, err := n.Loading()
			if err != nil || l.Instances != instances || l.Removed != removed || l.Pending != pending || l.Kept != int64(100*removed) {
				t.Errorf("told %+v, %v", l, err)
			}
			if stored, err := n.Service().Stored(t.Context()); err != nil || len(stored) != removed {
				t.Errorf("stored %v, %v", stored, err)
			}
		}
		told(2, 1, 200)
		if err := n.Kill(t.Context(), one.Spec.Instance, cay.CauseAsked); err != nil {
			t.Fatal(err)
		}
		told(1, 1, 100)
		m.mu.Lock()
		m.pending = 40
		m.mu.Unlock()
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		told(1, 1, 40)
		m.mu.Lock()
		m.pending = 0
		m.mu.Unlock()
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		told(0, 0, 0)
		if err := n.Kill(t.Context(), two.Spec.Instance, cay.CauseAsked); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, m, n)
	})
}

// TestMappedFilesAfterAFailure: whichever step of a create fails, no file is
// held and no room is taken.
func TestMappedFilesAfterAFailure(t *testing.T) {
	for _, step := range []string{"acquire", "apply", "check once", "restore", "watch", "init"} {
		t.Run(step, func(t *testing.T) {
			m := lazy(t, 100)
			n := m.open(t)
			m.on(step, func() error { return errors.New("no") })
			if _, err := n.Create(t.Context(), m.ofSize(100)); err == nil {
				t.Fatal("created")
			}
			nothingLeft(t, m, n)
			if n.coming != (need{}) {
				t.Errorf("room is taken: %+v", n.coming)
			}
		})
	}
}

// TestMappedFilesAfterACrash: the next node holds what the instances that it
// adopts read, and what those read that it cannot end yet, and removes the rest.
func TestMappedFilesAfterACrash(t *testing.T) {
	m := lazy(t, 100)
	first := m.open(t)
	lives, dies, ended, eager := m.ofSize(100), m.ofSize(100), m.ofSize(100), m.ofSize(100)
	for _, s := range []cay.InstanceSpec{lives, dies, ended} {
		mustCreate(t, first, s)
	}
	first.cfg.OwnLoading = engine.Eager
	mustCreate(t, first, eager)
	for _, s := range []cay.InstanceSpec{lives, dies, ended} {
		if err := (*shelf)(m).Remove(s.Snapshot); err != nil {
			t.Fatal(err)
		}
	}
	first.Close()
	if err := unmark(filepath.Join(m.dir, "instances", string(dies.Instance))); err != nil { // it is condemned
		t.Fatal(err)
	}
	m.mu.Lock()
	delete(m.containers, ended.Instance)
	m.mu.Unlock()
	m.crash()
	held := -1
	m.on("kill "+string(dies.Instance), func() error {
		held = m.held(dies.Snapshot)
		return nil
	})
	second := m.open(t)
	if held != 1 {
		t.Errorf("while an instance that is removed is ended, its files are held by %d", held)
	}
	if got := m.held(lives.Snapshot); got != 1 {
		t.Errorf("an adopted instance holds %d", got)
	}
	if l, err := second.Loading(); err != nil || l.Instances != 1 || l.Removed != 1 || l.Pending != 100 {
		t.Errorf("told %+v, %v", l, err)
	}
	if m.held(eager.Snapshot) != 0 {
		t.Error("an instance that has loaded all holds files")
	}
	for _, inst := range second.Instances() {
		if err := second.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, m, second)
}

// TestAdmissionOfWhatMayBeLoaded: a machine counts what instances may still
// load, and says why it refuses.
func TestAdmissionOfWhatMayBeLoaded(t *testing.T) {
	const mb = 1 << 20
	kept := Room{Memory: 16 << 30}.memoryKept()
	for _, tc := range []struct {
		name    string
		loading engine.Loading
		percent int
		free    int64 // beyond what is kept
		running int64 // bytes that one may load, which runs already
		want    string
	}{
		{"eager, room for all of it", engine.Eager, 20, 124 * mb, 0, ""},
		{"eager, a byte less", engine.Eager, 20, 124*mb - 1, 0, memoryLack},
		{"by demand, room for a part", engine.Demand, 20, 44 * mb, 0, ""},
		{"by demand, no room for its start", engine.Demand, 20, 24*mb - 1, 0, memoryLack},
		{"by demand, no room for the part", engine.Demand, 20, 43 * mb, 0, pendingLack},
		{"another may load", engine.Demand, 20, 144 * mb, 500 * mb, ""},
		{"another may load too much", engine.Demand, 20, 143 * mb, 500 * mb, pendingLack},
		{"all is kept free", engine.Demand, 100, 623 * mb, 500 * mb, pendingLack},
		{"all is kept free, and there", engine.Demand, 100, 624 * mb, 500 * mb, ""},
		{"nothing is kept free", engine.Demand, 0, 24 * mb, 500 * mb, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := lazy(t, 100*mb)
			m.loading, m.ownLoading, m.reserve = tc.loading, tc.loading, tc.percent
			n := m.open(t)
			if tc.running > 0 {
				m.pending = tc.running
				mustCreate(t, n, m.ofSize(tc.running))
			}
			m.has(Room{Memory: 16 << 30, MemoryFree: kept + tc.free})
			s := m.ofSize(100 * mb)
			if tc.loading == engine.Eager { // all files count, as they always did
				m.saved[s.Snapshot] = cay.Snapshot{ID: s.Snapshot, Root: "digest", Files: []cay.SnapFile{{Name: "pages", Size: 100 * mb}}}
			}
			_, err := n.Create(t.Context(), s)
			if tc.want == "" {
				if err != nil {
					t.Error(err, errors.Unwrap(err))
				}
				return
			}
			var ours *cay.Error
			if !errors.As(err, &ours) || ours.Code != cay.CodeCapacity || ours.Msg != errFull(tc.want, nil).(*cay.Error).Msg {
				t.Errorf("refused with %v, want %s", err, tc.want)
			}
			if errors.Unwrap(err) == nil {
				t.Error("the log does not say why")
			}
		})
	}
}

// TestAdmissionIsExact: however creates, resumes, forks and wakes fall together,
// as many begin as there is room for, and no more.
func TestAdmissionIsExact(t *testing.T) {
	const mb, room, each = 1 << 20, 7, 24 + 20 // MB of each: its start, and a fifth of 100
	for range 20 {
		m := lazy(t, 100*mb)
		var used atomic.Int64 // by those that are restored
		kept := Room{Memory: 16 << 30}.memoryKept()
		cfg := m.config()
		cfg.Restores = 16
		cfg.Room = func() (Room, error) {
			return Room{Memory: 16 << 30, MemoryFree: kept + room*each*mb - used.Load()}, nil
		}
		m.on("restore", func() error { used.Add(24 * mb); return nil })
		n, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		var all sync.WaitGroup
		var made, refused atomic.Int64
		for i := range 2 * room {
			s := m.ofSize(100 * mb)
			s.Resume = i%2 == 0
			begin := n.Create
			if i%3 == 0 {
				begin = n.Prepare
			}
			all.Go(func() {
				_, err := begin(context.Background(), s)
				switch {
				case err == nil:
					made.Add(1)
				case cay.CodeOf(err) == cay.CodeCapacity:
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		// One that is restored and not yet done counts twice for a moment, so some
		// may be refused that a later try admits; none is admitted beyond the room.
		if made.Load() > room {
			t.Fatalf("%d were made, there was room for %d", made.Load(), room)
		}
		for made.Load() < room {
			if _, err := n.Create(t.Context(), m.ofSize(100*mb)); err != nil {
				t.Fatalf("%d were made, and the next is refused: %v", made.Load(), err)
			}
			made.Add(1)
		}
		if _, err := n.Create(t.Context(), m.ofSize(100*mb)); cay.CodeOf(err) != cay.CodeCapacity {
			t.Fatalf("one more than there is room for: %v", err)
		}
	}
}

// TestSharing: who may share memory with whom.
func TestSharing(t *testing.T) {
	ours, theirs, everyones := cay.Snapshot{Team: "a"}, cay.Snapshot{Team: "b"}, cay.Snapshot{}
	for _, tc := range []struct {
		sharing                 Sharing
		ours, theirs, everyones bool
	}{
		{ShareAll, true, true, true},
		{ShareTeam, true, false, false},
		{ShareNone, false, false, false},
	} {
		for want, s := range map[*bool]cay.Snapshot{&tc.ours: ours, &tc.theirs: theirs, &tc.everyones: everyones} {
			if got := tc.sharing.Among("a", s); got != *want {
				t.Errorf("sharing %v of team a in a snapshot of %q: %v", tc.sharing, s.Team, got)
			}
		}
		if tc.sharing != ShareAll && tc.sharing.Among("", everyones) {
			t.Errorf("sharing %v of no team", tc.sharing)
		}
	}
}

// TestLoadingOfEachStart: which starts read their memory by demand, by each
// setting.
func TestLoadingOfEachStart(t *testing.T) {
	starts := []struct {
		name   string
		common bool // many start from the snapshot
		cold   bool
		start  func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID
	}{
		{"create from a template or a named snapshot", true, false, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			s.Warm = true
			return mustCreate(t, n, s).Spec.Instance
		}},
		{"for the pool", true, false, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			inst, err := n.stock(shapeOf(s))
			if err != nil {
				t.Fatal(err)
			}
			return inst.spec.Instance
		}},
		{"fork", false, false, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			return mustCreate(t, n, s).Spec.Instance
		}},
		{"resume", false, false, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			s.Resume = true
			return mustCreate(t, n, s).Spec.Instance
		}},
		{"rollback", false, false, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			s.Resume = true
			inst, err := n.Prepare(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			return inst.Spec.Instance
		}},
		{"boot from files", true, true, func(t *testing.T, n *Node, s cay.InstanceSpec) cay.InstanceID {
			s.Warm = true
			s.FilesOnly = true
			return mustCreate(t, n, s).Spec.Instance
		}},
	}
	for name, setting := range map[string]struct{ common, own engine.Loading }{
		"auto": {engine.Demand, engine.Eager}, "eager": {engine.Eager, engine.Eager}, "demand": {engine.Demand, engine.Demand},
	} {
		for _, tc := range starts {
			t.Run(name+", "+tc.name, func(t *testing.T) {
				m := lazy(t, 100)
				m.loading, m.ownLoading = setting.common, setting.own
				n := m.open(t)
				want := setting.own
				if tc.common {
					want = setting.common
				}
				if tc.cold {
					want = engine.Eager
				}
				s := m.ofSize(100)
				id := tc.start(t, n, s)
				m.mu.Lock()
				got := m.containers[id].spec.Loading
				m.mu.Unlock()
				if got != want {
					t.Errorf("its memory is loaded by %v, want %v", got, want)
				}
				held := 0
				if want == engine.Demand {
					held = 1
				}
				if h := m.held(s.Snapshot); h != held {
					t.Errorf("%d instances hold the files, want %d", h, held)
				}
				if l, err := n.Loading(); err != nil || l.Pending != int64(100*held) {
					t.Errorf("told %+v, %v", l, err)
				}
			})
		}
	}
}
