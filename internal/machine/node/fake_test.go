package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// machine is an engine, a network and snapshots in memory that keep the
// contracts of the real ones. It outlives nodes, as the real ones do.
type machine struct {
	dir string

	mu         sync.Mutex
	containers map[cay.InstanceID]*container
	slots      map[int]string // held, idle or found
	policies   map[int]cay.NetworkPolicy
	fenced     map[int]bool // slots
	leased     time.Duration
	watched    map[cay.InstanceID]chan cay.Death
	inits      []guest.Init
	tokens     []string // that came with inits
	saved      map[cay.SnapshotID]cay.Snapshot
	changed    map[string][]string // files, by the directory of a snapshot
	unfinished int                 // snapshots that were begun
	checked    []cay.SnapFile
	lines      []Line
	ready      []int // ports that were waited for
	events     []string
	at         map[string]func() error // what happens at a step besides its work
	busy, most int                     // restores at once
	room       Room
	volumes    Volumes
	loading    engine.Loading
	ownLoading engine.Loading
	endless    bool                    // the record of a working set has no end
	traced     []bool                  // whether those were that working sets were asked of
	reserve    int                     // percent
	pending    int64                   // bytes that an instance has not loaded
	holds      map[cay.SnapshotID]int  // of files
	users      map[cay.SnapshotID]int  // that keep them from being evicted
	mapped     map[cay.SnapshotID]bool // removed and held
}

type container struct {
	spec    engine.RestoreSpec
	args    []string // of PID 1, where it was booted
	adopted bool
	held    bool
	docker  bool // as it was booted
}

func newMachine(t *testing.T) *machine {
	return &machine{
		dir:        t.TempDir(),
		containers: map[cay.InstanceID]*container{},
		slots:      map[int]string{},
		policies:   map[int]cay.NetworkPolicy{},
		fenced:     map[int]bool{},
		watched:    map[cay.InstanceID]chan cay.Death{},
		at:         map[string]func() error{},
		saved:      map[cay.SnapshotID]cay.Snapshot{},
		holds:      map[cay.SnapshotID]int{},
		users:      map[cay.SnapshotID]int{},
		mapped:     map[cay.SnapshotID]bool{},
	}
}

// step records an event and lets a test interfere.
func (m *machine) step(name string) error {
	m.mu.Lock()
	m.events = append(m.events, name)
	m.mu.Unlock()
	return m.hook(name)
}

// happened is what has come about so far; instances may be ending meanwhile.
func (m *machine) happened() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

func (m *machine) hook(name string) error {
	m.mu.Lock()
	f := m.at[name]
	m.mu.Unlock()
	if f != nil {
		return f()
	}
	return nil
}

func (m *machine) on(name string, f func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[name] = f
}

func (m *machine) config() Config {
	return Config{
		Dir:       m.dir + "/instances",
		Reserved:  m.dir + "/reserved",
		Engine:    m,
		Net:       (*network)(m),
		Snapshots: (*shelf)(m),
		Volumes:   m.volumes,
		Ahead:     func(id cay.SnapshotID, _ string) { m.step("ahead " + string(id)) },
		OnGone:    func(cay.SandboxID, cay.InstanceID) { m.step("gone") },
		Init:      m.init,
		Ready: func(_ context.Context, _ vnet.Slot, port int) error {
			m.mu.Lock()
			m.ready = append(m.ready, port)
			m.mu.Unlock()
			return m.step("ready")
		},
		Run:      func(_ context.Context, _ vnet.Slot, code string) error { return m.step("code " + code) },
		Rehearse: func(context.Context, vnet.Slot) error { return m.step("rehearse") },
		Shell: func(_ context.Context, _ vnet.Slot, line Line) error {
			m.lines = append(m.lines, line)
			return m.step("run " + line.Text)
		},
		Token:    func(id cay.SandboxID) string { return "token of " + string(id) },
		Traffic:  func(id cay.SandboxID) string { return "traffic of " + string(id) },
		Room:     m.left,
		Restores: 2,

		Loading:     m.loading,
		OwnLoading:  m.ownLoading,
		LoadReserve: m.reserve,
	}
}

func (m *machine) left() (Room, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.room, nil
}

func (m *machine) has(r Room) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room = r
}

func (m *machine) open(t *testing.T) *Node {
	t.Helper()
	n, err := Open(t.Context(), m.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// crash makes the machine look as it does to the next process.
func (m *machine) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for index := range m.slots {
		m.slots[index] = "found"
	}
	for _, c := range m.containers {
		c.adopted = false
	}
	clear(m.watched)
	clear(m.at)
	clear(m.holds)
	clear(m.users)
}

// shelf is the same machine's snapshots.
type shelf machine

func (m *shelf) Get(id cay.SnapshotID) (string, cay.Snapshot, error) {
	if err := (*machine)(m).step("get"); err != nil {
		return "", cay.Snapshot{}, err
	}
	m.mu.Lock()
	s, ok := m.saved[id]
	m.mu.Unlock()
	if ok {
		return "/snapshots/" + string(id), s, nil
	}
	return "/snapshots/" + string(id), cay.Snapshot{ID: id, Root: "digest", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024}}, nil
}

func (m *shelf) Image(digest string) (string, error) {
	return m.dir + "/" + digest + ".erofs", (*machine)(m).step("image")
}

func (m *shelf) Begin() (string, error) {
	if err := (*machine)(m).step("begin"); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfinished++
	return os.MkdirTemp(m.dir, unfinished)
}

// unfinished begins the names of unfinished snapshots; shown is the name of a
// snapshot's directory, without what is made up of it.
const unfinished = "unfinished"

func shown(dir string) string {
	if strings.HasPrefix(filepath.Base(dir), unfinished) {
		return unfinished
	}
	return dir
}

func (m *shelf) Commit(_ string, s cay.Snapshot) error {
	if err := (*machine)(m).step("commit"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved[s.ID] = s
	return nil
}

func (m *shelf) Attach(_ string, id cay.SnapshotID, files []cay.SnapFile) error {
	if err := (*machine)(m).step("attach"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.saved[id]
	if !ok {
		return cay.Errorf(cay.NotFound, "no snapshot %q", id)
	}
	s.Files = append(slices.Clone(s.Files), files...)
	m.saved[id] = s
	return nil
}

func (m *shelf) Check(_ context.Context, _ cay.Snapshot, files []cay.SnapFile) error {
	m.mu.Lock()
	m.checked = files
	m.mu.Unlock()
	return (*machine)(m).step("check")
}

func (m *shelf) Abort(string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfinished--
	return nil
}

func (m *shelf) CheckOnce(ctx context.Context, s cay.Snapshot, files []cay.SnapFile) error {
	return errors.Join((*machine)(m).step("check once"), m.Check(ctx, s, files))
}

func (m *shelf) Remove(id cay.SnapshotID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.saved, id)
	if m.holds[id] > 0 {
		m.mapped[id] = true
	}
	return nil
}

func (m *shelf) Hold(id cay.SnapshotID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds[id]++
}

func (m *shelf) LetGo(id cay.SnapshotID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds[id] == 0 {
		return fmt.Errorf("snapshot %s is let go and not held", id)
	}
	if m.holds[id]--; m.holds[id] == 0 {
		delete(m.holds, id)
		delete(m.mapped, id)
	}
	return nil
}

// Use counts as what Hold counts does: a snapshot that is in use is not evicted.
func (m *shelf) Use(id cay.SnapshotID) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users[id]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.users[id]--; m.users[id] <= 0 {
			delete(m.users, id)
		}
	}
}

func (m *shelf) Record(id cay.SnapshotID) (cay.Snapshot, error) {
	_, s, err := m.Get(id)
	return s, err
}

func (m *shelf) Evicted() ([]cay.Snapshot, error) { return nil, nil }

func (m *shelf) Mapped() ([]snapshot.Mapped, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []snapshot.Mapped
	for id := range m.mapped {
		out = append(out, snapshot.Mapped{Snapshot: cay.Snapshot{ID: id, Team: "a", Files: []cay.SnapFile{{Name: "pages", Size: 100}}}, By: m.holds[id]})
	}
	return out, nil
}

func (m *shelf) Sweep() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.mapped {
		if m.holds[id] == 0 {
			delete(m.mapped, id)
		}
	}
	return nil
}

func (m *shelf) Saved(cay.TeamID, ...cay.SnapshotID) (int64, error) { return 0, nil }

func (m *shelf) List() ([]cay.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []cay.Snapshot{{ID: "template"}}
	for _, s := range m.saved {
		out = append(out, s)
	}
	return out, nil
}

// Checkpoint knows that a pause reads the memory of a held guest only.
func (m *machine) Checkpoint(ctx context.Context, id cay.InstanceID, _ string, then engine.After) (cay.Snapshot, error) {
	if then == engine.Stays {
		if err := m.hold("hold", id, true); err != nil {
			return cay.Snapshot{}, err
		}
	}
	if err := m.step("checkpoint"); err != nil {
		return cay.Snapshot{}, err
	}
	engine.Written(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	if c == nil || c.spec.Snapshot.Engine == "dead" {
		return cay.Snapshot{}, cay.Errorf(cay.Internal, "cannot checkpoint instance %s", id)
	}
	if then == engine.Ends {
		delete(m.containers, id)
		if ch := m.watched[id]; ch != nil {
			ch <- cay.Death{Instance: id, Cause: cay.CauseAsked}
			close(ch)
			delete(m.watched, id)
		}
	}
	return cay.Snapshot{
		Kind: cay.MemorySnapshot, Root: "digest", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
		Files: []cay.SnapFile{{Name: "memory"}},
	}, nil
}

func (m *machine) SnapshotFiles(_ context.Context, id cay.InstanceID, _ string) (cay.Snapshot, error) {
	if err := m.step("files"); err != nil {
		return cay.Snapshot{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.containers[id]; c == nil || c.spec.Snapshot.Engine == "dead" {
		return cay.Snapshot{}, cay.Errorf(cay.Internal, "cannot save the files of instance %s", id)
	}
	return cay.Snapshot{
		Kind: cay.FilesSnapshot, Root: "digest", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
		Files: []cay.SnapFile{{Name: "files/all"}},
	}, nil
}

func (m *machine) Hold(_ context.Context, id cay.InstanceID) error { return m.hold("hold", id, true) }

func (m *machine) Release(_ context.Context, id cay.InstanceID) error {
	return m.hold("unhold", id, false)
}

func (m *machine) Freeze(_ context.Context, id cay.InstanceID) error {
	return m.hold("freeze", id, true)
}

func (m *machine) Thaw(_ context.Context, id cay.InstanceID) error { return m.hold("thaw", id, false) }

func (m *machine) hold(step string, id cay.InstanceID, held bool) error {
	if err := m.step(step); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	if c == nil || c.spec.Snapshot.Engine == "dead" {
		return cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	c.held = held
	return nil
}

func (m *machine) Fingerprint() engine.Fingerprint {
	return engine.Fingerprint{Hash: "build of the engine"}
}

func (m *machine) Changes(_ context.Context, id cay.InstanceID) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("changes of " + string(id))), m.step("changes")
}

func (m *machine) CanRestore(cay.Snapshot) error { return m.step("canrestore") }

func (m *machine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Isolation: "none", IdleMemory: 24 << 20, BootMemory: 64 << 20, IdleTasks: 64}
}

func (m *machine) CanBoot(s cay.Snapshot) error {
	if len(engine.Reads(s, true)) == 0 {
		return cay.Errorf(cay.Conflict, "snapshot %s holds no files", s.ID)
	}
	return m.step("canboot")
}

func (m *machine) Boot(ctx context.Context, spec engine.BootSpec) error {
	if err := m.step("boot"); err != nil {
		return err
	}
	err := m.Restore(ctx, engine.RestoreSpec{ID: spec.ID, From: spec.From, Root: spec.Root, Limits: spec.Limits, Dir: spec.Dir, Reserved: spec.Reserved, Net: spec.Net})
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.containers[spec.ID]; c != nil {
		c.args, c.docker = spec.Args, spec.Docker
	}
	return err
}

func (m *machine) Restore(ctx context.Context, spec engine.RestoreSpec) error {
	m.mu.Lock()
	m.busy++
	m.most = max(m.most, m.busy)
	m.mu.Unlock()
	err := m.step("restore")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy--
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	m.containers[spec.ID] = &container{spec: spec, adopted: true}
	m.watched[spec.ID] = make(chan cay.Death, 1)
	return nil
}

func (m *machine) Kill(_ context.Context, id cay.InstanceID) error {
	if err := m.step("kill"); err != nil {
		return err
	}
	if err := m.hook("kill " + string(id)); err != nil {
		return err
	}
	m.die(id, cay.Death{Instance: id, Cause: cay.CauseAsked})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, id)
	return nil
}

// die ends a container's life; the engine keeps its record until Kill.
func (m *machine) die(id cay.InstanceID, d cay.Death) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ch := m.watched[id]; ch != nil {
		ch <- d
		close(ch)
		delete(m.watched, id)
	}
	if c := m.containers[id]; c != nil {
		c.spec.Snapshot.Engine = "dead"
	}
}

func (m *machine) Watch(id cay.InstanceID) (<-chan cay.Death, error) {
	if err := m.step("watch"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ch := m.watched[id]; ch != nil {
		return ch, nil
	}
	return nil, cay.Errorf(cay.NotFound, "no instance %s", id)
}

func (m *machine) List(context.Context) ([]cay.InstanceID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []cay.InstanceID
	for id := range m.containers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out, nil
}

func (m *machine) Adopt(_ context.Context, id cay.InstanceID) error {
	if err := m.step("adopt"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	if c == nil || c.spec.Snapshot.Engine == "dead" {
		return cay.Errorf(cay.NotFound, "instance %s is not alive", id)
	}
	c.adopted = true
	m.watched[id] = make(chan cay.Death, 1)
	return nil
}

func (m *machine) Usage(_ context.Context, id cay.InstanceID) (cay.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	if c == nil {
		return cay.Usage{}, cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	u := cay.Usage{Tasks: 7, MemoryUsed: 30 << 20}
	if c.spec.Loading == engine.Demand {
		u.MemoryPending = m.pending
	}
	return u, nil
}

// SaveSize is what the memory takes that is loaded.
func (m *machine) SaveSize(ctx context.Context, id cay.InstanceID, _ bool) (int64, error) {
	u, err := m.Usage(ctx, id)
	return u.MemoryUsed, err
}

func (m *machine) RecordWorkingSet(_ context.Context, id cay.InstanceID, w io.Writer) error {
	m.mu.Lock()
	m.traced = append(m.traced, m.containers[id].spec.Trace)
	m.mu.Unlock()
	if err := m.step("record"); err != nil {
		return err
	}
	_, err := io.WriteString(w, "ranges of "+string(id))
	for m.endless && err == nil {
		_, err = io.WriteString(w, strings.Repeat("ranges", 1000))
	}
	return err
}

func (m *machine) init(ctx context.Context, _ *toagent.Client, token string, in guest.Init) (guest.InitReply, error) {
	m.mu.Lock()
	m.inits = append(m.inits, in)
	m.tokens = append(m.tokens, token)
	m.mu.Unlock()
	if err := m.step("init"); err != nil {
		return guest.InitReply{}, err
	}
	return guest.InitReply{Protocol: guest.Protocol}, ctx.Err()
}

// network is the same machine's slots.
type network machine

func (w *network) step(name string) error { return (*machine)(w).step(name) }

func (w *network) slot(index int) vnet.Slot {
	return vnet.Slot{Index: index, Namespace: fmt.Sprintf("/netns/%d", index), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(index)})}
}

func (w *network) Acquire(context.Context) (vnet.Slot, error) {
	if err := w.step("acquire"); err != nil {
		return vnet.Slot{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for index := 1; ; index++ {
		if st, ok := w.slots[index]; !ok || st == "idle" {
			w.slots[index] = "held"
			return w.slot(index), nil
		}
	}
}

func (w *network) Release(_ context.Context, s vnet.Slot) error {
	if err := w.step("release"); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots[s.Index] != "held" {
		return fmt.Errorf("slot %d is %s", s.Index, w.slots[s.Index])
	}
	for id, c := range w.containers {
		if c.spec.Net.Namespace == s.Namespace {
			return fmt.Errorf("slot %d is released under container %s", s.Index, id)
		}
	}
	w.slots[s.Index] = "idle"
	return nil
}

func (w *network) Adopt(_ context.Context, index int) (vnet.Slot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots[index] != "found" {
		return vnet.Slot{}, cay.Errorf(cay.NotFound, "slot %d is %q", index, w.slots[index])
	}
	w.slots[index] = "held"
	return w.slot(index), nil
}

func (w *network) Apply(_ context.Context, s vnet.Slot, p cay.NetworkPolicy) error {
	w.mu.Lock()
	w.policies[s.Index] = p
	w.mu.Unlock()
	return w.step("apply")
}

func (w *network) Fence(_ context.Context, s vnet.Slot) error {
	w.mu.Lock()
	w.fenced[s.Index] = true
	w.mu.Unlock()
	return w.step("fence")
}

func (w *network) KeepLease(_ context.Context, lasts time.Duration) error {
	w.mu.Lock()
	w.leased = lasts
	w.mu.Unlock()
	return w.step("keep lease")
}

func (w *network) Sent(vnet.Slot) int64 { return 0 }

func (w *network) Reclaim(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for index, st := range w.slots {
		if st == "found" {
			w.slots[index] = "idle"
		}
	}
	return nil
}
