package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/trail"
)

// wokenFor is how long a sandbox lives at least that traffic woke.
const wokenFor = 300 * time.Second

// Pause saves a running sandbox and stops it: memory and all, or its files
// alone. It keeps its id and its tokens. When that fails it runs on. A strict
// pause, and one of files alone, needs an agent inside that answers. Of several
// callers at once one pauses it, and all get what they asked for.
func (c *Controller) Pause(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, strict bool) error {
	if c.durable {
		return c.PauseDurably(ctx, who, id, kind, strict)
	}
	return c.pauseAsked(ctx, who, id, kind, strict)
}

func (c *Controller) pauseAsked(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, strict bool) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	came, err := c.stateOf(who.Team, id)
	if err != nil {
		return err
	}
	return c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if s.State == cay.Paused && s.Moving { // it was paused for its way to another node
			return c.stayPaused(ctx, e, s, kind)
		}
		if s.State == cay.Paused && came != cay.Paused && s.Saved == kind && !(strict && s.Unresponsive) { // another caller paused it meanwhile
			return c.counts(e)
		}
		if s.State != cay.Running {
			return cay.Errorf(cay.Conflict, "sandbox %s is already %s", s.ID, s.State)
		}
		err := c.responds(ctx, s)
		if err != nil && (strict || kind == cay.FilesSnapshot) {
			return err
		}
		s.Unresponsive = err != nil
		if err := c.pause(ctx, who, e, s, kind, cay.ReasonAsked); err != nil {
			return err
		}
		return c.counts(e)
	})
}

// stayPaused cancels the automatic resume of a sandbox. The caller holds its lock.
func (c *Controller) stayPaused(ctx context.Context, e *entry, s cay.Sandbox, kind cay.SnapshotKind) error {
	if s.Saved != kind {
		return errOnItsWay(s.ID)
	}
	s.Moving = false
	if err := c.save(ctx, e, s); err != nil {
		return err
	}
	return c.counts(e)
}

// counts refuses to acknowledge a pause in a cluster that may not be recorded: other nodes end the
// sandbox if this one is lost before a sweep puts that right. On a machine alone the next start finds
// it saved.
func (c *Controller) counts(e *entry) error {
	if !c.member || !e.unsure.Load() {
		return nil
	}
	return cay.Errorf(cay.Unavailable, "sandbox %s is paused, and that could not be recorded yet", e.sandbox().ID).
		WithHint("ask for it again before you count on it: it is lost if its node is lost now")
}

// respondsWithin is how long an agent may take to say that it is there. A
// starved one is slow; the memory of one that is not there is of no use.
const respondsWithin = 5 * time.Second

// responds asks the agent in a running sandbox whether it answers. Any error
// that it returns is of that code.
func (c *Controller) responds(ctx context.Context, s cay.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), respondsWithin)
	defer cancel()
	err := c.node.Responds(ctx, s.Instance)
	if err == nil {
		return nil
	}
	c.log.WarnContext(ctx, "the agent of a sandbox does not answer", "sandbox", s.ID, "err", err)
	return cay.Wrap(cay.Unavailable, err, "the agent in sandbox %s does not answer", s.ID).
		WithCode(cay.CodeGuestUnresponsive).WithHint("the sandbox runs on as it was; its files can be saved with its memory alone")
}

// stateOf is what a caller finds a sandbox in.
func (c *Controller) stateOf(team cay.TeamID, id cay.SandboxID) (cay.State, error) {
	e, err := c.find(team, id)
	if err != nil {
		return "", err
	}
	return e.sandbox().State, nil
}

// paused is the record of a sandbox that is saved and does not run.
func paused(s cay.Sandbox) cay.Sandbox {
	s.State, s.Instance, s.EndedAt = cay.Paused, "", ledger.Now()
	return s
}

// pause pauses a running sandbox. The caller holds its lock. The record names
// the snapshot before there is one, so that a crash at any moment leaves a
// state that the next start can name.
func (c *Controller) pause(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, kind cay.SnapshotKind, reason string) (err error) {
	ctx, done := trail.Begin(ctx, trail.Pause)
	defer func() { done(err) }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
	defer cancel()
	before := s
	s.State, s.Snapshot, s.Saved, s.ReplicatedAt = cay.Pausing, cay.NewSnapshotID(), kind, time.Time{}
	if reason == cay.ReasonAsked {
		leave, err := c.roomToSave(ctx, before, s.Snapshot, kind, true)
		if err != nil {
			return err
		}
		defer leave()
	}
	var diary sync.WaitGroup
	diary.Go(func() { c.readDiary(ctx, e, diaryLast) })
	var pausing []cay.Event
	if e.pauseFailed == "" || reason != cay.ReasonTimeout && reason != cay.ReasonBudget { // a repeated try is no news
		e.pauseFailed = ""
		pausing = append(pausing, ledger.NewEvent(who, s, cay.SandboxPausing, reason))
	}
	err = c.save(ctx, e, s, pausing...)
	diary.Wait()
	c.look(ctx, e)
	if err != nil {
		return err
	}
	if err := c.node.Pause(ctx, s.Instance, c.snapshotOf(before, s.Snapshot, kind)); err != nil {
		err = saveError(err, "the sandbox could not be paused")
		before.Unresponsive, before.Moving = false, false
		var failed []cay.Event
		if why := ledger.Visible(err); why != e.pauseFailed {
			e.pauseFailed = why
			failed = append(failed, ledger.NewEvent(who, s, cay.SandboxRunning, cay.ReasonFailed, "error", why))
		}
		c.saveOutcome(ctx, e, before, failed...)
		return err
	}
	e.pauseFailed = ""
	c.saveOutcome(ctx, e, paused(s), ledger.NewEvent(who, s, cay.SandboxPaused, reason, "snapshot", string(s.Snapshot), "kind", string(kind)))
	c.log.InfoContext(ctx, "sandbox paused", "sandbox", s.ID, "snapshot", s.Snapshot, "kind", kind)
	c.ledger.Tidy(ctx, before.Snapshot)
	return nil
}

// snapshotOf is the record of a snapshot that is to be taken of a sandbox.
func (c *Controller) snapshotOf(s cay.Sandbox, id cay.SnapshotID, kind cay.SnapshotKind) cay.Snapshot {
	return cay.Snapshot{ID: id, Kind: kind, Parent: s.Snapshot, Team: s.Team, Sandbox: s.ID, Secure: s.Secure}
}

// saveError says to callers what failed, and leaves the why to the log.
func saveError(err error, text string) error {
	var known *cay.Error
	if errors.As(err, &known) && known.Code == cay.CodeDamaged {
		return cay.Wrap(cay.Internal, err, "%s: %s", text, known.Msg).WithCode(cay.CodeDamaged).
			WithHint("if its memory is what is damaged, its files can be had: resume it with memory set to false")
	}
	if known != nil && known.Code == cay.CodeLost {
		return cay.Wrap(cay.Internal, err, "%s: %s", text, known.Msg).WithCode(cay.CodeLost).WithHint("%s", known.Hint)
	}
	switch cay.KindOf(err) {
	case cay.NoSpace: // a host has several disks and a guest its own: the error says which
		return cay.Wrap(cay.NoSpace, err, "%s: %s", text, known.Msg).
			WithHint("%s", cmp.Or(known.Hint, "free space on it and try again; nothing was lost"))
	case cay.Internal:
	default:
		return err
	}
	return cay.Wrap(cay.Internal, err, "%s", text).WithHint("the server's log says why")
}

// resumeError is saveError for a resume. Its files start where its memory does not.
func resumeError(err error, memory bool) error {
	err = saveError(err, "the sandbox could not be resumed")
	var known *cay.Error
	if memory && errors.As(err, &known) && known.Kind == cay.Internal && known.Code == "" {
		return known.WithHint("the server's log says why; try again, and if it does not start then either, resume it with memory set to false: it boots from its files")
	}
	return err
}

// saveOutcome records a state that is a fact already. One that cannot be recorded
// is put right with a later sweep, or by the next start, which finds the same facts.
func (c *Controller) saveOutcome(ctx context.Context, e *entry, s cay.Sandbox, events ...cay.Event) {
	if err := c.save(ctx, e, s, events...); err != nil {
		c.isNonetheless(ctx, e, s, err)
	}
}

// isNonetheless notes what a sandbox is though that could not be recorded.
func (c *Controller) isNonetheless(ctx context.Context, e *entry, s cay.Sandbox, why error) {
	c.log.ErrorContext(ctx, "cannot record a sandbox's state", "sandbox", s.ID, "state", s.State, "err", why)
	s.Version = e.sandbox().Version
	e.current.Store(&s)
	e.unsure.Store(true)
}

// Connect makes sure that a sandbox runs for at least that long from now. One
// that runs is never given less time than it had; one that is paused is
// resumed, which resumed tells: with its memory, or booted from its files.
func (c *Controller) Connect(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration, memory bool) (out cay.Sandbox, resumed bool, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, resumed, err
	}
	if err := checkTimeout(timeout); err != nil {
		return out, false, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if resumed = s.State == cay.Paused; resumed {
			out, err = c.resume(ctx, who, e, s, timeout, memory, cay.ReasonAsked)
			return err
		}
		if err := mustRun(s); err != nil {
			return err
		}
		out, err = c.extend(ctx, who, e, s, timeout)
		return err
	})
	return out, resumed, err
}

// Resume starts a paused sandbox again where it was, or boots it from its
// files. onTimeout, if any, is what it does from now on when its time is over.
// Of several callers at once one resumes it, and all get a sandbox that runs.
func (c *Controller) Resume(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration, onTimeout cay.TimeoutAction, memory bool) (out cay.Sandbox, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, err
	}
	if err := checkTimeout(timeout); err != nil {
		return out, err
	}
	came, err := c.stateOf(who.Team, id)
	if err != nil {
		return out, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if s.State == cay.Running && came != cay.Running { // another caller resumed it meanwhile
			out, err = c.extend(ctx, who, e, s, timeout)
			return err
		}
		if s.State != cay.Paused {
			return cay.Errorf(cay.Conflict, "sandbox %s is already %s", s.ID, s.State)
		}
		if onTimeout != "" {
			s.OnTimeout = onTimeout
		}
		out, err = c.resume(ctx, who, e, s, timeout, memory, cay.ReasonAsked)
		return err
	})
	return out, err
}

// errUnresponsive refuses to restore a memory whose agent would be as silent as
// it was.
func errUnresponsive(id cay.SandboxID) error {
	return cay.Errorf(cay.Conflict, "sandbox %s was paused while the agent in it did not answer, so its memory is not restored", id).
		WithCode(cay.CodeSavedUnresponsive).WithHint("resume it with memory set to false: it boots from its files")
}

// resume resumes a paused sandbox. The caller holds its lock. The snapshot
// stays until the sandbox is saved again or over: its instance stands on the
// same root image.
func (c *Controller) resume(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, timeout time.Duration, memory bool, reason string) (out cay.Sandbox, err error) {
	ctx, done := trail.Begin(ctx, trail.Resume)
	defer func() { done(err) }()
	if memory && s.Unresponsive && s.Saved != cay.FilesSnapshot {
		return cay.Sandbox{}, errUnresponsive(s.ID)
	}
	mounts := s.Volumes
	if !memory { // it boots: nothing in it knows of a volume that is gone
		if mounts, err = c.present(ctx, s); err != nil {
			return cay.Sandbox{}, err
		}
	}
	letGo, err := c.ledger.HoldVolumes(ctx, s.Team, mounts)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer letGo()
	_, leave, err := c.reserve(s)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer leave()
	var ran cay.SandboxID // stays empty unless it runs
	settle, err := c.budgets.Reserve(ctx, s, false)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer func() { settle(ran) }()
	s.State, s.Instance = cay.Resuming, cay.NewInstanceID()
	err = c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error {
		return c.recordRunning(ctx, s, func(tx store.Store) error {
			return tx.UpdateSandbox(ctx, s, ledger.NewEvent(who, s, cay.SandboxResuming, reason))
		})
	})
	if err != nil {
		return cay.Sandbox{}, err
	}
	within, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	spec := c.instanceSpec(s)
	spec.Resume, spec.FilesOnly, spec.Volumes = true, !memory, mounts
	instance, err := c.node.Prepare(within, spec)
	if err != nil {
		err = resumeError(err, memory)
		back := paused(s)
		back.EndedAt = s.EndedAt
		c.saveOutcome(ctx, e, back, ledger.NewEvent(who, s, cay.SandboxPaused, cay.ReasonFailed, "error", ledger.Visible(err)))
		return cay.Sandbox{}, err
	}
	s.State, s.EndedAt, s.EndAt, s.Notice = cay.Running, time.Time{}, ledger.Now().Add(timeout), joined(instance.Notice, lostVolumes(s.Volumes, mounts))
	saved := s
	s.Unresponsive, s.Moving, s.Volumes = false, false, mounts
	e.toldEnd = s.EndAt
	resumed := ledger.NewEvent(who, s, cay.SandboxResumed, reason, "endAt", ledger.Stamp(s.EndAt), "notice", s.Notice)
	err = c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error {
		if err := c.store.UpdateSandbox(ctx, s, resumed); err != nil {
			return err
		}
		// Requests get in after the record: it may fail, and the answers that a
		// guest gave before would be lost.
		if err := c.node.Route(ctx, s.Instance); err != nil { // it died just now, which Deaths tells
			c.log.WarnContext(ctx, "a resumed sandbox does not run", "sandbox", s.ID, "err", err)
		}
		return nil
	})
	if err != nil {
		// Memory and store would disagree: it stays saved as it was.
		c.saveOutcome(ctx, e, paused(saved), ledger.NewEvent(who, s, cay.SandboxPaused, cay.ReasonFailed))
		c.giveUp(ctx, e, spec.Instance)
		return cay.Sandbox{}, err
	}
	c.look(ctx, e)
	ran = s.ID
	if s.Notice != "" {
		c.log.WarnContext(ctx, "sandbox lost something when it was resumed", "sandbox", s.ID, "notice", s.Notice)
	}
	c.log.InfoContext(ctx, "sandbox resumed", "sandbox", s.ID)
	return s, nil
}

// timeOut does to a running sandbox what it asked for when its time is over.
// The caller holds its lock.
func (c *Controller) timeOut(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox) error {
	switch s.OnTimeout {
	case cay.PauseOnTimeout:
		s.Unresponsive = c.responds(ctx, s) != nil
		return c.pause(ctx, who, e, s, cay.MemorySnapshot, cay.ReasonTimeout)
	case cay.PauseFilesOnTimeout:
		return c.pause(ctx, who, e, s, cay.FilesSnapshot, cay.ReasonTimeout)
	}
	return c.end(ctx, who, e, cay.CauseTimeout, ledger.Now(), "")
}

// Asleep returns a sandbox that traffic may wake: one of any team that is
// paused, or about to be, or about to run again. One without memory is not
// woken: the caller that boots it should know.
func (c *Controller) Asleep(id cay.SandboxID) (cay.Sandbox, bool) {
	c.mu.RLock()
	e := c.live[id]
	c.mu.RUnlock()
	if e == nil {
		return cay.Sandbox{}, false
	}
	s := e.sandbox()
	return s, sleeps(s)
}

// Lives reports whether a sandbox is this node's and not over.
func (c *Controller) Lives(id cay.SandboxID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.live[id] != nil
}

// Sleepers lists the sandboxes that Asleep returns.
func (c *Controller) Sleepers() []cay.Sandbox {
	c.mu.RLock()
	all := slices.Collect(maps.Values(c.live))
	c.mu.RUnlock()
	var out []cay.Sandbox
	for _, e := range all {
		if s := e.sandbox(); sleeps(s) {
			out = append(out, s)
		}
	}
	return out
}

func sleeps(s cay.Sandbox) bool {
	switch s.State {
	case cay.Pausing, cay.Paused, cay.Resuming:
		return wakes(s)
	}
	return false
}

func wakes(s cay.Sandbox) bool {
	return (s.AutoResume || s.Moving) && s.Saved != cay.FilesSnapshot && !s.Unresponsive
}

// Wake resumes a sandbox that Asleep returned, for as long as it was given
// when it was created, and for some minutes at least. A sandbox that runs already
// is no error. The wake goes on without its caller: others may wait for the same.
func (c *Controller) Wake(ctx context.Context, id cay.SandboxID) error {
	e := c.entry(id)
	if e == nil {
		return ledger.NoSandbox(id)
	}
	switch here, err := c.Has(ctx, id); { // on its way to another node it is woken there
	case err != nil:
		return err
	case !here:
		return errLeft(id)
	}
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if err := c.still(e, e.sandbox()); err != nil {
		return err
	}
	if err := c.settled(ctx, e); err != nil {
		return err
	}
	s := e.sandbox()
	switch {
	case s.State == cay.Running:
		return nil
	case s.State != cay.Paused || !wakes(s):
		return ledger.NoSandbox(id)
	}
	_, err := c.resume(context.WithoutCancel(ctx), cay.ForTeam(s.Team), e, s, max(s.Timeout, wokenFor), true, cay.ReasonTraffic)
	return err
}
