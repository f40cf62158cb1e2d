package server

import (
	"cmp"
	"context"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/machine/loopfs"
)

// upkeep is what the operator does about this machine by the API; by the socket it
// is the same desk.
func (s *Server) upkeep() rest.Upkeep {
	if !s.cfg.RunsSandboxes() {
		return nil
	}
	return upkeep{s}
}

type upkeep struct{ s *Server }

// Collect implements rest.Upkeep.
func (u upkeep) Collect(ctx context.Context, dry bool) ([]cay.Garbage, error) {
	return u.s.desk.Collect(ctx, dry)
}

// PackageCache implements rest.Upkeep.
func (u upkeep) PackageCache() (rest.PackageCache, error) {
	if u.s.packages == nil {
		return rest.PackageCache{}, noPackages()
	}
	c := u.s.packages.Stats()
	return rest.PackageCache{
		Files: c.Files, Bytes: c.Bytes, Limit: c.Limit, Hits: c.Hits, Stale: c.Stale, Misses: c.Misses, Passed: c.Passed,
		ServedBytes: c.Served, FetchedBytes: c.Fetched,
	}, nil
}

// ClearPackageCache implements rest.Upkeep.
func (u upkeep) ClearPackageCache() (files int, bytes int64, err error) {
	if u.s.packages == nil {
		return 0, 0, noPackages()
	}
	return u.s.packages.Clear()
}

func noPackages() error {
	return cay.Errorf(cay.NotFound, "this server has no package cache").WithHint("CAY_PACKAGE_CACHE=10GiB turns it on")
}

// Storage implements rest.Upkeep.
func (u upkeep) Storage() (rest.Storage, error) {
	s, err := loopfs.Look(u.s.cfg.Data)
	return rest.Storage{Dir: u.s.cfg.Data, Own: s.Exists, Down: s.Down, Direct: s.Direct, Device: s.Device, Bytes: s.Bytes, Free: s.Free}, err
}

// Snapshots implements rest.Upkeep.
func (u upkeep) Snapshots() ([]rest.Kept, error) {
	dir := u.s.host.Snapshots
	ids, err := dir.IDs()
	if err != nil {
		return nil, err
	}
	evicted, err := dir.Evicted() // after the others: what goes meanwhile is among these
	if err != nil {
		return nil, err
	}
	var out []rest.Kept
	gone := map[cay.SnapshotID]bool{}
	for _, one := range evicted {
		gone[one.ID] = true
		out = append(out, rest.Kept{Snapshot: one, Evicted: true})
	}
	for _, id := range ids {
		_, one, err := dir.Get(cay.SnapshotID(id))
		if err != nil {
			one = cay.Snapshot{ID: cay.SnapshotID(id)}
		}
		if !gone[one.ID] {
			out = append(out, rest.Kept{Snapshot: one})
		}
	}
	slices.SortFunc(out, func(a, b rest.Kept) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// VerifySnapshot implements rest.Upkeep.
func (u upkeep) VerifySnapshot(ctx context.Context, id cay.SnapshotID) error {
	return u.s.host.Snapshots.Verify(ctx, id)
}
