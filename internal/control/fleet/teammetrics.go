package fleet

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// teamStep is the least time between two samples of a team, teamSamples
	// how many there are at most.
	teamStep    = time.Minute
	teamSamples = 500
)

// TeamMetric is what a team had during the time that ends at At.
type TeamMetric struct {
	At        time.Time
	Running   int     // sandboxes that run, in the end
	Most      int     // and at most
	StartRate float64 // sandboxes started a second
}

// TeamMetrics works out, from the events, how many of a team's sandboxes ran.
// It goes back as far as events are kept.
func (c *Catalogue) TeamMetrics(ctx context.Context, who cay.Caller, from, to time.Time) ([]TeamMetric, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	oldest, newest := time.Now().Add(-ledger.KeepEvents), time.Now()
	if from.Before(oldest) {
		from = oldest
	}
	if to.After(newest) {
		to = newest
	}
	if !from.Before(to) {
		return []TeamMetric{}, nil
	}
	count := newRunCount(from, to)
	if err := c.store.Starts(ctx, who.Team, from, count.visit); err != nil {
		return nil, err
	}
	running, err := c.store.CountSandboxes(ctx, store.SandboxQuery{Team: who.Team, States: []cay.State{cay.Running, cay.Pausing}})
	if err != nil {
		return nil, err
	}
	return count.metrics(running), nil
}

// runCount counts the sandboxes that run, in steps, from the moments at which
// they begin to and cease to. It keeps the steps and none of the moments.
type runCount struct {
	from, to time.Time
	step     time.Duration
	out      []TeamMetric // the last one is open
	running  int          // more than at from
	starts   int          // in the open step
	later    int          // that run more since to
}

func newRunCount(from, to time.Time) *runCount {
	c := &runCount{from: from, to: to, step: max(teamStep, to.Sub(from)/teamSamples)}
	c.open()
	return c
}

// open begins the next step.
func (c *runCount) open() {
	at := c.from.Add(time.Duration(len(c.out)+1) * c.step)
	if at.After(c.to) {
		at = c.to
	}
	c.out = append(c.out, TeamMetric{At: at, Most: c.running})
	c.starts = 0
}

// end ends the open step and reports whether it was not the last one.
func (c *runCount) end() bool {
	last := &c.out[len(c.out)-1]
	last.Running, last.StartRate = c.running, float64(c.starts)/c.step.Seconds()
	return last.At.Before(c.to)
}

func (c *runCount) visit(at time.Time, runs bool) {
	by := -1
	if runs {
		by = 1
	}
	if at.After(c.to) {
		c.later += by
		return
	}
	for at.After(c.out[len(c.out)-1].At) && c.end() {
		c.open()
	}
	c.running += by
	last := &c.out[len(c.out)-1]
	last.Most = max(last.Most, c.running)
	if runs {
		c.starts++
	}
}

// metrics are the steps. The sandboxes that ran before the first moment are
// counted back from those that run now.
func (c *runCount) metrics(now int) []TeamMetric {
	for c.end() {
		c.open()
	}
	before := now - c.running - c.later
	for i := range c.out {
		m := &c.out[i]
		m.At = m.At.UTC().Truncate(time.Second)
		m.Running, m.Most = max(0, m.Running+before), max(0, m.Most+before)
	}
	return c.out
}
