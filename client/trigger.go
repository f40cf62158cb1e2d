package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Trigger has a command run in a sandbox: a hook when a request comes to its
// address, a schedule by the clock.
type Trigger struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Kind    string `json:"kind"` // hook or schedule
	Enabled bool   `json:"enabled"`
	URL     string `json:"url,omitempty"` // of a hook
	// Secret is a new hook's that the server made.
	Secret     string            `json:"secret,omitempty"`
	Template   string            `json:"template,omitempty"`
	SandboxID  string            `json:"sandboxID,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Command    string            `json:"command"`
	User       string            `json:"user,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	Env        []string          `json:"env"`     // names
	Timeout    int               `json:"timeout"` // seconds
	After      string            `json:"after"`   // kill, pause or keep
	Proof      string            `json:"proof,omitempty"`
	Events     []string          `json:"events,omitempty"`
	Filters    []HookFilter      `json:"filters,omitempty"`
	Cron       string            `json:"cron,omitempty"`
	Zone       string            `json:"zone,omitempty"`
	NextAt     time.Time         `json:"nextAt,omitzero"`
	MaxRunning int               `json:"maxRunning"`
	MaxWaiting int               `json:"maxWaiting"`
	Retries    int               `json:"retries"`
	CreatedAt  time.Time         `json:"createdAt"`
	UpdatedAt  time.Time         `json:"updatedAt"`
}

// HookFilter passes a request with one of some values at a path of its body.
type HookFilter struct {
	Path   string   `json:"path"`
	Values []string `json:"values"`
}

// TriggerOptions are the settings that a trigger is made with, or those that
// change. A nil field stays as it is, or is as usual.
type TriggerOptions struct {
	Kind       string            `json:"kind,omitempty"` // of a new one: hook or schedule
	Name       *string           `json:"name,omitempty"`
	Enabled    *bool             `json:"enabled,omitempty"`
	Template   *string           `json:"template,omitempty"`
	SandboxID  *string           `json:"sandboxID,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Command    *string           `json:"command,omitempty"`
	User       *string           `json:"user,omitempty"`
	Dir        *string           `json:"dir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Timeout    *int              `json:"timeout,omitempty"` // seconds
	After      *string           `json:"after,omitempty"`
	Proof      *string           `json:"proof,omitempty"` // github, slack, standard or bearer
	Secret     *string           `json:"secret,omitempty"`
	Events     *[]string         `json:"events,omitempty"`
	Filters    *[]HookFilter     `json:"filters,omitempty"`
	Cron       *string           `json:"cron,omitempty"`
	Zone       *string           `json:"zone,omitempty"`
	MaxRunning *int              `json:"maxRunning,omitempty"`
	MaxWaiting *int              `json:"maxWaiting,omitempty"`
	Retries    *int              `json:"retries,omitempty"`
}

// TriggerRun is one run of a trigger.
type TriggerRun struct {
	ID        string    `json:"id"`
	TriggerID string    `json:"triggerID"`
	State     string    `json:"state"` // waiting, running, succeeded, failed, cancelled or skipped
	Event     string    `json:"event"`
	Delivery  string    `json:"delivery"`
	Attempt   int       `json:"attempt"`
	QueuedAt  time.Time `json:"queuedAt"`
	DueAt     time.Time `json:"dueAt,omitzero"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
	SandboxID string    `json:"sandboxID,omitempty"`
	ExitCode  *int      `json:"exitCode,omitempty"` // nil where it is not known
	Error     string    `json:"error,omitempty"`
	Output    string    `json:"output,omitempty"` // of Run alone
}

// Over reports whether nothing follows the run's state.
func (r TriggerRun) Over() bool { return r.State != "waiting" && r.State != "running" }

const (
	triggersPath = "/cay/v1/triggers"
	runsPath     = "/cay/v1/runs"
)

func ofTrigger(ref, what string) string { return triggersPath + "/" + url.PathEscape(ref) + what }

// CreateTrigger makes a hook or a schedule.
func (c *Client) CreateTrigger(ctx context.Context, o TriggerOptions) (Trigger, error) {
	var out Trigger
	_, err := c.call(ctx, http.MethodPost, triggersPath, o, &out)
	return out, err
}

// Triggers lists the team's hooks and schedules, oldest first.
func (c *Client) Triggers(ctx context.Context) ([]Trigger, error) {
	var out []Trigger
	_, err := c.call(ctx, http.MethodGet, triggersPath, nil, &out)
	return out, err
}

// Trigger finds a trigger by id or name.
func (c *Client) Trigger(ctx context.Context, ref string) (Trigger, error) {
	var out Trigger
	_, err := c.call(ctx, http.MethodGet, ofTrigger(ref, ""), nil, &out)
	return out, err
}

// UpdateTrigger changes a trigger.
func (c *Client) UpdateTrigger(ctx context.Context, ref string, o TriggerOptions) (Trigger, error) {
	var out Trigger
	_, err := c.call(ctx, http.MethodPatch, ofTrigger(ref, ""), o, &out)
	return out, err
}

// RemoveTrigger forgets a trigger with its runs.
func (c *Client) RemoveTrigger(ctx context.Context, ref string) error {
	_, err := c.call(ctx, http.MethodDelete, ofTrigger(ref, ""), nil, nil)
	return err
}

// RotateTrigger gives a hook another secret. Of an empty one the server makes one,
// and RotateTrigger returns it.
func (c *Client) RotateTrigger(ctx context.Context, ref, secret string) (string, error) {
	in := map[string]string{}
	if secret != "" {
		in["secret"] = secret
	}
	var out struct {
		Secret string `json:"secret"`
	}
	_, err := c.call(ctx, http.MethodPost, ofTrigger(ref, "/rotate"), in, &out)
	return out.Secret, err
}

// StartRun runs a trigger now, with a payload of a type.
func (c *Client) StartRun(ctx context.Context, ref, contentType string, payload []byte) (TriggerRun, error) {
	var out TriggerRun
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.APIURL+ofTrigger(ref, "/runs"), bytes.NewReader(payload))
	if err != nil {
		return out, err
	}
	r.Header.Set("Content-Type", contentType)
	resp, err := c.HTTP().Do(r)
	if err != nil {
		return out, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return out, failure(resp)
	}
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// TriggerRunOptions say which runs to list.
type TriggerRunOptions struct {
	Trigger string // id or name; empty for all
	State   string // empty for any
	Limit   int    // at most 100; 0 for the server's usual
}

// TriggerRuns lists runs of the last week, the newest first.
func (c *Client) TriggerRuns(ctx context.Context, o TriggerRunOptions) ([]TriggerRun, error) {
	query := url.Values{}
	for name, value := range map[string]string{"trigger": o.Trigger, "state": o.State} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	var out struct {
		Runs []TriggerRun `json:"runs"`
	}
	_, err := c.call(ctx, http.MethodGet, runsPath+"?"+query.Encode(), nil, &out)
	return out.Runs, err
}

// TriggerRun finds a run, with what its command wrote.
func (c *Client) TriggerRun(ctx context.Context, id string) (TriggerRun, error) {
	var out TriggerRun
	_, err := c.call(ctx, http.MethodGet, runsPath+"/"+url.PathEscape(id), nil, &out)
	return out, err
}

// CancelRun ends a run.
func (c *Client) CancelRun(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodPost, runsPath+"/"+url.PathEscape(id)+"/cancel", nil, nil)
	return err
}
