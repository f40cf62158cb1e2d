package rest

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
)

// GetTree describes the tree of checkpoints that a sandbox is in.
func (o own) GetTree(ctx context.Context, r cayv1.GetTreeRequestObject) (cayv1.GetTreeResponseObject, error) {
	tree, err := o.sandboxes.Tree(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	out := cayv1.GetTree200JSONResponse{
		Root: string(tree.Root), Checkpoints: []cayv1.Checkpoint{}, Branches: []cayv1.TreeBranch{},
	}
	for _, n := range tree.Checkpoints {
		out.Checkpoints = append(out.Checkpoints, wireCheckpoint(n))
	}
	for _, b := range tree.Branches {
		out.Branches = append(out.Branches, cayv1.TreeBranch{
			SandboxID: string(b.Sandbox.ID), State: wireState(b.Sandbox.State), CheckpointID: pointer(string(b.Checkpoint)),
		})
	}
	return out, nil
}

// CreateCheckpoint saves a running sandbox as a node of its tree.
func (o own) CreateCheckpoint(ctx context.Context, r cayv1.CreateCheckpointRequestObject) (cayv1.CreateCheckpointResponseObject, error) {
	kind, label := "", ""
	if r.Body != nil {
		kind, label = value(r.Body.Kind, ""), value(r.Body.Label, "")
	}
	n, err := o.sandboxes.Checkpoint(ctx, callerOf(ctx), sandboxID(r.SandboxID), cay.SnapshotKind(kind), label)
	if err != nil {
		return nil, err
	}
	return cayv1.CreateCheckpoint201JSONResponse(wireCheckpoint(n)), nil
}

// RollbackSandbox brings a sandbox back to a checkpoint.
func (o own) RollbackSandbox(ctx context.Context, r cayv1.RollbackSandboxRequestObject) (cayv1.RollbackSandboxResponseObject, error) {
	if r.Body.CheckpointID == "" {
		return nil, cay.Errorf(cay.Invalid, "checkpointID: is required")
	}
	s, n, err := o.sandboxes.Rollback(ctx, callerOf(ctx), sandboxID(r.SandboxID), cay.SnapshotID(r.Body.CheckpointID))
	if err != nil {
		return nil, err
	}
	return cayv1.RollbackSandbox200JSONResponse{MovedJSONResponse: wireMoved(s, n)}, nil
}

// UndoSandbox brings a sandbox back by one checkpoint.
func (o own) UndoSandbox(ctx context.Context, r cayv1.UndoSandboxRequestObject) (cayv1.UndoSandboxResponseObject, error) {
	s, n, err := o.sandboxes.Undo(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	return cayv1.UndoSandbox200JSONResponse{MovedJSONResponse: wireMoved(s, n)}, nil
}

// PromoteSandbox has a sandbox go on as one of its forks.
func (o own) PromoteSandbox(ctx context.Context, r cayv1.PromoteSandboxRequestObject) (cayv1.PromoteSandboxResponseObject, error) {
	if r.Body.Branch == "" {
		return nil, cay.Errorf(cay.Invalid, "branch: is required")
	}
	s, n, err := o.sandboxes.Promote(ctx, callerOf(ctx), sandboxID(r.SandboxID), sandboxID(r.Body.Branch))
	if err != nil {
		return nil, err
	}
	return cayv1.PromoteSandbox200JSONResponse{MovedJSONResponse: wireMoved(s, n)}, nil
}

// GetAutoCheckpoints says when checkpoints are taken by themselves.
func (o own) GetAutoCheckpoints(ctx context.Context, r cayv1.GetAutoCheckpointsRequestObject) (cayv1.GetAutoCheckpointsResponseObject, error) {
	auto, err := o.sandboxes.Auto(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	return cayv1.GetAutoCheckpoints200JSONResponse{AutoCheckpointsJSONResponse: wireAuto(auto)}, nil
}

// SetAutoCheckpoints changes that.
func (o own) SetAutoCheckpoints(ctx context.Context, r cayv1.SetAutoCheckpointsRequestObject) (cayv1.SetAutoCheckpointsResponseObject, error) {
	auto, err := o.sandboxes.SetAuto(ctx, callerOf(ctx), sandboxID(r.SandboxID),
		autoCheckpoint(r.Body.EverySeconds, r.Body.BeforeCommands, r.Body.Keep, r.Body.Kind))
	if err != nil {
		return nil, err
	}
	return cayv1.SetAutoCheckpoints200JSONResponse{AutoCheckpointsJSONResponse: wireAuto(auto)}, nil
}

// autoCheckpoint reads what a caller says; control says what is too much.
func autoCheckpoint(every *int64, before *bool, keep *int64, kind *string) cay.AutoCheckpoint {
	return cay.AutoCheckpoint{
		Every: seconds(value(every, 0)), Before: value(before, false),
		Keep: int(max(-1, min(value(keep, 0), 1<<20))), Kind: cay.SnapshotKind(value(kind, "")),
	}
}

// LabelCheckpoint names a checkpoint.
func (o own) LabelCheckpoint(ctx context.Context, r cayv1.LabelCheckpointRequestObject) (cayv1.LabelCheckpointResponseObject, error) {
	n, err := o.sandboxes.Label(ctx, callerOf(ctx), cay.SnapshotID(r.CheckpointID), r.Body.Label)
	if err != nil {
		return nil, err
	}
	return cayv1.LabelCheckpoint200JSONResponse(wireCheckpoint(n)), nil
}

// DeleteCheckpoint deletes a checkpoint.
func (o own) DeleteCheckpoint(ctx context.Context, r cayv1.DeleteCheckpointRequestObject) (cayv1.DeleteCheckpointResponseObject, error) {
	if err := o.sandboxes.RemoveCheckpoint(ctx, callerOf(ctx), cay.SnapshotID(r.CheckpointID)); err != nil {
		return nil, err
	}
	return cayv1.DeleteCheckpoint204Response{}, nil
}

// ForkCheckpoint makes sandboxes of a checkpoint.
func (o own) ForkCheckpoint(ctx context.Context, r cayv1.ForkCheckpointRequestObject) (cayv1.ForkCheckpointResponseObject, error) {
	count, timeout := int64(1), int64(defaultTimeoutV2)
	if r.Body != nil {
		count, timeout = value(r.Body.Count, count), value(r.Body.Timeout, timeout)
	}
	count = max(0, min(count, 1<<20)) // control says what is too much
	forks, err := o.sandboxes.ForkCheckpoint(ctx, callerOf(ctx), cay.SnapshotID(r.CheckpointID), int(count), seconds(timeout))
	if err != nil {
		return nil, err
	}
	o.oweCreates(ctx, len(forks)-1)
	out := make(cayv1.ForkCheckpoint201JSONResponse, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			e := wireError(f.Err)
			out[i].Error = &cayv1.Error{Code: e.Code, Message: e.Message, ErrorCode: e.ErrorCode}
			o.logFork(ctx, e, "checkpoint", r.CheckpointID, f.Err)
			continue
		}
		box, err := o.sandbox(ctx, f.Sandbox)
		if err != nil {
			return nil, err
		}
		out[i].Sandbox = &cayv1.ForkedSandbox{
			SandboxID: box.SandboxID, TemplateID: box.TemplateID, ClientID: box.ClientID, EnvdVersion: box.EnvdVersion,
			Alias: box.Alias, Domain: box.Domain,
			EnvdAccessToken: box.EnvdAccessToken, TrafficAccessToken: box.TrafficAccessToken,
		}
	}
	return out, nil
}

func wireCheckpoint(n cay.Checkpoint) cayv1.Checkpoint {
	return cayv1.Checkpoint{
		CheckpointID: string(n.ID), SandboxID: string(n.Sandbox), ParentID: pointer(string(n.Parent)),
		Kind: string(n.Kind), Label: pointer(n.Label), Auto: n.Auto, SizeBytes: n.Size, CreatedAt: n.CreatedAt, ReplicatedAt: wireTime(n.ReplicatedAt),
	}
}

func wireMoved(s cay.Sandbox, n cay.Checkpoint) cayv1.MovedJSONResponse {
	out := cayv1.MovedJSONResponse{SandboxID: string(s.ID), State: wireState(s.State), Checkpoint: wireCheckpoint(n)}
	if s.State == cay.Running { // else its resume tells
		out.Notice = pointer(s.Notice)
	}
	return out
}

func wireAuto(a cay.AutoCheckpoint) cayv1.AutoCheckpointsJSONResponse {
	return cayv1.AutoCheckpointsJSONResponse{
		EverySeconds: pointer(int64(a.Every / time.Second)), BeforeCommands: pointer(a.Before),
		Keep: pointer(int64(a.Keep)), Kind: pointer(string(a.Kind)),
	}
}
