package fleet

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Cursor is a place in a list of sandboxes.
type Cursor = store.Cursor

// Query says which of a team's sandboxes to list.
type Query struct {
	States       []cay.State
	Metadata     map[string]string
	Template     string // id or name; one that is not there finds nothing
	StartedAfter time.Time
	Ascending    bool
	After        *Cursor
	Limit        int // 0 means all
}

// Page is a part of a list. Next is nil on the last one. Total counts what the
// query finds on all pages.
type Page struct {
	Sandboxes []cay.Sandbox
	Next      *Cursor
	Total     map[cay.State]int
}

// List lists a team's sandboxes by their start.
func (c *Catalogue) List(ctx context.Context, who cay.Caller, q Query) (Page, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return Page{}, err
	}
	page := Page{Total: make(map[cay.State]int)}
	sq, found, err := c.query(ctx, who, q)
	if err != nil || !found {
		return page, err
	}
	if page.Total, err = c.count(ctx, sq); err != nil {
		return page, err
	}
	sq.Ascending, sq.After = q.Ascending, q.After
	if q.Limit > 0 {
		sq.Limit = q.Limit + 1 // one more tells whether there is a next page
	}
	list, err := c.store.Sandboxes(ctx, sq)
	if err != nil {
		return page, err
	}
	if q.Limit > 0 && len(list) > q.Limit {
		list = list[:q.Limit]
		last := list[len(list)-1]
		page.Next = &Cursor{StartedAt: last.StartedAt, ID: last.ID}
	}
	page.Sandboxes = list
	return page, nil
}

// Count counts by state what a query finds.
func (c *Catalogue) Count(ctx context.Context, who cay.Caller, q Query) (map[cay.State]int, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	sq, found, err := c.query(ctx, who, q)
	if err != nil || !found {
		return nil, err
	}
	return c.count(ctx, sq)
}

// query is what the store is asked; not found when no template is like that.
func (c *Catalogue) query(ctx context.Context, who cay.Caller, q Query) (sq store.SandboxQuery, found bool, err error) {
	sq = store.SandboxQuery{Team: who.Team, States: q.States, Metadata: q.Metadata, StartedAfter: q.StartedAfter}
	if q.Template == "" {
		return sq, true, nil
	}
	t, err := c.ledger.FindTemplate(ctx, who.Team, q.Template)
	if cay.KindOf(err) == cay.NotFound {
		return sq, false, nil
	}
	sq.Template = t.ID
	return sq, err == nil, err
}

func (c *Catalogue) count(ctx context.Context, sq store.SandboxQuery) (map[cay.State]int, error) {
	out := make(map[cay.State]int, len(sq.States))
	for _, state := range sq.States {
		one := sq
		one.States = []cay.State{state}
		n, err := c.store.CountSandboxes(ctx, one)
		if err != nil {
			return nil, err
		}
		out[state] = n
	}
	return out, nil
}
