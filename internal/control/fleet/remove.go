package fleet

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// RemoveTemplate removes a team's own template or snapshot, unless a sandbox
// that has not ended was made of it. Of a snapshot that has several tags, a
// reference with one of them removes that one alone.
func (c *Catalogue) RemoveTemplate(ctx context.Context, who cay.Caller, ref string) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	t, err := c.ledger.FindTemplate(ctx, who.Team, ref)
	if err != nil {
		return err
	}
	if t.Team != who.Team {
		return ledger.OtherTeam(ref)
	}
	if done, err := c.removeSnapshotTag(ctx, who, t, ref); done || err != nil {
		return err
	}
	snapshots := []cay.SnapshotID{t.Snapshot}
	builds, err := c.store.Builds(ctx, who.Team, t.ID)
	if err != nil {
		return err
	}
	for _, b := range builds {
		snapshots = append(snapshots, b.Snapshot)
	}
	if err := c.removeTemplate(ctx, who, t); err != nil {
		return err
	}
	for _, b := range builds { // the records of those that wait are gone
		c.builds.Cancel(b.ID)
	}
	for _, id := range snapshots {
		c.ledger.Tidy(ctx, id)
	}
	c.builds.Tidy()
	return nil
}

// removeSnapshotTag removes one of several tags of a snapshot, where the
// reference names it.
func (c *Catalogue) removeSnapshotTag(ctx context.Context, who cay.Caller, t cay.Template, ref string) (done bool, err error) {
	_, tag, named := strings.Cut(strings.ToLower(ref), ":")
	if !named || t.Source == "" {
		return false, nil
	}
	tags, err := c.store.Tags(ctx, t.ID)
	switch {
	case err != nil:
		return false, err
	case !slices.ContainsFunc(tags, func(one cay.Tag) bool { return one.Name == tag }):
		return false, cay.Errorf(cay.NotFound, "snapshot %q not found", ref)
	case len(tags) == 1: // the snapshot goes with it
		return false, nil
	}
	before := c.ledger.TagSnapshots(ctx, t.ID, []string{tag})
	if err := c.ledger.Do(ctx, who, "template.removed", string(t.ID), func(tx store.Store) error {
		return tx.RemoveTags(ctx, t.ID, []string{tag})
	}, "name", ref); err != nil {
		return false, err
	}
	for _, id := range before {
		c.ledger.Tidy(ctx, id)
	}
	return true, nil
}

func (c *Catalogue) removeTemplate(ctx context.Context, who cay.Caller, t cay.Template) (err error) {
	removed := c.ledger.Remove(t.ID, func() bool {
		n := 0
		if n, err = c.store.CountMadeOf(ctx, t.ID); err != nil {
			return false
		}
		if n > 0 {
			err = errTemplateUsed(t.ID, "are running or paused use it (%d)", n)
			return false
		}
		err = c.ledger.Do(ctx, who, "template.removed", string(t.ID), func(tx store.Store) error {
			return tx.RemoveTemplate(ctx, t.Team, t.ID)
		}, "names", strings.Join(t.Names, " "))
		return err == nil
	})
	if !removed && err == nil {
		err = errTemplateUsed(t.ID, "are being started use it")
	}
	return err
}

func errTemplateUsed(id cay.TemplateID, how string, args ...any) error {
	return cay.Errorf(cay.Invalid, "template %s cannot be deleted: sandboxes that "+how, append([]any{id}, args...)...).
		WithHint("end them first")
}
