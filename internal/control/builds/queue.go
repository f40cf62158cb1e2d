// Package builds has the queue of the builds that clients ask for: it checks
// them, carries them out, and records what comes of them.
package builds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/store"
)

// Builder makes templates.
type Builder interface {
	// Build carries one build out and tells what it does. It leaves nothing
	// behind when it fails, but what later builds may use again. An error of
	// a step is a *cay.StepError.
	Build(ctx context.Context, spec cay.BuildSpec, log func(cay.BuildLog)) (cay.BuildResult, error)
	// Has reports whether a snapshot that a build returned is still there.
	Has(id cay.SnapshotID) bool
	// Tidy removes what only snapshots needed that are no more.
	Tidy() error
	// Export returns the file that a template becomes, as a stream.
	Export(ctx context.Context, name string, limits cay.Limits, setup cay.Setup, id cay.SnapshotID) (io.ReadCloser, error)
	// Uploaded reports whether a team's archive for COPY is there; Upload
	// takes one, as a stream.
	Uploaded(team cay.TeamID, hash string) bool
	Upload(ctx context.Context, team cay.TeamID, hash string, archive io.Reader, size int64) error
}

const (
	buildsAtOnce   = 2
	buildsWaiting  = 256              // of all teams
	buildsOfOne    = 20               // that a team may have under way
	buildTries     = 2                // when a snapshot that was to be used again has just gone
	saveWithin     = 10 * time.Minute // to record the end of a build
	messageMost    = 16 << 10
	stoppedMessage = "the server stopped while the template was built"
)

// familiar are images that stand for templates that Cay brings, so that what
// was written for E2B builds without a registry.
var familiar = map[string]string{
	"e2bdev/base":             "base",
	"e2bdev/code-interpreter": "code-interpreter-v1",
	"e2bdev/desktop":          "desktop",
}

// fallback is the template that stands for an image when no registry can be
// reached, if the builder knows nothing better.
const fallback = "base"

// Node reads the record of a snapshot.
type Node interface {
	Snapshot(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error)
}

// Config is what a Queue needs. Builder builds templates; nil for a server that
// builds none. Reserved are names that no team may build under. Log may be nil.
type Config struct {
	Ledger   *ledger.Ledger
	Store    store.Store
	Node     Node
	Builder  Builder
	Reserved []string
	Log      *slog.Logger
}

// Queue has the builds that clients ask for, and carries them out.
type Queue struct {
	ledger   *ledger.Ledger
	store    store.Store
	node     Node
	builder  Builder
	reserved []string
	log      *slog.Logger
	queue    chan job

	mu    sync.Mutex
	jobs  map[cay.BuildID]context.CancelFunc // waiting in the queue or running
	teams map[cay.TeamID]int
}

type job struct {
	ctx   context.Context // ends when the build is cancelled
	build cay.Build
	start BuildStart
}

// Open returns the queue of a server and fails the builds that an earlier one
// was at. Run must follow.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	q := &Queue{
		ledger: cfg.Ledger, store: cfg.Store, node: cfg.Node, builder: cfg.Builder, reserved: cfg.Reserved, log: cfg.Log,
		queue: make(chan job, buildsWaiting),
		jobs:  make(map[cay.BuildID]context.CancelFunc),
		teams: make(map[cay.TeamID]int),
	}
	if q.log == nil {
		q.log = slog.New(slog.DiscardHandler)
	}
	return q, q.endLostBuilds(ctx)
}

// Run carries builds out until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range buildsAtOnce {
		wg.Go(func() { q.runBuilds(ctx) })
	}
	wg.Wait()
}

// enter takes a place for a build, or says why there is none.
func (q *Queue) enter(build cay.Build) (context.Context, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.builder == nil:
		return nil, cay.Errorf(cay.Unsupported, "this server builds no templates")
	case q.jobs[build.ID] != nil:
		return nil, errStarted(build)
	case q.teams[build.Team] >= buildsOfOne:
		return nil, cay.Errorf(cay.Exhausted, "too many builds: %d are under way", buildsOfOne).WithCode(cay.CodeBuildLimit).WithHint("wait until one is done")
	case len(q.jobs) >= buildsWaiting:
		return nil, cay.Errorf(cay.Exhausted, "too many builds wait on this server").WithCode(cay.CodeBuildLimit).WithHint("try again later")
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.jobs[build.ID] = cancel
	q.teams[build.Team]++
	return ctx, nil
}

func (q *Queue) leave(build cay.Build) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs[build.ID]()
	delete(q.jobs, build.ID)
	if q.teams[build.Team]--; q.teams[build.Team] == 0 {
		delete(q.teams, build.Team)
	}
}

// Cancel ends a build that waits or runs; any other is no error.
func (q *Queue) Cancel(id cay.BuildID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.jobs[id]; cancel != nil {
		cancel()
	}
}

func errStarted(b cay.Build) error {
	return cay.Errorf(cay.Invalid, "build %s is not waiting to be started", b.ID)
}

// StartBuild starts a build that RequestBuild recorded. It is building when
// StartBuild returns.
func (q *Queue) StartBuild(ctx context.Context, who cay.Caller, template string, id cay.BuildID, start BuildStart) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	if err := start.check(); err != nil {
		return err
	}
	b, err := q.ownBuild(ctx, who.Team, template, id)
	if err != nil {
		return err
	}
	if b.State != cay.BuildWaiting {
		return errStarted(b)
	}
	inner, err := q.enter(b)
	if err != nil {
		return err
	}
	b.State, b.UpdatedAt = cay.BuildBuilding, ledger.Now()
	if err := q.store.PutBuild(ctx, b); err != nil {
		q.leave(b)
		return err
	}
	q.queue <- job{inner, b, start} // enter left room
	return nil
}

// ownBuild finds a build of a team's own template.
func (q *Queue) ownBuild(ctx context.Context, team cay.TeamID, template string, id cay.BuildID) (cay.Build, error) {
	t, err := q.ledger.FindTemplate(ctx, team, template)
	if err != nil {
		return cay.Build{}, err
	}
	if t.Team != team {
		return cay.Build{}, ledger.OtherTeam(template)
	}
	b, err := q.store.Build(ctx, team, id)
	if err == nil && b.Template != t.ID {
		err = cay.Errorf(cay.NotFound, "")
	}
	if cay.KindOf(err) == cay.NotFound {
		return b, cay.Errorf(cay.NotFound, "build %.80q of template %q not found", string(id), template)
	}
	return b, err
}

// Build returns a build and a part of its log.
func (q *Queue) Build(ctx context.Context, who cay.Caller, template string, part store.BuildLogQuery) (cay.Build, []cay.BuildLog, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return cay.Build{}, nil, err
	}
	// The state first: what is ready has all its lines.
	b, err := q.ownBuild(ctx, who.Team, template, part.Build)
	if err != nil {
		return b, nil, err
	}
	lines, err := q.store.BuildLogs(ctx, part)
	return b, lines, err
}

// endLostBuilds fails the builds that an earlier server was at. What they
// have done is used again by the next one of the same steps.
func (q *Queue) endLostBuilds(ctx context.Context) error {
	lost, err := q.store.BuildsIn(ctx, cay.BuildBuilding)
	for _, b := range lost {
		q.endBuild(ctx, b, cay.Errorf(cay.Unavailable, stoppedMessage).WithHint("build it again"))
	}
	return err
}

// endBuild records that a build failed.
func (q *Queue) endBuild(ctx context.Context, b cay.Build, err error) {
	b.State, b.Reason, b.UpdatedAt, b.FinishedAt = cay.BuildError, reasonOf(err), ledger.Now(), ledger.Now()
	if err := q.store.PutBuild(ctx, b); err != nil { // its template may have been removed
		q.log.Warn("cannot record the end of a build", "build", b.ID, "err", err)
	}
}

// reasonOf is what callers are told of a build's error.
func reasonOf(err error) cay.BuildReason {
	var r cay.BuildReason
	var step *cay.StepError
	if errors.As(err, &step) {
		r.Step = step.Step
	}
	var ours *cay.Error
	switch {
	case errors.As(err, &ours) && ours.Msg != "":
		r.Message = ours.Msg
		if ours.Hint != "" {
			r.Message += "; " + ours.Hint
		}
	case errors.Is(err, context.Canceled):
		r.Message = "the build was cancelled"
	default:
		r.Message = "internal error"
	}
	r.Message = strings.ToValidUTF8(r.Message[:min(len(r.Message), messageMost)], "\uFFFD")
	return r
}

// runBuilds carries builds out, one after the other, until ctx ends.
func (q *Queue) runBuilds(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-q.queue:
			stop := context.AfterFunc(ctx, func() { q.Cancel(j.build.ID) })
			q.runBuild(ctx, j)
			q.Tidy()
			stop()
			q.leave(j.build)
		}
	}
}

// Tidy gives room back after a snapshot was removed.
func (q *Queue) Tidy() {
	if q.builder == nil {
		return
	}
	if err := q.builder.Tidy(); err != nil {
		q.log.Warn("what removed templates needed is left", "err", err)
	}
}

func (q *Queue) runBuild(server context.Context, j job) {
	b := j.build
	logs := q.newBuildLog(b)
	result, release, err := q.carryOut(j, logs.add)
	// Records are written after a cancellation too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(server), saveWithin)
	defer cancel()
	if server.Err() != nil {
		if err == nil {
			release()
		}
		err = cay.Errorf(cay.Unavailable, stoppedMessage).WithHint("build it again")
	}
	if err == nil {
		logs.close(ctx)
		if err = q.finishBuild(ctx, b, result, release); err == nil {
			return
		}
	}
	q.log.Info("build failed", "build", b.ID, "template", b.Template, "err", err)
	logs.add(cay.BuildLog{Level: cay.LogError, Step: reasonOf(err).Step, Message: "Build failed: " + reasonOf(err).Message})
	logs.close(ctx)
	q.endBuild(ctx, b, err)
}

// carryOut has the builder build, with what it begins with held. The snapshot
// that comes of it is held until release is called.
func (q *Queue) carryOut(j job, log func(cay.BuildLog)) (out cay.BuildResult, release func(), err error) {
	for range buildTries {
		spec, unpin, err := q.buildSpec(j)
		if err != nil {
			return out, nil, &cay.StepError{Step: "base", Err: err}
		}
		out, err = q.builder.Build(j.ctx, spec, log)
		unpin()
		if err != nil {
			return out, nil, err
		}
		if release, err = q.ledger.Await(j.ctx, out.Snapshot); err != nil {
			return out, nil, err
		}
		if q.builder.Has(out.Snapshot) {
			return out, release, nil
		}
		release()
	}
	return out, nil, cay.Errorf(cay.Unavailable, "the template was removed while it was built").WithHint("build it again")
}

func (q *Queue) buildSpec(j job) (spec cay.BuildSpec, unpin func(), err error) {
	b, s := j.build, j.start
	spec = cay.BuildSpec{
		Build: b.ID, Template: b.Template, Team: b.Team, Limits: b.Limits,
		Steps: s.Steps, StartCmd: s.StartCmd, ReadyCmd: s.ReadyCmd, Force: s.Force, Registry: s.Registry,
		Secrets: s.Secrets,
	}
	if s.FromArchive != "" {
		spec.Archive = s.FromArchive
		return spec, func() {}, nil
	}
	from := s.FromTemplate
	if from == "" {
		name, _, _ := strings.Cut(strings.TrimPrefix(s.FromImage, "docker.io/"), ":")
		if from = familiar[name]; from == "" {
			from, spec.Image = fallback, s.FromImage
		}
	}
	t, release, err := q.ledger.Hold(j.ctx, b.Team, from, false)
	if err != nil {
		if release = func() {}; spec.Image == "" {
			return spec, nil, err
		}
	}
	if err == nil && t.Snapshot == "" && spec.Image == "" {
		release()
		return spec, nil, cay.Errorf(cay.NotFound, "template %q has no finished build", from)
	}
	spec.From, spec.Setup = t.Snapshot, t.Setup
	if t.Source != "" {
		s, err := q.node.Snapshot(j.ctx, t.Snapshot)
		if err != nil {
			release()
			return spec, nil, err
		}
		spec.Setup = savedSetup(t.Setup, s.Boot)
	}
	return spec, release, nil
}

// savedSetup is what a build begins with that is made from the snapshot of a
// sandbox: what the sandbox was told at its start, and the rest as its template
// had it.
func savedSetup(template cay.Setup, b cay.Boot) cay.Setup {
	out := template
	out.Env, out.User, out.Dir, out.Ports = b.Env, b.User, b.Dir, b.Ports
	out.StartCmd, out.ReadyCmd, out.StartIn = b.Start, b.Ready, b.StartIn
	if len(out.Args) == 0 { // its template is gone, or it is of an older Cay
		out.Args = []string{guest.AgentPath}
		if slices.Contains(b.Ports, guest.InterpPort) {
			out.Args = append(out.Args, "-interp")
		}
	}
	return out
}

// finishBuild records a build that is ready; sandboxes start from it now. What
// only the builds before it needed is removed. Release gives up the hold on the
// snapshot, which the record keeps then.
func (q *Queue) finishBuild(ctx context.Context, b cay.Build, r cay.BuildResult, release func()) error {
	before := q.ledger.TagSnapshots(ctx, b.Template, b.Tags)
	b.State, b.Snapshot, b.Setup, b.RecipeDigest = cay.BuildReady, r.Snapshot, r.Setup, r.Digest
	b.EnvdVersion, b.UpdatedAt, b.FinishedAt = guest.EnvdVersion, ledger.Now(), ledger.Now()
	err := q.store.PutBuild(ctx, b)
	release()
	if err != nil {
		q.ledger.Tidy(ctx, r.Snapshot)
		return err
	}
	for _, id := range before {
		q.ledger.Tidy(ctx, id)
	}
	q.log.Info("template built", "build", b.ID, "template", b.Template, "snapshot", b.Snapshot, "took", ledger.Now().Sub(b.CreatedAt))
	return nil
}

// Uploaded reports whether the archive of a COPY is there already.
func (q *Queue) Uploaded(ctx context.Context, who cay.Caller, template, hash string) (bool, error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return false, err
	}
	t, err := q.ledger.FindTemplate(ctx, who.Team, template)
	switch {
	case err != nil:
		return false, err
	case t.Team != who.Team:
		return false, ledger.OtherTeam(template)
	case !filesHash.MatchString(hash):
		return false, cay.Errorf(cay.Invalid, "hash: must be 64 hexadecimal digits")
	case q.builder == nil:
		return false, cay.Errorf(cay.Unsupported, "this server builds no templates")
	}
	return q.builder.Uploaded(who.Team, hash), nil
}

// Upload takes the archive of a COPY, of so many bytes, or -1 where that is not
// known. The caller has checked that it may.
func (q *Queue) Upload(ctx context.Context, who cay.Caller, hash string, archive io.Reader, size int64) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	if q.builder == nil || !filesHash.MatchString(hash) {
		return cay.Errorf(cay.Invalid, "hash: must be 64 hexadecimal digits")
	}
	return q.builder.Upload(ctx, who.Team, hash, archive, size)
}
