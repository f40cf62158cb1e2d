package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay/client"
)

type checkpointIn struct {
	Label string `json:"label,omitempty" jsonschema:"a name for it; one with a name outlives its sandbox"`
	target
}

type checkpointOut struct {
	Sandbox    string `json:"sandbox_id"`
	Checkpoint string `json:"checkpoint_id"`
}

type rollbackIn struct {
	Checkpoint string `json:"checkpoint_id,omitempty" jsonschema:"where to go back to; the newest checkpoint when left out, and again further back"`
	target
}

type forkIn struct {
	Count      int    `json:"count,omitempty" jsonschema:"how many copies; 1 when left out"`
	Checkpoint string `json:"checkpoint_id,omitempty" jsonschema:"make them as the sandbox was then, not as it is"`
	Timeout    int    `json:"timeout,omitempty" jsonschema:"seconds that each lives; 600 when left out"`
	target
}

type forkOut struct {
	Sandboxes []string `json:"sandbox_ids"`
	Failed    string   `json:"failed,omitempty"`
}

type diffIn struct {
	From string `json:"from_checkpoint_id,omitempty" jsonschema:"the newest checkpoint when left out"`
	To   string `json:"to_checkpoint_id,omitempty" jsonschema:"the sandbox as it is when left out"`
	target
}

type diffOut struct {
	From    string       `json:"from_checkpoint_id"`
	To      string       `json:"to_checkpoint_id,omitempty"`
	Added   int64        `json:"added"`
	Changed int64        `json:"changed"`
	Removed int64        `json:"removed"`
	Changes []changeLine `json:"changes"`
	Cut     bool         `json:"cut,omitempty"`
}

type changeLine struct {
	Path   string `json:"path"`
	Change string `json:"change"`
	Diff   string `json:"diff,omitempty"`
}

func (f *Face) addTree(s *sdk.Server) {
	add(f, s, tool{"checkpoint", "Save a checkpoint", "Saves a sandbox with its files, memory and processes, so that rollback can bring it back. The sandbox runs on.", adds}, checkpoint)
	add(f, s, tool{"rollback", "Go back to a checkpoint", "Brings a sandbox back to a checkpoint: files, variables and processes. All that came after it is lost.", destroys}, rollback)
	add(f, s, tool{"fork", "Copy a sandbox", "Makes running copies of a sandbox with its files, memory and processes, to try several things at once.", adds}, fork)
	add(f, s, tool{"diff", "Compare with a checkpoint", "Tells which files differ between a checkpoint and another one, or the sandbox as it is, with the differing lines.", reads}, diff)
}

func checkpoint(ctx context.Context, c *call, in checkpointIn) (out checkpointOut, err error) {
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	saved, err := c.api.Checkpoint(ctx, box.ID, in.Label, "")
	if err != nil {
		return out, err
	}
	c.say("checkpoint_id: %s", saved.ID)
	return checkpointOut{box.ID, saved.ID}, nil
}

func rollback(ctx context.Context, c *call, in rollbackIn) (out checkpointOut, err error) {
	id, err := c.at(ctx, in.target)
	if err != nil {
		return out, err
	}
	var moved client.Moved
	if in.Checkpoint == "" {
		moved, err = c.api.Undo(ctx, id)
	} else {
		moved, err = c.api.Rollback(ctx, id, in.Checkpoint)
	}
	if err != nil {
		return out, err
	}
	c.say("%s is as it was at checkpoint %s, of %s", id, moved.Checkpoint.ID, moved.Checkpoint.CreatedAt.Format(time.RFC3339))
	if moved.Notice != "" {
		c.say("%s", moved.Notice)
	}
	return checkpointOut{id, moved.Checkpoint.ID}, nil
}

func fork(ctx context.Context, c *call, in forkIn) (out forkOut, err error) {
	alive, err := seconds(in.Timeout, idle, maxAlive)
	if err != nil {
		return out, err
	}
	if in.Count == 0 {
		in.Count = 1
	}
	var forks []*client.Sandbox
	if in.Checkpoint != "" {
		forks, err = c.api.ForkCheckpoint(ctx, in.Checkpoint, in.Count, alive)
	} else {
		var box *client.Sandbox
		if box, err = c.open(ctx, in.target, 0); err == nil {
			forks, err = c.api.Fork(ctx, box.ID, in.Count, alive)
		}
	}
	if len(forks) == 0 && err != nil {
		return out, err
	}
	if err != nil {
		out.Failed = textOf(err)
	}
	for _, one := range forks {
		out.Sandboxes = append(out.Sandboxes, one.ID)
	}
	c.say("sandbox_ids: %s", strings.Join(out.Sandboxes, ", "))
	if out.Failed != "" {
		c.say("not all were made: %s", out.Failed)
	}
	return out, nil
}

func diff(ctx context.Context, c *call, in diffIn) (out diffOut, err error) {
	var found client.Comparison
	if in.To != "" && in.From != "" {
		found, err = c.api.Compare(ctx, in.From, in.To)
	} else {
		var id string
		if id, err = c.at(ctx, in.target); err == nil {
			found, err = c.api.Changes(ctx, id, in.From)
		}
	}
	if err != nil {
		return out, err
	}
	out = diffOut{From: found.From, To: found.To, Added: found.Added, Changed: found.Changed, Removed: found.Removed, Changes: []changeLine{}}
	var text strings.Builder
	fmt.Fprintf(&text, "since checkpoint %s: %d added, %d changed, %d removed\n", found.From, found.Added, found.Changed, found.Removed)
	for _, one := range found.Changes {
		line := changeLine{Path: one.Path, Change: one.Change, Diff: cut(one.Diff, maxText/4)}
		next := fmt.Sprintf("%s %s\n%s", one.Change, one.Path, line.Diff)
		if out.Cut = text.Len()+len(next) > maxText; out.Cut {
			text.WriteString("[it was cut here]\n")
			break
		}
		out.Changes = append(out.Changes, line)
		text.WriteString(strings.TrimSuffix(next, "\n") + "\n")
	}
	c.say("%s", text.String())
	return out, nil
}
