// Package builtin makes the templates that Cay brings: a root image is
// booted, its agent (and kernel) waited for, and the whole checkpointed. The
// snapshot that comes of it is what sandboxes start from.
//
// A build's record lies under <data>/builds/<key>.json, where key names all
// that the snapshot depends on; while that is unchanged, nothing is done.
package builtin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/template/image"
)

// warmTime bounds the wait for a port. It is for a guest that hangs: a busy
// machine must not meet it.
const warmTime = 5 * time.Minute

// Node runs the instances that templates are made in; *node.Node does.
type Node interface {
	Borrow(ctx context.Context, spec node.BootSpec) (*node.Lease, error)
	CanRestore(s cay.Snapshot) error
	EngineHash() string
}

// Images makes the root images of recipes; *image.Builder does.
type Images interface {
	// Build makes the image of a recipe with files put over its tree, and
	// returns its digest.
	Build(ctx context.Context, r image.Recipe, files []image.File, p image.Progress) (digest string, err error)
	// Prune removes what no recipe of those to keep needs.
	Prune(ctx context.Context, dry bool, keep ...image.Recipe) ([]cay.Garbage, error)
}

// Config is what a Builder needs.
type Config struct {
	Data            string // the data directory
	Node            Node
	Snapshots       *snapshot.Dir
	Images          Images // nil makes them of Debian's packages
	AgentPath       string // the agent to put into images, for this machine's Linux
	AgentDigest     string
	GatewayPath     string // the gateway of tools, for the template that has it
	GatewayDigest   string
	Authority       []byte // PEM that guests trust besides what the host trusts; may be empty
	ServerAuthority []byte // PEM of the authority of the server's own names, which guests trust as well; may be empty
	Log             *slog.Logger
}

// Builder builds templates, one at a time.
type Builder struct {
	cfg    Config
	images Images
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
	if cfg.Images == nil {
		cfg.Images = image.NewBuilder(cfg.Data, cfg.Snapshots)
	}
	return &Builder{cfg: cfg, images: cfg.Images, dir: filepath.Join(cfg.Data, "builds")}
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
	key := b.key(def, files)
	found, err := b.find(name, def, key)
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
	if found, err := b.find(name, def, key); err == nil { // built while we waited
		return found, b.want(name)
	}
	started := time.Now()
	root, err := b.root(ctx, def, files, func(step string, percent int) {
		if percent >= 0 { // else it is unknown
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
	b.cfg.Log.InfoContext(ctx, "template built", "template", name, "snapshot", s.ID, "root", root,
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
	if b.cfg.ServerAuthority != nil {
		files = image.Trust(files, "cay-server", b.cfg.ServerAuthority)
	}
	return def, append(files, image.ResolverFile(guest.NameServer)), nil
}

func (b *Builder) key(def definition, files []image.File) string {
	gateway := ""
	if def.gateway {
		gateway = b.cfg.GatewayDigest
	}
	return def.key(files, b.cfg.AgentDigest, gateway, b.cfg.Node.EngineHash())
}

// root makes the root image, with the agent in it, and the gateway where it is to be.
func (b *Builder) root(ctx context.Context, def definition, files []image.File, p image.Progress) (digest string, err error) {
	agent, err := os.ReadFile(b.cfg.AgentPath)
	if err != nil {
		return "", disk.Error(err, "read the agent")
	}
	files = append(files, image.File{Path: guest.AgentPath, Mode: 0o755, Data: agent})
	if def.gateway {
		gateway, err := os.ReadFile(b.cfg.GatewayPath)
		if err != nil {
			return "", disk.Error(err, "read the gateway of tools")
		}
		files = append(files, image.File{Path: guest.GatewayPath, Mode: 0o755, Data: gateway})
	}
	return b.images.Build(ctx, def.recipe, files, p)
}

// snapshot boots a root image in a borrowed instance, waits until all in it is
// ready, and commits its checkpoint. The instance is gone afterwards, after an
// error too.
func (b *Builder) snapshot(ctx context.Context, name string, def definition, root string, p image.Progress) (s cay.Snapshot, err error) {
	path, err := b.cfg.Snapshots.Image(root)
	if err != nil {
		return s, err
	}
	p(name+": booting", 87)
	lease, err := b.cfg.Node.Borrow(ctx, node.BootSpec{
		Root: path, Digest: root, Args: def.args, Boot: def.boot(), Limits: def.limits,
	})
	if err != nil {
		return s, err
	}
	defer lease.Return()
	for _, port := range def.ports {
		p(name+": warming up", 90)
		if err := lease.Ready(ctx, port, warmTime); err != nil {
			return s, err
		}
	}
	p(name+": taking the snapshot", 95)
	s, err = lease.Save(ctx, cay.Snapshot{ID: cay.NewSnapshotID()}, nil)
	return s, lease.Explain(err)
}
