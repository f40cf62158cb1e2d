package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/fleet"
)

// GetLimits tells what the caller's team may have and do.
func (o own) GetLimits(ctx context.Context, _ cayv1.GetLimitsRequestObject) (cayv1.GetLimitsResponseObject, error) {
	all, err := o.fleet.Limits(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return cayv1.GetLimits200JSONResponse(wireLimits(all)), nil
}

// AdminGetTeamLimits tells the same of any team.
func (o own) AdminGetTeamLimits(ctx context.Context, r cayv1.AdminGetTeamLimitsRequestObject) (cayv1.AdminGetTeamLimitsResponseObject, error) {
	who, err := o.callerFor(ctx, r.TeamID)
	if err != nil {
		return nil, err
	}
	all, err := o.fleet.Limits(ctx, who)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminGetTeamLimits200JSONResponse(wireLimits(all)), nil
}

// AdminReplaceTeamLimits sets all limits of a team.
func (o own) AdminReplaceTeamLimits(ctx context.Context, r cayv1.AdminReplaceTeamLimitsRequestObject) (cayv1.AdminReplaceTeamLimitsResponseObject, error) {
	all, err := o.changeLimits(ctx, r.TeamID, *r.Body, true)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminReplaceTeamLimits200JSONResponse(all), nil
}

// AdminUpdateTeamLimits sets some limits of a team.
func (o own) AdminUpdateTeamLimits(ctx context.Context, r cayv1.AdminUpdateTeamLimitsRequestObject) (cayv1.AdminUpdateTeamLimitsResponseObject, error) {
	all, err := o.changeLimits(ctx, r.TeamID, *r.Body, false)
	if err != nil {
		return nil, err
	}
	return cayv1.AdminUpdateTeamLimits200JSONResponse(all), nil
}

func (o own) changeLimits(ctx context.Context, team string, body cayv1.LimitChange, whole bool) (cayv1.TeamLimits, error) {
	who, err := o.callerFor(ctx, team)
	if err != nil {
		return nil, err
	}
	change := make(fleet.LimitChange, len(body))
	for name, value := range body {
		change[cay.Limit(name)] = value
	}
	all, err := o.fleet.ChangeLimits(ctx, who, change, whole)
	return wireLimits(all), err
}

// callerFor is an administrator who asks for a team, by its id or its name.
func (o own) callerFor(ctx context.Context, team string) (cay.Caller, error) {
	who := callerOf(ctx)
	t, _, err := o.accounts.Team(ctx, who, team)
	who.Team = t.ID
	return who, err
}

func wireLimits(all map[cay.Limit]fleet.LimitUse) cayv1.TeamLimits {
	out := make(cayv1.TeamLimits, len(all))
	for name, u := range all {
		one := cayv1.LimitUse{Limit: u.Value, Own: u.Own}
		if u.Used >= 0 {
			one.Used = &u.Used
		}
		out[string(name)] = one
	}
	return out
}
