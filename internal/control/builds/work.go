package builds

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
	"github.com/cay-run/cay/internal/trail"
)

// A server owns a build that it carries out for leaseFor, and renews that every
// renewEvery. Every lookEvery it looks for builds whose owner is gone.
const (
	leaseFor   = 30 * time.Second
	renewEvery = 10 * time.Second
	lookEvery  = 30 * time.Second
	lookAgain  = 5 * time.Second // at the end of a build that was not confirmed
)

// Run carries builds out until ctx ends. Those that wait then are carried out
// by the next server.
func (q *Queue) Run(ctx context.Context) {
	if q.builder == nil || q.sealer == nil {
		return
	}
	var wg sync.WaitGroup
	for range buildsAtOnce {
		wg.Go(func() { q.work(ctx) })
	}
	wg.Go(func() { q.watch(ctx) })
	wg.Wait()
}

// signal has a worker look for a build that waits.
func (q *Queue) signal() {
	select {
	case q.waiting <- struct{}{}:
	default: // one is about to look
	}
}

// work carries out one build after the other.
func (q *Queue) work(ctx context.Context) {
	for ctx.Err() == nil {
		b, sealed, err := q.take(ctx)
		if err == nil {
			q.signal() // more may wait than this one
			q.carry(ctx, b, sealed)
			continue
		}
		if cay.KindOf(err) != cay.NotFound {
			q.log.ErrorContext(ctx, "cannot take a build", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-q.waiting:
		}
	}
}

// take leases the next build. It is not cut off in the middle: a build that is
// taken is either carried out or failed.
func (q *Queue) take(ctx context.Context) (cay.Build, string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	return q.store.TakeBuild(ctx, q.owner, buildsOfTeam, leaseFor)
}

// carry carries out a build that this server has leased.
func (q *Queue) carry(server context.Context, b cay.Build, sealed string) {
	var start BuildStart
	plain, err := q.sealer.Open(sealed, placeOf(b.ID))
	if err == nil {
		err = json.Unmarshal(plain, &start)
	}
	if err != nil {
		q.log.Error("cannot read what a build is made from", "build", b.ID, "err", err)
		q.fail(server, b.Team, b.ID, q.owner, cay.Errorf(cay.Unavailable, "what the template is made from cannot be read any more").WithHint("build it again"), 0)
		return
	}
	ctx, cancel := context.WithCancel(server)
	q.enter(b.ID, cancel)
	var renewing sync.WaitGroup
	renewing.Go(func() { q.renew(ctx, b.ID) })
	q.runBuild(ctx, server, b, start)
	q.leave(b.ID)
	renewing.Wait()
	q.Tidy()
}

func (q *Queue) enter(id cay.BuildID, cancel context.CancelFunc) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[id] = cancel
}

// Busy reports whether a build is carried out here.
func (q *Queue) Busy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.running) > 0
}

// carries reports whether a build is carried out here.
func (q *Queue) carries(id cay.BuildID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running[id] != nil
}

func (q *Queue) leave(id cay.BuildID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[id]()
	delete(q.running, id)
}

// Cancel ends a build that runs here; any other is no error. It is for builds
// whose records are gone.
func (q *Queue) Cancel(id cay.BuildID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.running[id]; cancel != nil {
		cancel()
	}
}

// renew keeps the lease of a build until ctx ends, and cancels the build when
// the lease is lost.
func (q *Queue) renew(ctx context.Context, id cay.BuildID) {
	for range ticks.Every(ctx, renewEvery) {
		err := q.store.RenewBuild(ctx, id, q.owner, leaseFor)
		switch {
		case cay.KindOf(err) == cay.NotFound:
			q.log.InfoContext(ctx, "a build has lost its lease", "build", id)
			q.Cancel(id)
			return
		case err != nil && ctx.Err() == nil: // no other server can have it yet
			q.log.WarnContext(ctx, "cannot renew the lease of a build", "build", id, "err", err)
		}
	}
}

// watch fails the builds of servers that are gone, and has workers look for
// those that wait: a build may have been queued by another server.
func (q *Queue) watch(ctx context.Context) {
	for range ticks.Every(ctx, lookEvery) {
		err := q.endLost(ctx, func(one store.QueuedBuild) bool {
			if one.Owner == "" {
				q.signal()
				return false
			}
			return one.Over && !q.carries(one.Build) // this server may have taken it without an answer
		})
		if err != nil && ctx.Err() == nil {
			q.log.WarnContext(ctx, "cannot look at the queue of builds", "err", err)
		}
		q.dropSuperseded(ctx)
	}
}

// endLost fails the builds that a server has left. The next build of the same
// steps uses again what they have done.
func (q *Queue) endLost(ctx context.Context, lost func(store.QueuedBuild) bool) error {
	all, err := q.store.QueuedBuilds(ctx)
	for _, one := range all {
		if lost(one) {
			q.fail(ctx, one.Team, one.Build, one.Owner, errStopped(), 0)
		}
	}
	return err
}

func errStopped() error {
	return cay.Errorf(cay.Unavailable, stoppedMessage).WithHint("build it again")
}

// fail records that a build failed, if it is still its owner's: its template
// may have been removed.
func (q *Queue) fail(ctx context.Context, team cay.TeamID, id cay.BuildID, owner cay.NodeID, why error, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	err := q.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.EndBuild(ctx, id, owner); err != nil {
			return err
		}
		b, err := tx.Build(ctx, team, id)
		if err != nil {
			return err
		}
		b.State, b.Reason, b.UpdatedAt, b.FinishedAt = cay.BuildError, reasonOf(why), ledger.Now(), ledger.Now()
		if err := count(ctx, tx, b, took); err != nil {
			return err
		}
		return tx.PutBuild(ctx, b)
	})
	if err != nil && cay.KindOf(err) != cay.NotFound {
		q.log.WarnContext(ctx, "cannot record the end of a build", "build", id, "err", err)
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

// Tidy gives room back after a snapshot was removed.
func (q *Queue) Tidy() {
	if q.builder == nil {
		return
	}
	if err := q.builder.Tidy(); err != nil {
		q.log.Warn("what removed templates needed is left", "err", err)
	}
}

// runBuild carries a build out and records what came of it. The build is
// cancelled with ctx; server is the server's own.
func (q *Queue) runBuild(ctx, server context.Context, b cay.Build, start BuildStart) {
	logs := q.newBuildLog(b)
	began := time.Now()
	building, done := trail.Begin(ctx, trail.Build)
	result, release, err := q.carryOut(building, b, start, logs.add)
	defer func() { done(err) }()
	// Records are written after a cancellation too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
	defer cancel()
	if server.Err() != nil {
		if err == nil {
			release()
		}
		err = errStopped()
	}
	if err == nil {
		logs.close(ctx)
		if err = q.finishBuild(ctx, b, result, release, time.Since(began)); err == nil {
			return
		}
	}
	q.log.InfoContext(ctx, "build failed", "build", b.ID, "template", b.Template, "err", err)
	logs.add(cay.BuildLog{Level: cay.LogError, Step: reasonOf(err).Step, Message: "Build failed: " + reasonOf(err).Message})
	logs.close(ctx)
	q.fail(ctx, b.Team, b.ID, q.owner, err, time.Since(began))
}

// count counts the time of a build that is over to its end. A build that a
// server left half done took an unknown time, which is 0.
func count(ctx context.Context, tx store.Store, b cay.Build, took time.Duration) error {
	return tx.AddUsage(ctx, cay.Account{Team: b.Team, Template: b.Template}, b.FinishedAt, cay.Amounts{Build: took.Milliseconds()})
}

// carryOut has the builder build, with what it begins with held. The snapshot
// that comes of it is held until release is called.
func (q *Queue) carryOut(ctx context.Context, b cay.Build, start BuildStart, log func(cay.BuildLog)) (out cay.BuildResult, release func(), err error) {
	free, err := q.ledger.HoldBuildVolumes(ctx, b, start.Volumes)
	if err != nil {
		return out, nil, &cay.StepError{Step: "base", Err: err}
	}
	defer free()
	for range buildTries {
		spec, unpin, err := q.buildSpec(ctx, b, start)
		if err != nil {
			return out, nil, &cay.StepError{Step: "base", Err: err}
		}
		out, err = q.builder.Build(ctx, spec, log)
		unpin()
		if err != nil {
			return out, nil, err
		}
		if release, err = q.ledger.Await(ctx, out.Snapshot); err != nil {
			return out, nil, err
		}
		if q.builder.Has(out.Snapshot) {
			return out, release, nil
		}
		release()
	}
	return out, nil, cay.Errorf(cay.Unavailable, "the template was removed while it was built").WithHint("build it again")
}

func (q *Queue) buildSpec(ctx context.Context, b cay.Build, s BuildStart) (spec cay.BuildSpec, unpin func(), err error) {
	spec = cay.BuildSpec{
		Build: b.ID, Template: b.Template, Team: b.Team, Limits: b.Limits,
		Steps: s.Steps, StartCmd: s.StartCmd, ReadyCmd: s.ReadyCmd, Docker: s.Docker, Force: s.Force, Registry: s.Registry,
		Secrets: s.Secrets, Volumes: s.Volumes,
	}
	if s.FromArchive != "" {
		spec.Archive = s.FromArchive
		return spec, func() {}, nil
	}
	from := s.FromTemplate
	if from == "" {
		name, _, _ := strings.Cut(strings.TrimPrefix(s.FromImage, "docker.io/"), ":")
		if from = imageAliases[name]; from == "" {
			from, spec.Image = fallback, s.FromImage
		}
	}
	t, release, err := q.ledger.Hold(ctx, b.Team, from, false)
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
		s, err := q.node.Record(ctx, t.Snapshot)
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
	out.StartCmd, out.ReadyCmd, out.StartIn, out.Docker = b.Start, b.Ready, b.StartIn, b.Docker
	if len(out.Args) == 0 { // its template is gone, or it is of an older Cay
		out.Args = []string{guest.AgentPath}
		if slices.Contains(b.Ports, guest.InterpPort) {
			out.Args = append(out.Args, "-interp")
		}
	}
	return out
}

// wait waits, and reports whether ctx lasts.
func (*Queue) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// finishBuild records a build that is ready; sandboxes start from it now. Snapshots
// that only the builds before it needed are removed. Release gives up the hold on the
// snapshot, which the record keeps then.
func (q *Queue) finishBuild(ctx context.Context, b cay.Build, r cay.BuildResult, release func(), took time.Duration) error {
	before := q.ledger.TagSnapshots(ctx, b.Template, b.Tags)
	b.State, b.Snapshot, b.Setup, b.RecipeDigest = cay.BuildReady, r.Snapshot, r.Setup, r.Digest
	b.EnvdVersion, b.UpdatedAt, b.FinishedAt = guest.EnvdVersion, ledger.Now(), ledger.Now()
	record := func() error {
		return q.store.Tx(ctx, func(tx store.Store) error {
			if err := tx.EndBuild(ctx, b.ID, q.owner); err != nil {
				return err
			}
			if err := count(ctx, tx, b, took); err != nil {
				return err
			}
			return tx.PutBuild(ctx, b)
		})
	}
	err := record()
	for cay.KindOf(err) == cay.Unavailable && q.wait(ctx, lookAgain) { // it may count: one that does has ended the build
		if err = record(); cay.KindOf(err) != cay.NotFound {
			continue
		}
		if recorded, rerr := q.store.Build(ctx, b.Team, b.ID); rerr == nil && recorded.State == cay.BuildReady && recorded.Snapshot == b.Snapshot {
			err = nil
		}
	}
	release()
	if err != nil {
		q.ledger.Tidy(ctx, r.Snapshot)
		return err
	}
	for _, id := range before {
		q.ledger.Tidy(ctx, id)
	}
	q.log.InfoContext(ctx, "template built", "build", b.ID, "template", b.Template, "snapshot", b.Snapshot, "took", ledger.Now().Sub(b.CreatedAt))
	return nil
}
