package approvals

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// look has the records looked at for what is over.
func (a *Approvals) look() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// Work ends approvals whose time or sandbox is over, until ctx ends.
func (a *Approvals) Work(ctx context.Context) {
	pruned := time.Now()
	for ctx.Err() == nil {
		wait, err := a.lapse(ctx)
		if err != nil && ctx.Err() == nil {
			a.log.ErrorContext(ctx, "cannot end approvals", "err", err)
			wait = failedWait
		}
		if time.Since(pruned) > pruneEvery {
			pruned = time.Now()
			if _, err := a.store.PruneApprovals(ctx, pruned.Add(-Keep), keepMost); err != nil && ctx.Err() == nil {
				a.log.ErrorContext(ctx, "cannot forget old approvals", "err", err)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-a.poke:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// lapse ends what is over, and tells how long nothing else will be.
func (a *Approvals) lapse(ctx context.Context) (time.Duration, error) {
	for {
		list, err := a.store.LapsedApprovals(ctx, ledger.Now(), lapsesAtOnce)
		if err != nil {
			return 0, err
		}
		for _, x := range list {
			if x.DecidedAt = x.ExpiresAt; x.DecidedAt.After(ledger.Now()) {
				x.DecidedAt, x.Note = ledger.Now(), "the sandbox is over"
			}
			x.State = cay.ApprovalExpired
			err := a.end(ctx, cay.ForTeam(x.Team), x, cay.ReasonTimeout)
			if err != nil && cay.KindOf(err) != cay.Conflict { // else it was decided in this moment
				return 0, err
			}
		}
		if len(list) < lapsesAtOnce {
			break
		}
	}
	next, err := a.store.NextLapse(ctx)
	if err != nil || next.IsZero() { // a new one of this node pokes
		return a.rest, err
	}
	return min(max(time.Until(next), 0), lookAgain), nil
}
