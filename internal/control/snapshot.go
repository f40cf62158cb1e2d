package control

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// Snapshot saves a running sandbox, which runs on, as something that sandboxes
// can be made of: a template of its own. With a name it becomes the newest
// state of the snapshot of that name, or of a tag of it for "name:tag". Name
// may be empty. Sandboxes that are made of a snapshot of files boot from them.
func (c *Control) Snapshot(ctx context.Context, who cay.Caller, id cay.SandboxID, name string, kind cay.SnapshotKind) (Snap, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return Snap{}, err
	}
	name, tag, err := c.snapshotName(ctx, who.Team, name)
	if err != nil {
		return Snap{}, err
	}
	source, saved, unpin, err := c.checkpoint(ctx, who.Team, id, kind)
	if err != nil {
		return Snap{}, err
	}
	defer c.discard(ctx, saved) // when it could not be recorded
	defer unpin()
	// It is taken: a client that leaves now finds it in the list.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	t, err := c.snapshotTemplate(ctx, source, name)
	if err != nil {
		return Snap{}, err
	}
	before := c.tagSnapshots(ctx, t.ID, []string{tag})
	at := now()
	err = c.store.PutBuild(ctx, cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: who.Team, State: cay.BuildReady, Snapshot: saved,
		Limits: source.Limits, EnvdVersion: guest.EnvdVersion, Setup: c.setupOf(ctx, source),
		CreatedAt: at, UpdatedAt: at, FinishedAt: at, Tags: []string{tag},
	})
	if err != nil {
		return Snap{}, err
	}
	c.tell(ctx, event(who, source, cay.SandboxCheckpointed, cay.ReasonAsked, "template", string(t.ID), "name", name, "tag", tag))
	for _, id := range before {
		c.discard(ctx, id)
	}
	if t, err = c.store.Template(ctx, who.Team, t.ID); err == nil && tag != defaultTag {
		t, err = c.tagged(ctx, t, tag)
	}
	return Snap{t, tag}, err
}

// Snap is a snapshot that clients took: a build of a template of its own,
// under a tag.
type Snap struct {
	cay.Template
	Tag string
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
func (c *Control) snapshotName(ctx context.Context, team cay.TeamID, name string) (base, tag string, err error) {
	if name == "" {
		return "", defaultTag, nil
	}
	parts := reference.FindStringSubmatch(strings.ToLower(name))
	if parts == nil || len(name) > 128 {
		return "", "", cay.Errorf(cay.Invalid, "name: %.80q is no name for a snapshot", name).
			WithHint("use letters, digits, '.', '_' and '-'")
	}
	space, base := parts[1], parts[2]
	tags, err := cleanTags([]string{parts[3]})
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
	if cay.KindOf(err) == cay.Conflict { // another caller just made it
		return c.ownSnapshot(ctx, source.Team, name)
	}
	return t, err
}

// Snapshots lists a team's snapshots, newest first: all, those of a sandbox,
// or those of a name, with or without a tag. One that is not there finds
// nothing.
func (c *Control) Snapshots(ctx context.Context, who cay.Caller, of cay.SandboxID, name string) ([]Snap, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	return c.snapshots(ctx, who.Team, of, name)
}

func (c *Control) snapshots(ctx context.Context, team cay.TeamID, of cay.SandboxID, name string) ([]Snap, error) {
	only, tag := cay.TemplateID(""), ""
	if name != "" {
		base, named, _ := strings.Cut(strings.ToLower(name), ":")
		t, err := c.findTemplate(ctx, team, base)
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
	var out []Snap
	for _, t := range all {
		if t.Source == "" || t.Team != team || of != "" && t.Source != of || only != "" && t.ID != only {
			continue
		}
		tags, err := c.store.Tags(ctx, t.ID)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(tags, func(a, b cay.Tag) int { return b.CreatedAt.Compare(a.CreatedAt) })
		for _, one := range tags {
			if tag == "" || one.Name == tag {
				out = append(out, Snap{t, one.Name})
			}
		}
	}
	return out, nil
}

// RemoveTemplate removes a team's own template or snapshot, unless a sandbox
// that has not ended was made of it. Of a snapshot that has several tags, a
// reference with one of them removes that one alone.
func (c *Control) RemoveTemplate(ctx context.Context, who cay.Caller, ref string) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	t, err := c.findTemplate(ctx, who.Team, ref)
	if err != nil {
		return err
	}
	if t.Team != who.Team {
		return errOtherTeam(ref)
	}
	if done, err := c.removeSnapshotTag(ctx, t, ref); done || err != nil {
		return err
	}
	snapshots := []cay.SnapshotID{t.Snapshot}
	builds, err := c.store.Builds(ctx, who.Team, t.ID)
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

// removeSnapshotTag removes one of several tags of a snapshot, where the
// reference names it.
func (c *Control) removeSnapshotTag(ctx context.Context, t cay.Template, ref string) (done bool, err error) {
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
	before := c.tagSnapshots(ctx, t.ID, []string{tag})
	if err := c.store.RemoveTags(ctx, t.ID, []string{tag}); err != nil {
		return false, err
	}
	for _, id := range before {
		c.discard(ctx, id)
	}
	return true, nil
}

func (c *Control) removeTemplate(ctx context.Context, t cay.Template) (err error) {
	removed, _ := c.holds.remove(string(t.ID), func() bool {
		n := 0
		for _, e := range c.entries() {
			if e.sandbox().Template == t.ID {
				n++
			}
		}
		if n > 0 {
			err = errTemplateUsed(t.ID, "are running or paused use it (%d)", n)
			return false
		}
		err = c.store.RemoveTemplate(ctx, t.Team, t.ID)
		return err == nil
	}, func() error { return nil })
	if !removed && err == nil {
		err = errTemplateUsed(t.ID, "are being started use it")
	}
	return err
}

func errTemplateUsed(id cay.TemplateID, how string, args ...any) error {
	return cay.Errorf(cay.Invalid, "template %s cannot be deleted: sandboxes that "+how, append([]any{id}, args...)...).
		WithHint("end them first")
}
