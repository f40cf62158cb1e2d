package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/ticks"
)

// Run ends sandboxes whose time is over, records those that died and samples
// their use, until ctx ends. Sandboxes go on living then.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.expire(ctx) })
	wg.Go(func() { c.recordDeaths(ctx) })
	wg.Go(func() { c.sweep(ctx) })
	wg.Go(func() { c.checkpointByTime(ctx) })
	wg.Wait()
	c.leaving.Wait()
	return ctx.Err()
}

// expire ends every sandbox at its time. It sleeps until the nearest one.
func (c *Controller) expire(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		due, next := c.due()
		for _, e := range due {
			wg.Go(func() { c.endDue(ctx, e) })
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// due returns what must end now, marked as ending, and when to look again.
func (c *Controller) due() (due []*entry, next time.Time) {
	t := time.Now()
	next = t.Add(lookAgain)
	for _, e := range c.entries() {
		s := e.sandbox()
		if s.State != cay.Running || e.ending.Load() {
			continue
		}
		end := s.EndAt
		if r := e.endFailed.Load(); r != nil && r.end.Equal(s.EndAt) {
			end = r.next
		}
		switch {
		case !t.Before(end):
			e.ending.Store(true)
			due = append(due, e)
		case end.Before(next):
			next = end
		}
	}
	return due, next
}

// endRetry is when the end of a sandbox, which failed at its time, is tried
// again: each time after twice as long, because a pause that fails for space
// writes the whole memory first.
type endRetry struct {
	end, next time.Time
	after     time.Duration
}

// again is the retry after one more failure at a time limit.
func (r *endRetry) again(end time.Time) *endRetry {
	after := retryAfter
	if r != nil && r.end.Equal(end) {
		after = min(2*r.after, retryMost)
	}
	return &endRetry{end, time.Now().Add(after), after}
}

func (c *Controller) endDue(ctx context.Context, e *entry) {
	err := e.acquire(ctx)
	var s cay.Sandbox
	if err == nil {
		s = e.sandbox()
		if s.State == cay.Running && !time.Now().Before(s.EndAt) { // no caller extended it meanwhile
			err = c.timeOut(ctx, cay.ForTeam(s.Team), e, s)
		}
		e.release()
	}
	if err != nil && ctx.Err() == nil {
		c.log.ErrorContext(ctx, "cannot end a sandbox whose time is over", "sandbox", e.sandbox().ID, "err", err)
		e.endFailed.Store(e.endFailed.Load().again(s.EndAt))
	}
	e.ending.Store(false)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// recordDeaths records the deaths that the node tells of.
func (c *Controller) recordDeaths(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var at cay.Cursor
	for {
		list, next, err := c.node.Deaths(ctx, at)
		for _, d := range list {
			// One that is still being created holds its lock: do not let
			// the next death wait for it.
			wg.Go(func() { c.died(ctx, d) })
		}
		if at = next; err == nil {
			continue
		}
		select { // the node is away, or stops
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

func (c *Controller) died(ctx context.Context, d cay.Death) {
	e := c.entry(d.Sandbox)
	if e == nil {
		c.keepOrphan(d)
		return
	}
	if e.acquire(ctx) != nil {
		return
	}
	defer e.release()
	s := e.sandbox()
	if s.State == cay.Killed || s.Instance != d.Instance {
		return
	}
	c.log.WarnContext(ctx, "sandbox died", "sandbox", d.Sandbox, "cause", d.Cause, "detail", d.Detail)
	at := d.At
	if at.IsZero() {
		at = ledger.Now()
	}
	if d.Cause == cay.CauseHostLost {
		back, err := c.comeBack(ctx, e, s)
		if err != nil { // the sweep finds it again
			c.log.ErrorContext(ctx, "cannot have a sandbox go on that lost its instance", "sandbox", d.Sandbox, "err", err)
		}
		if back || err != nil {
			return
		}
	}
	if err := c.end(ctx, cay.ForTeam(s.Team), e, d.Cause, at, d.Detail); err != nil { // the sweep finds it again
		c.log.ErrorContext(ctx, "cannot record a death", "sandbox", d.Sandbox, "err", err)
	}
}

// sweep samples what sandboxes use and puts right what node and store do not
// agree on: an end that could not be carried out, a death that could not be
// recorded. Either must be seen twice, so that what is just happening is left
// alone.
func (c *Controller) sweep(ctx context.Context) {
	defer c.reading.Wait()
	strays := make(map[cay.InstanceID]bool)
	pruned := time.Now()
	for range ticks.Every(ctx, sweepEvery) {
		c.sample(ctx)
		c.enterOwn(ctx)
		c.settle(ctx)
		strays = c.reconcileInstances(ctx, strays)
		if time.Since(pruned) >= pruneEvery {
			pruned = time.Now()
			c.prune(ctx, pruned)
		}
	}
}

// prune forgets what is too old: logs are this machine's, records all nodes'.
func (c *Controller) prune(ctx context.Context, at time.Time) {
	if err := c.logs.Prune(at.Add(-ledger.KeepKilled), func(id cay.SandboxID) bool { return c.entry(id) != nil }); err != nil {
		c.log.ErrorContext(ctx, "cannot forget old logs", "err", err)
	}
	if !c.leads() {
		return
	}
	for what, old := range map[string]struct {
		forget func(context.Context, time.Time) (int, error)
		keep   time.Duration
	}{
		"sandboxes":        {c.store.PruneSandboxes, ledger.KeepKilled},
		"events":           {c.store.PruneEvents, ledger.KeepEvents},
		"idempotency keys": {c.store.PruneOnce, keepKeys},
	} {
		if _, err := old.forget(ctx, at.Add(-old.keep)); err != nil && ctx.Err() == nil {
			c.log.ErrorContext(ctx, "cannot forget old "+what, "err", err)
		}
	}
}

func (c *Controller) sample(sweep context.Context) {
	ctx, cancel := context.WithTimeout(sweep, sweepEvery)
	defer cancel()
	for _, e := range c.entries() {
		s := e.sandbox()
		if s.State != cay.Running {
			continue
		}
		u, err := c.node.Usage(ctx, s.Instance)
		if err != nil { // it is dying, or the node is busy: there is a next time
			c.log.DebugContext(ctx, "no usage", "sandbox", s.ID, "err", err)
			continue
		}
		e.metrics.add(s.Instance, u, s.Limits.CPUs)
		c.watchDiary(sweep, e, u)
	}
}

func (c *Controller) reconcileInstances(ctx context.Context, before map[cay.InstanceID]bool) map[cay.InstanceID]bool {
	var running []*entry // read before the node's list: each has an instance in it
	for _, e := range c.entries() {
		if e.sandbox().State == cay.Running {
			running = append(running, e)
		}
	}
	instances, err := c.node.Instances(ctx)
	if err != nil { // an unknown state is no disagreement
		c.log.WarnContext(ctx, "the node does not tell what runs", "err", err)
		return before
	}
	alive := make(map[cay.InstanceID]bool)
	for _, i := range instances {
		alive[i.Spec.Instance] = true
	}
	for _, e := range running {
		if s := e.sandbox(); alive[s.Instance] {
			e.missed = 0
		} else if e.missed++; e.missed > 1 {
			c.died(ctx, cay.Death{Instance: s.Instance, Sandbox: s.ID, Cause: cay.CauseHostLost, Detail: "the node has no such instance"})
		}
	}

	wanted := make(map[cay.InstanceID]bool)
	for _, e := range c.entries() {
		wanted[e.sandbox().Instance] = true
		if id := e.tree.standby.Load(); id != nil {
			wanted[*id] = true
		}
		for _, id := range e.spare() {
			wanted[id] = true
		}
	}
	strays := make(map[cay.InstanceID]bool)
	for id := range alive {
		if wanted[id] {
			continue
		}
		if before[id] {
			c.log.WarnContext(ctx, "ending an instance that no record wants", "instance", id)
			c.stop(ctx, id, cay.CauseAsked)
		}
		strays[id] = true
	}
	return strays
}
