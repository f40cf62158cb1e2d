package operator

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/builtin"
)

// Garbage collection runs soon after a start and then now and again;
// sooner when a build was in the way.
const (
	collectFirst = time.Minute
	collectEvery = time.Hour

	// orphanAge is how old a snapshot must be that no record names: what takes
	// one writes its record within minutes, or fails.
	orphanAge = time.Hour
)

// CollectAlways collects until ctx ends.
func (d *Desk) CollectAlways(ctx context.Context) {
	timer := time.NewTimer(collectFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(collectEvery)
		}
		_, err := d.Collect(ctx, false)
		switch {
		case cay.KindOf(err) == cay.Unavailable:
			timer.Reset(collectFirst)
		case err != nil && ctx.Err() == nil:
			d.cfg.Log.WarnContext(ctx, "what nothing needs could not be removed", "err", err)
		}
	}
}

// Collect removes snapshots, root images, layers, archives, pulled images and
// trees that nothing needs any more, and packages that no sandbox installs any
// more, and says which; with dry it only says so. Unavailable while a build is
// at work, which may be about to need some.
func (d *Desk) Collect(ctx context.Context, dry bool) (out []cay.Garbage, err error) {
	d.collecting.Lock()
	defer d.collecting.Unlock()
	idle, err := d.cfg.Builds.Idle(func() error {
		gone, err := d.collectSnapshots(ctx, dry)
		out = append(out, gone...)
		if err != nil {
			return err
		}
		roots, err := d.cfg.Builds.Roots()
		if err != nil { // unknown: all must stay
			return err
		}
		needs := builtin.Needs{Snapshot: d.needs(ctx), Images: roots, Gone: map[cay.SnapshotID]bool{}}
		for _, g := range gone {
			needs.Gone[cay.SnapshotID(g.Name)] = true
		}
		built, err := d.cfg.Templates.Collect(ctx, needs, dry)
		parts, perr := d.cfg.Builds.Collect(dry)
		out = append(append(out, built...), parts...)
		return errors.Join(err, perr)
	})
	if err == nil && !idle {
		err = cay.Errorf(cay.Unavailable, "a template is being built, which may need what nothing else does").
			WithHint("try again when it is done")
	}
	if d.cfg.Packages != nil {
		gone, perr := d.cfg.Packages.Collect(dry)
		out, err = append(out, gone...), errors.Join(err, perr)
	}
	gone, verr := d.cfg.Control.Vols.Sweep(ctx, dry)
	out, err = append(out, gone...), errors.Join(err, verr)
	d.cfg.Snapshots.Settle() // a snapshot that is reported as removed is
	var bytes int64
	for _, g := range out {
		bytes += g.Bytes
	}
	if len(out) > 0 && !dry {
		d.cfg.Log.InfoContext(ctx, "removed what nothing needs", "things", len(out), "bytes", bytes)
	}
	return out, err
}

// Idle runs f while no template is built and nothing is collected, or not at all: it reports
// whether it did. f is told which root images builds may begin with.
func (d *Desk) Idle(ctx context.Context, f func(wanted map[string]bool) error) (bool, error) {
	if !d.collecting.TryLock() {
		return false, nil
	}
	defer d.collecting.Unlock()
	idle, err := d.cfg.Builds.Idle(func() error {
		roots, err := d.cfg.Builds.Roots()
		if err != nil {
			return err
		}
		return d.cfg.Templates.Idle(ctx, func() error { return f(roots) })
	})
	if cay.KindOf(err) == cay.Unavailable { // a template that Cay brings is being built
		return false, nil
	}
	return idle, err
}

// needs tells whether a snapshot is in use.
func (d *Desk) needs(ctx context.Context) func(cay.SnapshotID) bool {
	running := map[cay.SnapshotID]bool{}
	for _, i := range d.cfg.Node.Instances() {
		running[i.Spec.Snapshot] = true
	}
	return func(id cay.SnapshotID) bool { return running[id] || d.cfg.Control.Needs(ctx, id) }
}

// collectSnapshots removes teams' snapshots that no record names: a crash between
// a snapshot and its record leaves them.
func (d *Desk) collectSnapshots(ctx context.Context, dry bool) ([]cay.Garbage, error) {
	needs := d.needs(ctx)
	var out []cay.Garbage
	for _, one := range d.cfg.Node.Snapshots() {
		if time.Since(one.CreatedAt) < orphanAge || needs(one.ID) {
			continue
		}
		if !dry {
			removed, err := d.cfg.Control.Discard(ctx, one.ID)
			if err != nil {
				return out, err
			}
			if !removed {
				continue
			}
		}
		out = append(out, cay.Garbage{Kind: "snapshot", Name: string(one.ID), Bytes: one.Size()})
	}
	return out, nil
}
