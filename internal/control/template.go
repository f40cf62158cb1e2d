package control

import (
	"context"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// defaultTag is the tag that a reference without one means.
const defaultTag = cay.DefaultTag

var reference = regexp.MustCompile(`^(?:([a-z0-9][a-z0-9._-]*)/)?([a-z0-9][a-z0-9._-]*)(?::([a-z0-9][a-z0-9._-]*))?$`)

// Template finds a template by id, name or team/name, each with or without
// ":tag", in any case. It is the team's own or public.
func (c *Control) Template(ctx context.Context, who cay.Caller, ref string) (cay.Template, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return cay.Template{}, err
	}
	return c.findTemplate(ctx, who.Team, ref)
}

// findTemplate is Template for use cases that need another scope.
func (c *Control) findTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error) {
	parts := reference.FindStringSubmatch(strings.ToLower(ref))
	if parts == nil || len(ref) > 256 {
		return cay.Template{}, cay.Errorf(cay.Invalid, "templateID: %.80q is no template id or name", ref).
			WithHint("use an id, a name, or name:tag")
	}
	space, name, tag := parts[1], parts[2], parts[3]
	t, err := c.template(ctx, team, space, name)
	if err == nil && tag != "" && tag != defaultTag {
		t, err = c.tagged(ctx, t, tag)
	}
	told, building := "", false
	if cay.KindOf(err) == cay.NotFound && space == "" {
		told, building = c.builds.backlog.Of(name)
	}
	switch {
	case building:
		e := cay.Errorf(cay.Unavailable, "template %q is being built: %s", name, told).
			WithHint("`cay template wait` returns when it is there")
		e.Code = cay.CodeTemplateBuilding
		return cay.Template{}, e
	case cay.KindOf(err) == cay.NotFound && space == "" && slices.Contains(c.builds.extras, name):
		return cay.Template{}, cay.Errorf(cay.NotFound, "template %q is not built on this server", ref).
			WithHint("on its machine, as root: cay template add %s", name)
	case cay.KindOf(err) == cay.NotFound:
		return cay.Template{}, cay.Errorf(cay.NotFound, "template %q not found", ref).
			WithHint("`cay template list` shows what there is")
	}
	return t, err
}

// tagged returns a template as the build of a tag has it. In place of a tag,
// the id of a build that some tag points to will do: others are not kept.
func (c *Control) tagged(ctx context.Context, t cay.Template, tag string) (cay.Template, error) {
	if cay.ValidUUID(tag) {
		tags, err := c.store.Tags(ctx, t.ID)
		if err != nil {
			return t, err
		}
		i := slices.IndexFunc(tags, func(one cay.Tag) bool { return string(one.Build) == tag })
		if i < 0 {
			return t, cay.Errorf(cay.NotFound, "no tag of template %s points to build %s", t.ID, tag)
		}
		tag = tags[i].Name
	}
	b, err := c.store.TaggedBuild(ctx, t.ID, tag)
	t.Build, t.Snapshot, t.BuildState = b.ID, b.Snapshot, b.State
	t.Limits, t.EnvdVersion, t.RecipeDigest, t.Setup = b.Limits, b.EnvdVersion, b.RecipeDigest, b.Setup
	return t, err
}

func (c *Control) template(ctx context.Context, team cay.TeamID, space, name string) (cay.Template, error) {
	if space == "" {
		return c.store.FindTemplate(ctx, team, name)
	}
	owner, err := c.store.TeamByName(ctx, space)
	if err != nil {
		return cay.Template{}, err
	}
	t, err := c.store.TemplateByName(ctx, owner.ID, name)
	if err == nil && (t.Team != owner.ID || (owner.ID != team && !t.Public)) {
		err = cay.Errorf(cay.NotFound, "")
	}
	return t, err
}

// Templates lists what a team may start sandboxes from, newest first, all but
// snapshots.
func (c *Control) Templates(ctx context.Context, who cay.Caller) ([]cay.Template, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	all, err := c.store.Templates(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t cay.Template) bool { return t.Source != "" })
	for i, t := range all {
		if t.Build == "" { // the tags of its builds have names
			builds, err := c.store.Builds(ctx, who.Team, t.ID)
			if err != nil {
				return nil, err
			}
			all[i] = t.Shown(builds)
		}
	}
	return c.withBacklog(all), nil
}

// withBacklog has the templates that are still being built say so. One that has
// no record yet goes by its name.
func (c *Control) withBacklog(list []cay.Template) []cay.Template {
	for _, name := range c.builds.backlog.Names() {
		at := slices.IndexFunc(list, func(t cay.Template) bool { return slices.Contains(t.Names, name) })
		if at < 0 {
			at, list = len(list), append(list, cay.Template{
				ID: cay.TemplateID(name), Names: []string{name}, Public: true, CreatedAt: now(), UpdatedAt: now(),
			})
		}
		list[at].BuildState = cay.BuildBuilding
	}
	return list
}

// Builds lists the builds of a template, newest first.
func (c *Control) Builds(ctx context.Context, who cay.Caller, id cay.TemplateID) ([]cay.Build, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	return c.store.Builds(ctx, who.Team, id)
}

// TeamNames returns the names of all teams, for the full names of templates.
func (c *Control) TeamNames(ctx context.Context) (map[cay.TeamID]string, error) {
	teams, err := c.store.Teams(ctx)
	names := make(map[cay.TeamID]string, len(teams))
	for _, t := range teams {
		names[t.ID] = t.Name
	}
	return names, err
}

// Publication is a finished build of a template.
type Publication struct {
	Team         cay.TeamID
	Names        []string // the first one finds the template
	Public       bool
	Snapshot     cay.SnapshotID
	Limits       cay.Limits
	EnvdVersion  string
	RecipeDigest string
	Setup        cay.Setup
}

// Publish records a finished build; sandboxes start from it from now on. It
// makes the template when there is none of that name, and does nothing when
// the template starts from that snapshot already.
func (c *Control) Publish(ctx context.Context, p Publication) (cay.Template, error) {
	if len(p.Names) == 0 || p.Snapshot == "" {
		return cay.Template{}, cay.Errorf(cay.Invalid, "a build needs a name and a snapshot to be published")
	}
	t, err := c.store.TemplateByName(ctx, p.Team, p.Names[0])
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && t.Team != p.Team:
		t = cay.Template{
			ID: cay.NewTemplateID(), Team: p.Team, Names: p.Names, Public: p.Public,
			CreatedAt: now(), UpdatedAt: now(),
		}
		if err := c.store.AddTemplate(ctx, t); err != nil {
			return cay.Template{}, err
		}
	case err != nil:
		return cay.Template{}, err
	case t.Snapshot == p.Snapshot && t.RecipeDigest == p.RecipeDigest && t.Limits == p.Limits && reflect.DeepEqual(t.Setup, p.Setup):
		return t, nil
	}
	err = c.store.PutBuild(ctx, cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: t.Team, State: cay.BuildReady,
		Snapshot: p.Snapshot, RecipeDigest: p.RecipeDigest, Limits: p.Limits, EnvdVersion: p.EnvdVersion, Setup: p.Setup,
		CreatedAt: now(), UpdatedAt: now(), FinishedAt: now(),
	})
	if err != nil {
		return cay.Template{}, err
	}
	c.discard(ctx, t.Snapshot) // nothing is to be made of it beforehand any more
	return c.store.Template(ctx, p.Team, t.ID)
}
