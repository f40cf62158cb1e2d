package rest

import (
	"context"

	"github.com/cay-run/cay"
)

// ListTemplates lists what a team may start sandboxes from.
func (s *server) ListTemplates(ctx context.Context, r ListTemplatesRequestObject) (ListTemplatesResponseObject, error) {
	list, err := s.templates(ctx, r.Params.TeamID)
	return ListTemplates200JSONResponse(list), err
}

// ListTemplatesV2 is ListTemplates by pages.
func (s *server) ListTemplatesV2(ctx context.Context, r ListTemplatesV2RequestObject) (ListTemplatesV2ResponseObject, error) {
	list, err := s.templates(ctx, r.Params.TeamID)
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(t Template) string { return t.TemplateID }, r.Params.NextToken, r.Params.Limit)
	return ListTemplatesV2200JSONResponse{
		Body: page, Headers: ListTemplatesV2200ResponseHeaders{XNextToken: next},
	}, err
}

func (s *server) templates(ctx context.Context, team *string) ([]Template, error) {
	if id := value(team, ""); id != "" && cay.TeamID(id) != teamOf(ctx) {
		return nil, cay.Errorf(cay.Denied, "teamID: the key is of another team")
	}
	list, err := s.control.Templates(ctx, teamOf(ctx))
	if err != nil {
		return nil, err
	}
	teams, err := s.control.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Template, 0, len(list))
	for _, t := range list {
		out = append(out, Template{
			TemplateID: string(t.ID), BuildID: string(t.Build), BuildStatus: string(t.BuildState),
			CPUCount: t.Limits.CPUs, MemoryMB: t.Limits.MemoryMB, DiskSizeMB: t.Limits.DiskMB,
			Public: t.Public, Aliases: notNull(t.Names), Names: fullNames(t, teams),
			CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, LastSpawnedAt: wireTime(t.LastSpawned),
			SpawnCount: t.SpawnCount, BuildCount: int32(t.BuildCount), EnvdVersion: t.EnvdVersion,
		})
	}
	return out, nil
}

func fullNames(t cay.Template, teams map[cay.TeamID]string) []string {
	out := make([]string, 0, len(t.Names))
	for _, name := range t.Names {
		out = append(out, teams[t.Team]+"/"+name)
	}
	return out
}

func notNull(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}

// cut takes a page out of a list; its token is the key of the page's last
// item.
func cut[T any](list []T, key func(T) string, token *string, limit *int32) (page []T, next *string, err error) {
	n, err := parseLimit(limit)
	if err != nil {
		return nil, nil, err
	}
	if after := value(token, ""); after != "" {
		found := false
		for i, item := range list {
			if key(item) == after {
				list, found = list[i+1:], true
				break
			}
		}
		if !found {
			return nil, nil, cay.Errorf(cay.Invalid, "nextToken: is not from an earlier page")
		}
	}
	if len(list) > n {
		list = list[:n]
		last := key(list[n-1])
		next = &last
	}
	return list, next, nil
}

// GetTemplateByAlias says whether there is a template of a name.
func (s *server) GetTemplateByAlias(ctx context.Context, r GetTemplateByAliasRequestObject) (GetTemplateByAliasResponseObject, error) {
	t, err := s.control.Template(ctx, teamOf(ctx), r.Alias)
	return GetTemplateByAlias200JSONResponse{TemplateID: string(t.ID), Public: t.Public}, err
}

// GetTemplate describes a template and its builds.
func (s *server) GetTemplate(ctx context.Context, r GetTemplateRequestObject) (GetTemplateResponseObject, error) {
	t, err := s.control.Template(ctx, teamOf(ctx), r.TemplateID)
	if err != nil {
		return nil, err
	}
	teams, err := s.control.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	builds, err := s.control.Builds(ctx, teamOf(ctx), t.ID)
	if err != nil {
		return nil, err
	}
	list := make([]TemplateBuild, 0, len(builds))
	for _, b := range builds {
		list = append(list, TemplateBuild{
			BuildID: string(b.ID), Status: string(b.State),
			CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt, FinishedAt: wireTime(b.FinishedAt),
			CPUCount: b.Limits.CPUs, MemoryMB: b.Limits.MemoryMB, DiskSizeMB: pointer(b.Limits.DiskMB),
			EnvdVersion: pointer(b.EnvdVersion),
		})
	}
	page, next, err := cut(list, func(b TemplateBuild) string { return b.BuildID }, r.Params.NextToken, r.Params.Limit)
	return GetTemplate200JSONResponse{
		Body: TemplateWithBuilds{
			TemplateID: string(t.ID), Public: t.Public, Aliases: notNull(t.Names), Names: fullNames(t, teams),
			CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, LastSpawnedAt: wireTime(t.LastSpawned),
			SpawnCount: t.SpawnCount, Builds: page,
		},
		Headers: GetTemplate200ResponseHeaders{XNextToken: next},
	}, err
}
