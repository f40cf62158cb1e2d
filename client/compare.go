package client

import (
	"context"
	"net/http"
	"net/url"
)

// Comparison is what differs between the files of two moments.
type Comparison struct {
	From    string       `json:"from"`         // a checkpoint
	To      string       `json:"to,omitempty"` // another one; empty for the sandbox as it is
	Changes []FileChange `json:"changes"`      // the first so many
	Added   int64        `json:"added"`        // how many there are, also of those that are not listed
	Changed int64        `json:"changed"`
	Removed int64        `json:"removed"`
}

// FileChange is a file that is not the same.
type FileChange struct {
	Path   string     `json:"path"`   // absolute; quoted as by strconv.Quote when it cannot be printed
	Change string     `json:"change"` // added, changed or removed
	Before *FileState `json:"before,omitempty"`
	After  *FileState `json:"after,omitempty"`
	Diff   string     `json:"diff,omitempty"`   // unified, of text
	NoDiff string     `json:"noDiff,omitempty"` // why there is none: binary, large or many
}

// FileState is a file at a moment.
type FileState struct {
	Type   string `json:"type"` // file, directory, symlink, fifo or device
	Mode   string `json:"mode"` // octal
	UID    int64  `json:"uid"`
	GID    int64  `json:"gid"`
	Size   int64  `json:"size"`
	Target string `json:"target,omitempty"` // of a symlink
}

// Compare tells which files differ between two checkpoints.
func (c *Client) Compare(ctx context.Context, from, to string) (Comparison, error) {
	var out Comparison
	_, err := c.call(ctx, http.MethodGet, checkpointURL(from)+"/diff?"+url.Values{"to": {to}}.Encode(), nil, &out)
	return out, err
}

// Changes tells which files of a sandbox differ from a checkpoint; an empty one
// is the newest that its state comes from.
func (c *Client) Changes(ctx context.Context, id, from string) (Comparison, error) {
	path := treeURL(id, "diff")
	if from != "" {
		path += "?" + url.Values{"from": {from}}.Encode()
	}
	var out Comparison
	_, err := c.call(ctx, http.MethodGet, path, nil, &out)
	return out, err
}
