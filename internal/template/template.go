// Package template makes the templates that Cay brings: a root image is
// booted, its agent (and kernel) waited for, and the whole checkpointed. The
// snapshot that comes of it is what sandboxes start from.
//
// A build's record lies under <data>/builds/<key>.json, where key names all
// that the snapshot depends on; while that is unchanged, nothing is done.
package template

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/image"
	"github.com/cay-run/cay/internal/snapshot"
	"github.com/cay-run/cay/internal/vnet"
)

// Deadlines of a build's waits. They are for what hangs: a busy machine must
// not meet them.
const (
	bootTime = 2 * time.Minute
	warmTime = 5 * time.Minute
)

// Net lends places in the network; *vnet.Manager does.
type Net interface {
	Acquire(ctx context.Context) (vnet.Slot, error)
	Release(ctx context.Context, slot vnet.Slot) error
}

// Config is what a Builder needs.
type Config struct {
	Data        string // the data directory
	Engine      engine.Engine
	Net         Net
	Snapshots   *snapshot.Dir
	AgentPath   string // the agent to put into images, for this machine's Linux
	AgentDigest string
	Authority   []byte // PEM that guests trust besides what the host trusts; may be empty
	Log         *slog.Logger
}

// Builder builds templates, one at a time.
type Builder struct {
	cfg    Config
	images *image.Builder
	dir    string // <data>/builds
}

// Result is a built template.
type Result struct {
	Name         string
	Snapshot     cay.Snapshot
	Limits       cay.Limits
	RecipeDigest string // the key; equal keys need no build
	Setup        cay.Setup
	Cached       bool // nothing was done
}

// New returns a builder.
func New(cfg Config) *Builder {
	return &Builder{
		cfg:    cfg,
		images: image.NewBuilder(cfg.Data, cfg.Snapshots),
		dir:    filepath.Join(cfg.Data, "builds"),
	}
}

// Current returns the finished build of a template as it would be built now,
// or NotFound when there is none yet. It costs milliseconds.
func (b *Builder) Current(name string) (Result, error) {
	def, files, err := b.plan(name)
	if err != nil {
		return Result{}, err
	}
	return b.find(name, def, b.key(def, files))
}

// Build makes a template, or finds that it is made already. An extra is wanted
// from then on. Builds of several processes wait for each other. progress may
// be nil.
func (b *Builder) Build(ctx context.Context, name string, progress image.Progress) (Result, error) {
	if progress == nil {
		progress = func(string, int) {}
	}
	def, files, err := b.plan(name)
	if err != nil {
		return Result{}, err
	}
	found, err := b.find(name, def, b.key(def, files))
	switch {
	case err == nil:
		return found, b.want(name)
	case cay.KindOf(err) != cay.NotFound:
		return Result{}, err
	}
	unlock, err := b.lock(ctx, progress)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	key := b.key(def, files)
	if found, err := b.find(name, def, key); err == nil { // built while we waited
		return found, b.want(name)
	}
	started := time.Now()
	root, err := b.root(ctx, def, files, func(step string, percent int) {
		if percent >= 0 { // else nobody knows
			percent = percent * 85 / 100
		}
		progress(step, percent)
	})
	if err != nil {
		return Result{}, err
	}
	s, err := b.snapshot(ctx, name, def, root, progress)
	if err != nil {
		return Result{}, err
	}
	if err := b.record(key, s.ID); err != nil {
		return Result{}, err
	}
	if err := b.want(name); err != nil {
		return Result{}, err
	}
	b.cfg.Log.Info("template built", "template", name, "snapshot", s.ID, "root", root,
		"bytes", s.Size(), "took", time.Since(started).Round(time.Millisecond))
	progress(name+": ready", 100)
	return Result{Name: name, Snapshot: s, Limits: def.limits, RecipeDigest: key, Setup: def.setup()}, nil
}

// plan collects what a template is made of, but for the agent.
func (b *Builder) plan(name string) (definition, []image.File, error) {
	def, err := lookup(name)
	if err != nil {
		return definition{}, nil, err
	}
	files, err := image.HostFiles()
	if err != nil {
		return definition{}, nil, err
	}
	if b.cfg.Authority != nil {
		files = image.Trust(files, "cay-egress", b.cfg.Authority)
	}
	return def, append(files, image.ResolverFile(vnet.DNS.String())), nil
}

func (b *Builder) key(def definition, files []image.File) string {
	return def.key(files, b.cfg.AgentDigest, b.cfg.Engine.Fingerprint().Hash)
}

// root makes the root image, with the agent in it.
func (b *Builder) root(ctx context.Context, def definition, files []image.File, p image.Progress) (digest string, err error) {
	agent, err := os.ReadFile(b.cfg.AgentPath)
	if err != nil {
		return "", cay.Wrap(cay.Internal, err, "read the agent")
	}
	files = append(files, image.File{Path: guest.AgentPath, Mode: 0o755, Data: agent})
	return b.images.Build(ctx, def.recipe, files, p)
}

// snapshot boots a root image, waits until all in it is ready, and commits
// its checkpoint. Nothing of the instance is left, whatever happens.
func (b *Builder) snapshot(ctx context.Context, name string, def definition, root string, p image.Progress) (s cay.Snapshot, err error) {
	path, err := b.cfg.Snapshots.Image(root)
	if err != nil {
		return s, err
	}
	id := cay.NewInstanceID()
	dir := filepath.Join(b.dir, workName, string(id))
	reserved := filepath.Join(dir, "reserved")
	if err := os.MkdirAll(reserved, 0o755); err != nil {
		return s, cay.Wrap(cay.Internal, err, "make %s", reserved)
	}
	defer os.RemoveAll(dir)
	slot, err := b.cfg.Net.Acquire(ctx)
	if err != nil {
		return s, err
	}
	// Cleaning up goes on when the caller has gone.
	always := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, b.cfg.Net.Release(always, slot)) }()

	p(name+": booting", 87)
	if err := b.cfg.Engine.Boot(ctx, engine.BootSpec{
		ID: id, Root: path, Digest: root, Args: def.args, Limits: def.limits,
		Dir: dir, Reserved: reserved, Net: engine.Net{Namespace: slot.Namespace},
	}); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.cfg.Engine.Kill(always, id)) }()
	protocol, err := b.settle(ctx, name, def, id, slot, p)
	if err != nil {
		return s, err
	}
	p(name+": taking the snapshot", 95)
	return b.checkpoint(ctx, id, def, protocol)
}

// settle brings a booted instance to the point at which its snapshot is
// taken, and returns the protocol that its agent speaks.
func (b *Builder) settle(ctx context.Context, name string, def definition, id cay.InstanceID, slot vnet.Slot, p image.Progress) (protocol int, err error) {
	ctx, done := b.whileAlive(ctx, id)
	defer done(&err)
	client := guest.NewClient(slot.Addr)
	defer client.Close()
	if err := waitReady(ctx, client, guest.AgentPort, bootTime); err != nil {
		return 0, err
	}
	reply, err := client.Init(ctx, "", guest.Init{
		Mode: guest.ModeBuild, TemplateEnv: image.Env(), Timestamp: time.Now(),
		DefaultUser: guest.User, DefaultDir: guest.Home,
		CPUs: def.limits.CPUs, MemoryMB: def.limits.MemoryMB, DiskMB: def.limits.DiskMB,
	})
	if err != nil {
		return 0, cay.Wrap(cay.Internal, err, "the agent in the new root did not take its settings")
	}
	for _, port := range def.ports {
		p(name+": warming up", 90)
		if err := waitReady(ctx, client, port, warmTime); err != nil {
			return 0, err
		}
	}
	return reply.Protocol, nil
}

func waitReady(ctx context.Context, client *guest.Client, port int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := client.WaitReady(ctx, port); err != nil {
		return cay.Wrap(cay.Internal, err, "port %d of the new root was not ready within %s", port, limit)
	}
	return nil
}

// whileAlive returns a context that ends with the instance. done says so in
// the error, with the engine's evidence.
func (b *Builder) whileAlive(ctx context.Context, id cay.InstanceID) (context.Context, func(*error)) {
	deaths, err := b.cfg.Engine.Watch(id)
	if err != nil {
		return ctx, func(out *error) { *out = errors.Join(*out, err) }
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case d := <-deaths:
			cancel(cay.Errorf(cay.Internal, "the new root's instance died while it started: %s %s", d.Cause, d.Detail))
		case <-stop:
		}
	}()
	return ctx, func(out *error) {
		close(stop)
		if died := context.Cause(ctx); *out != nil && died != nil && cay.KindOf(died) == cay.Internal {
			*out = died
		}
		cancel(nil)
	}
}

func (b *Builder) checkpoint(ctx context.Context, id cay.InstanceID, def definition, protocol int) (cay.Snapshot, error) {
	tmp, err := b.cfg.Snapshots.Begin()
	if err != nil {
		return cay.Snapshot{}, err
	}
	defer b.cfg.Snapshots.Abort(tmp)
	s, err := b.cfg.Engine.Checkpoint(ctx, id, tmp, false)
	if err != nil {
		return cay.Snapshot{}, err
	}
	s.Boot = def.boot()
	s.ID, s.Agent, s.CreatedAt = cay.NewSnapshotID(), protocol, time.Now().UTC().Truncate(time.Millisecond)
	if err := b.cfg.Snapshots.Commit(tmp, s); err != nil {
		return cay.Snapshot{}, err
	}
	return s, nil
}
