package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Usage is what was used in whole hours.
type Usage struct {
	From     time.Time  `json:"from"`
	To       time.Time  `json:"to"`
	Currency string     `json:"currency,omitempty"` // empty without prices
	Rows     []UsageRow `json:"rows"`
	Total    UsageRow   `json:"total"`
}

// UsageRow is a sum. Fields that it was not grouped by are empty.
type UsageRow struct {
	Team     string             `json:"teamID,omitempty"`
	At       *time.Time         `json:"at,omitempty"` // the beginning of the hour or day
	Key      *string            `json:"keyID,omitempty"`
	Template *string            `json:"templateID,omitempty"`
	Labels   map[string]string  `json:"labels,omitempty"`
	Amounts  map[string]float64 `json:"amounts"` // by meter, in its unit
	Money    string             `json:"money,omitempty"`
}

// UsageQuery says what to sum up: zero times mean the beginning of this month
// and now. Group has key, template, day, hour and label:KEY; All, which needs
// an AdminToken, sums up all teams, and Group may have team.
type UsageQuery struct {
	From, To time.Time
	Group    []string
	All      bool
}

func (q UsageQuery) path() string {
	values := url.Values{}
	for name, at := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !at.IsZero() {
			values.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	if len(q.Group) > 0 {
		values.Set("group", strings.Join(q.Group, ","))
	}
	path := "/cay/v1/usage?"
	if q.All {
		path = "/cay/v1/admin/usage?"
	}
	return path + values.Encode()
}

// Usage says what the team used.
func (c *Client) Usage(ctx context.Context, q UsageQuery) (Usage, error) {
	var out Usage
	_, err := c.call(ctx, http.MethodGet, q.path(), nil, &out)
	return out, err
}

// UsageCSV is Usage as comma-separated values with a header.
func (c *Client) UsageCSV(ctx context.Context, q UsageQuery, w io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.APIURL+q.path()+"&format=csv", nil)
	if err != nil {
		return err
	}
	c.present(r.Header)
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return failure(resp)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

// UsageLabels lists the keys of sandboxes' metadata that are metered.
func (c *Client) UsageLabels(ctx context.Context) ([]string, error) {
	var out struct{ Labels []string }
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/usage-labels", nil, &out)
	return out.Labels, err
}

// SetUsageLabels replaces them and returns them with those of budgets.
func (c *Client) SetUsageLabels(ctx context.Context, labels []string) ([]string, error) {
	var out struct{ Labels []string }
	_, err := c.call(ctx, http.MethodPut, "/cay/v1/usage-labels", map[string]any{"labels": append([]string{}, labels...)}, &out)
	return out.Labels, err
}

// Prices are decimals for a unit of each meter.
type Prices struct {
	Currency string            `json:"currency"`
	Prices   map[string]string `json:"prices"`
}

// Prices says what meters cost.
func (c *Client) Prices(ctx context.Context) (Prices, error) {
	var out Prices
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/prices", nil, &out)
	return out, err
}

// SetPrices replaces them. It needs an AdminToken.
func (c *Client) SetPrices(ctx context.Context, p Prices) (Prices, error) {
	var out Prices
	_, err := c.call(ctx, http.MethodPut, "/cay/v1/admin/prices", p, &out)
	return out, err
}

// Budget bounds what is used in a period. Limit and Used are decimals in the
// meter's unit.
type Budget struct {
	ID        string            `json:"id"`
	Name      string            `json:"name,omitempty"`
	Key       string            `json:"keyID,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Meter     string            `json:"meter"`
	Limit     string            `json:"limit"`
	Period    string            `json:"period"`
	Action    string            `json:"action"`
	Used      string            `json:"used"`
	Percent   int               `json:"percent"`
	Exhausted bool              `json:"exhausted"`
	ResetsAt  *time.Time        `json:"resetsAt,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`
	CreatedBy string            `json:"createdBy,omitempty"`
}

// NewBudget is a budget to make: of the team, of one API key, or of the
// sandboxes with one entry of metadata.
type NewBudget struct {
	Name     string            `json:"name,omitempty"`
	Key      string            `json:"keyID,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Meter    string            `json:"meter"`            // or money
	Limit    string            `json:"limit"`            // decimal
	Period   string            `json:"period"`           // day, week, month or once
	Action   string            `json:"action,omitempty"` // refuse, pause (unless given) or kill
}

// BudgetChange changes what is not nil.
type BudgetChange struct {
	Name   *string `json:"name,omitempty"`
	Limit  *string `json:"limit,omitempty"`
	Action *string `json:"action,omitempty"`
}

const budgets = "/cay/v1/budgets"

// Budgets lists the team's budgets.
func (c *Client) Budgets(ctx context.Context) ([]Budget, error) {
	var out []Budget
	_, err := c.call(ctx, http.MethodGet, budgets, nil, &out)
	return out, err
}

// AddBudget makes a budget.
func (c *Client) AddBudget(ctx context.Context, b NewBudget) (Budget, error) {
	var out Budget
	_, err := c.call(ctx, http.MethodPost, budgets, b, &out)
	return out, err
}

// ChangeBudget changes a budget.
func (c *Client) ChangeBudget(ctx context.Context, id string, b BudgetChange) (Budget, error) {
	var out Budget
	_, err := c.call(ctx, http.MethodPatch, budgets+"/"+url.PathEscape(id), b, &out)
	return out, err
}

// RemoveBudget removes a budget.
func (c *Client) RemoveBudget(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, budgets+"/"+url.PathEscape(id), nil, nil)
	return err
}
