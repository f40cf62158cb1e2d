package fleet

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// Snap is a snapshot that clients took.
type Snap = ledger.Snap

// Snapshots lists a team's snapshots, newest first: all, those of a sandbox,
// or those of a name, with or without a tag. One that is not there finds
// nothing.
func (c *Catalogue) Snapshots(ctx context.Context, who cay.Caller, of cay.SandboxID, name string) ([]Snap, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	return c.snapshots(ctx, who.Team, of, name)
}

func (c *Catalogue) snapshots(ctx context.Context, team cay.TeamID, of cay.SandboxID, name string) ([]Snap, error) {
	only, tag := cay.TemplateID(""), ""
	if name != "" {
		base, named, _ := strings.Cut(strings.ToLower(name), ":")
		t, err := c.ledger.FindTemplate(ctx, team, base)
		switch kind := cay.KindOf(err); {
		case kind == cay.NotFound || kind == cay.Invalid:
			return nil, nil
		case err != nil:
			return nil, err
		}
		only, tag = t.ID, named
	}
	all, err := c.store.Templates(ctx, team)
	if err != nil {
		return nil, err
	}
	tagged, err := c.store.TeamTags(ctx, team)
	if err != nil {
		return nil, err
	}
	var out []Snap
	for _, t := range all {
		if t.Source == "" || t.Team != team || of != "" && t.Source != of || only != "" && t.ID != only {
			continue
		}
		tags := tagged[t.ID]
		if name != "" && tag == "" && slices.ContainsFunc(tags, func(t cay.Tag) bool { return t.Name == cay.DefaultTag }) {
			tag = cay.DefaultTag // as a create from the bare name means it
		}
		slices.SortStableFunc(tags, func(a, b cay.Tag) int { return b.CreatedAt.Compare(a.CreatedAt) })
		for _, one := range tags {
			if tag == "" || one.Name == tag {
				out = append(out, Snap{Template: t, Tag: one.Name, ReplicatedAt: one.ReplicatedAt})
			}
		}
	}
	return out, nil
}
