package lifecycle

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// endAtOnce is how many sandboxes are ended at the same time.
const endAtOnce = 8

// EndSandboxes ends a team's sandboxes that run, and with paused also those that
// are saved. The evidence is recorded with each. It returns how many it ended,
// and how many it could not.
func (c *Controller) EndSandboxes(ctx context.Context, who cay.Caller, paused bool, evidence string) (ended, failed int, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return 0, 0, err
	}
	var done, left atomic.Int32
	var wg sync.WaitGroup
	turns := make(chan struct{}, endAtOnce)
	for _, e := range c.entries() {
		s := e.sandbox()
		if s.Team != who.Team || s.State == cay.Paused && !paused {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			err := c.change(ctx, who.Team, s.ID, func(e *entry, s cay.Sandbox) error {
				if s.State == cay.Paused && !paused {
					return nil
				}
				return c.end(ctx, who, e, cay.CauseAsked, ledger.Now(), evidence)
			})
			switch {
			case err == nil:
				done.Add(1)
			case cay.KindOf(err) != cay.NotFound: // it was over before
				left.Add(1)
				c.log.Error("cannot end a sandbox", "sandbox", s.ID, "err", err)
			}
		})
	}
	wg.Wait()
	return int(done.Load()), int(left.Load()), nil
}

// Running counts the sandboxes of all teams that run.
func (c *Controller) Running(_ context.Context, who cay.Caller) (map[cay.TeamID]int, error) {
	if err := who.May(cay.Admin); err != nil {
		return nil, err
	}
	out := map[cay.TeamID]int{}
	for _, e := range c.entries() {
		if s := e.sandbox(); s.State != cay.Paused && s.State != cay.Killed {
			out[s.Team]++
		}
	}
	return out, nil
}
