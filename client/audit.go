package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AuditRow says who did what. Its hash is of the row and the one before it.
type AuditRow struct {
	Seq       int64             `json:"seq"`
	At        time.Time         `json:"at"`
	Actor     AuditActor        `json:"actor"`
	TeamID    string            `json:"teamID"`
	Action    string            `json:"action"`
	Target    string            `json:"target"`
	Outcome   string            `json:"outcome"` // ok, denied, failed
	RequestID string            `json:"requestID"`
	Address   string            `json:"address"`
	UserAgent string            `json:"userAgent"`
	Details   map[string]string `json:"details"`
	Prev      string            `json:"prev"`
	Hash      string            `json:"hash"`
}

// AuditActor is the party that did something.
type AuditActor struct {
	Kind string `json:"kind"` // key, person, admin, system, sandbox
	ID   string `json:"id"`
	Name string `json:"name"`
}

// AuditOptions say which rows to read. The zero value means all of the team
// that are kept.
type AuditOptions struct {
	All                   bool // of every team; only for an admin
	Team                  string
	Actor, Action, Target string
	From, To              time.Time // From inclusive, To exclusive
}

// Audit yields rows, newest first. An error is the last that it yields.
func (c *Client) Audit(ctx context.Context, o AuditOptions) iter.Seq2[AuditRow, error] {
	path, query := "/cay/v1/audit", url.Values{"limit": {"1000"}}
	if o.All {
		path = "/cay/v1/admin/audit"
	}
	for name, value := range map[string]string{"team": o.Team, "actor": o.Actor, "action": o.Action, "target": o.Target} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"from": o.From, "to": o.To} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return func(yield func(AuditRow, error) bool) {
		for {
			var page struct {
				Rows []AuditRow `json:"rows"`
				Next int64      `json:"next"`
			}
			if _, err := c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
				yield(AuditRow{}, err)
				return
			}
			for _, r := range page.Rows {
				if !yield(r, nil) {
					return
				}
			}
			if page.Next == 0 {
				return
			}
			query.Set("before", strconv.FormatInt(page.Next, 10))
		}
	}
}
