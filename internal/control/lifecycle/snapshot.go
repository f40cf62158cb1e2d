package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/guest"
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
	t, err := c.snapshotTemplate(ctx, source, name)
	if err != nil {
		return ledger.Snap{}, err
	}
	before := c.ledger.TagSnapshots(ctx, t.ID, []string{tag})
	at := ledger.Now()
	err = c.store.PutBuild(ctx, cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: who.Team, State: cay.BuildReady, Snapshot: saved,
		Limits: source.Limits, EnvdVersion: guest.EnvdVersion, Setup: c.setupOf(ctx, source),
		CreatedAt: at, UpdatedAt: at, FinishedAt: at, Tags: []string{tag},
	})
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

// snapshotTemplate finds or makes the template of a snapshot.
func (c *Controller) snapshotTemplate(ctx context.Context, source cay.Sandbox, name string) (cay.Template, error) {
	t := cay.Template{
		ID: cay.NewTemplateID(), Team: source.Team, Source: source.ID, CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(),
	}
	if name == "" {
		return t, c.store.AddTemplate(ctx, t)
	}
	found, err := c.ownSnapshot(ctx, source.Team, name)
	if cay.KindOf(err) != cay.NotFound {
		return found, err
	}
	t.Names = []string{name}
	err = c.store.AddTemplate(ctx, t)
	if cay.KindOf(err) == cay.Conflict { // another caller just made it
		return c.ownSnapshot(ctx, source.Team, name)
	}
	return t, err
}
