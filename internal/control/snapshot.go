package control

import (
	"context"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// Snapshot saves a running sandbox, which runs on, as something that sandboxes
// can be made of: a template of its own. With a name it becomes the newest
// state of the snapshot of that name. Name may be empty. What is made of a
// snapshot of files boots from them.
func (c *Control) Snapshot(ctx context.Context, team cay.TeamID, id cay.SandboxID, name string, kind cay.SnapshotKind) (cay.Template, error) {
	name, err := c.snapshotName(ctx, team, name)
	if err != nil {
		return cay.Template{}, err
	}
	source, saved, unpin, err := c.checkpoint(ctx, team, id, kind)
	if err != nil {
		return cay.Template{}, err
	}
	defer c.discard(ctx, saved) // when it could not be recorded
	defer unpin()
	// It is taken: a client that leaves now finds it in the list.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	t, err := c.snapshotTemplate(ctx, source, name)
	if err != nil {
		return cay.Template{}, err
	}
	before := t.Snapshot
	at := now()
	err = c.store.PutBuild(ctx, cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: team, State: cay.BuildReady, Snapshot: saved,
		Limits: source.Limits, EnvdVersion: guest.EnvdVersion, Setup: c.setupOf(ctx, source),
		CreatedAt: at, UpdatedAt: at, FinishedAt: at,
	})
	if err != nil {
		return cay.Template{}, err
	}
	c.tell(ctx, event(ctx, source, cay.SandboxCheckpointed, cay.ReasonAsked, "template", string(t.ID), "name", name))
	c.discard(ctx, before)
	return c.store.Template(ctx, team, t.ID)
}

// setupOf is what the template of a sandbox starts with, for builds that are
// made from the sandbox. It is nothing when that is gone.
func (c *Control) setupOf(ctx context.Context, s cay.Sandbox) cay.Setup {
	t, err := c.store.Template(ctx, s.Team, s.Template)
	if err != nil {
		return cay.Setup{}
	}
	return t.Setup
}

// snapshotName checks a name before anything is saved, and brings it to the
// form that it is recorded in.
func (c *Control) snapshotName(ctx context.Context, team cay.TeamID, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	parts := reference.FindStringSubmatch(strings.ToLower(name))
	if parts == nil || len(name) > 128 {
		return "", cay.Errorf(cay.Invalid, "name: %.80q is no name for a snapshot", name).
			WithHint("use letters, digits, '.', '_' and '-'")
	}
	space, base, tag := parts[1], parts[2], parts[3]
	if tag != "" && tag != defaultTag {
		return "", cay.Errorf(cay.Unsupported, "name: tags other than %q are not in this version of Cay", defaultTag)
	}
	if space != "" {
		owner, err := c.store.TeamByName(ctx, space)
		if err != nil || owner.ID != team {
			return "", cay.Errorf(cay.Denied, "name: %q is not your team", space)
		}
	}
	_, err := c.ownSnapshot(ctx, team, base)
	if cay.KindOf(err) == cay.NotFound {
		err = nil
	}
	return base, err
}

// ownSnapshot finds a team's snapshot by name. Conflict means that the name is
// that of a template.
func (c *Control) ownSnapshot(ctx context.Context, team cay.TeamID, name string) (cay.Template, error) {
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
func (c *Control) snapshotTemplate(ctx context.Context, source cay.Sandbox, name string) (cay.Template, error) {
	t := cay.Template{
		ID: cay.NewTemplateID(), Team: source.Team, Source: source.ID, CreatedAt: now(), UpdatedAt: now(),
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
	if cay.KindOf(err) == cay.Conflict { // somebody else just made it
		return c.ownSnapshot(ctx, source.Team, name)
	}
	return t, err
}

// Snapshots lists a team's snapshots, newest first: all, those of a sandbox,
// or the one of a name. What is not there finds nothing.
func (c *Control) Snapshots(ctx context.Context, team cay.TeamID, of cay.SandboxID, name string) ([]cay.Template, error) {
	only := cay.TemplateID("")
	if name != "" {
		t, err := c.Template(ctx, team, name)
		switch kind := cay.KindOf(err); {
		case kind == cay.NotFound || kind == cay.Invalid:
			return nil, nil
		case err != nil:
			return nil, err
		}
		only = t.ID
	}
	all, err := c.store.Templates(ctx, team)
	if err != nil {
		return nil, err
	}
	var out []cay.Template
	for _, t := range all {
		if t.Source != "" && t.Team == team && t.Build != "" && (of == "" || t.Source == of) && (only == "" || t.ID == only) {
			out = append(out, t)
		}
	}
	return out, nil
}

// RemoveTemplate removes a team's own template or snapshot that no sandbox
// was made of which is not over.
func (c *Control) RemoveTemplate(ctx context.Context, team cay.TeamID, ref string) error {
	t, err := c.Template(ctx, team, ref)
	if err != nil {
		return err
	}
	if t.Team != team {
		return cay.Errorf(cay.Denied, "template %q is another team's", ref)
	}
	snapshots := []cay.SnapshotID{t.Snapshot}
	builds, err := c.store.Builds(ctx, team, t.ID)
	if err != nil {
		return err
	}
	for _, b := range builds {
		c.builds.cancel(b.ID)
		snapshots = append(snapshots, b.Snapshot)
	}
	if err := c.removeTemplate(ctx, t); err != nil {
		return err
	}
	for _, id := range snapshots {
		c.discard(ctx, id)
	}
	c.tidyBuilds()
	return nil
}

func (c *Control) removeTemplate(ctx context.Context, t cay.Template) error {
	c.collecting.Lock() // nobody may start from it meanwhile
	defer c.collecting.Unlock()
	n := 0
	for _, e := range c.entries() {
		if e.sandbox().Template == t.ID {
			n++
		}
	}
	if n > 0 {
		return cay.Errorf(cay.Invalid, "template %s cannot be deleted: sandboxes that are running or paused use it (%d)", t.ID, n).
			WithHint("end them first")
	}
	return c.store.RemoveTemplate(ctx, t.Team, t.ID)
}
