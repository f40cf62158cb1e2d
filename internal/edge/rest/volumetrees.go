package rest

import (
	"context"
	"errors"
	"net/http"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/volumes"
)

// CloneVolume makes a volume of another's files.
func (o own) CloneVolume(ctx context.Context, r cayv1.CloneVolumeRequestObject) (cayv1.CloneVolumeResponseObject, error) {
	v, err := o.volumes.Clone(ctx, callerOf(ctx), r.VolumeID, value(r.Body.Snapshot, ""), value(r.Body.Name, ""))
	if err != nil {
		return nil, err
	}
	return cayv1.CloneVolume201JSONResponse(wireVolume(v)), nil
}

// ListVolumeSnapshots lists those of a volume.
func (o own) ListVolumeSnapshots(ctx context.Context, r cayv1.ListVolumeSnapshotsRequestObject) (cayv1.ListVolumeSnapshotsResponseObject, error) {
	list, err := o.volumes.VolumeSnapshots(ctx, callerOf(ctx), r.VolumeID)
	if err != nil {
		return nil, err
	}
	out := cayv1.ListVolumeSnapshots200JSONResponse{}
	for _, s := range list {
		out = append(out, wireVolumeSnapshot(s))
	}
	return out, nil
}

// SnapshotVolume keeps the files of a volume under a name.
func (o own) SnapshotVolume(ctx context.Context, r cayv1.SnapshotVolumeRequestObject) (cayv1.SnapshotVolumeResponseObject, error) {
	s, err := o.volumes.Snapshot(ctx, callerOf(ctx), r.VolumeID, value(r.Body.Name, ""))
	if err != nil {
		return nil, err
	}
	return cayv1.SnapshotVolume201JSONResponse(wireVolumeSnapshot(s)), nil
}

// DeleteVolumeSnapshot removes a snapshot of a volume.
func (o own) DeleteVolumeSnapshot(ctx context.Context, r cayv1.DeleteVolumeSnapshotRequestObject) (cayv1.DeleteVolumeSnapshotResponseObject, error) {
	return cayv1.DeleteVolumeSnapshot204Response{}, o.volumes.RemoveSnapshot(ctx, callerOf(ctx), r.VolumeID, r.SnapshotName)
}

// RestoreVolume has a volume have the files of its snapshot.
func (o own) RestoreVolume(ctx context.Context, r cayv1.RestoreVolumeRequestObject) (cayv1.RestoreVolumeResponseObject, error) {
	v, err := o.volumes.Restore(ctx, callerOf(ctx), r.VolumeID, r.SnapshotName)
	if err != nil {
		return nil, err
	}
	return cayv1.RestoreVolume200JSONResponse(wireVolume(v)), nil
}

func wireVolumeSnapshot(s cay.VolumeSnapshot) cayv1.VolumeSnapshot {
	return cayv1.VolumeSnapshot{SnapshotID: string(s.ID), Name: s.Name, VolumeID: string(s.Volume), SizeMB: int64(s.SizeMB), CreatedAt: s.CreatedAt}
}

// FillVolume unpacks a tar into a volume.
func (o own) FillVolume(ctx context.Context, r cayv1.FillVolumeRequestObject) (cayv1.FillVolumeResponseObject, error) {
	who := callerOf(ctx)
	if err := o.trees.take(who.Team); err != nil {
		return nil, err
	}
	defer o.trees.give(who.Team)
	done, err := o.volumes.Fill(ctx, who, r.VolumeID, value(r.Params.Path, "/"), value(r.Params.Owners, false), r.Body)
	if err != nil {
		return nil, err
	}
	return cayv1.FillVolume200JSONResponse{Entries: done.Entries, Bytes: done.Bytes}, nil
}

// ExportVolume sends a tar of what is in a volume.
func (o own) ExportVolume(ctx context.Context, r cayv1.ExportVolumeRequestObject) (cayv1.ExportVolumeResponseObject, error) {
	who := callerOf(ctx)
	if err := o.trees.take(who.Team); err != nil {
		return nil, err
	}
	tree, err := o.volumes.Open(ctx, who, r.VolumeID, value(r.Params.Path, "/"))
	if err != nil {
		o.trees.give(who.Team)
		return nil, err
	}
	return &volumeTar{server: o.server, ctx: ctx, team: who.Team, tree: tree}, nil
}

type volumeTar struct {
	*server
	ctx  context.Context // of the request: generated code gives a visitor none
	team cay.TeamID
	tree *volumes.Tree
}

// VisitExportVolumeResponse sends it. After an error the connection breaks, so
// that no client takes a part for the whole.
func (t *volumeTar) VisitExportVolumeResponse(w http.ResponseWriter) error {
	defer t.trees.give(t.team)
	defer t.tree.Close()
	w.Header().Set("Content-Type", "application/x-tar")
	if err := t.tree.Pack(t.ctx, w); err != nil {
		if !errors.Is(err, context.Canceled) {
			t.log.WarnContext(t.ctx, "a volume was not sent as a whole", "err", err)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}
