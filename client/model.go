package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/cay-run/cay"
)

// ModelProvider is a server of models that the team's sandboxes reach at
// http://models.cay.internal.
type ModelProvider struct {
	Name   string            `json:"name,omitempty"`
	Wire   string            `json:"wire"` // openai or anthropic
	URL    string            `json:"url"`  // the base URL, as its own SDK takes it
	Secret string            `json:"secret,omitempty"`
	Models map[string]string `json:"models,omitempty"` // the names that sandboxes ask for → its own
	Order  int               `json:"order,omitempty"`
	// Enabled is nil for one that is to be made as usual: turned on.
	Enabled   *bool     `json:"enabled,omitempty"`
	Timeout   int       `json:"timeout,omitempty"` // seconds; 0 is the usual time
	CreatedAt time.Time `json:"createdAt,omitzero"`
	UpdatedAt time.Time `json:"updatedAt,omitzero"`
}

const modelsPath = "/cay/v1/models"

// SetModelProvider makes a provider of a name, or replaces all of it.
func (c *Client) SetModelProvider(ctx context.Context, name string, p ModelProvider) (ModelProvider, error) {
	p.Name, p.CreatedAt, p.UpdatedAt = "", time.Time{}, time.Time{}
	var out ModelProvider
	_, err := c.call(ctx, http.MethodPut, modelsPath+"/"+url.PathEscape(name), p, &out)
	return out, err
}

// ModelProviders lists the team's providers in the order in which they are asked.
func (c *Client) ModelProviders(ctx context.Context) ([]ModelProvider, error) {
	var out []ModelProvider
	_, err := c.call(ctx, http.MethodGet, modelsPath, nil, &out)
	return out, err
}

// ModelProvider finds a provider.
func (c *Client) ModelProvider(ctx context.Context, name string) (ModelProvider, error) {
	var out ModelProvider
	_, err := c.call(ctx, http.MethodGet, modelsPath+"/"+url.PathEscape(name), nil, &out)
	return out, err
}

// RemoveModelProvider forgets a provider. Its secret stays.
func (c *Client) RemoveModelProvider(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, modelsPath+"/"+url.PathEscape(name), nil, nil)
	return err
}

// PutSecret keeps a value under a name, in place of the one before.
func (c *Client) PutSecret(ctx context.Context, name, value string) error {
	_, err := c.call(ctx, http.MethodPost, "/secrets", map[string]string{"name": name, "value": value}, nil)
	if cay.KindOf(err) == cay.Conflict {
		_, err = c.call(ctx, http.MethodPost, "/secrets/"+url.PathEscape(name), map[string]string{"value": value}, nil)
	}
	return err
}
