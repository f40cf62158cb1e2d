package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// ReadDockerfile says what a Dockerfile means, in the words of builds.
func (o own) ReadDockerfile(ctx context.Context, r cayv1.ReadDockerfileRequestObject) (cayv1.ReadDockerfileResponseObject, error) {
	if err := callerOf(ctx).May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	if r.Body.Dockerfile == "" {
		return nil, cay.Errorf(cay.Invalid, "dockerfile: is required")
	}
	plan, err := dockerfile.Parse([]byte(r.Body.Dockerfile), dockerfile.Options{Args: value(r.Body.Args, nil), Target: value(r.Body.Target, "")})
	if err != nil {
		return nil, err
	}
	out := cayv1.ReadDockerfile200JSONResponse{Stages: make([]cayv1.DockerfileStage, len(plan.Stages)), Warnings: append([]string{}, plan.Warnings...)}
	for i, s := range plan.Stages {
		to := &out.Stages[i]
		to.Name, to.StartCmd, to.ReadyCmd, to.Docker = s.Name, pointer(s.Start), pointer(s.Ready), pointer(s.Docker)
		if s.From.Stage >= 0 {
			to.FromStage = &s.From.Stage
		} else {
			to.FromImage = &s.From.Image
		}
		to.Steps = make([]cayv1.DockerfileStep, 0, len(s.Steps))
		for _, step := range s.Steps {
			to.Steps = append(to.Steps, wireDockerfileStep(step))
		}
	}
	return out, nil
}

// wireDockerfileStep is a step as builds take it, and the files or secrets that its
// caller has to bring.
func wireDockerfileStep(s dockerfile.Step) cayv1.DockerfileStep {
	out := cayv1.DockerfileStep{Line: s.Line, Text: s.Text, Args: []string{}}
	switch {
	case s.Run != nil:
		out.Type, out.Args = "RUN", []string{s.Run.Command}
		if len(s.Run.Secrets) > 0 {
			out.Needs = new("secrets")
		}
	case s.Copy != nil:
		out.Type, out.Args, out.Needs = "COPY", append(append(out.Args, s.Copy.Sources...), s.Copy.Dest), new("files")
		if s.Copy.Stage >= 0 {
			out.Needs = new("stage")
		}
	case s.Env != nil:
		out.Type = "ENV"
		for _, pair := range s.Env {
			out.Args = append(out.Args, pair.Name, pair.Value)
		}
	case s.User != "":
		out.Type, out.Args = "USER", []string{s.User}
	default:
		out.Type, out.Args = "WORKDIR", []string{s.Workdir}
	}
	return out
}
