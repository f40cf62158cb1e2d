package rest

import (
	"context"
	"time"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/builds"
)

// reasonLines is how many of a failed step's last lines its reason repeats.
const reasonLines = 20

// RequestBuild records a build that waits to be started.
func (s *server) RequestBuild(ctx context.Context, r e2b.RequestBuildRequestObject) (e2b.RequestBuildResponseObject, error) {
	out, err := s.requestBuild(ctx, *r.Body)
	return e2b.RequestBuild202JSONResponse{RequestedBuildJSONResponse: out}, err
}

// RequestBuildV2 is RequestBuild by E2B's older call.
func (s *server) RequestBuildV2(ctx context.Context, r e2b.RequestBuildV2RequestObject) (e2b.RequestBuildV2ResponseObject, error) {
	out, err := s.requestBuild(ctx, *r.Body)
	return e2b.RequestBuildV2202JSONResponse{RequestedBuildJSONResponse: out}, err
}

func (s *server) requestBuild(ctx context.Context, r e2b.NewBuild) (e2b.RequestedBuildJSONResponse, error) {
	var out e2b.RequestedBuildJSONResponse
	if err := ownTeam(ctx, r.TeamID); err != nil {
		return out, err
	}
	name := value(r.Name, "")
	if name == "" {
		name = value(r.Alias, "")
	}
	t, b, err := s.builds.RequestBuild(ctx, callerOf(ctx), builds.BuildRequest{
		Name: name, Tags: value(r.Tags, nil),
		CPUs: value(r.CPUCount, 0), MemoryMB: value(r.MemoryMB, 0), MinFreeDisk: value(r.MinFreeDiskMb, 0),
	})
	if err != nil {
		return out, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	if err != nil {
		return out, err
	}
	out.TemplateID, out.BuildID, out.Public = string(t.ID), string(b.ID), t.Public
	out.Names, out.Aliases, out.Tags = fullNames(t, teams), notNull(t.Names), notNull(b.Tags)
	return out, nil
}

// StartBuild starts a build.
func (s *server) StartBuild(ctx context.Context, r e2b.StartBuildRequestObject) (e2b.StartBuildResponseObject, error) {
	start := builds.BuildStart{
		FromArchive:  value(r.Body.CayArchive, ""),
		FromTemplate: value(r.Body.FromTemplate, ""), FromImage: value(r.Body.FromImage, ""),
		StartCmd: value(r.Body.StartCmd, ""), ReadyCmd: value(r.Body.ReadyCmd, ""), Force: value(r.Body.Force, false),
		Docker: value(r.Body.Docker, false),
	}
	if g := r.Body.FromImageRegistry; g != nil {
		start.Registry = &cay.RegistryAuth{
			Type: g.Type, Username: value(g.Username, ""), Password: value(g.Password, ""),
			AccessKeyID: value(g.AwsAccessKeyID, ""), SecretAccessKey: value(g.AwsSecretAccessKey, ""),
			Region: value(g.AwsRegion, ""), ServiceAccount: value(g.ServiceAccountJSON, ""),
		}
	}
	for _, step := range value(r.Body.Steps, nil) {
		start.Steps = append(start.Steps, cay.BuildStep{
			Type: step.Type, Args: value(step.Args, nil),
			FilesHash: value(step.FilesHash, ""), Force: value(step.Force, false),
			Secrets: secretMounts(value(step.CaySecrets, nil)),
		})
	}
	start.Secrets = value(r.Body.CaySecrets, nil)
	start.Mounts = mountSpecs(value(r.Body.VolumeMounts, nil))
	err := s.builds.StartBuild(ctx, callerOf(ctx), r.TemplateID, cay.BuildID(r.BuildID), start)
	return e2b.StartBuild202Response{}, err
}

func secretMounts(in []e2b.SecretMount) []cay.SecretMount {
	var out []cay.SecretMount
	for _, m := range in {
		out = append(out, cay.SecretMount{
			ID: m.ID, Target: value(m.Target, ""), Env: value(m.Env, ""),
			Mode: uint32(value(m.Mode, 0o400)) & 0o777, UID: value(m.UID, 0), GID: value(m.GID, 0),
		})
	}
	return out
}

// GetBuildStatus tells how a build goes.
func (s *server) GetBuildStatus(ctx context.Context, r e2b.GetBuildStatusRequestObject) (e2b.GetBuildStatusResponseObject, error) {
	q, err := logQuery(r.BuildID, r.Params.Limit, r.Params.Level)
	if err != nil {
		return nil, err
	}
	if q.Offset = int(value(r.Params.LogsOffset, 0)); q.Offset < 0 {
		return nil, cay.Errorf(cay.Invalid, "logsOffset: must not be negative")
	}
	b, lines, err := s.builds.Build(ctx, callerOf(ctx), r.TemplateID, q)
	if err != nil {
		return nil, err
	}
	out := e2b.BuildStatus{
		TemplateID: string(b.Template), BuildID: string(b.ID), Status: string(b.State),
		Logs: []string{}, LogEntries: wireLog(lines),
	}
	if b.State != cay.BuildError {
		return e2b.GetBuildStatus200JSONResponse(out), nil
	}
	_, last, err := s.builds.Build(ctx, callerOf(ctx), r.TemplateID, builds.LogQuery{Build: b.ID, Backward: true, Limit: reasonLines})
	if err != nil {
		return nil, err
	}
	out.Reason = &struct {
		LogEntries *[]e2b.BuildLogEntry `json:"logEntries,omitempty"`
		Message    string               `json:"message"`
		Step       *string              `json:"step,omitempty"`
	}{Message: b.Reason.Message, Step: pointer(b.Reason.Step)}
	entries := []e2b.BuildLogEntry{}
	for i := len(last) - 1; i >= 0; i-- {
		if last[i].Step == b.Reason.Step {
			entries = append(entries, wireLog(last[i:i+1])...)
		}
	}
	out.Reason.LogEntries = &entries
	return e2b.GetBuildStatus200JSONResponse(out), nil
}

// GetBuildLogs reads a part of a build's log.
func (s *server) GetBuildLogs(ctx context.Context, r e2b.GetBuildLogsRequestObject) (e2b.GetBuildLogsResponseObject, error) {
	q, err := logQuery(r.BuildID, r.Params.Limit, r.Params.Level)
	if err != nil {
		return nil, err
	}
	switch direction := value(r.Params.Direction, "forward"); direction {
	case "forward":
	case "backward":
		q.Backward = true
	default:
		return nil, cay.Errorf(cay.Invalid, "direction: must be forward or backward")
	}
	if ms := value(r.Params.Cursor, 0); ms != 0 {
		q.From = time.UnixMilli(ms)
	}
	_, lines, err := s.builds.Build(ctx, callerOf(ctx), r.TemplateID, q)
	return e2b.GetBuildLogs200JSONResponse{Logs: wireLog(lines)}, err
}

func logQuery(build string, limit *int32, level *string) (builds.LogQuery, error) {
	q := builds.LogQuery{Build: cay.BuildID(build)}
	var err error
	if q.Limit, err = pageSize("limit", limit, maxPage); err != nil {
		return q, err
	}
	if name := value(level, ""); name != "" {
		var ok bool
		if q.Level, ok = cay.ParseLogLevel(name); !ok {
			return q, cay.Errorf(cay.Invalid, "level: must be debug, info, warn or error")
		}
	}
	return q, nil
}

func wireLog(lines []cay.BuildLog) []e2b.BuildLogEntry {
	out := make([]e2b.BuildLogEntry, 0, len(lines))
	for _, l := range lines {
		out = append(out, e2b.BuildLogEntry{
			Timestamp: l.At, Message: l.Message, Level: l.Level.String(), Step: pointer(l.Step),
		})
	}
	return out
}

// UpdateTemplate opens a template to other teams, or closes it.
func (s *server) UpdateTemplate(ctx context.Context, r e2b.UpdateTemplateRequestObject) (e2b.UpdateTemplateResponseObject, error) {
	t, err := s.fleet.SetPublic(ctx, callerOf(ctx), r.TemplateID, r.Body.Public)
	if err != nil {
		return nil, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	return e2b.UpdateTemplate200JSONResponse{Names: fullNames(t, teams)}, err
}

// UpdateTemplateV1 is UpdateTemplate by E2B's older call.
func (s *server) UpdateTemplateV1(ctx context.Context, r e2b.UpdateTemplateV1RequestObject) (e2b.UpdateTemplateV1ResponseObject, error) {
	_, err := s.fleet.SetPublic(ctx, callerOf(ctx), r.TemplateID, r.Body.Public)
	return e2b.UpdateTemplateV1200JSONResponse(nil), err
}
