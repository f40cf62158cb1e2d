package rest

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// Upkeep keeps the machine of the server: what lies on its disk, and what of that
// nothing needs.
type Upkeep interface {
	// Collect removes what nothing needs any more and says what that was; with dry
	// it only says so.
	Collect(ctx context.Context, dry bool) ([]cay.Garbage, error)
	// PackageCache is what the cache of packages holds and did; NotFound without one.
	PackageCache() (PackageCache, error)
	// ClearPackageCache empties it.
	ClearPackageCache() (files int, bytes int64, err error)
	Storage() (Storage, error)
	// Snapshots lists those of the machine, oldest first. One whose record cannot
	// be read has its id alone.
	Snapshots() ([]Kept, error)
	// VerifySnapshot compares the files of a snapshot with its record.
	VerifySnapshot(ctx context.Context, id cay.SnapshotID) error
}

// PackageCache is what the cache of packages holds, and did since its start.
type PackageCache struct {
	Files                       int
	Bytes, Limit                int64
	Hits, Stale, Misses, Passed int64
	ServedBytes, FetchedBytes   int64
}

// Storage is the file system that a data directory may have of its own.
type Storage struct {
	Dir               string
	Own, Down, Direct bool
	Device            string
	Bytes, Free       int64
}

// Kept is a snapshot of a machine, whose files are on its disk or in the bucket alone.
type Kept struct {
	cay.Snapshot
	Evicted bool
}

// isNode refuses operators who ask for the machine of another node.
func (o own) isNode(ctx context.Context, id *string) error {
	load, err := o.sandboxes.Load(ctx, callerOf(ctx))
	if err == nil && id != nil && string(load.Node) != *id {
		err = errNoNode(*id)
	}
	return err
}

// keep is the upkeep of the machine of a node, for its operator.
func (o own) keep(ctx context.Context, node *string) (Upkeep, error) {
	if err := o.isNode(ctx, node); err != nil {
		return nil, err
	}
	if o.upkeep == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server has no sandboxes of its own, so nothing to keep").WithHint("ask one that has")
	}
	return o.upkeep, nil
}

// AdminListGarbage says what nothing needs any more.
func (o own) AdminListGarbage(ctx context.Context, r cayv1.AdminListGarbageRequestObject) (cayv1.AdminListGarbageResponseObject, error) {
	found, err := o.collect(ctx, r.Params.NodeID, true)
	return cayv1.AdminListGarbage200JSONResponse(found), err
}

// AdminCollectGarbage removes it.
func (o own) AdminCollectGarbage(ctx context.Context, r cayv1.AdminCollectGarbageRequestObject) (cayv1.AdminCollectGarbageResponseObject, error) {
	found, err := o.collect(ctx, r.Params.NodeID, false)
	return cayv1.AdminCollectGarbage200JSONResponse(found), err
}

func (o own) collect(ctx context.Context, node *string, dry bool) ([]cayv1.Garbage, error) {
	keep, err := o.keep(ctx, node)
	if err != nil {
		return nil, err
	}
	found, err := keep.Collect(ctx, dry)
	out := []cayv1.Garbage{}
	for _, g := range found {
		out = append(out, cayv1.Garbage{Kind: g.Kind, Name: g.Name, Bytes: g.Bytes})
	}
	return out, err
}

// AdminGetPackageCache tells of the cache of packages.
func (o own) AdminGetPackageCache(ctx context.Context, r cayv1.AdminGetPackageCacheRequestObject) (cayv1.AdminGetPackageCacheResponseObject, error) {
	keep, err := o.keep(ctx, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	c, err := keep.PackageCache()
	return cayv1.AdminGetPackageCache200JSONResponse{
		Files: c.Files, Bytes: c.Bytes, LimitBytes: c.Limit, Hits: c.Hits, Stale: c.Stale, Misses: c.Misses, Passed: c.Passed,
		ServedBytes: c.ServedBytes, FetchedBytes: c.FetchedBytes,
	}, err
}

// AdminClearPackageCache empties the cache of packages.
func (o own) AdminClearPackageCache(ctx context.Context, r cayv1.AdminClearPackageCacheRequestObject) (cayv1.AdminClearPackageCacheResponseObject, error) {
	keep, err := o.keep(ctx, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	files, bytes, err := keep.ClearPackageCache()
	return cayv1.AdminClearPackageCache200JSONResponse{Files: files, Bytes: bytes}, err
}

// AdminGetStorage tells of the file system of the data directory.
func (o own) AdminGetStorage(ctx context.Context, r cayv1.AdminGetStorageRequestObject) (cayv1.AdminGetStorageResponseObject, error) {
	keep, err := o.keep(ctx, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	s, err := keep.Storage()
	out := cayv1.AdminGetStorage200JSONResponse{DataDirectory: s.Dir, Own: s.Own}
	if s.Own {
		out.Down, out.Device, out.Direct, out.Bytes, out.FreeBytes = &s.Down, &s.Device, &s.Direct, &s.Bytes, &s.Free
	}
	return out, err
}

// AdminListSnapshots lists the snapshots on the disk, of all teams.
func (o own) AdminListSnapshots(ctx context.Context, r cayv1.AdminListSnapshotsRequestObject) (cayv1.AdminListSnapshotsResponseObject, error) {
	keep, err := o.keep(ctx, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	all, err := keep.Snapshots()
	out := cayv1.AdminListSnapshots200JSONResponse{}
	for _, s := range all {
		out = append(out, wireMachineSnapshot(s))
	}
	return out, err
}

func wireMachineSnapshot(s Kept) cayv1.MachineSnapshot {
	out := cayv1.MachineSnapshot{SnapshotID: string(s.ID)}
	if s.Evicted {
		out.Evicted = &s.Evicted
	}
	if s.Kind == "" {
		return out
	}
	out.Kind, out.Bytes, out.CreatedAt = pointer(cayv1.MachineSnapshotKind(s.Kind)), pointer(s.Size()), pointer[time.Time](s.CreatedAt)
	out.TeamID, out.SandboxID = pointer(string(s.Team)), pointer(string(s.Sandbox))
	return out
}

// AdminVerifySnapshot reads a snapshot and says whether it is whole.
func (o own) AdminVerifySnapshot(ctx context.Context, r cayv1.AdminVerifySnapshotRequestObject) (cayv1.AdminVerifySnapshotResponseObject, error) {
	keep, err := o.keep(ctx, r.Params.NodeID)
	if err != nil {
		return nil, err
	}
	out := cayv1.AdminVerifySnapshot200JSONResponse{SnapshotID: r.SnapshotID}
	err = keep.VerifySnapshot(ctx, cay.SnapshotID(r.SnapshotID))
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil || cay.KindOf(err) == cay.NotFound {
		return nil, err
	}
	out.Damage = pointer(err.Error())
	return out, nil
}
