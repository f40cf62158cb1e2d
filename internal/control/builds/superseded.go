package builds

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// A build whose tags were pointed to other builds can be started by its id for
// KeepSuperseded, unless its template has more than keepSuperseded newer ones, of
// different files, or the disk is nearly full: a client that built it may be about
// to start sandboxes of it, and another client has built under the same tag.
const (
	KeepSuperseded = 24 * time.Hour
	keepSuperseded = 8
)

// dropSuperseded removes the superseded builds that are kept no longer.
func (q *Queue) dropSuperseded(ctx context.Context) {
	kept, err := q.store.SupersededBuilds(ctx)
	if err != nil {
		if ctx.Err() == nil {
			q.log.WarnContext(ctx, "cannot list the superseded builds", "err", err)
		}
		return
	}
	full := len(kept) > 0 && q.full()
	newer := make(map[cay.TemplateID]map[cay.SnapshotID]bool)
	for _, b := range kept { // the latest first
		if newer[b.Template] == nil {
			newer[b.Template] = make(map[cay.SnapshotID]bool)
		}
		newer[b.Template][b.Snapshot] = true
		if !full && len(newer[b.Template]) <= keepSuperseded && ledger.Now().Sub(b.At) < KeepSuperseded {
			continue
		}
		if err := q.store.DropSuperseded(ctx, b.ID); err != nil {
			q.log.WarnContext(ctx, "cannot drop a superseded build", "build", b.ID, "err", err)
			continue
		}
		q.ledger.Tidy(ctx, b.Snapshot)
		q.log.InfoContext(ctx, "superseded build removed", "build", b.ID, "template", b.Template, "disk full", full)
	}
}
