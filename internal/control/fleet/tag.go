package fleet

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// AssignTags points tags at the build that target means: a name or an id, with
// or without a tag or the id of a build. It returns the build and the tags as
// recorded.
func (c *Catalogue) AssignTags(ctx context.Context, who cay.Caller, target string, tags []string) (cay.BuildID, []string, error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return "", nil, err
	}
	tags, err := namedTags(tags)
	if err != nil {
		return "", nil, err
	}
	t, release, err := c.ledger.Hold(ctx, who.Team, target, false)
	if err != nil {
		return "", nil, err
	}
	defer release()
	if t.Team != who.Team {
		return "", nil, ledger.OtherTeam(target)
	}
	if t.Build == "" {
		return "", nil, cay.Errorf(cay.NotFound, "template %q has no finished build", target)
	}
	b, err := c.store.Build(ctx, who.Team, t.Build)
	if err != nil {
		return "", nil, err
	}
	before := c.ledger.TagSnapshots(ctx, t.ID, tags)
	err = c.ledger.Do(ctx, who, "tags.assigned", string(t.ID), func(tx store.Store) error { return tx.PutTags(ctx, b, tags, ledger.Now()) },
		"build", string(b.ID), "tags", strings.Join(tags, " "))
	if err != nil {
		return "", nil, err
	}
	for _, id := range before {
		c.ledger.Tidy(ctx, id)
	}
	return b.ID, tags, nil
}

// TagAssignments lists when the tags of a team's own template were pointed to
// builds that are ready, newest first.
func (c *Catalogue) TagAssignments(ctx context.Context, who cay.Caller, ref string) ([]cay.TagAssignment, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	t, err := c.ledger.FindTemplate(ctx, who.Team, ref)
	if err == nil && t.Team != who.Team {
		err = cay.Errorf(cay.NotFound, "template %q not found", ref)
	}
	if err != nil {
		return nil, err
	}
	return c.store.TagAssignments(ctx, t.ID)
}

// CleanTag brings a tag to the form that it is recorded in.
func CleanTag(tag string) (string, error) {
	clean, err := namedTags([]string{tag})
	if err != nil {
		return "", err
	}
	return clean[0], nil
}

// RemoveTags takes tags away from a template. The default one stays.
func (c *Catalogue) RemoveTags(ctx context.Context, who cay.Caller, name string, tags []string) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	tags, err := namedTags(tags)
	if err != nil {
		return err
	}
	if slices.Contains(tags, cay.DefaultTag) {
		return cay.Errorf(cay.Invalid, "tags: the tag %q cannot be deleted", cay.DefaultTag)
	}
	name, _, _ = strings.Cut(name, ":")
	t, err := c.ownTemplate(ctx, who.Team, name)
	if err != nil {
		return err
	}
	before := c.ledger.TagSnapshots(ctx, t.ID, tags)
	if err := c.ledger.Do(ctx, who, "tags.removed", string(t.ID), func(tx store.Store) error {
		return tx.RemoveTags(ctx, t.ID, tags)
	}, "tags", strings.Join(tags, " ")); err != nil {
		return err
	}
	for _, id := range before {
		c.ledger.Tidy(ctx, id)
	}
	return nil
}

// Tags lists a template's tags by name, with the builds that are under way.
func (c *Catalogue) Tags(ctx context.Context, who cay.Caller, ref string) ([]cay.Tag, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	t, err := c.ledger.FindTemplate(ctx, who.Team, ref)
	if err != nil {
		return nil, err
	}
	return c.ledger.Tags(ctx, t.ID)
}

// SetPublic says whether other teams may use a template.
func (c *Catalogue) SetPublic(ctx context.Context, who cay.Caller, ref string, public *bool) (cay.Template, error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return cay.Template{}, err
	}
	t, err := c.ownTemplate(ctx, who.Team, ref)
	if err != nil || public == nil {
		return t, err
	}
	t.Public = *public
	return t, c.ledger.Do(ctx, who, "template.updated", string(t.ID), func(tx store.Store) error {
		return tx.SetPublic(ctx, who.Team, t.ID, *public)
	}, "public", strconv.FormatBool(*public))
}

// ownTemplate finds a template that must be the team's own. A reference that
// cannot be one is the caller's mistake.
func (c *Catalogue) ownTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error) {
	t, err := c.ledger.FindTemplate(ctx, team, ref)
	if err == nil && t.Team != team {
		err = ledger.OtherTeam(ref)
	}
	return t, err
}

// namedTags is cleanTags for a list that must name some.
func namedTags(tags []string) ([]string, error) {
	if len(tags) == 0 {
		return nil, cay.Errorf(cay.Invalid, "tags: at least one must be given")
	}
	if slices.Contains(tags, "") {
		return nil, ledger.BadTag("")
	}
	return ledger.CleanTags(tags)
}
