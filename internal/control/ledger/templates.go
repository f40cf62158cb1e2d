package ledger

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// TagSnapshots returns the snapshots that tags of a template stand for.
func (l *Ledger) TagSnapshots(ctx context.Context, template cay.TemplateID, tags []string) []cay.SnapshotID {
	var out []cay.SnapshotID
	for _, tag := range tags {
		if old, err := l.store.TaggedBuild(ctx, template, tag); err == nil {
			out = append(out, old.Snapshot)
		}
	}
	return out
}

const tagsMost = 50 // of one build

var tagName = regexp.MustCompile(`^[a-z0-9_.-]{1,128}$`)

// Backlog is what a server has still to build of the templates that Cay brings.
type Backlog interface {
	// Of tells how far the build of a template is, if it is not done.
	Of(name string) (progress string, building bool)
	Names() []string
}

// nothing is the backlog of a server that has built all.
type nothing struct{}

func (nothing) Of(string) (string, bool) { return "", false }

func (nothing) Names() []string { return nil }

// Hold finds a team's template of a reference and holds its snapshot, and the
// template itself if asked.
func (l *Ledger) Hold(ctx context.Context, team cay.TeamID, ref string, withTemplate bool) (t cay.Template, release func(), err error) {
	for {
		since := l.holds.moment()
		if t, err = l.FindTemplate(ctx, team, ref); err != nil {
			return t, nil, err
		}
		keys := []string{string(t.Snapshot)}
		if withTemplate {
			keys = append(keys, string(t.ID))
		}
		if release, err = l.holds.hold(ctx, since, keys...); release != nil || err != nil {
			return t, release, err
		}
	}
}

// MayStart refuses a template that the caller's key is kept from.
func (l *Ledger) MayStart(ctx context.Context, who cay.Caller, id cay.TemplateID) error {
	if who.Bounds == nil || len(who.Bounds.Templates) == 0 {
		return nil
	}
	for _, ref := range who.Bounds.Templates {
		space, name, _, _ := Reference(ref)
		t, err := l.template(ctx, who.Team, space, name)
		if err == nil && t.ID == id {
			return nil
		}
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return err
		}
	}
	return cay.Errorf(cay.Denied, "template %s is none of those that this key may use: %s", id, strings.Join(who.Bounds.Templates, ", ")).
		WithCode(cay.CodeBounds)
}

// BadTag is the error for a tag that no template can have.
func BadTag(tag string) error {
	return cay.Errorf(cay.Invalid, "tags: invalid tag %.80q", tag).WithHint("use letters, digits, '.', '_' and '-'")
}

// IsTag reports whether a text, in lower case, is fit to be a tag.
func IsTag(text string) bool { return tagName.MatchString(text) }

// CleanTags brings tags to the form that they are recorded in. Empty ones are
// left out; none at all means the default one.
func CleanTags(tags []string) ([]string, error) {
	var out []string
	for _, tag := range tags {
		tag = strings.ToLower(tag)
		switch {
		case tag == "" || slices.Contains(out, tag):
		case !IsTag(tag) || cay.ValidUUID(tag):
			return nil, BadTag(tag)
		default:
			out = append(out, tag)
		}
	}
	if len(out) > tagsMost {
		return nil, cay.Errorf(cay.Invalid, "tags: must be at most %d", tagsMost)
	}
	if len(out) == 0 {
		out = []string{cay.DefaultTag}
	}
	return out, nil
}

// OtherTeam is the error for a template that only its own team may change.
func OtherTeam(ref string) error {
	return cay.Errorf(cay.Denied, "template %q is another team's", ref)
}

var reference = regexp.MustCompile(`^(?:([a-z0-9][a-z0-9._-]*)/)?([a-z0-9][a-z0-9._-]*)(?::([a-z0-9][a-z0-9._-]*))?$`)

// Reference takes apart a reference to a template: "name", with or without
// "team/" before it and ":tag" after it. The parts are in lower case.
func Reference(ref string) (space, name, tag string, ok bool) {
	parts := reference.FindStringSubmatch(strings.ToLower(ref))
	if parts == nil {
		return "", "", "", false
	}
	return parts[1], parts[2], parts[3], true
}

// SnapshotHere is the snapshot that a template starts from on this machine.
func (l *Ledger) SnapshotHere(t cay.Template) cay.SnapshotID {
	if l.local == nil {
		return t.Snapshot
	}
	return l.local(t)
}

// FindTemplate finds a template by id, name or team/name, each with or without
// ":tag", in any case. It is the team's own or public.
func (l *Ledger) FindTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error) {
	space, name, tag, ok := Reference(ref)
	if !ok || len(ref) > 256 {
		return cay.Template{}, cay.Errorf(cay.Invalid, "templateID: %.80q is no template id or name", ref).
			WithHint("use an id, a name, or name:tag")
	}
	t, err := l.template(ctx, team, space, name)
	switch {
	case err != nil || tag == "":
	case tag != cay.DefaultTag:
		found := t
		if t, err = l.Tagged(ctx, found, tag); cay.KindOf(err) == cay.NotFound {
			return cay.Template{}, l.NoTag(ctx, found, strings.TrimSuffix(ref, ":"+tag), tag)
		}
	case t.Build == "":
		return cay.Template{}, l.NoTag(ctx, t, strings.TrimSuffix(ref, ":"+tag), tag)
	}
	if err == nil {
		t.Snapshot = l.SnapshotHere(t)
	}
	progress, building := "", false
	if cay.KindOf(err) == cay.NotFound && space == "" {
		progress, building = l.backlog.Of(name)
	}
	switch {
	case building:
		e := cay.Errorf(cay.Unavailable, "template %q is being built: %s", name, progress).
			WithHint("`cay template wait` returns when it is there")
		e.Code = cay.CodeTemplateBuilding
		return cay.Template{}, e
	case cay.KindOf(err) == cay.NotFound && space == "" && slices.Contains(l.extras, name):
		return cay.Template{}, cay.Errorf(cay.NotFound, "template %q is not built on this server", ref).
			WithHint("on its machine, as root: cay template add %s", name)
	case cay.KindOf(err) == cay.NotFound:
		return cay.Template{}, cay.Errorf(cay.NotFound, "template %q not found", ref).
			WithHint("`cay template list` shows what there is")
	}
	return t, err
}

// Tagged returns a template as the build of a tag has it. In place of a tag, the
// id of a build will do, while the build is kept.
func (l *Ledger) Tagged(ctx context.Context, t cay.Template, tag string) (cay.Template, error) {
	find := func() (cay.Build, error) { return l.store.TaggedBuild(ctx, t.ID, tag) }
	if cay.ValidUUID(tag) {
		find = func() (cay.Build, error) { return l.store.StartableBuild(ctx, t.ID, cay.BuildID(tag)) }
	}
	b, err := find()
	t.Build, t.Snapshot, t.BuildState = b.ID, b.Snapshot, b.State
	t.Limits, t.EnvdVersion, t.RecipeDigest, t.Setup = b.Limits, b.EnvdVersion, b.RecipeDigest, b.Setup
	return t, err
}

// NoTag is the error for a tag of a template, or a build in place of one, that
// nothing can be started from now.
func (l *Ledger) NoTag(ctx context.Context, t cay.Template, name, tag string) error {
	err := cay.NoTag(name, tag)
	building, failed := l.store.BuildsUnderWay(ctx, t.ID)
	switch {
	case failed != nil:
		return failed
	case slices.ContainsFunc(building, func(b cay.Build) bool { return string(b.ID) == tag || slices.Contains(b.Tags, tag) }):
		return err.WithHint("its build is under way: read its status until it is ready")
	case cay.ValidUUID(tag):
		return err.WithHint("it failed, or a newer build took its tags more than a day ago; `cay template list` shows what there is")
	}
	return err.WithHint("`cay template list` shows what there is")
}

// Tags lists the tags of a template by name. One whose build is under way points
// to that build already; sandboxes start from the one before it until it is ready.
func (l *Ledger) Tags(ctx context.Context, t cay.TemplateID) ([]cay.Tag, error) {
	tags, err := l.store.Tags(ctx, t)
	if err != nil {
		return nil, err
	}
	building, err := l.store.BuildsUnderWay(ctx, t)
	for _, b := range slices.Backward(building) { // the newest one last
		for _, name := range b.Tags {
			tag := cay.Tag{Name: name, Build: b.ID, CreatedAt: b.UpdatedAt}
			at, known := slices.BinarySearchFunc(tags, name, func(t cay.Tag, name string) int { return strings.Compare(t.Name, name) })
			if !known {
				tags = slices.Insert(tags, at, tag)
			}
			tags[at] = tag
		}
	}
	return tags, err
}

func (l *Ledger) template(ctx context.Context, team cay.TeamID, space, name string) (cay.Template, error) {
	if space == "" {
		return l.store.FindTemplate(ctx, team, name)
	}
	owner, err := l.store.TeamByName(ctx, space)
	if err != nil {
		return cay.Template{}, err
	}
	t, err := l.store.TemplateByName(ctx, owner.ID, name)
	if err == nil && (t.Team != owner.ID || (owner.ID != team && !t.Public)) {
		err = cay.Errorf(cay.NotFound, "")
	}
	return t, err
}

// Backlog names the templates that are still being built.
func (l *Ledger) Backlog() []string { return l.backlog.Names() }

// Snap is a snapshot that clients took: a build of a template of its own,
// under a tag.
type Snap struct {
	cay.Template
	Tag          string
	ReplicatedAt time.Time // when the bucket had it; zero while it has not
}
