package hosttest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// container is an instance, as the engine has it.
type container struct {
	guest   *Guest
	slot    vnet.Slot
	root    string
	limits  cay.Limits
	watched chan cay.Death // nil where no process has taken it over
	dead    bool           // it is kept until Kill
	frozen  bool
}

var _ host.Engine = (*Machine)(nil)

const (
	engineName = "hosttest"
	memoryFile = "memory.json"
)

// Fingerprint says what engine this is.
func (m *Machine) Fingerprint() engine.Fingerprint {
	return engine.Fingerprint{Name: engineName, Hash: m.Engine, CPUFeatures: m.Features}
}

// Capabilities are those of an engine that costs nothing.
func (m *Machine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Isolation: "none"}
}

// CanRestore accepts memory that this engine saved.
func (m *Machine) CanRestore(s cay.Snapshot) error {
	if s.Kind != cay.MemorySnapshot || s.EngineHash != m.Engine {
		return cay.Errorf(cay.Conflict, "snapshot %s holds no memory of this engine", s.ID)
	}
	if f := cay.LacksFeature(m.Features, s.CPUFeatures); f != "" {
		return cay.Errorf(cay.Conflict, "snapshot %s needs a processor with %s", s.ID, f).WithCode(cay.CodeProcessor)
	}
	return nil
}

// CanBoot accepts what holds files.
func (m *Machine) CanBoot(s cay.Snapshot) error {
	if len(engine.Reads(s, true)) == 0 {
		return cay.Errorf(cay.Conflict, "snapshot %s holds no files", s.ID)
	}
	return nil
}

// Boot starts a guest with nothing in memory.
func (m *Machine) Boot(_ context.Context, spec engine.BootSpec) error {
	if _, err := os.Stat(spec.Root); err != nil {
		return cay.Wrap(cay.Internal, err, "there is no root image")
	}
	return m.start(spec.ID, spec.Net, spec.Digest, spec.Limits, Memory{})
}

// Restore starts a guest with the memory that a snapshot holds.
func (m *Machine) Restore(_ context.Context, spec engine.RestoreSpec) error {
	text, err := os.ReadFile(filepath.Join(spec.From, memoryFile))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "read the memory")
	}
	var memory Memory
	if err := json.Unmarshal(text, &memory); err != nil {
		return cay.Wrap(cay.Internal, err, "read the memory")
	}
	return m.start(spec.ID, spec.Net, spec.Snapshot.Root, spec.Limits, memory)
}

func (m *Machine) start(id cay.InstanceID, at engine.Net, root string, limits cay.Limits, memory Memory) error {
	slot, err := m.slotOf(at.Namespace)
	if err != nil {
		return err
	}
	g, err := newGuest(slot.Addr, memory, m.Agent, m.Ports)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "start the guest")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.containers[id] != nil {
		g.close()
		return cay.Errorf(cay.Conflict, "instance %s is there already, or its machine is over", id)
	}
	m.containers[id] = &container{guest: g, slot: slot, root: root, limits: limits, watched: make(chan cay.Death, 1)}
	return nil
}

// living finds an instance that is alive. The caller holds m.mu.
func (m *Machine) living(id cay.InstanceID) (*container, error) {
	c := m.containers[id]
	if c == nil || c.dead {
		return nil, cay.Errorf(cay.NotFound, "no instance %s is alive", id)
	}
	return c, nil
}

// Checkpoint writes the guest's memory.
func (m *Machine) Checkpoint(ctx context.Context, id cay.InstanceID, dir string, then engine.After) (cay.Snapshot, error) {
	if then == engine.Stays {
		if err := m.Hold(ctx, id); err != nil {
			return cay.Snapshot{}, err
		}
	}
	s, err := m.save(id, dir, cay.MemorySnapshot, memoryFile)
	if err == nil && then == engine.Ends {
		err = m.Kill(ctx, id)
	}
	return s, err
}

// SnapshotFiles writes what the guest has for files, which is nothing.
func (m *Machine) SnapshotFiles(_ context.Context, id cay.InstanceID, dir string) (cay.Snapshot, error) {
	if err := os.MkdirAll(filepath.Join(dir, engine.FilesDir), 0o700); err != nil {
		return cay.Snapshot{}, cay.Wrap(cay.Internal, err, "save the files")
	}
	return m.save(id, dir, cay.FilesSnapshot, engine.FilesDir+"/layer")
}

func (m *Machine) save(id cay.InstanceID, dir string, kind cay.SnapshotKind, name string) (cay.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.living(id)
	if err != nil {
		return cay.Snapshot{}, err
	}
	text, err := json.Marshal(c.guest.Memory())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
	}
	if err != nil {
		return cay.Snapshot{}, cay.Wrap(cay.Internal, err, "save the instance")
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	sum.Write(text)
	return cay.Snapshot{
		Format: cay.SnapshotFormat, Kind: kind, Engine: engineName, EngineHash: m.Engine, CPUFeatures: m.Features,
		Root: c.root, Limits: c.limits, CreatedAt: time.Now().UTC(),
		Files: []cay.SnapFile{{Name: name, Size: int64(len(text)), CRC32C: hex.EncodeToString(sum.Sum(nil))}},
	}, nil
}

// Hold does nothing to a guest that does nothing by itself.
func (m *Machine) Hold(_ context.Context, id cay.InstanceID) error { return m.alive(id) }

// Release undoes Hold.
func (m *Machine) Release(_ context.Context, id cay.InstanceID) error { return m.alive(id) }

// Freeze is Hold, which Acts knows of.
func (m *Machine) Freeze(_ context.Context, id cay.InstanceID) error { return m.freeze(id, true) }

// Thaw undoes Freeze.
func (m *Machine) Thaw(_ context.Context, id cay.InstanceID) error { return m.freeze(id, false) }

func (m *Machine) freeze(id cay.InstanceID, frozen bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.living(id)
	if err == nil {
		c.frozen = frozen
	}
	return err
}

// Acts reports whether a guest of a sandbox lives that is not frozen.
func (m *Machine) Acts(id cay.SandboxID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.containers {
		if !c.dead && !c.frozen && c.guest.Memory().SandboxID == string(id) {
			return true
		}
	}
	return false
}

// Reboot ends all that runs, as a machine does that loses its power while no server runs.
func (m *Machine) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endAll()
	clear(m.slots)
}

func (m *Machine) alive(id cay.InstanceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.living(id)
	return err
}

// Kill ends an instance and forgets it.
func (m *Machine) Kill(_ context.Context, id cay.InstanceID) error {
	m.Die(id, cay.Death{Instance: id, Cause: cay.CauseAsked})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, id)
	return nil
}

// Die has an instance end by itself.
func (m *Machine) Die(id cay.InstanceID, d cay.Death) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.living(id)
	if err != nil {
		return
	}
	c.dead = true
	c.guest.close()
	if c.watched != nil {
		c.watched <- d
		close(c.watched)
	}
}

// Watch tells of an instance's death.
func (m *Machine) Watch(id cay.InstanceID) (<-chan cay.Death, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.containers[id]
	if c == nil || c.watched == nil {
		return nil, cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	return c.watched, nil
}

// List names what is there, also what an earlier process started.
func (m *Machine) List(context.Context) ([]cay.InstanceID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []cay.InstanceID
	for id := range m.containers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out, nil
}

// Adopt takes an instance over that an earlier process started.
func (m *Machine) Adopt(_ context.Context, id cay.InstanceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.living(id)
	if err == nil {
		c.watched = make(chan cay.Death, 1)
	}
	return err
}

// Usage says that an instance uses little.
func (m *Machine) Usage(_ context.Context, id cay.InstanceID) (cay.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.living(id)
	if err != nil {
		return cay.Usage{}, err
	}
	return cay.Usage{
		At: time.Now(), CPUTime: time.Second, Tasks: 3, MemoryUsed: 100 << 20, MemoryMax: int64(c.limits.MemoryMB) << 20,
		DiskUsed: 1 << 20, DiskMax: int64(c.limits.DiskMB) << 20,
	}, nil
}

// SaveSize says that a save is small.
func (m *Machine) SaveSize(ctx context.Context, id cay.InstanceID, _ bool) (int64, error) {
	u, err := m.Usage(ctx, id)
	return u.DiskUsed, err
}

// LoadAll has nothing to do: a restore reads everything.
func (m *Machine) LoadAll(_ context.Context, id cay.InstanceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.living(id)
	return err
}

// RecordWorkingSet says that nothing is loaded by demand.
func (m *Machine) RecordWorkingSet(_ context.Context, id cay.InstanceID, _ io.Writer) error {
	return cay.Errorf(cay.Conflict, "instance %s was not restored by demand", id)
}

// Changes says that no file differs from the root image.
func (m *Machine) Changes(context.Context, cay.InstanceID) (io.ReadCloser, error) {
	var out bytes.Buffer
	err := tar.NewWriter(&out).Close()
	return io.NopCloser(&out), err
}

// ReadFiles says the same of a snapshot.
func (m *Machine) ReadFiles(string, func(*tar.Header, io.Reader) error) error { return nil }

// Teardown has nothing to remove.
func (m *Machine) Teardown() error { return nil }
