package rest

import (
	"context"
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// CompareCheckpoints tells which files differ between two checkpoints.
func (o own) CompareCheckpoints(ctx context.Context, r cayv1.CompareCheckpointsRequestObject) (cayv1.CompareCheckpointsResponseObject, error) {
	from, to := cay.SnapshotID(r.CheckpointID), cay.SnapshotID(r.Params.To)
	out, err := o.sandboxes.Compare(ctx, callerOf(ctx), from, to)
	if err != nil {
		return nil, err
	}
	return cayv1.CompareCheckpoints200JSONResponse{ComparisonJSONResponse: wireComparison(out, from, to)}, nil
}

// CompareSandbox tells which files of a sandbox differ from a checkpoint.
func (o own) CompareSandbox(ctx context.Context, r cayv1.CompareSandboxRequestObject) (cayv1.CompareSandboxResponseObject, error) {
	out, since, err := o.sandboxes.Changes(ctx, callerOf(ctx), sandboxID(r.SandboxID), cay.SnapshotID(value(r.Params.From, "")))
	if err != nil {
		return nil, err
	}
	return cayv1.CompareSandbox200JSONResponse{ComparisonJSONResponse: wireComparison(out, since.ID, "")}, nil
}

func wireComparison(c cay.Comparison, from, to cay.SnapshotID) cayv1.ComparisonJSONResponse {
	out := cayv1.ComparisonJSONResponse{
		From: string(from), To: pointer(string(to)), Changes: make([]cayv1.FileChange, len(c.Changes)),
		Added: int64(c.Added), Changed: int64(c.Changed), Removed: int64(c.Removed),
	}
	for i, x := range c.Changes {
		out.Changes[i] = cayv1.FileChange{
			Path: x.Path, Change: string(x.Kind), Before: wireFile(x.Before), After: wireFile(x.After),
			Diff: pointer(x.Diff), NoDiff: pointer(string(x.NoDiff)),
		}
	}
	return out
}

func wireFile(f *cay.FileState) *cayv1.FileState {
	if f == nil {
		return nil
	}
	return &cayv1.FileState{
		Type: f.Type, Mode: fmt.Sprintf("%04o", f.Mode), UID: int64(f.UID), GID: int64(f.GID), Size: f.Size, Target: pointer(f.Target),
	}
}
