package rest

import (
	"context"

	"github.com/cay-run/cay"
)

const (
	defaultResume = 15 // seconds
	defaultTag    = ":default"
)

// PauseSandbox saves a sandbox and stops it.
func (s *server) PauseSandbox(ctx context.Context, r PauseSandboxRequestObject) (PauseSandboxResponseObject, error) {
	kind := cay.MemorySnapshot
	if r.Body != nil {
		kind = snapshotKind(r.Body.Memory)
	}
	if err := s.control.Pause(ctx, teamOf(ctx), sandboxID(r.SandboxID), kind); err != nil {
		return nil, err
	}
	return PauseSandbox204Response{}, nil
}

// snapshotKind is what a request's "memory" asks for.
func snapshotKind(memory *bool) cay.SnapshotKind {
	if value(memory, true) {
		return cay.MemorySnapshot
	}
	return cay.FilesSnapshot
}

// ResumeSandbox starts a paused sandbox again, by E2B's older call.
func (s *server) ResumeSandbox(ctx context.Context, r ResumeSandboxRequestObject) (ResumeSandboxResponseObject, error) {
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
	b, err := s.control.Resume(ctx, teamOf(ctx), sandboxID(r.SandboxID), seconds(timeout), onTimeout, memory)
	if err != nil {
		return nil, err
	}
	return ResumeSandbox201JSONResponse{SandboxJSONResponse(s.sandbox(b))}, nil
}

// ForkSandbox makes copies of a running sandbox.
func (s *server) ForkSandbox(ctx context.Context, r ForkSandboxRequestObject) (ForkSandboxResponseObject, error) {
	timeout, count := int64(defaultResume), int64(1)
	if r.Body != nil {
		timeout, count = value(r.Body.Timeout, timeout), value(r.Body.Count, count)
	}
	count = max(0, min(count, 1<<20)) // control says what is too much
	forks, err := s.control.Fork(ctx, teamOf(ctx), sandboxID(r.SandboxID), int(count), seconds(timeout))
	if err != nil {
		return nil, err
	}
	out := make(ForkSandbox201JSONResponse, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			_, e := wireError(f.Err)
			out[i].Error = &e
			s.log.Error("a fork failed", "sandbox", r.SandboxID, "error", f.Err)
			continue
		}
		box := s.sandbox(f.Sandbox)
		out[i].Sandbox = &box
	}
	return out, nil
}

// CreateSnapshot saves a sandbox, which runs on.
func (s *server) CreateSnapshot(ctx context.Context, r CreateSnapshotRequestObject) (CreateSnapshotResponseObject, error) {
	name, kind := "", cay.MemorySnapshot
	if r.Body != nil {
		kind = snapshotKind(r.Body.Memory)
		name = value(r.Body.Name, "")
	}
	t, err := s.control.Snapshot(ctx, teamOf(ctx), sandboxID(r.SandboxID), name, kind)
	if err != nil {
		return nil, err
	}
	teams, err := s.control.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	return CreateSnapshot201JSONResponse(wireSnapshot(t, teams)), nil
}

// wireSnapshot gives a snapshot the id that creates take as a template's: its
// full name if it has one, and in any case a tag.
func wireSnapshot(t cay.Template, teams map[cay.TeamID]string) Snapshot {
	out := Snapshot{SnapshotID: string(t.ID) + defaultTag, Names: []string{}}
	for _, name := range fullNames(t, teams) {
		out.Names = append(out.Names, name+defaultTag)
	}
	if len(out.Names) > 0 {
		out.SnapshotID = out.Names[0]
	}
	return out
}

// ListSnapshots lists a page of snapshots.
func (s *server) ListSnapshots(ctx context.Context, r ListSnapshotsRequestObject) (ListSnapshotsResponseObject, error) {
	list, err := s.control.Snapshots(ctx, teamOf(ctx), sandboxID(value(r.Params.SandboxID, "")), value(r.Params.Name, ""))
	if err != nil {
		return nil, err
	}
	teams, err := s.control.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(t cay.Template) string { return string(t.ID) }, r.Params.NextToken, r.Params.Limit)
	if err != nil {
		return nil, err
	}
	out := make([]Snapshot, 0, len(page))
	for _, t := range page {
		out = append(out, wireSnapshot(t, teams))
	}
	return ListSnapshots200JSONResponse{Body: out, Headers: ListSnapshots200ResponseHeaders{XNextToken: next}}, nil
}

// DeleteTemplate removes a template or a snapshot.
func (s *server) DeleteTemplate(ctx context.Context, r DeleteTemplateRequestObject) (DeleteTemplateResponseObject, error) {
	if err := s.control.RemoveTemplate(ctx, teamOf(ctx), r.TemplateID); err != nil {
		return nil, err
	}
	return DeleteTemplate204Response{}, nil
}
