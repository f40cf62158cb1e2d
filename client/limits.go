package client

import (
	"context"
	"net/http"
	"net/url"
)

// Limits are what a team may have and do at most, by the names of
// cay.AllLimits.
type Limits map[string]Limit

// Limit is one of them.
type Limit struct {
	Limit int64  `json:"limit"`          // 0 is no bound; of a burst, what a second has
	Own   bool   `json:"own"`            // set for the team; else the server's default
	Used  *int64 `json:"used,omitempty"` // now; nil for a rate
}

// Limits returns those of the key's team, with what it uses now.
func (c *Client) Limits(ctx context.Context) (Limits, error) {
	var out Limits
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/limits", nil, &out)
	return out, err
}

// TeamLimits returns those of any team, by its id or name. It needs an
// AdminToken.
func (c *Client) TeamLimits(ctx context.Context, team string) (Limits, error) {
	var out Limits
	_, err := c.call(ctx, http.MethodGet, limitsOf(team), nil, &out)
	return out, err
}

// SetTeamLimits changes the limits of a team that are named; nil is the server's
// default. They hold from the next request on. It needs an AdminToken.
func (c *Client) SetTeamLimits(ctx context.Context, team string, changes map[string]*int64) (Limits, error) {
	var out Limits
	_, err := c.call(ctx, http.MethodPatch, limitsOf(team), changes, &out)
	return out, err
}

func limitsOf(team string) string { return adminTeams + "/" + url.PathEscape(team) + "/limits" }
