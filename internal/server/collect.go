package server

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template"
)

// What nothing needs is looked for soon after a start and then now and again;
// sooner when a build was in the way.
const (
	collectFirst = time.Minute
	collectEvery = time.Hour

	// orphanAge is how old a snapshot must be that no record names: what takes
	// one writes its record within minutes, or fails.
	orphanAge = time.Hour
)

// collectAlways collects until ctx ends.
func (s *Server) collectAlways(ctx context.Context) {
	timer := time.NewTimer(collectFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(collectEvery)
		}
		_, err := s.Collect(ctx, false)
		switch {
		case cay.KindOf(err) == cay.Unavailable:
			timer.Reset(collectFirst)
		case err != nil && ctx.Err() == nil:
			s.log.Warn("what nothing needs could not be removed", "err", err)
		}
	}
}

// Collect removes snapshots, root images, layers, archives, pulled images and
// trees that nothing needs any more, and packages that nobody installs any
// more, and says which; with dry it only says so. Unavailable while a build is
// at work, which may be about to need some.
func (s *Server) Collect(ctx context.Context, dry bool) (out []cay.Garbage, err error) {
	idle, err := s.builds.Idle(func() error {
		gone, err := s.collectSnapshots(ctx, dry)
		out = append(out, gone...)
		if err != nil {
			return err
		}
		roots, err := s.builds.Roots()
		if err != nil { // unknown: all must stay
			return err
		}
		needs := template.Needs{Snapshot: s.needs(ctx), Images: roots, Gone: map[cay.SnapshotID]bool{}}
		for _, g := range gone {
			needs.Gone[cay.SnapshotID(g.Name)] = true
		}
		built, err := s.templates.Collect(ctx, needs, dry)
		parts, perr := s.builds.Collect(dry)
		out = append(append(out, built...), parts...)
		return errors.Join(err, perr)
	})
	if err == nil && !idle {
		err = cay.Errorf(cay.Unavailable, "a template is being built, which may need what nothing else does").
			WithHint("try again when it is done")
	}
	if s.packages != nil {
		gone, perr := s.packages.Collect(dry)
		out, err = append(out, gone...), errors.Join(err, perr)
	}
	s.snapshots.Settle() // what is said to be removed is
	var bytes int64
	for _, g := range out {
		bytes += g.Bytes
	}
	if len(out) > 0 && !dry {
		s.log.Info("removed what nothing needs", "things", len(out), "bytes", bytes)
	}
	return out, err
}

// needs tells whether a snapshot is in use.
func (s *Server) needs(ctx context.Context) func(cay.SnapshotID) bool {
	running := map[cay.SnapshotID]bool{}
	for _, i := range s.node.Instances() {
		running[i.Spec.Snapshot] = true
	}
	return func(id cay.SnapshotID) bool { return running[id] || s.control.Needs(ctx, id) }
}

// collectSnapshots removes teams' snapshots that no record names: what a crash
// left between a snapshot and its record.
func (s *Server) collectSnapshots(ctx context.Context, dry bool) ([]cay.Garbage, error) {
	needs := s.needs(ctx)
	var out []cay.Garbage
	for _, one := range s.node.Snapshots() {
		if time.Since(one.CreatedAt) < orphanAge || needs(one.ID) {
			continue
		}
		if !dry {
			removed, err := s.control.Discard(ctx, one.ID)
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
