package control

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// AssignTags points tags at the build that target means, which is a name with
// or without a tag. It returns the build and the tags as recorded.
func (c *Control) AssignTags(ctx context.Context, team cay.TeamID, target string, tags []string) (cay.BuildID, []string, error) {
	tags, err := namedTags(tags)
	if err != nil {
		return "", nil, err
	}
	t, err := c.ownTemplate(ctx, team, target)
	if err != nil {
		return "", nil, err
	}
	if t.Build == "" {
		return "", nil, cay.Errorf(cay.NotFound, "template %q has no finished build", target)
	}
	b, err := c.store.Build(ctx, team, t.Build)
	if err != nil {
		return "", nil, err
	}
	before := c.tagSnapshots(ctx, t.ID, tags)
	c.collecting.RLock()
	err = c.store.PutTags(ctx, b, tags, now())
	c.collecting.RUnlock()
	if err != nil {
		return "", nil, err
	}
	for _, id := range before {
		c.discard(ctx, id)
	}
	return b.ID, tags, nil
}

// RemoveTags takes tags away from a template. The default one stays.
func (c *Control) RemoveTags(ctx context.Context, team cay.TeamID, name string, tags []string) error {
	tags, err := namedTags(tags)
	if err != nil {
		return err
	}
	if slices.Contains(tags, defaultTag) {
		return cay.Errorf(cay.Invalid, "tags: the tag %q cannot be deleted", defaultTag)
	}
	name, _, _ = strings.Cut(name, ":")
	t, err := c.ownTemplate(ctx, team, name)
	if err != nil {
		return err
	}
	before := c.tagSnapshots(ctx, t.ID, tags)
	if err := c.store.RemoveTags(ctx, t.ID, tags); err != nil {
		return err
	}
	for _, id := range before {
		c.discard(ctx, id)
	}
	return nil
}

// Tags lists a template's tags by name.
func (c *Control) Tags(ctx context.Context, team cay.TeamID, ref string) ([]cay.Tag, error) {
	t, err := c.Template(ctx, team, ref)
	if err != nil {
		return nil, err
	}
	return c.store.Tags(ctx, t.ID)
}

// SetPublic says whether other teams may use a template.
func (c *Control) SetPublic(ctx context.Context, team cay.TeamID, ref string, public *bool) (cay.Template, error) {
	t, err := c.ownTemplate(ctx, team, ref)
	if err != nil || public == nil {
		return t, err
	}
	t.Public = *public
	return t, c.store.SetPublic(ctx, team, t.ID, *public)
}

// ownTemplate finds a template that must be the team's own. A reference that
// cannot be one is the caller's mistake.
func (c *Control) ownTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error) {
	t, err := c.Template(ctx, team, ref)
	if err == nil && t.Team != team {
		err = cay.Errorf(cay.Denied, "template %q is another team's", ref)
	}
	return t, err
}

// namedTags is cleanTags for a list that must name some.
func namedTags(tags []string) ([]string, error) {
	if len(tags) == 0 {
		return nil, cay.Errorf(cay.Invalid, "tags: at least one must be given")
	}
	if slices.Contains(tags, "") {
		return nil, errTag("")
	}
	return cleanTags(tags)
}
