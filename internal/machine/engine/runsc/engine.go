// Package runsc is the gVisor engine: it drives cay-runsc, our own build of
// gVisor's runsc, one container an instance, and reads the rest (usage, death,
// what is alive) from cgroups and process descriptors.
//
// An instance does not depend on this process: it lives in the sentry's, its
// cgroup and a record below Config.Run. A new Engine over the same directories
// lists and adopts what an earlier one started.
package runsc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/spawn"
)

// Name is what snapshots say of this engine.
const Name = "runsc"

// Config says where the engine finds and keeps its things.
type Config struct {
	// Engines holds one directory a build, named by its hash.
	Engines string
	// Hash names the build that starts new instances. Running instances and
	// snapshots go on with the build that made them.
	Hash string
	// Run keeps records of what runs. It should be a tmpfs: what it says is
	// void after a reboot.
	Run string
	// Cgroup is the parent of every instance's cgroup, a single name.
	Cgroup string
	// RestoreLimit and BackgroundLimit bound a restore, and one that goes after
	// everything else that the host does; 0 is the usual limit.
	RestoreLimit, BackgroundLimit time.Duration
	// Begun is called, unless it is nil, when a command for an instance has
	// begun, with its process: for tests, which break off what must not be lost.
	Begun func(id cay.InstanceID, verb string, pid int)
}

// Engine implements engine.Engine.
type Engine struct {
	cfg      Config
	cg       hierarchy
	features []string

	mu       sync.Mutex
	live     map[cay.InstanceID]*instance
	starting map[cay.InstanceID]*starting
	demands  map[string]bool // builds, by hash, that can load by demand or cannot
	arrivals arrivals        // nil unless it streams
}

var _ engine.Engine = (*Engine)(nil)

// Open checks that the build is there and asks it what this host's processor
// offers. Instances that an earlier Engine started are left alone until they
// are adopted or killed.
func Open(cfg Config) (*Engine, error) {
	if !validName(cfg.Hash) || !validName(cfg.Cgroup) {
		return nil, cay.Errorf(cay.Invalid, "the engine needs a hash and a cgroup name, got %q and %q", cfg.Hash, cfg.Cgroup)
	}
	e := &Engine{
		cfg:      cfg,
		cg:       findHierarchy(cfg.Cgroup),
		live:     make(map[cay.InstanceID]*instance),
		starting: make(map[cay.InstanceID]*starting),
		demands:  make(map[string]bool),
	}
	if !e.installed(cfg.Hash) {
		return nil, cay.Errorf(cay.Unavailable, "engine %s is not in %s", cfg.Hash, cfg.Engines).
			WithHint("build it with scripts/build-engine")
	}
	for _, dir := range []string{e.stateDir(), e.recordDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, cay.Wrap(cay.Internal, err, "cannot make the engine's run directory")
		}
	}
	out, err := spawn.Command(context.Background(), e.binary(cfg.Hash), "cpu-features").Output()
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "engine %s does not run on this host", cfg.Hash)
	}
	e.features = strings.Split(string(bytes.TrimSpace(out)), ",")
	slices.Sort(e.features)
	return e, nil
}

// Fingerprint implements engine.Engine.
func (e *Engine) Fingerprint() engine.Fingerprint {
	return engine.Fingerprint{Name: Name, Hash: e.cfg.Hash, CPUFeatures: slices.Clone(e.features)}
}

// CanRestore implements engine.Engine.
func (e *Engine) CanRestore(s cay.Snapshot) error {
	refuse := func(format string, args ...any) *cay.Error {
		return cay.Errorf(cay.Conflict, "snapshot %s cannot be restored here: "+format, append([]any{s.ID}, args...)...)
	}
	switch {
	case s.Engine != Name:
		return refuse("it was taken by engine %q, this is %q", s.Engine, Name)
	case s.Format != cay.SnapshotFormat && s.Format != cay.DockerFormat:
		return refuse("it has format %d, this build reads %d and %d", s.Format, cay.SnapshotFormat, cay.DockerFormat)
	case s.Kind != cay.MemorySnapshot:
		return refuse("it holds %s, not memory", s.Kind)
	case !validName(s.EngineHash) || !e.installed(s.EngineHash):
		return refuse("engine build %q that took it is not installed", s.EngineHash)
	}
	if why := e.withdrawn(s.EngineHash); why != "" {
		return refuse("engine build %s is withdrawn: %s", s.EngineHash, why)
	}
	if f := cay.LacksFeature(e.features, s.CPUFeatures); f != "" {
		return refuse("it needs a processor with %s", f).WithCode(cay.CodeProcessor)
	}
	return nil
}

// List implements engine.Engine: an instance with a record or a cgroup is alive
// or half made.
func (e *Engine) List(context.Context) ([]cay.InstanceID, error) {
	ids := e.cg.children()
	entries, err := os.ReadDir(e.recordDir())
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot list instances")
	}
	for _, entry := range entries {
		if entry.IsDir() && cay.ValidID(entry.Name()) {
			ids = append(ids, cay.InstanceID(entry.Name()))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func (e *Engine) binary(hash string) string { return filepath.Join(e.cfg.Engines, hash, "cay-runsc") }
func (e *Engine) stateDir() string          { return filepath.Join(e.cfg.Run, "runsc") }
func (e *Engine) recordDir() string         { return filepath.Join(e.cfg.Run, "engine") }

func (e *Engine) installed(hash string) bool {
	for _, p := range []string{"cay-runsc", "gvisor-bin/gvisor_sentry"} {
		if _, err := os.Stat(filepath.Join(e.cfg.Engines, hash, p)); err != nil {
			return false
		}
	}
	return true
}

// withdrawn reads why a build must restore nothing any more, for a security
// hole say; empty when it may. An operator withdraws one by writing the reason
// into <engines>/<hash>.withdrawn. Its instances run on.
func (e *Engine) withdrawn(hash string) string {
	text, err := os.ReadFile(filepath.Join(e.cfg.Engines, hash+".withdrawn"))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return cmp.Or(strings.TrimSpace(firstLine(text[:min(len(text), maxLog)])), "no reason is given")
}

// get finds an instance that this Engine started or adopted.
func (e *Engine) get(id cay.InstanceID) (*instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if in, ok := e.live[id]; ok {
		return in, nil
	}
	return nil, cay.Errorf(cay.NotFound, "instance %s is not running here", id)
}

// validName accepts what is safe as one path element and one cgroup name.
func validName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00\n ")
}
