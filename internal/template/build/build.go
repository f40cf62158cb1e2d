// Package build makes templates of steps: it runs them in an instance that it
// borrows from the node, keeps the changes of each one as a layer, makes a root
// image of the last, and takes the snapshot that sandboxes start from. It knows
// no database and checks no rights; control does both (docs/adr/0015, 0044).
//
//	<data>/building                  images that only a running build needs
//	<data>/contexts/<team>/<hash>    archives for COPY
//	<data>/layers                    see internal/template/layer
package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/template/layer"
	"github.com/cay-run/cay/internal/template/oci"
)

// Names of what is no numbered step.
const (
	baseStep     = "base"
	finalizeStep = "finalize"
)

// Node runs the sandboxes that builds work in; *node.Node does.
type Node interface {
	Borrow(ctx context.Context, spec node.BootSpec) (*node.Lease, error)
	ReadFiles(ctx context.Context, id cay.SnapshotID, visit func(h *tar.Header, body io.Reader) error) error
	CanRestore(s cay.Snapshot) error
	EngineHash() string
}

// Times are how long parts of a build may take. Zero ones are the usual.
type Times struct {
	Step  time.Duration // of one step; an hour
	Ready time.Duration // until the ready command succeeds; 10 minutes
}

// Config is what a Builder needs.
type Config struct {
	Data      string // the data directory
	Node      Node
	Snapshots *snapshot.Dir
	// Fetch copies what is lacking of a snapshot from elsewhere; nil knows no other place.
	Fetch     func(ctx context.Context, id cay.SnapshotID) error
	Images    *oci.Teams // images of registries; nil for none
	AgentPath string     // the agent to put into their roots
	Times     Times
	Disk      disk.Reserve // of the data directory's disk; without a directory nothing is bounded
	Log       *slog.Logger
}

// Builder carries builds out. Its methods may be called at the same time.
type Builder struct {
	cfg      Config
	layers   *layer.Store
	work     string
	contexts string
	busy     sync.RWMutex // held for reading by builds

	mu     sync.Mutex
	images map[string]*lease // of root images
}

// lease counts the builds that need a root image which no snapshot stands on yet.
type lease struct {
	holds int  // builds
	ours  bool // a build of this process made it
}

// New returns a builder and removes the files that an earlier one left.
func New(cfg Config) (*Builder, error) {
	if cfg.Times.Step == 0 {
		cfg.Times.Step = time.Hour
	}
	if cfg.Times.Ready == 0 {
		cfg.Times.Ready = 10 * time.Minute
	}
	layers, err := layer.Open(cfg.Data)
	if err != nil {
		return nil, err
	}
	b := &Builder{
		cfg: cfg, layers: layers,
		work: filepath.Join(cfg.Data, "building"), contexts: filepath.Join(cfg.Data, "contexts"),
		images: map[string]*lease{},
	}
	return b, b.removeLeftovers()
}

// removeLeftovers removes the files of builds that were killed. The node has
// ended their instances.
func (b *Builder) removeLeftovers() error {
	if err := os.MkdirAll(b.work, 0o700); err != nil {
		return disk.Error(err, "make %s", b.work)
	}
	entries, err := os.ReadDir(b.work)
	if err != nil {
		return disk.Error(err, "list %s", b.work)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(b.work, e.Name())); err != nil {
			return disk.Error(err, "remove what an earlier build left")
		}
	}
	return b.removeUploads()
}

// Has reports whether a snapshot that Build returned is still there.
func (b *Builder) Has(id cay.SnapshotID) bool {
	_, err := b.cfg.Snapshots.Record(id)
	return err == nil
}

// have finds a snapshot and the path of its root image, which are fetched where they lack.
func (b *Builder) have(ctx context.Context, id cay.SnapshotID) (s cay.Snapshot, image string, err error) {
	find := func() {
		if _, s, err = b.cfg.Snapshots.Get(id); err == nil {
			image, err = b.cfg.Snapshots.Image(s.Root)
		}
	}
	find()
	if cay.KindOf(err) == cay.NotFound && b.cfg.Fetch != nil {
		if err = b.cfg.Fetch(ctx, id); err == nil {
			find()
		}
	}
	return s, image, err
}

// Idle runs f while no build runs, or not at all: it reports whether it did.
func (b *Builder) Idle(f func() error) (bool, error) {
	if !b.busy.TryLock() {
		return false, nil
	}
	defer b.busy.Unlock()
	return true, f()
}

// state is what a step leaves: a layer, and what processes start with.
type state struct {
	Layer string // digest; empty while nothing differs from the base
	Env   map[string]string
	User  string
	Dir   string
}

// run is one build.
type run struct {
	*Builder
	spec  cay.BuildSpec
	log   func(cay.BuildLog)
	root  string // digest of the base's root image
	below string // digest of the layer that the base has over it; empty for none
	from  string // what the base is called, for people
	keys  []string
	fresh int // the first step that runs whatever is known, and all after it
	state state
	box   *box         // booted at the first step that runs
	base  string       // digest of the layer that box was booted from
	own   string       // the image that it was booted from, if only this build needs it
	last  *layer.Layer // of what box has changed
	made  []string     // files of images that only this build needs
	holds []string     // images that must stay until the build is done

	capable map[string]bool // files that a warning named
}

// Build carries a build out. Times of log lines are the caller's to set.
func (b *Builder) Build(ctx context.Context, spec cay.BuildSpec, log func(cay.BuildLog)) (out cay.BuildResult, err error) {
	b.busy.RLock()
	defer b.busy.RUnlock()
	started := time.Now()
	r := &run{Builder: b, spec: spec, log: log}
	defer func() {
		err = r.blame(err) // before close makes room
		r.close()
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	if err := r.begin(ctx); err != nil {
		return out, &cay.StepError{Step: baseStep, Err: err}
	}
	if err := r.steps(ctx); err != nil {
		return out, err
	}
	if err := r.trust(ctx); err != nil {
		return out, &cay.StepError{Step: finalizeStep, Err: err}
	}
	out, err = r.finish(ctx)
	if err != nil {
		return out, &cay.StepError{Step: finalizeStep, Err: err}
	}
	r.say("", "Build finished, took %s", time.Since(started).Round(time.Millisecond))
	return out, nil
}

// close ends the build's sandbox and removes the files that only this build
// needed. A file that stays does not change what was built; the next start
// removes it.
func (r *run) close() {
	r.leave()
	for _, name := range r.made {
		if err := os.RemoveAll(name); err != nil {
			r.cfg.Log.Warn("a file of a build is left", "path", name, "err", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range r.holds {
		r.images[name].holds--
	}
}

// leave ends the sandbox that steps run in, if there is one.
func (r *run) leave() {
	if r.box != nil {
		r.box.close()
		r.box = nil
	}
}

// hold keeps an image from Tidy until the build is done. ours says that the
// build makes it.
func (r *run) hold(name string, ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.images[name]
	if l == nil {
		l = new(lease)
		r.images[name] = l
	}
	l.holds++
	l.ours = l.ours || ours
	r.holds = append(r.holds, name)
}

func (r *run) say(step, format string, args ...any) {
	r.log(cay.BuildLog{Level: cay.LogInfo, Step: step, Message: fmt.Sprintf(format, args...)})
}

// begin finds the root image that the build stands on, and makes the keys of
// all steps.
func (r *run) begin(ctx context.Context) error {
	setup, err := r.findBase(ctx)
	if err != nil {
		return err
	}
	setup.Docker = setup.Docker || r.spec.Docker
	r.state = state{Layer: r.below, Env: setup.Env, User: setup.User, Dir: setup.Dir}
	r.spec.Setup = setup
	key := digest("build 1", string(r.spec.Team), r.root, setup)
	if r.below != "" {
		key = digest(key, r.below)
	}
	r.say(baseStep, "[base] FROM %s [%.12s]", r.from, key)
	for _, s := range r.spec.Steps {
		key = stepKey(key, s)
		r.keys = append(r.keys, key)
	}
	r.fresh = r.firstWithVolumes()
	return nil
}

func (r *run) findBase(ctx context.Context) (cay.Setup, error) {
	if r.spec.Archive != "" {
		r.from = "file"
		return r.imported(ctx)
	}
	if r.spec.Image != "" {
		r.from = r.spec.Image
		if r.cfg.Images != nil {
			setup, err := r.rootOf(ctx)
			if err == nil || cay.KindOf(err) != cay.Unavailable || ctx.Err() != nil {
				return setup, err
			}
			r.log(cay.BuildLog{Level: cay.LogWarn, Step: baseStep, Message: "no registry can be reached: " + err.Error()})
		}
		if !standsIn(r.spec.Image) {
			return cay.Setup{}, cay.Errorf(cay.NotFound, "image %q cannot be had: no registry can be reached", r.spec.Image).
				WithHint("build from a template, or from an image of Debian, Ubuntu, Python or Node")
		}
		r.log(cay.BuildLog{Level: cay.LogWarn, Step: baseStep, Message: fmt.Sprintf(
			"Cay's own base (Debian 12 with Python and Node) stands in for %s", r.spec.Image)})
	}
	defer r.cfg.Snapshots.Use(r.spec.From)()
	s, _, err := r.have(ctx, r.spec.From)
	if cay.KindOf(err) == cay.Unavailable {
		return cay.Setup{}, err
	}
	if err != nil {
		return cay.Setup{}, cay.Wrap(cay.NotFound, err, "the template to build from is not there").
			WithHint("wait until it is built")
	}
	if r.from == "" {
		r.from = "template"
	}
	r.root = s.Root
	r.hold(r.root, false)
	if s.Sandbox != "" {
		err = r.overlay(ctx, s)
	}
	return r.spec.Setup, err
}

// standsIn reports whether Cay's own base has what programs for an image
// expect.
func standsIn(ref string) bool {
	ref = strings.TrimPrefix(strings.TrimPrefix(ref, "docker.io/"), "library/")
	name, _, _ := strings.Cut(ref, "@")
	name, _, _ = strings.Cut(name, ":")
	switch name {
	case "debian", "ubuntu", "python", "node":
		return true
	}
	return false
}

// known finds the deepest step whose layer is there, and returns how many
// need not run.
func (r *run) known() int {
	first := r.fresh
	for i, s := range r.spec.Steps[:first] {
		if s.Force || r.spec.Force {
			first = i
			break
		}
	}
	for n := first; n > 0; n-- {
		var s state
		if !r.layers.Find(r.keys[n-1], &s) {
			continue
		}
		if s.Layer != "" {
			if _, err := r.layers.Load(s.Layer); err != nil {
				continue
			}
		}
		r.state = s
		return n
	}
	return 0
}

// steps runs all steps that are not known.
func (r *run) steps(ctx context.Context) error {
	n := r.known()
	for i, s := range r.spec.Steps {
		number := strconv.Itoa(i + 1)
		title := fmt.Sprintf("[builder %d/%d] %s [%.12s]", i+1, len(r.spec.Steps), describe(s), r.keys[i])
		if i < n {
			r.say(number, "CACHED %s", title)
			continue
		}
		r.say(number, "%s", title)
		if err := r.step(ctx, i, s); err != nil {
			r.forget(r.spec.Team, s.FilesHash, err)
			return &cay.StepError{Step: number, Err: err}
		}
	}
	return nil
}

// describe is a step as its author wrote it.
func describe(s cay.BuildStep) string {
	args := s.Args
	switch s.Type {
	case "RUN":
		args = args[:1]
	case "COPY":
		args = args[:2]
	}
	text := s.Type + " " + strings.Join(args, " ")
	if len(text) > 2000 {
		text = text[:2000] + "…"
	}
	return text
}

// step runs one step and keeps what it changed.
func (r *run) step(ctx context.Context, i int, s cay.BuildStep) error {
	r.leaveUnfit(s)
	done, err := r.onHost(ctx, s)
	if done && err == nil {
		err = r.remember(i)
	}
	if done || err != nil {
		return err
	}
	if r.box == nil {
		if err := r.boot(ctx, r.volumesOf(s)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Times.Step,
		cay.Errorf(cay.Unavailable, "the step took longer than %s", r.cfg.Times.Step))
	defer cancel()
	changed, err := r.execute(ctx, i, s)
	if err == nil && changed {
		err = r.keep(ctx, strconv.Itoa(i+1))
	}
	if err == nil {
		return r.remember(i)
	}
	if late := overtime(ctx, err); late != nil {
		return late
	}
	return r.box.explain(err)
}

// overtime is the error of a step whose time was over when it failed, or nil. The
// agent counts the same time, and may be a moment ahead.
func overtime(ctx context.Context, err error) error {
	if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// boot starts the sandbox that steps run in, from the base and what is known.
func (r *run) boot(ctx context.Context, volumes []cay.VolumeMount) error {
	image, err := r.cfg.Snapshots.Image(r.root)
	if err != nil {
		return err
	}
	name := r.root
	r.base, r.own = r.state.Layer, ""
	if r.base != "" {
		name = flatName(r.root, r.base)
		r.hold(name, false)
		if image, err = r.passingImage(ctx, name, r.base); err != nil {
			return err
		}
	}
	limits := r.spec.Limits // a compiler needs more than what it makes
	limits.CPUs, limits.MemoryMB = max(limits.CPUs, 2), max(limits.MemoryMB, 1024)
	setup := r.spec.Setup
	setup.Ports, setup.Args = nil, setup.Args[:min(1, len(setup.Args))] // the agent alone
	r.box, err = r.enter(ctx, image, name, setup, limits, volumes)
	return err
}

// keep stores what the sandbox has changed by now as a layer.
func (r *run) keep(ctx context.Context, step string) error {
	wake, err := r.box.rest(ctx)
	if err != nil {
		return err
	}
	changes, err := r.box.lease.Changes(ctx)
	if err != nil {
		return err
	}
	defer changes.Close()
	l, err := r.layers.Add(ctx, r.base, r.last, changes, int64(r.spec.Limits.DiskMB)<<20)
	if err == nil {
		err = wake(ctx)
	}
	if err != nil {
		return err
	}
	r.last, r.state.Layer = l, l.Digest
	r.tellCapable(step, l.Capable)
	return nil
}
