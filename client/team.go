package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Team is a team of the server. Has is filled in for one alone.
type Team struct {
	ID         string     `json:"teamID"`
	Name       string     `json:"name"`
	CreatedAt  time.Time  `json:"createdAt"`
	Disabled   bool       `json:"disabled"`
	DisabledAt *time.Time `json:"disabledAt,omitempty"`
	Has        *TeamHas   `json:"has,omitempty"`
}

// TeamHas counts what a team has.
type TeamHas struct {
	Running   int `json:"running"` // sandboxes
	Paused    int `json:"paused"`  // sandboxes
	Templates int `json:"templates"`
	Keys      int `json:"keys"`
	Secrets   int `json:"secrets"`
}

const adminTeams = "/cay/v1/admin/teams"

// Teams lists all teams. This call and the others of teams need an AdminToken.
func (c *Client) Teams(ctx context.Context) ([]Team, error) {
	var out []Team
	_, err := c.call(ctx, http.MethodGet, adminTeams, nil, &out)
	return out, err
}

// Team finds a team by id or name.
func (c *Client) Team(ctx context.Context, ref string) (Team, error) {
	return c.team(ctx, http.MethodGet, ref, nil)
}

// CreateTeam makes a team.
func (c *Client) CreateTeam(ctx context.Context, name string) (Team, error) {
	var out Team
	_, err := c.call(ctx, http.MethodPost, adminTeams, map[string]any{"name": name}, &out)
	return out, err
}

// RenameTeam gives a team another name.
func (c *Client) RenameTeam(ctx context.Context, ref, name string) (Team, error) {
	return c.team(ctx, http.MethodPatch, ref, map[string]any{"name": name})
}

// DisableTeam has a team's credentials open nothing, or with off again what they
// did.
func (c *Client) DisableTeam(ctx context.Context, ref string, off bool) (Team, error) {
	return c.team(ctx, http.MethodPatch, ref, map[string]any{"disabled": !off})
}

// RemoveTeam removes a team; with force also one that has something.
func (c *Client) RemoveTeam(ctx context.Context, ref string, force bool) error {
	path := adminTeams + "/" + url.PathEscape(ref)
	if force {
		path += "?force=true"
	}
	_, err := c.call(ctx, http.MethodDelete, path, nil, nil)
	return err
}

func (c *Client) team(ctx context.Context, method, ref string, body any) (Team, error) {
	var out Team
	_, err := c.call(ctx, method, adminTeams+"/"+url.PathEscape(ref), body, &out)
	return out, err
}

// APIKey is the record of a key. Key is the key itself, only when it is made.
type APIKey struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Key       string            `json:"key,omitempty"`
	Mask      string            `json:"mask"`
	CreatedAt time.Time         `json:"createdAt"`
	CreatedBy string            `json:"createdBy,omitempty"` // id of a key or person
	LastUsed  *time.Time        `json:"lastUsed,omitempty"`
	ExpiresAt *time.Time        `json:"expiresAt,omitempty"`
	Scopes    []string          `json:"scopes"`
	Templates []string          `json:"templates,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

// NewAPIKey says what a key is to be. A field that is left out is as the maker has it.
type NewAPIKey struct {
	Name      string            `json:"name"`
	Scopes    []string          `json:"scopes,omitempty"` // names of scopes and roles
	ExpiresAt *time.Time        `json:"expiresAt,omitempty"`
	Templates []string          `json:"templates,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

const apiKeys = "/cay/v1/api-keys"

// APIKeys lists the team's keys.
func (c *Client) APIKeys(ctx context.Context) ([]APIKey, error) {
	return pages[APIKey](ctx, c, apiKeys, url.Values{})
}

// CreateAPIKey makes a key.
func (c *Client) CreateAPIKey(ctx context.Context, k NewAPIKey) (APIKey, error) {
	var out APIKey
	_, err := c.call(ctx, http.MethodPost, apiKeys, k, &out)
	return out, err
}

// RenameAPIKey gives a key another name.
func (c *Client) RenameAPIKey(ctx context.Context, id, name string) (APIKey, error) {
	return c.changeKey(ctx, id, map[string]any{"name": name})
}

// ExpireAPIKey gives a key another end; nil for none.
func (c *Client) ExpireAPIKey(ctx context.Context, id string, at *time.Time) (APIKey, error) {
	if at == nil {
		return c.changeKey(ctx, id, map[string]any{"neverExpires": true})
	}
	return c.changeKey(ctx, id, map[string]any{"expiresAt": at})
}

func (c *Client) changeKey(ctx context.Context, id string, body any) (APIKey, error) {
	var out APIKey
	_, err := c.call(ctx, http.MethodPatch, apiKeys+"/"+url.PathEscape(id), body, &out)
	return out, err
}

// RemoveAPIKey has a key open nothing any more.
func (c *Client) RemoveAPIKey(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, apiKeys+"/"+url.PathEscape(id), nil, nil)
	return err
}
