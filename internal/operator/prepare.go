package operator

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	prepareLook  = 5 * time.Second
	prepareAgain = time.Hour        // less than what nothing needs stays in the bucket
	prepareAfter = 5 * time.Minute  // that nodes which do not lead leave to the one that does
	prepareRetry = 30 * time.Second // after an error
)

// offers are the snapshots of this machine that the templates which Cay brings start from, by the
// names of these. The zero value is ready.
type offers struct {
	mu sync.Mutex
	of map[string]cay.SnapshotID
}

// Offer has the bucket hold the root image and the engine of a template that Cay brings.
func (d *Desk) Offer(template string, id cay.SnapshotID) {
	d.offered.mu.Lock()
	defer d.offered.mu.Unlock()
	if d.offered.of == nil {
		d.offered.of = map[string]cay.SnapshotID{}
	}
	d.offered.of[template] = id
}

func (o *offers) all() map[string]cay.SnapshotID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.of)
}

// PrepareAlways has the bucket hold the root images and engines of what is offered, until ctx ends:
// so the first copy of a sandbox takes no longer than a later one. In a cluster the node that
// leads begins; those of the others are the same often.
func (d *Desk) PrepareAlways(ctx context.Context) {
	if d.cfg.Replica == nil {
		return
	}
	p := preparation{desk: d, begun: time.Now(), next: map[cay.SnapshotID]time.Time{}, told: map[string]string{}}
	for range ticks.AtOnce(ctx, prepareLook) {
		p.look(ctx)
	}
}

// preparation is when the bucket is prepared for each snapshot again.
type preparation struct {
	desk  *Desk
	begun time.Time
	next  map[cay.SnapshotID]time.Time
	told  map[string]string // the errors that the log has, by template
}

func (p *preparation) look(ctx context.Context) {
	if time.Since(p.begun) < prepareAfter && p.desk.cfg.Leads != nil && !p.desk.cfg.Leads() {
		return
	}
	offered := p.desk.offered.all()
	for _, template := range slices.Sorted(maps.Keys(offered)) {
		id := offered[template]
		if time.Now().Before(p.next[id]) {
			continue
		}
		err := p.prepare(ctx, template, id)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || cay.KindOf(err) == cay.NotFound: // removed, as a template that is built again removes it
			p.next[id] = time.Now().Add(prepareAgain)
			delete(p.told, template)
		default:
			p.next[id] = time.Now().Add(prepareRetry)
			p.tell(ctx, template, err)
		}
	}
}

func (p *preparation) prepare(ctx context.Context, template string, id cay.SnapshotID) error {
	if err := p.desk.takeBucket(ctx); err != nil {
		return err
	}
	begun := time.Now()
	err := p.desk.cfg.Replica.Prepare(ctx, id)
	if err == nil && time.Since(begun) > time.Second { // else it was there
		p.desk.cfg.Log.InfoContext(ctx, "the root image of a template is in the bucket", "template", template, "took", time.Since(begun))
	}
	return err
}

// tell has the log say once why the bucket is not prepared.
func (p *preparation) tell(ctx context.Context, template string, err error) {
	if err.Error() == p.told[template] {
		return
	}
	p.told[template] = err.Error()
	p.desk.cfg.Log.WarnContext(ctx, "the root image of a template cannot be copied to the bucket now: the first copy of its sandboxes takes longer", "template", template, "err", err)
}
