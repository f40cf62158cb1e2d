package triggers

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	runsAtOnce = 1000 // of all teams
	teamAtOnce = 16
	dueAtOnce  = 100
	lookAgain  = time.Minute // in case the clock was set
	failedWait = 5 * time.Second
	pruneEvery = 10 * time.Minute

	// startWithin is how long a run tries to get its sandbox, while the machine or
	// the team has no place for one.
	startWithin = time.Hour
	firstWait   = 10 * time.Second // before the next try, and twice that each time
	mostWait    = 10 * time.Minute
)

var (
	errCancelled = errors.New("a client cancelled the run")
	errStopped   = errors.New("the server stops")
)

// look has the records looked at for what is due.
func (t *Triggers) look() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// Work starts what is due, until ctx ends. Commands go on then; the next server
// follows them.
func (t *Triggers) Work(ctx context.Context) {
	if !t.works() {
		return
	}
	var runs sync.WaitGroup
	defer runs.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(errStopped)
	for !t.followAll(ctx, &runs) {
		if !ticks.Wait(ctx, failedWait) {
			return
		}
	}
	pruned := time.Now()
	for ctx.Err() == nil {
		wait, err := t.startDue(ctx, &runs)
		if err != nil && ctx.Err() == nil {
			t.log.ErrorContext(ctx, "cannot start what is due", "err", err)
			wait = failedWait
		}
		if time.Since(pruned) > pruneEvery {
			pruned = time.Now()
			if _, err := t.store.PruneRuns(ctx, pruned.Add(-KeepRuns), keepMost); err != nil && ctx.Err() == nil {
				t.log.ErrorContext(ctx, "cannot forget old runs", "err", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.poke:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// stillLeads waits until this server leads for certain, and reports whether it does before
// ctx ends. One that stood still after it had recorded something asks before it acts on
// that: another one may have followed the records meanwhile.
func (t *Triggers) stillLeads(ctx context.Context) bool {
	for !t.leads() {
		if !ticks.Wait(ctx, lostWait) {
			return false
		}
	}
	return true
}

// followAll goes on with the runs that an earlier server was at.
func (t *Triggers) followAll(ctx context.Context, runs *sync.WaitGroup) bool {
	list, err := t.store.RunningRuns(ctx)
	if err != nil {
		t.log.ErrorContext(ctx, "cannot read the runs of triggers", "err", err)
		return false
	}
	for _, run := range list {
		t.begin(ctx, run, runs)
	}
	return true
}

// startDue starts what is due, and tells how long nothing else will be.
func (t *Triggers) startDue(ctx context.Context, runs *sync.WaitGroup) (time.Duration, error) {
	if err := t.queueDue(ctx); err != nil {
		return 0, err
	}
	now := ledger.Now()
	list, err := t.store.StartableRuns(ctx, now, teamAtOnce, dueAtOnce)
	if err != nil {
		return 0, err
	}
	for _, run := range list {
		if !t.hasPlace(run.Team) {
			continue // the end of a run pokes
		}
		was := run.Attempt
		run.State, run.Attempt, run.StartedAt = cay.RunRunning, run.Attempt+1, now
		run.BegunAt, run.EndedAt, run.Sandbox, run.Woke, run.ExitCode, run.Error, run.Output = time.Time{}, time.Time{}, "", false, nil, "", ""
		err := t.store.PutRun(ctx, run, cay.RunWaiting, was)
		if cay.KindOf(err) == cay.Conflict { // cancelled
			continue
		}
		if err != nil {
			return 0, err
		}
		t.begin(ctx, run, runs)
	}
	next, err := t.store.NextDue(ctx, now)
	if err != nil || next.IsZero() {
		return lookAgain, err
	}
	return min(max(time.Until(next), 0), lookAgain), nil
}

// hasPlace reports whether one more run of a team may go on.
func (t *Triggers) hasPlace(team cay.TeamID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running) < runsAtOnce && t.teams[team] < teamAtOnce
}

// begin carries an attempt out, in the background.
func (t *Triggers) begin(ctx context.Context, run cay.Run, runs *sync.WaitGroup) {
	server := ctx
	ctx, cancel := context.WithCancelCause(server)
	t.mu.Lock()
	t.running[run.ID] = cancel
	t.teams[run.Team]++
	t.mu.Unlock()
	runs.Go(func() {
		defer t.look()
		defer func() {
			cancel(nil)
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.running, run.ID)
			if t.teams[run.Team]--; t.teams[run.Team] == 0 {
				delete(t.teams, run.Team)
			}
		}()
		t.carryOut(ctx, server, run)
	})
}

// carryOut makes an attempt, and records what comes of it, as long as the server
// goes on.
func (t *Triggers) carryOut(ctx, server context.Context, run cay.Run) {
	a := &attempt{t: t, run: run, number: run.Attempt, resumed: !run.BegunAt.IsZero()}
	err := a.make(ctx)
	for a.isOurs(err) && ticks.Wait(ctx, failedWait) { // the command runs, and is followed once this server can
		a.resumed = true
		err = a.make(ctx)
	}
	id := a.run.Sandbox
	defer a.leave(ctx, id)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errCancelled):
		err = errCancelled // whatever else that led to
	case cause != nil:
		return // it goes on, and the next server follows it
	}
	a.settle(err)
	t.record(server, a)
}

// isOurs reports whether an attempt failed by what this server lacks, its records for
// one, while its command may run.
func (a *attempt) isOurs(err error) bool {
	var known *cay.Error
	if !errors.As(err, &known) || a.run.BegunAt.IsZero() || time.Since(a.run.BegunAt) > a.trigger.Action.Timeout+startWithin {
		return false
	}
	kind := cay.KindOf(err)
	return kind == cay.Internal || kind == cay.Unavailable
}

// settle says what an attempt came to: whether the run is over, or tried again.
func (a *attempt) settle(err error) {
	run, now := &a.run, ledger.Now()
	run.Output = a.output.text()
	var failed *exitError
	switch {
	case errors.Is(err, errCancelled):
		over(run, cay.RunCancelled, "")
		return
	case err == nil:
		zero := 0
		run.ExitCode = &zero
		over(run, cay.RunSucceeded, "")
		return
	case errors.As(err, &failed):
		run.ExitCode, run.Error = &failed.code, failed.why
	default:
		run.Error = visible(err)
	}
	switch {
	case run.BegunAt.IsZero() && mayComeLater(err) && now.Sub(run.QueuedAt) < startWithin:
		// Nothing ran, so it is the same attempt that is made later.
		run.State, run.Attempt, run.DueAt, run.EndedAt = cay.RunWaiting, a.number-1, now.Add(wait(run.QueuedAt, now)), now
	case !run.BegunAt.IsZero() && run.Attempt <= a.trigger.Retries:
		run.State, run.DueAt, run.EndedAt = cay.RunWaiting, now.Add(backoff(run.Attempt)), now
	default:
		over(run, cay.RunFailed, run.Error)
	}
}

// runEnded is the event of a run that is over.
func runEnded(x cay.Trigger, run cay.Run) cay.Event {
	code := ""
	if run.ExitCode != nil {
		code = strconv.Itoa(*run.ExitCode)
	}
	return ledger.NewEvent(runner(x), cay.Sandbox{Team: run.Team}, cay.RunEnded, "",
		"trigger", string(run.Trigger), "name", x.Name, "run", string(run.ID), "state", string(run.State), "exitCode", code,
		"sandbox", string(run.Sandbox), "attempt", strconv.Itoa(run.Attempt), "error", run.Error)
}

// over ends a run, which needs its body no more.
func over(run *cay.Run, state cay.RunState, why string) {
	run.State, run.Error, run.EndedAt, run.Sealed, run.Bytes = state, why, ledger.Now(), "", 0
}

// mayComeLater reports whether a start that failed may succeed without a change.
func mayComeLater(err error) bool {
	var known *cay.Error
	switch cay.KindOf(err) {
	case cay.Exhausted, cay.Unavailable, cay.NoSpace:
		return true
	case cay.Internal: // the records may be away
		return errors.As(err, &known)
	}
	return cay.RetryOf(err).May || cay.CodeOf(err) == cay.CodeKeyUnknown // until its node is back, or gone
}

// wait is how long after its first try a start is tried again: as long as it has
// waited already, within bounds.
func wait(queued, now time.Time) time.Duration {
	return min(max(now.Sub(queued), firstWait), mostWait)
}

// backoff is how long a run waits after an attempt that failed.
func backoff(attempt int) time.Duration {
	return min(firstWait<<min(attempt-1, 10), mostWait)
}

// visible is the text of an error that the team may read.
func visible(err error) string {
	var unknown *unknownError
	if errors.As(err, &unknown) {
		return cay.Fit(unknown.why, ledger.MaxValue)
	}
	return cay.Fit(ledger.Visible(err), ledger.MaxValue)
}

// record records what an attempt came to, and tells of a run that is over. A server
// that ends and cannot record it leaves that to the next one.
func (t *Triggers) record(ctx context.Context, a *attempt) {
	run := a.run
	for {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
		err := t.store.PutRun(within, run, cay.RunRunning, a.number)
		cancel()
		if cay.KindOf(err) == cay.Conflict { // the trigger was removed
			return
		}
		if err == nil {
			break
		}
		t.log.ErrorContext(ctx, "cannot record a run", "run", run.ID, "err", err)
		if !ticks.Wait(ctx, failedWait) {
			return
		}
	}
	if run.State.Over() {
		t.ledger.Tell(ctx, runEnded(a.trigger, run))
	}
}
