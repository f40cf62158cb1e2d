package client

import (
	"context"
	"net/http"
	"net/url"
)

// Member is a sandbox in a private network.
type Member struct {
	Network   string `json:"network"`
	Name      string `json:"name"` // <name>.cay.internal
	SandboxID string `json:"sandboxID"`
	State     string `json:"state"`
}

// Members lists the team's sandboxes that are in private networks.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	var out []Member
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/networks", nil, &out)
	return out, err
}

// Join has a running sandbox share a network of the team's: its members reach
// each other as <name>.cay.internal, and no other sandbox does. Without a name it
// has its id. It leaves the network that it was in.
func (c *Client) Join(ctx context.Context, id, network, name string) error {
	in := map[string]string{"network": network}
	if name != "" {
		in["name"] = name
	}
	_, err := c.call(ctx, http.MethodPut, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/private-network", in, nil)
	return err
}

// Leave has a sandbox be in no private network.
func (c *Client) Leave(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/private-network", nil, nil)
	return err
}

// Bandwidth is how many bytes a second a sandbox may send and receive; 0 is no
// bound.
type Bandwidth struct {
	Up   int64 `json:"up,omitempty"`
	Down int64 `json:"down,omitempty"`
}

// Bandwidth tells a sandbox's bounds.
func (c *Client) Bandwidth(ctx context.Context, id string) (Bandwidth, error) {
	var out Bandwidth
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/bandwidth", nil, &out)
	return out, err
}

// SetBandwidth bounds how fast a running sandbox sends and receives.
func (c *Client) SetBandwidth(ctx context.Context, id string, b Bandwidth) error {
	_, err := c.call(ctx, http.MethodPut, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/bandwidth", b, nil)
	return err
}
