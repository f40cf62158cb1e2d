package accounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// maxTeams bounds the teams of a server: some lists have all of them.
	maxTeams = 10_000
	// stragglers is longer than any request goes on that began before its team
	// was removed: what such a one made is cleared too.
	stragglers = 15 * time.Minute
)

// TeamCount is how much a team has.
type TeamCount = store.TeamCount

// Teams lists all teams, oldest first.
func (a *Accounts) Teams(ctx context.Context, who cay.Caller) ([]cay.Team, error) {
	if err := who.May(cay.Admin); err != nil {
		return nil, err
	}
	return a.store.Teams(ctx)
}

// Team finds a team by id or name, and counts what it has.
func (a *Accounts) Team(ctx context.Context, who cay.Caller, ref string) (cay.Team, store.TeamCount, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Team{}, store.TeamCount{}, err
	}
	t, err := a.team(ctx, ref)
	if err != nil {
		return t, store.TeamCount{}, err
	}
	n, err := a.store.CountTeam(ctx, t.ID)
	return t, n, err
}

func (a *Accounts) team(ctx context.Context, ref string) (t cay.Team, err error) {
	if cay.ValidUUID(ref) {
		t, err = a.store.Team(ctx, cay.TeamID(ref))
	} else {
		t, err = a.store.TeamByName(ctx, ref)
	}
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Errorf(cay.NotFound, "team %.80q not found", ref).WithHint("`cay team list` shows what there is")
	}
	return t, err
}

// CreateTeam makes a team, which has nothing yet.
func (a *Accounts) CreateTeam(ctx context.Context, who cay.Caller, name string) (cay.Team, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Team{}, err
	}
	if err := cay.CheckTeamName(name); err != nil {
		return cay.Team{}, err
	}
	list, err := a.store.Teams(ctx)
	if err != nil {
		return cay.Team{}, err
	}
	if len(list) >= maxTeams {
		return cay.Team{}, cay.Errorf(cay.Exhausted, "this server has the %d teams that it may have", maxTeams).
			WithCode(cay.CodeTeamLimit).WithHint("remove one")
	}
	t := cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: ledger.Now()}
	err = a.change(ctx, ledger.NewEvent(who, of(t.ID), cay.TeamCreated, cay.ReasonAsked, "name", name), func(tx store.Store) error {
		return tx.AddTeam(ctx, t)
	})
	return t, taken(err, name)
}

// taken gives a team's name that another has the usual words.
func taken(err error, name string) error {
	if cay.KindOf(err) == cay.Conflict {
		return cay.Wrap(cay.Conflict, err, "name: there is a team of the name %q", name).WithCode(cay.CodeNameTaken).
			WithHint("choose another name")
	}
	return err
}

// RenameTeam gives a team another name. References to its templates that have the
// old name before them find them no more.
func (a *Accounts) RenameTeam(ctx context.Context, who cay.Caller, ref, name string) (cay.Team, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Team{}, err
	}
	if err := cay.CheckTeamName(name); err != nil {
		return cay.Team{}, err
	}
	t, err := a.team(ctx, ref)
	if err != nil || t.Name == name {
		return t, err
	}
	e := ledger.NewEvent(who, of(t.ID), cay.TeamRenamed, cay.ReasonAsked, "name", name, "before", t.Name)
	t.Name = name
	err = a.change(ctx, e, func(tx store.Store) error { return tx.UpdateTeam(ctx, t) })
	return t, taken(err, name)
}

// DisableTeam has a team's credentials open nothing, and ends what they hold
// open; off undoes that. Its sandboxes live on to their time, and what webhooks are
// to be told of them waits.
func (a *Accounts) DisableTeam(ctx context.Context, who cay.Caller, ref string, off bool) (cay.Team, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Team{}, err
	}
	t, err := a.team(ctx, ref)
	if err != nil || t.DisabledAt.IsZero() == off {
		return t, err
	}
	e := ledger.NewEvent(who, of(t.ID), cay.TeamDisabled, cay.ReasonAsked)
	t.DisabledAt = ledger.Now()
	if off {
		e = ledger.NewEvent(who, of(t.ID), cay.TeamEnabled, cay.ReasonAsked)
		t.DisabledAt = time.Time{}
	}
	if err := a.change(ctx, e, func(tx store.Store) error { return tx.UpdateTeam(ctx, t) }); err != nil {
		return t, err
	}
	if !off {
		a.auth.EndTeam(t.ID)
	}
	a.told(t.ID)
	return t, nil
}

// RemoveTeam removes a team. It must have nothing unless force takes all of it
// along: sandboxes end, templates, snapshots, images, secrets and keys go. Its
// row stays, under a name that is free again, for usage, audit and events to
// refer to.
//
// The team is gone from the one transaction on that marks it. Its remains
// are cleared afterwards, again and again until there are none: also by the next
// server, if this one is killed in between.
func (a *Accounts) RemoveTeam(ctx context.Context, who cay.Caller, ref string, force bool) error {
	if err := who.May(cay.Admin); err != nil {
		return err
	}
	t, err := a.team(ctx, ref)
	if err != nil {
		return err
	}
	if err := a.mayGo(ctx, t, force); err != nil {
		return err
	}
	e := ledger.NewEvent(who, of(t.ID), cay.TeamRemoved, cay.ReasonAsked, "name", t.Name)
	err = a.change(ctx, e, func(tx store.Store) error { return tx.RemoveTeam(ctx, t.ID, ledger.Now()) })
	if err != nil {
		return err
	}
	a.auth.EndTeam(t.ID)
	if err := a.clear(context.WithoutCancel(ctx), t); err != nil {
		a.log.Warn("a removed team is not cleared yet", "team", t.ID, "err", err)
	}
	return nil
}

// mayGo refuses the removal of a team that others rely on, or that has things.
func (a *Accounts) mayGo(ctx context.Context, t cay.Team, force bool) error {
	all, err := a.store.Teams(ctx)
	if err != nil {
		return err
	}
	if len(all) > 0 && all[0].ID == t.ID {
		return cay.Errorf(cay.Conflict, "team %q was the first: the templates that Cay brings are its", t.Name).
			WithHint("disable it instead: cay team disable %s", t.Name)
	}
	used, err := a.store.CountBorrowed(ctx, t.ID)
	if err != nil {
		return err
	}
	if used > 0 {
		return cay.Errorf(cay.Conflict, "templates of team %q are in use by %d sandboxes of other teams", t.Name, used).
			WithCode(cay.CodeTeamNotEmpty).WithHint("end those first")
	}
	if force {
		return nil
	}
	n, err := a.store.CountTeam(ctx, t.ID)
	if err != nil {
		return err
	}
	return notEmpty(t, n)
}

// notEmpty refuses the removal of a team that has something.
func notEmpty(t cay.Team, n store.TeamCount) error {
	var has []string
	for _, one := range []struct {
		n    int
		what string
	}{{n.Running, "running sandboxes"}, {n.Paused, "paused sandboxes"}, {n.Templates, "templates and snapshots"}, {n.Keys, "API keys"}, {n.Secrets, "secrets"}, {n.Volumes, "volumes"}} {
		if one.n > 0 {
			has = append(has, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if len(has) == 0 {
		return nil
	}
	return cay.Errorf(cay.Conflict, "team %q has %s", t.Name, strings.Join(has, ", ")).WithCode(cay.CodeTeamNotEmpty).
		WithHint("remove them, or all with the team: cay team remove --force %s", t.Name)
}

// templates lists a team's own templates.
func (a *Accounts) templates(ctx context.Context, team cay.TeamID) ([]cay.Template, error) {
	list, err := a.store.Templates(ctx, team)
	return slices.DeleteFunc(list, func(t cay.Template) bool { return t.Team != team }), err
}

// clearRemoved goes on with removals.
func (a *Accounts) clearRemoved(ctx context.Context) error {
	teams, err := a.store.RemovedTeams(ctx)
	for _, t := range teams {
		err = errors.Join(err, a.clear(ctx, t))
	}
	return err
}

// clear removes what a removed team has. It may be called again.
func (a *Accounts) clear(ctx context.Context, t cay.Team) error {
	who := cay.ForTeam(t.ID)
	_, failed, err := a.own.EndSandboxes(ctx, who, true, "its team was removed")
	if err != nil {
		return err
	}
	if failed > 0 {
		return cay.Errorf(cay.Unavailable, "%d sandboxes could not be ended yet", failed)
	}
	saved, err := a.saved(ctx, t.ID)
	if err != nil {
		return err
	}
	theirs, err := a.templates(ctx, t.ID)
	if err != nil {
		return err
	}
	for _, one := range theirs {
		if one.Public { // no other team may start from it while it goes
			if err := a.store.SetPublic(ctx, t.ID, one.ID, false); err != nil {
				return err
			}
		}
		if err := a.own.RemoveTemplate(ctx, who, string(one.ID)); err != nil && cay.KindOf(err) != cay.NotFound {
			return err
		}
	}
	if err := a.clearImages(ctx, who); err != nil {
		return err
	}
	if err := a.own.RemoveVolumes(ctx, who); err != nil {
		return err
	}
	var done time.Time
	if !t.RemovedAt.IsZero() && time.Since(t.RemovedAt) > stragglers {
		done = ledger.Now()
	}
	if err := a.store.ClearTeam(ctx, t.ID, done); err != nil {
		return err
	}
	for _, id := range saved { // no record names them any more
		a.ledger.Tidy(ctx, id)
	}
	return nil
}

// saved lists the snapshots of a team's checkpoints.
func (a *Accounts) saved(ctx context.Context, team cay.TeamID) ([]cay.SnapshotID, error) {
	list, err := a.store.Checkpoints(ctx, store.CheckpointQuery{Team: team})
	var out []cay.SnapshotID
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out, err
}

func (a *Accounts) clearImages(ctx context.Context, who cay.Caller) error {
	images, err := a.own.Images(ctx, who)
	if cay.KindOf(err) == cay.Unsupported { // this server keeps none
		return nil
	}
	for _, image := range images {
		if gone := a.own.RemoveImage(ctx, who, image.Digest); gone != nil && cay.KindOf(gone) != cay.NotFound {
			err = errors.Join(err, gone)
		}
	}
	return err
}
