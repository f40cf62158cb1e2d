package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/accounts"
)

// AdminListTeams lists all teams.
func (o own) AdminListTeams(ctx context.Context, _ cayv1.AdminListTeamsRequestObject) (cayv1.AdminListTeamsResponseObject, error) {
	list, err := o.accounts.Teams(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.AdminListTeams200JSONResponse, 0, len(list))
	for _, t := range list {
		out = append(out, wireTeam(t))
	}
	return out, nil
}

// AdminCreateTeam makes a team.
func (o own) AdminCreateTeam(ctx context.Context, r cayv1.AdminCreateTeamRequestObject) (cayv1.AdminCreateTeamResponseObject, error) {
	t, err := o.accounts.CreateTeam(ctx, callerOf(ctx), r.Body.Name)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminCreateTeam201JSONResponse(wireTeam(t)), nil
}

// AdminGetTeam tells of a team and what it has.
func (o own) AdminGetTeam(ctx context.Context, r cayv1.AdminGetTeamRequestObject) (cayv1.AdminGetTeamResponseObject, error) {
	t, n, err := o.accounts.Team(ctx, callerOf(ctx), r.TeamID)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminGetTeam200JSONResponse(wireTeamWith(t, n)), nil
}

// AdminUpdateTeam renames, disables or enables a team.
func (o own) AdminUpdateTeam(ctx context.Context, r cayv1.AdminUpdateTeamRequestObject) (cayv1.AdminUpdateTeamResponseObject, error) {
	who := callerOf(ctx)
	t, n, err := o.accounts.Team(ctx, who, r.TeamID)
	if err == nil && r.Body.Name != nil {
		t, err = o.accounts.RenameTeam(ctx, who, string(t.ID), *r.Body.Name)
	}
	if err == nil && r.Body.Disabled != nil {
		t, err = o.accounts.DisableTeam(ctx, who, string(t.ID), !*r.Body.Disabled)
	}
	if err != nil {
		return nil, err
	}
	return cayv1.AdminUpdateTeam200JSONResponse(wireTeamWith(t, n)), nil
}

// AdminRemoveTeam removes a team.
func (o own) AdminRemoveTeam(ctx context.Context, r cayv1.AdminRemoveTeamRequestObject) (cayv1.AdminRemoveTeamResponseObject, error) {
	if err := o.accounts.RemoveTeam(ctx, callerOf(ctx), r.TeamID, value(r.Params.Force, false)); err != nil {
		return nil, err
	}
	return cayv1.AdminRemoveTeam204Response{}, nil
}

func wireTeam(t cay.Team) cayv1.Team {
	return cayv1.Team{
		TeamID: string(t.ID), Name: t.Name, CreatedAt: t.CreatedAt.UTC(),
		Disabled: !t.DisabledAt.IsZero(), DisabledAt: pointer(t.DisabledAt.UTC()),
	}
}

func wireTeamWith(t cay.Team, n accounts.TeamCount) cayv1.Team {
	out := wireTeam(t)
	out.Has = &cayv1.TeamHas{Running: n.Running, Paused: n.Paused, Templates: n.Templates, Keys: n.Keys, Secrets: n.Secrets}
	return out
}
