package fleet

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
	// teamMetricsKept is how far they go back.
	teamMetricsKept = 31 * 24 * time.Hour
)

// TeamMetric is what a team had during the time that ends at At.
type TeamMetric struct {
	At        time.Time
	Running   int     // sandboxes that run, in the end
	Most      int     // and at most
	StartRate float64 // sandboxes started a second
}

// TeamMetrics tells how many of a team's sandboxes ran, from the minutes in
// which that changed. It goes back a month.
func (c *Catalogue) TeamMetrics(ctx context.Context, who cay.Caller, from, to time.Time) ([]TeamMetric, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	oldest, newest := time.Now().Add(-teamMetricsKept), time.Now()
	if from.Before(oldest) {
		from = oldest
	}
	if to.After(newest) {
		to = newest
	}
	if !from.Before(to) {
		return []TeamMetric{}, nil
	}
	team, err := c.store.Team(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	if from.Before(team.CreatedAt) { // the team has no metrics from before its creation
		from = team.CreatedAt
	}
	if !from.Before(to) {
		return []TeamMetric{}, nil
	}
	from = from.Truncate(time.Minute)
	minutes, err := c.store.TeamMinutes(ctx, who.Team, from, to)
	if err != nil {
		return nil, err
	}
	return teamSamplesOf(minutes, from, to), nil
}

// teamSamplesOf puts minutes together to samples. The first of them may be from
// before.
func teamSamplesOf(minutes []store.TeamMinute, from, to time.Time) []TeamMetric {
	step := max(teamStep, (to.Sub(from)/teamSamples + time.Minute - 1).Truncate(time.Minute))
	running := 0
	for len(minutes) > 0 && minutes[0].At.Before(from) {
		running, minutes = minutes[0].Running, minutes[1:]
	}
	var out []TeamMetric
	for end := from.Add(step); ; end = end.Add(step) {
		if end.After(to) {
			end = to
		}
		m := TeamMetric{At: end.UTC().Truncate(time.Second), Most: running}
		starts := 0
		for len(minutes) > 0 && (minutes[0].At.Before(end) || end.Equal(to)) {
			running = minutes[0].Running
			m.Most, starts = max(m.Most, minutes[0].Most), starts+minutes[0].Starts
			minutes = minutes[1:]
		}
		m.Running, m.StartRate = running, float64(starts)/step.Seconds()
		if out = append(out, m); end.Equal(to) {
			return out
		}
	}
}
