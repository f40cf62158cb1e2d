package webhooks

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	mostAtOnce = 64 // attempts of all webhooks
	mostAiling = 32 // attempts of webhooks whose last attempt failed; they have places of their own
	// grace is how long attempts may go on when the server ends.
	grace = 2 * time.Second
	// perAttempt is the least time between two attempts in the long run, for all
	// webhooks: what a flood of events takes of the processors and the records
	// must leave creates alone. pauseMost is how much of it may be caught up.
	perAttempt = time.Second / 1000
	pauseMost  = 50 * perAttempt
	// recordMost is how many attempts one transaction records: all other writes
	// wait for it.
	recordMost = 16
	pruneEvery = 10 * time.Minute
	// keepMost is how many attempts of a webhook are kept: a flood must not fill
	// the disk.
	keepMost = 50_000
)

// pace has attempts begin with a time between them.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	now := time.Now()
	if oldest := now.Add(-pauseMost); p.next.Before(oldest) {
		p.next = oldest
	}
	p.next = p.next.Add(perAttempt)
	left := p.next.Sub(now)
	p.mu.Unlock()
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// outcome is an attempt that was made and is to be recorded.
type outcome struct {
	line    *line
	attempt cay.WebhookAttempt
}

// Run sends until ctx ends. Attempts that are under way then may go on for a
// moment, and are recorded.
func (h *Hooks) Run(ctx context.Context) {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var lines, others sync.WaitGroup
	ended := make(chan struct{})
	others.Go(func() { h.record(ctx, ended) })
	others.Go(func() { h.pruneAlways(ctx) })
	h.mu.Lock()
	h.start = func(l *line) {
		lines.Go(func() {
			l.run(ctx, work)
			if err := l.save(context.WithoutCancel(ctx)); err != nil {
				h.log.Error("cannot record how far a webhook is", "webhook", l.id, "err", err)
			}
		})
	}
	h.mu.Unlock()
	h.startAll(ctx)
	<-ctx.Done()
	h.mu.Lock()
	h.start = nil
	clear(h.lines)
	h.mu.Unlock()
	defer time.AfterFunc(grace, stop).Stop()
	lines.Wait()
	close(ended)
	others.Wait()
}

// startAll starts the lines of all webhooks. It tries until it can read them.
func (h *Hooks) startAll(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := h.store.Webhooks(ctx, "")
		for _, w := range list {
			if w.Enabled {
				h.look(w)
			}
		}
		if err == nil {
			return
		}
		h.log.Error("cannot read the webhooks", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(failedWait):
		}
	}
}

// look has the line of a webhook look at it again, and starts one where there
// is none.
func (h *Hooks) look(w cay.Webhook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.start == nil {
		return
	}
	l := h.lines[w.ID]
	if l == nil {
		l = newLine(h, w.Team, w.ID)
		h.lines[w.ID] = l
		h.start(l)
		return
	}
	l.mu.Lock()
	l.again, l.stale = true, true
	l.mu.Unlock()
	l.poke()
}

// TeamChanged has the webhooks of a team stop being sent when it is disabled, and
// go on when it is enabled: from where they stopped, since the cursors stay. It
// is called after the record has changed.
func (h *Hooks) TeamChanged(team cay.TeamID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lines {
		l.mu.Lock()
		of := l.hook.Team == team
		l.again = l.again || of
		l.mu.Unlock()
		if of {
			l.poke()
		}
	}
}

// leave ends a line that has nothing to do, unless its webhook was changed since
// it looked.
func (h *Hooks) leave(l *line) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.again {
		l.again = false
		return false
	}
	if h.lines[l.id] == l {
		delete(h.lines, l.id)
	}
	return true
}

// record records outcomes until ended is closed: all that came while the
// transaction before was written are in the next one.
func (h *Hooks) record(ctx context.Context, ended <-chan struct{}) {
	for {
		var list []outcome
		select {
		case <-ended:
			return
		case o := <-h.outcomes:
			list = append(list, o)
		}
		for more := true; more && len(list) < recordMost; {
			select {
			case o := <-h.outcomes:
				list = append(list, o)
			default:
				more = false
			}
		}
		h.recordAll(ctx, list)
	}
}

// recordAll records outcomes. While it cannot, nothing more is sent: an attempt
// without a record would be made again. At the end of the server it gives up.
func (h *Hooks) recordAll(ctx context.Context, list []outcome) {
	var attempts []cay.WebhookAttempt
	var progress []store.WebhookProgress
	woken := map[cay.TeamID]bool{}
	for _, o := range list {
		p := o.line.settle(o.attempt)
		attempts, progress = append(attempts, o.attempt), append(progress, p)
		woken[o.attempt.Team] = woken[o.attempt.Team] || len(p.Events) > 0
	}
	err := h.tryRecord(ctx, attempts, progress)
	for _, o := range list {
		if err != nil {
			o.line.unsettle(o.attempt)
		}
		o.line.done(o.attempt)
	}
	for team, is := range woken {
		if is {
			h.ledger.Wake(team)
		}
	}
}

// tryRecord records until it succeeds, or ctx has ended and it failed.
func (h *Hooks) tryRecord(ctx context.Context, attempts []cay.WebhookAttempt, progress []store.WebhookProgress) error {
	for {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
		err := h.store.RecordAttempts(within, attempts, progress)
		cancel()
		if err == nil {
			return nil
		}
		h.log.Error("cannot record attempts of webhooks", "attempts", len(attempts), "err", err)
		if !ticks.Wait(ctx, failedWait) {
			return err
		}
	}
}

func (h *Hooks) pruneAlways(ctx context.Context) {
	for range ticks.Every(ctx, pruneEvery) {
		if _, err := h.store.PruneAttempts(ctx, time.Now().Add(-KeepAttempts), keepMost); err != nil && ctx.Err() == nil {
			h.log.Error("cannot forget old attempts of webhooks", "err", err)
		}
	}
}
