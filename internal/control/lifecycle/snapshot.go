package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/store"
)

// Snapshot saves a running sandbox, which runs on, as something that sandboxes
// can be made of: a template of its own. With a name it becomes the newest
// state of the snapshot of that name, or of a tag of it for "name:tag". Name
// may be empty. Sandboxes that are made of a snapshot of files boot from them.
func (c *Controller) Snapshot(ctx context.Context, who cay.Caller, id cay.SandboxID, name string, kind cay.SnapshotKind) (ledger.Snap, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return ledger.Snap{}, err
	}
	name, tag, err := c.snapshotName(ctx, who.Team, name)
	if err != nil {
		return ledger.Snap{}, err
	}
	source, saved, unpin, err := c.checkpoint(ctx, who.Team, id, kind)
	if err != nil {
		return ledger.Snap{}, err
	}
	defer c.ledger.Tidy(ctx, saved) // when it could not be recorded
	defer unpin()
	// It is taken: a client that leaves now finds it in the list.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	t, before, err := c.recordSnapshot(ctx, source, saved, name, tag)
	if err != nil {
		return ledger.Snap{}, err
	}
	c.ledger.Tell(ctx, ledger.NewEvent(who, source, cay.SandboxCheckpointed, cay.ReasonAsked, "template", string(t.ID), "name", name, "tag", tag))
	for _, id := range before {
		c.ledger.Tidy(ctx, id)
	}
	if t, err = c.store.Template(ctx, who.Team, t.ID); err == nil && tag != cay.DefaultTag {
		t, err = c.ledger.Tagged(ctx, t, tag)
	}
	return ledger.Snap{Template: t, Tag: tag}, err
}

// setupOf is what the template of a sandbox starts with, for builds that are
// made from the sandbox. It is nothing when that is gone.
func (c *Controller) setupOf(ctx context.Context, s cay.Sandbox) cay.Setup {
	t, err := c.store.Template(ctx, s.Team, s.Template)
	if err != nil {
		return cay.Setup{}
	}
	return t.Setup
}

// snapshotName checks a name before anything is saved, and brings it to the
// form that it is recorded in.
func (c *Controller) snapshotName(ctx context.Context, team cay.TeamID, name string) (base, tag string, err error) {
	if name == "" {
		return "", cay.DefaultTag, nil
	}
	space, base, tag, ok := ledger.Reference(name)
	if !ok || len(name) > 128 {
		return "", "", cay.Errorf(cay.Invalid, "name: %.80q is no name for a snapshot", name).
			WithHint("use letters, digits, '.', '_' and '-'")
	}
	tags, err := ledger.CleanTags([]string{tag})
	if err != nil {
		return "", "", err
	}
	if space != "" {
		owner, err := c.store.TeamByName(ctx, space)
		if err != nil || owner.ID != team {
			return "", "", cay.Errorf(cay.Denied, "name: %q is not your team", space)
		}
	}
	_, err = c.ownSnapshot(ctx, team, base)
	if cay.KindOf(err) == cay.NotFound {
		err = nil
	}
	return base, tags[0], err
}

// ownSnapshot finds a team's snapshot by name. Conflict means that the name is
// that of a template.
func (c *Controller) ownSnapshot(ctx context.Context, team cay.TeamID, name string) (cay.Template, error) {
	t, err := c.store.TemplateByName(ctx, team, name)
	switch {
	case err == nil && t.Team != team: // public, of another team
		err = cay.Errorf(cay.NotFound, "snapshot %q not found", name)
	case err == nil && t.Source == "":
		err = cay.Errorf(cay.Conflict, "name: there is a template of the name %q", name).WithHint("choose another name")
	}
	return t, err
}

// recordSnapshot records a snapshot as the build of a template, which is recorded with it where
// there is none of its name: both count, or none. Before are the snapshots that the tag stood for.
func (c *Controller) recordSnapshot(ctx context.Context, source cay.Sandbox, saved cay.SnapshotID, name, tag string) (t cay.Template, before []cay.SnapshotID, err error) {
	b := cay.Build{
		ID: cay.NewBuildID(), Team: source.Team, State: cay.BuildReady, Snapshot: saved,
		Limits: source.Limits, EnvdVersion: guest.EnvdVersion, Setup: c.setupOf(ctx, source), CreatedAt: ledger.Now(), Tags: []string{tag},
	}
	b.UpdatedAt, b.FinishedAt = b.CreatedAt, b.CreatedAt
	for range 2 { // another caller may make the template in between
		made := false
		t, made, err = c.snapshotTemplate(ctx, source, name)
		if err != nil {
			return t, nil, err
		}
		b.Template, before = t.ID, c.ledger.TagSnapshots(ctx, t.ID, []string{tag})
		err = c.store.Tx(ctx, func(tx store.Store) error {
			if made {
				if err := tx.AddTemplate(ctx, t); err != nil {
					return err
				}
			}
			return tx.PutBuild(ctx, b)
		})
		if !made || cay.KindOf(err) != cay.Conflict {
			break
		}
	}
	return t, before, err
}

// snapshotTemplate finds the template of a snapshot, or is one that is to be made.
func (c *Controller) snapshotTemplate(ctx context.Context, source cay.Sandbox, name string) (t cay.Template, made bool, err error) {
	t = cay.Template{
		ID: cay.NewTemplateID(), Team: source.Team, Source: source.ID, CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(),
	}
	if name == "" {
		return t, true, nil
	}
	found, err := c.ownSnapshot(ctx, source.Team, name)
	if cay.KindOf(err) != cay.NotFound {
		return found, false, err
	}
	t.Names = []string{name}
	return t, true, nil
}
