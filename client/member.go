package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// TeamMember is a person in a team.
type TeamMember struct {
	ID      string    `json:"personID"`
	Email   string    `json:"email"`
	Name    string    `json:"name,omitempty"`
	Role    string    `json:"role"` // viewer, developer, admin or owner
	AddedAt time.Time `json:"addedAt"`
}

// AccessToken stands for a person. Token is the token itself, only when it is
// made.
type AccessToken struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Token     string    `json:"token,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
}

const members = "/cay/v1/members"

// TeamMembers lists the team's members.
func (c *Client) TeamMembers(ctx context.Context) ([]TeamMember, error) {
	var out []TeamMember
	_, err := c.call(ctx, http.MethodGet, members, nil, &out)
	return out, err
}

// AddMember has the person of an address be in the team. The name is for a
// person who is new to the server.
func (c *Client) AddMember(ctx context.Context, email, name, role string) (TeamMember, error) {
	var out TeamMember
	_, err := c.call(ctx, http.MethodPost, members, map[string]any{"email": email, "name": name, "role": role}, &out)
	return out, err
}

// SetRole gives a member, by id, another role.
func (c *Client) SetRole(ctx context.Context, id, role string) error {
	_, err := c.call(ctx, http.MethodPatch, members+"/"+url.PathEscape(id), map[string]any{"role": role}, nil)
	return err
}

// RemoveMember has a person, by id, be no member any more.
func (c *Client) RemoveMember(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, members+"/"+url.PathEscape(id), nil, nil)
	return err
}

// Person is a person whom the server knows.
type Person struct {
	ID        string    `json:"personID"`
	Email     string    `json:"email"`
	Name      string    `json:"name,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	Disabled  bool      `json:"disabled"`
}

const people = "/cay/v1/admin/people"

// People lists all people of the server, by address. This call and the others of
// people need an AdminToken.
func (c *Client) People(ctx context.Context) ([]Person, error) {
	var out []Person
	_, err := c.call(ctx, http.MethodGet, people, nil, &out)
	return out, err
}

// DisablePerson has all that a person, by id, has open nothing, and the API keys
// that go back to the person; or with off again what they did.
func (c *Client) DisablePerson(ctx context.Context, id string, off bool) (Person, error) {
	var out Person
	_, err := c.call(ctx, http.MethodPatch, people+"/"+url.PathEscape(id), map[string]any{"disabled": !off}, &out)
	return out, err
}

// CreateTokenFor makes a token that stands for a person, by id; it needs an
// AdminToken.
func (c *Client) CreateTokenFor(ctx context.Context, person, name string) (AccessToken, error) {
	var out AccessToken
	_, err := c.call(ctx, http.MethodPost, people+"/"+url.PathEscape(person)+"/access-tokens", map[string]any{"name": name}, &out)
	return out, err
}
