package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/fleet"
)

const defaultResume = 15 // seconds

// PauseSandbox saves a sandbox and stops it.
func (s *server) PauseSandbox(ctx context.Context, r e2b.PauseSandboxRequestObject) (e2b.PauseSandboxResponseObject, error) {
	kind, strict, pause := cay.MemorySnapshot, false, s.sandboxes.Pause
	if r.Body != nil {
		kind, strict = snapshotKind(r.Body.Memory), value(r.Body.RequireHealthyGuest, false)
		if value(r.Body.Durable, false) {
			pause = s.sandboxes.PauseDurably
		}
	}
	if err := pause(ctx, callerOf(ctx), sandboxID(r.SandboxID), kind, strict); err != nil {
		return nil, err
	}
	return e2b.PauseSandbox204Response{}, nil
}

// snapshotKind is what a request's "memory" asks for.
func snapshotKind(memory *bool) cay.SnapshotKind {
	if value(memory, true) {
		return cay.MemorySnapshot
	}
	return cay.FilesSnapshot
}

// ResumeSandbox starts a paused sandbox again, by E2B's older call.
func (s *server) ResumeSandbox(ctx context.Context, r e2b.ResumeSandboxRequestObject) (e2b.ResumeSandboxResponseObject, error) {
	timeout, onTimeout, memory := int64(defaultResume), cay.TimeoutAction(""), true
	if r.Body != nil {
		memory = value(r.Body.Memory, true)
		timeout = value(r.Body.Timeout, timeout)
		if r.Body.AutoPause != nil {
			onTimeout = cay.KillOnTimeout
			if *r.Body.AutoPause {
				onTimeout = cay.PauseOnTimeout
			}
		}
	}
	b, err := s.sandboxes.Resume(ctx, callerOf(ctx), sandboxID(r.SandboxID), seconds(timeout), onTimeout, memory)
	if err != nil {
		return nil, err
	}
	box, err := s.sandbox(ctx, b)
	return e2b.ResumeSandbox201JSONResponse{SandboxJSONResponse: e2b.SandboxJSONResponse(box)}, err
}

// ForkSandbox makes copies of a running sandbox.
func (s *server) ForkSandbox(ctx context.Context, r e2b.ForkSandboxRequestObject) (e2b.ForkSandboxResponseObject, error) {
	timeout, count := int64(defaultResume), int64(1)
	if r.Body != nil {
		timeout, count = value(r.Body.Timeout, timeout), value(r.Body.Count, count)
	}
	count = max(0, min(count, 1<<20)) // control says what is too much
	forks, err := s.sandboxes.Fork(ctx, callerOf(ctx), sandboxID(r.SandboxID), int(count), seconds(timeout))
	if err != nil {
		return nil, err
	}
	s.oweCreates(ctx, len(forks)-1)
	out := make(e2b.ForkSandbox201JSONResponse, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			e := wireError(f.Err)
			out[i].Error = &e
			s.logFork(ctx, e, "sandbox", r.SandboxID, f.Err)
			continue
		}
		box, err := s.sandbox(ctx, f.Sandbox)
		if err != nil {
			return nil, err
		}
		out[i].Sandbox = &box
	}
	return out, nil
}

// logFork tells the log of a fork that broke. One that was refused is its
// client's to know.
func (s *server) logFork(ctx context.Context, e e2b.Error, of, id string, err error) {
	if e.Code >= 500 {
		s.log.ErrorContext(ctx, "a fork failed", of, id, "err", err)
	}
}

// CreateSnapshot saves a sandbox, which runs on.
func (s *server) CreateSnapshot(ctx context.Context, r e2b.CreateSnapshotRequestObject) (e2b.CreateSnapshotResponseObject, error) {
	name, kind := "", cay.MemorySnapshot
	if r.Body != nil {
		kind = snapshotKind(r.Body.Memory)
		name = value(r.Body.Name, "")
	}
	t, err := s.sandboxes.Snapshot(ctx, callerOf(ctx), sandboxID(r.SandboxID), name, kind)
	if err != nil {
		return nil, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	return e2b.CreateSnapshot201JSONResponse(s.snapshot(t, teams)), nil
}

// wireSnapshot gives a snapshot the id that creates take as a template's: its
// full name if it has one, and in any case a tag. Its names have none.
func wireSnapshot(t fleet.Snap, teams map[cay.TeamID]string) e2b.Snapshot {
	out := e2b.Snapshot{SnapshotID: string(t.ID), Names: fullNames(t.Template, teams)}
	if len(out.Names) > 0 {
		out.SnapshotID = out.Names[0]
	}
	out.SnapshotID += ":" + t.Tag
	return out
}

// snapshot is wireSnapshot, and tells of its copy.
func (s *server) snapshot(t fleet.Snap, teams map[cay.TeamID]string) e2b.Snapshot {
	out := wireSnapshot(t, teams)
	out.Replicated, out.ReplicatedAt = s.replicated(t.ReplicatedAt)
	return out
}

// ListSnapshots lists a page of snapshots.
func (s *server) ListSnapshots(ctx context.Context, r e2b.ListSnapshotsRequestObject) (e2b.ListSnapshotsResponseObject, error) {
	list, err := s.fleet.Snapshots(ctx, callerOf(ctx), sandboxID(value(r.Params.SandboxID, "")), value(r.Params.Name, ""))
	if err != nil {
		return nil, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(t fleet.Snap) string { return string(t.ID) + ":" + t.Tag }, r.Params.NextToken, r.Params.Limit)
	if err != nil {
		return nil, err
	}
	out := make([]e2b.Snapshot, 0, len(page))
	for _, t := range page {
		out = append(out, s.snapshot(t, teams))
	}
	return e2b.ListSnapshots200JSONResponse{Body: out, Headers: e2b.ListSnapshots200ResponseHeaders{XNextToken: next}}, nil
}

// DeleteTemplate removes a template or a snapshot.
func (s *server) DeleteTemplate(ctx context.Context, r e2b.DeleteTemplateRequestObject) (e2b.DeleteTemplateResponseObject, error) {
	if err := s.fleet.RemoveTemplate(ctx, callerOf(ctx), r.TemplateID); err != nil {
		return nil, err
	}
	return e2b.DeleteTemplate204Response{}, nil
}
