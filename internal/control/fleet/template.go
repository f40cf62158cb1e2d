package fleet

import (
	"context"
	"reflect"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Template finds a template by id, name or team/name, each with or without
// ":tag", in any case. It is the team's own or public.
func (c *Catalogue) Template(ctx context.Context, who cay.Caller, ref string) (cay.Template, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return cay.Template{}, err
	}
	return c.ledger.FindTemplate(ctx, who.Team, ref)
}

// Templates lists what a team may start sandboxes from, newest first, all but
// snapshots.
func (c *Catalogue) Templates(ctx context.Context, who cay.Caller) ([]cay.Template, error) {
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
func (c *Catalogue) withBacklog(list []cay.Template) []cay.Template {
	for _, name := range c.ledger.Backlog() {
		at := slices.IndexFunc(list, func(t cay.Template) bool { return slices.Contains(t.Names, name) })
		if at < 0 {
			at, list = len(list), append(list, cay.Template{
				ID: cay.TemplateID(name), Names: []string{name}, Public: true, CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(),
			})
		}
		list[at].BuildState = cay.BuildBuilding
	}
	return list
}

// Builds lists the builds of a template, newest first.
func (c *Catalogue) Builds(ctx context.Context, who cay.Caller, id cay.TemplateID) ([]cay.Build, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	return c.store.Builds(ctx, who.Team, id)
}

// TeamNames returns the names of all teams, for the full names of templates.
func (c *Catalogue) TeamNames(ctx context.Context) (map[cay.TeamID]string, error) {
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
func (c *Catalogue) Publish(ctx context.Context, p Publication) (cay.Template, error) {
	if len(p.Names) == 0 || p.Snapshot == "" {
		return cay.Template{}, cay.Errorf(cay.Invalid, "a build needs a name and a snapshot to be published")
	}
	t, err := c.store.TemplateByName(ctx, p.Team, p.Names[0])
	made := false
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && t.Team != p.Team:
		t = cay.Template{
			ID: cay.NewTemplateID(), Team: p.Team, Names: p.Names, Public: p.Public,
			CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(),
		}
		made = true
	case err != nil:
		return cay.Template{}, err
	case t.Snapshot == p.Snapshot && t.RecipeDigest == p.RecipeDigest && t.Limits == p.Limits && reflect.DeepEqual(t.Setup, p.Setup):
		return t, nil
	}
	b := cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: t.Team, State: cay.BuildReady,
		Snapshot: p.Snapshot, RecipeDigest: p.RecipeDigest, Limits: p.Limits, EnvdVersion: p.EnvdVersion, Setup: p.Setup,
		CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(), FinishedAt: ledger.Now(),
	}
	err = c.store.Tx(ctx, func(tx store.Store) error { // both count, or none
		if made {
			if err := tx.AddTemplate(ctx, t); err != nil {
				return err
			}
		}
		return tx.PutBuild(ctx, b)
	})
	if err != nil {
		return cay.Template{}, err
	}
	c.ledger.Tidy(ctx, t.Snapshot) // nothing is to be made of it beforehand any more
	return c.store.Template(ctx, p.Team, t.ID)
}
