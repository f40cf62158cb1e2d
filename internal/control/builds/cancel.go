package builds

import (
	"context"

	"github.com/cay-run/cay"
)

// CancelBuilds ends all builds of a team that wait or run here. It returns how
// many, and how many are another server's.
func (q *Queue) CancelBuilds(ctx context.Context, who cay.Caller) (cancelled, failed int, err error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return 0, 0, err
	}
	all, err := q.store.QueuedBuilds(ctx)
	for _, one := range all {
		switch {
		case one.Team != who.Team:
		case one.Owner == "":
			q.fail(ctx, one.Team, one.Build, one.Owner, context.Canceled, 0)
			cancelled++
		case one.Owner == q.owner:
			q.Cancel(one.Build) // the worker records its end
			cancelled++
		default:
			failed++
		}
	}
	return cancelled, failed, err
}
