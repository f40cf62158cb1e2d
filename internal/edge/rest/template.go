package rest

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
)

// maxTemplates is how many templates one answer lists without pages.
const maxTemplates = 5000

// ListTemplates lists what a team may start sandboxes from.
func (s *server) ListTemplates(ctx context.Context, r e2b.ListTemplatesRequestObject) (e2b.ListTemplatesResponseObject, error) {
	list, err := s.templates(ctx, r.Params.TeamID)
	if err == nil && len(list) > maxTemplates {
		return nil, cay.Errorf(cay.Invalid, "the team has more than %d templates", maxTemplates).
			WithHint("list them by pages: GET /v2/templates")
	}
	return e2b.ListTemplates200JSONResponse(list), err
}

// ListTemplatesV2 is ListTemplates by pages.
func (s *server) ListTemplatesV2(ctx context.Context, r e2b.ListTemplatesV2RequestObject) (e2b.ListTemplatesV2ResponseObject, error) {
	list, err := s.templates(ctx, r.Params.TeamID)
	if err != nil {
		return nil, err
	}
	page, next, err := cut(list, func(t e2b.Template) string { return t.TemplateID }, r.Params.NextToken, r.Params.Limit)
	return e2b.ListTemplatesV2200JSONResponse{
		Body: page, Headers: e2b.ListTemplatesV2200ResponseHeaders{XNextToken: next},
	}, err
}

// ListDefaultTemplates lists the templates that Cay brings.
func (s *server) ListDefaultTemplates(ctx context.Context, _ e2b.ListDefaultTemplatesRequestObject) (e2b.ListDefaultTemplatesResponseObject, error) {
	list, err := s.templates(ctx, nil)
	list = slices.DeleteFunc(list, func(t e2b.Template) bool { return !value(t.IsDefault, false) })
	slices.SortFunc(list, func(a, b e2b.Template) int { return strings.Compare(a.TemplateID, b.TemplateID) })
	return e2b.ListDefaultTemplates200JSONResponse(list), err
}

// ownTeam refuses a request for another team than the key's.
func ownTeam(ctx context.Context, team *string) error {
	if id := value(team, ""); id != "" && cay.TeamID(id) != teamOf(ctx) {
		return cay.Errorf(cay.Invalid, "teamID: the key is of another team").WithHint("leave it out, or use a key of that team")
	}
	return nil
}

func (s *server) templates(ctx context.Context, team *string) ([]e2b.Template, error) {
	if err := ownTeam(ctx, team); err != nil {
		return nil, err
	}
	list, err := s.fleet.Templates(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]e2b.Template, 0, len(list))
	for _, t := range list {
		out = append(out, s.wireTemplate(ctx, t, teams))
	}
	return out, nil
}

// wireTemplate describes a template. One that Cay brings tells its usage to the
// team that owns it alone.
func (s *server) wireTemplate(ctx context.Context, t cay.Template, teams map[cay.TeamID]string) e2b.Template {
	out := e2b.Template{
		TemplateID: string(t.ID), BuildID: string(t.Build), BuildStatus: string(t.BuildState),
		CPUCount: t.Limits.CPUs, MemoryMB: t.Limits.MemoryMB, DiskSizeMB: t.Limits.DiskMB,
		Public: t.Public, Aliases: notNull(t.Names), Names: fullNames(t, teams),
		CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, LastSpawnedAt: wireTime(t.LastSpawned),
		SpawnCount: t.SpawnCount, BuildCount: int32(t.BuildCount), EnvdVersion: t.EnvdVersion,
	}
	text, isDefault := s.described(t)
	out.IsDefault, out.Description, out.Docker = pointer(isDefault), pointer(text), pointer(t.Setup.Docker)
	if isDefault && t.Team != teamOf(ctx) {
		out.LastSpawnedAt, out.SpawnCount, out.BuildCount = nil, 0, 0
	}
	return out
}

// described finds a template among those that Cay brings. Teams cannot build
// any of their names.
func (s *server) described(t cay.Template) (text string, found bool) {
	if !t.Public {
		return "", false
	}
	for _, name := range t.Names {
		if text, found = s.defaults[name]; found {
			return text, true
		}
	}
	return "", false
}

func fullNames(t cay.Template, teams map[cay.TeamID]string) []string {
	out := make([]string, 0, len(t.Names))
	for _, name := range t.Names {
		if team := teams[t.Team]; team != "" { // a template that is being built has no record yet
			name = team + "/" + name
		}
		out = append(out, name)
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
	n, err := pageSize("limit", limit, maxPage)
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
func (s *server) GetTemplateByAlias(ctx context.Context, r e2b.GetTemplateByAliasRequestObject) (e2b.GetTemplateByAliasResponseObject, error) {
	t, err := s.fleet.Template(ctx, callerOf(ctx), r.Alias)
	return e2b.GetTemplateByAlias200JSONResponse{TemplateID: string(t.ID), Public: t.Public}, err
}

// GetTemplate describes a template and its builds.
func (s *server) GetTemplate(ctx context.Context, r e2b.GetTemplateRequestObject) (e2b.GetTemplateResponseObject, error) {
	t, err := s.fleet.Template(ctx, callerOf(ctx), r.TemplateID)
	if err != nil {
		return nil, err
	}
	teams, err := s.fleet.TeamNames(ctx)
	if err != nil {
		return nil, err
	}
	builds, err := s.fleet.Builds(ctx, callerOf(ctx), t.ID)
	if err != nil {
		return nil, err
	}
	list := make([]e2b.TemplateBuild, 0, len(builds))
	for _, b := range builds {
		list = append(list, e2b.TemplateBuild{
			BuildID: string(b.ID), Status: string(b.State),
			CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt, FinishedAt: wireTime(b.FinishedAt),
			CPUCount: b.Limits.CPUs, MemoryMB: b.Limits.MemoryMB, DiskSizeMB: pointer(b.Limits.DiskMB),
			EnvdVersion: pointer(b.EnvdVersion),
		})
	}
	page, next, err := cut(list, func(b e2b.TemplateBuild) string { return b.BuildID }, r.Params.NextToken, r.Params.Limit)
	one := s.wireTemplate(ctx, t.Shown(builds), teams)
	return e2b.GetTemplate200JSONResponse{
		Body: e2b.TemplateWithBuilds{
			TemplateID: one.TemplateID, BuildID: one.BuildID, BuildStatus: one.BuildStatus,
			CPUCount: one.CPUCount, MemoryMB: one.MemoryMB, DiskSizeMB: one.DiskSizeMB,
			Public: one.Public, Aliases: one.Aliases, Names: one.Names,
			CreatedAt: one.CreatedAt, UpdatedAt: one.UpdatedAt, LastSpawnedAt: one.LastSpawnedAt,
			SpawnCount: one.SpawnCount, BuildCount: one.BuildCount, EnvdVersion: one.EnvdVersion,
			IsDefault: one.IsDefault, Description: one.Description, Docker: one.Docker, Builds: page,
		},
		Headers: e2b.GetTemplate200ResponseHeaders{XNextToken: next},
	}, err
}
