package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Checkpoint is a node of a sandbox's tree: its state at one moment.
type Checkpoint struct {
	ID        string    `json:"checkpointID"`
	Sandbox   string    `json:"sandboxID"` // whose state it is
	Parent    string    `json:"parentID,omitempty"`
	Kind      string    `json:"kind"`
	Label     string    `json:"label,omitempty"`
	Auto      bool      `json:"auto"` // taken by itself
	Size      int64     `json:"sizeBytes"`
	CreatedAt time.Time `json:"createdAt"`
	// ReplicatedAt is since when the server's bucket has it; nil while it has not.
	ReplicatedAt *time.Time `json:"replicatedAt,omitempty"`
}

// Tree is a tree of checkpoints and the sandboxes that live in it.
type Tree struct {
	Root        string       `json:"root"` // the sandbox that it began with
	Checkpoints []Checkpoint `json:"checkpoints"`
	Branches    []TreeBranch `json:"branches"`
}

// TreeBranch is a living sandbox of a tree.
type TreeBranch struct {
	Sandbox    string `json:"sandboxID"`
	State      string `json:"state"`
	Checkpoint string `json:"checkpointID,omitempty"` // the newest that it comes from
}

// Moved is what a sandbox is after it was brought to a checkpoint.
type Moved struct {
	Sandbox    string     `json:"sandboxID"`
	State      string     `json:"state"`
	Checkpoint Checkpoint `json:"checkpoint"`
	Notice     string     `json:"notice,omitempty"` // as Sandbox has it
}

// AutoCheckpoints says when checkpoints are taken by themselves. The
// zero value is never.
type AutoCheckpoints struct {
	EverySeconds   int64  `json:"everySeconds,omitempty"`
	BeforeCommands bool   `json:"beforeCommands,omitempty"` // and runs of code
	Keep           int64  `json:"keep,omitempty"`           // how many; 0 means 10
	Kind           string `json:"kind,omitempty"`
}

func treeURL(id, what string) string { return "/cay/v1/sandboxes/" + url.PathEscape(id) + "/" + what }

func checkpointURL(id string) string { return "/cay/v1/checkpoints/" + url.PathEscape(id) }

// Checkpoint saves a running sandbox, which runs on. Label may be empty; an
// empty kind means with memory and processes.
func (c *Client) Checkpoint(ctx context.Context, id, label, kind string) (Checkpoint, error) {
	var out Checkpoint
	in := map[string]string{"label": label, "kind": kind}
	_, err := c.call(ctx, http.MethodPost, treeURL(id, "checkpoints"), in, &out)
	return out, err
}

// Tree returns the tree that a sandbox is in.
func (c *Client) Tree(ctx context.Context, id string) (Tree, error) {
	var out Tree
	_, err := c.call(ctx, http.MethodGet, treeURL(id, "checkpoints"), nil, &out)
	return out, err
}

// Rollback brings a sandbox back to a checkpoint. It keeps id, tokens and
// URLs; connections to it break.
func (c *Client) Rollback(ctx context.Context, id, checkpoint string) (Moved, error) {
	var out Moved
	_, err := c.call(ctx, http.MethodPost, treeURL(id, "rollback"), map[string]string{"checkpointID": checkpoint}, &out)
	return out, err
}

// Undo brings a sandbox back to its newest checkpoint, or, when it was not
// used since it was brought there, to the one before.
func (c *Client) Undo(ctx context.Context, id string) (Moved, error) {
	var out Moved
	_, err := c.call(ctx, http.MethodPost, treeURL(id, "undo"), nil, &out)
	return out, err
}

// Promote has a sandbox go on as another one of its tree, which is over then.
func (c *Client) Promote(ctx context.Context, id, branch string) (Moved, error) {
	var out Moved
	_, err := c.call(ctx, http.MethodPost, treeURL(id, "promote"), map[string]string{"branch": branch}, &out)
	return out, err
}

// AutoCheckpoints says when checkpoints of a sandbox are taken by themselves.
func (c *Client) AutoCheckpoints(ctx context.Context, id string) (AutoCheckpoints, error) {
	var out AutoCheckpoints
	_, err := c.call(ctx, http.MethodGet, treeURL(id, "auto-checkpoints"), nil, &out)
	return out, err
}

// SetAutoCheckpoints changes that.
func (c *Client) SetAutoCheckpoints(ctx context.Context, id string, auto AutoCheckpoints) (AutoCheckpoints, error) {
	var out AutoCheckpoints
	_, err := c.call(ctx, http.MethodPut, treeURL(id, "auto-checkpoints"), auto, &out)
	return out, err
}

// ForkCheckpoint makes sandboxes that start as one was at a checkpoint. It
// returns those that started, and why others did not.
func (c *Client) ForkCheckpoint(ctx context.Context, checkpoint string, count int, timeout time.Duration) ([]*Sandbox, error) {
	return c.fork(ctx, checkpointURL(checkpoint)+"/fork", count, timeout)
}

// Label names a checkpoint. One with a label outlives its sandbox.
func (c *Client) Label(ctx context.Context, checkpoint, label string) (Checkpoint, error) {
	var out Checkpoint
	_, err := c.call(ctx, http.MethodPatch, checkpointURL(checkpoint), map[string]string{"label": label}, &out)
	return out, err
}

// RemoveCheckpoint deletes a checkpoint. Later ones stay.
func (c *Client) RemoveCheckpoint(ctx context.Context, checkpoint string) error {
	_, err := c.call(ctx, http.MethodDelete, checkpointURL(checkpoint), nil, nil)
	return err
}
