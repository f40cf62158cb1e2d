package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/cay-run/cay"
)

// Pause saves a sandbox with its memory and processes, and stops it. Conflict
// when it is paused already. Connect resumes it.
func (c *Client) Pause(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/pause", map[string]any{}, nil)
	return err
}

// PauseFiles saves a sandbox's files alone and stops it: it boots from them
// when it is resumed, with no process left.
func (c *Client) PauseFiles(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/pause", map[string]any{"memory": false}, nil)
	return err
}

// PauseDurably is Pause, or with files PauseFiles, that returns when the server's
// bucket has what was saved.
func (c *Client) PauseDurably(ctx context.Context, id string, files bool) error {
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/pause", map[string]any{"memory": !files, "durable": true}, nil)
	return err
}

// Boot resumes a paused sandbox from its files, whatever else was saved, and
// has it live for at least the timeout. One that runs is left as it is.
func (c *Client) Boot(ctx context.Context, id string, timeout time.Duration) (*Sandbox, error) {
	return c.connect(ctx, id, map[string]any{"timeout": seconds(timeout), "memory": false})
}

// Fork makes copies of a running sandbox as it is at this moment, which live
// for the timeout. It returns those that started, and why others did not.
func (c *Client) Fork(ctx context.Context, id string, count int, timeout time.Duration) ([]*Sandbox, error) {
	return c.fork(ctx, "/sandboxes/"+url.PathEscape(id)+"/fork", count, timeout)
}

func (c *Client) fork(ctx context.Context, path string, count int, timeout time.Duration) ([]*Sandbox, error) {
	in := map[string]any{"count": count, "timeout": seconds(timeout)}
	var items []struct {
		Sandbox *Sandbox `json:"sandbox"`
		Error   *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if _, err := c.call(ctx, http.MethodPost, path, in, &items); err != nil {
		return nil, err
	}
	var out []*Sandbox
	var errs []error
	for _, item := range items {
		switch {
		case item.Sandbox != nil:
			item.Sandbox.client = c
			out = append(out, item.Sandbox)
		case item.Error != nil:
			errs = append(errs, cay.Errorf(cay.Internal, "a fork did not start: %s", item.Error.Message))
		}
	}
	return out, errors.Join(errs...)
}

// Snapshot is a saved state that sandboxes can be made of: its id is a
// template's.
type Snapshot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
	// Replicated reports, on a server with a bucket, whether the bucket has it, and
	// ReplicatedAt since when.
	Replicated   *bool      `json:"replicated,omitempty"`
	ReplicatedAt *time.Time `json:"replicatedAt,omitempty"`
}

// Snapshot saves a running sandbox, which runs on. With a name it becomes the
// newest state of that name; name may be empty.
func (c *Client) Snapshot(ctx context.Context, id, name string) (Snapshot, error) {
	in := map[string]any{}
	if name != "" {
		in["name"] = name
	}
	var out Snapshot
	_, err := c.call(ctx, http.MethodPost, "/sandboxes/"+url.PathEscape(id)+"/snapshots", in, &out)
	return out, err
}

// Snapshots lists the snapshots of a sandbox, or all for an empty id, newest
// first.
func (c *Client) Snapshots(ctx context.Context, id string) ([]Snapshot, error) {
	query := url.Values{}
	if id != "" {
		query.Set("sandboxID", id)
	}
	return pages[Snapshot](ctx, c, "/snapshots", query)
}

// RemoveTemplate removes a template or a snapshot that no sandbox uses.
func (c *Client) RemoveTemplate(ctx context.Context, ref string) error {
	_, err := c.call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(ref), nil, nil)
	return err
}
