package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Connection is what a sandbox tried to reach.
type Connection struct {
	At       time.Time `json:"at"`
	Allowed  bool      `json:"allowed"`
	Rule     string    `json:"rule"`     // what decided
	Protocol string    `json:"protocol"` // tcp, tls, http or dns
	Name     string    `json:"name,omitempty"`
	Address  string    `json:"address"`
	Sent     int64     `json:"sent"`     // bytes, by the sandbox
	Received int64     `json:"received"` // bytes
	TookMs   int64     `json:"tookMs"`
	Open     bool      `json:"open"`
}

// Connections lists a running sandbox's latest connections, oldest first: those
// that were refused, and those that were allowed by name or through a SOCKS
// server. Connections that an address rule allows are not listed.
func (c *Client) Connections(ctx context.Context, id string) ([]Connection, error) {
	var out []Connection
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/egress", nil, &out)
	return out, err
}
