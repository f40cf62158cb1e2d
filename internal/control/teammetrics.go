package control

import (
	"context"
	"time"

	"github.com/cay-run/cay"
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
func (c *Control) TeamMetrics(ctx context.Context, team cay.TeamID, from, to time.Time) ([]TeamMetric, error) {
	oldest, newest := time.Now().Add(-keepEvents), time.Now()
	if from.Before(oldest) {
		from = oldest
	}
	if to.After(newest) {
		to = newest
	}
	if !from.Before(to) {
		return []TeamMetric{}, nil
	}
	events, err := c.store.Events(ctx, store.EventQuery{Team: team})
	if err != nil {
		return nil, err
	}
	step := max(teamStep, to.Sub(from)/teamSamples)
	return samples(runs(events, c.runningOf(team)), from, to, step), nil
}

func (c *Control) runningOf(team cay.TeamID) int {
	n := 0
	for _, e := range c.entries() {
		if s := e.sandbox(); s.Team == team && (s.State == cay.Running || s.State == cay.Pausing) {
			n++
		}
	}
	return n
}

// change is a moment at which a sandbox began to run or ceased to.
type change struct {
	at      time.Time
	running int // of the team's, from then on
	started bool
}

// runs counts the sandboxes that run after each event. What ran before the
// first event is known from what runs now.
func runs(events []cay.Event, now int) []change {
	on := make(map[cay.SandboxID]bool)
	var out []change
	n := 0
	for _, e := range events {
		before, runs := on[e.Sandbox], false
		switch e.Type {
		case cay.SandboxRunning, cay.SandboxResumed:
			runs = true
		case cay.SandboxPaused, cay.SandboxKilled:
		default:
			continue
		}
		if runs == before {
			continue
		}
		on[e.Sandbox] = runs
		if runs {
			n++
		} else {
			n--
		}
		out = append(out, change{e.At, n, runs})
	}
	for i := range out {
		out[i].running = max(0, out[i].running+now-n)
	}
	return out
}

func samples(changes []change, from, to time.Time, step time.Duration) []TeamMetric {
	var out []TeamMetric
	running, i := 0, 0
	for ; i < len(changes) && !changes[i].at.After(from); i++ {
		running = changes[i].running
	}
	for at := from.Add(step); ; at = at.Add(step) {
		if at.After(to) {
			at = to
		}
		m := TeamMetric{At: at.UTC().Truncate(time.Second), Most: running}
		starts := 0
		for ; i < len(changes) && !changes[i].at.After(at); i++ {
			running = changes[i].running
			m.Most = max(m.Most, running)
			if changes[i].started {
				starts++
			}
		}
		m.Running, m.StartRate = running, float64(starts)/step.Seconds()
		out = append(out, m)
		if !at.Before(to) {
			return out
		}
	}
}
