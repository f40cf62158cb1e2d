package nodes

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// The least, the usual and the longest life of a join token.
const (
	TokenLeast = time.Minute
	TokenUsual = 24 * time.Hour
	TokenMost  = 7 * 24 * time.Hour
)

// List lists the members by their ids, as the records have them.
func (m *Members) List(ctx context.Context, who cay.Caller) ([]cay.Node, error) {
	if err := who.May(cay.Admin); err != nil {
		return nil, err
	}
	return m.cfg.Store.Nodes(ctx)
}

// Get finds a member.
func (m *Members) Get(ctx context.Context, who cay.Caller, id cay.NodeID) (cay.Node, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Node{}, err
	}
	return m.cfg.Store.Node(ctx, id)
}

// Drain has a member take no new sandboxes, and give away those that it has, or take
// them again. It knows with its next renewal; fronts ask it for none sooner.
func (m *Members) Drain(ctx context.Context, who cay.Caller, id cay.NodeID, how cay.Drain) error {
	if _, err := m.Get(ctx, who, id); err != nil {
		return err
	}
	status := "draining"
	if how == cay.DrainNone {
		status = "ready"
	}
	return m.cfg.Ledger.Do(ctx, who, "node.changed", string(id), func(tx store.Store) error {
		return tx.SetDrain(ctx, id, how)
	}, "status", status, "sandboxes", string(how))
}

// Remove forgets a member, whose certificate opens nothing any more.
func (m *Members) Remove(ctx context.Context, who cay.Caller, id cay.NodeID) error {
	if err := who.May(cay.Admin); err != nil {
		return err
	}
	if id == m.cfg.Self.ID {
		return cay.Errorf(cay.Conflict, "node %s answers this request", id).WithHint("ask another member")
	}
	return m.cfg.Ledger.Do(ctx, who, "node.removed", string(id), func(tx store.Store) error {
		return tx.RemoveNode(ctx, id, m.cfg.Times.Silent)
	})
}

// NewToken makes a token with which one machine joins. It is told now and never
// again.
func (m *Members) NewToken(ctx context.Context, who cay.Caller, lasts time.Duration) (text string, expires time.Time, err error) {
	if err := who.May(cay.Admin); err != nil {
		return "", expires, err
	}
	if lasts == 0 {
		lasts = TokenUsual
	}
	if lasts < TokenLeast || lasts > TokenMost {
		return "", expires, cay.Errorf(cay.Invalid, "expiresIn: must be from %d to %d seconds", int64(TokenLeast/time.Second), int64(TokenMost/time.Second))
	}
	text, digest, bundle, err := m.cfg.Token()
	if err != nil {
		return "", expires, err
	}
	err = m.cfg.Ledger.Do(ctx, who, "cluster.token_made", "", func(tx store.Store) error {
		expires, err = tx.AddJoinToken(ctx, digest, bundle, lasts)
		return err
	})
	return text, expires, err
}

// Cluster tells what the members share.
func (m *Members) Cluster(ctx context.Context, who cay.Caller) (cay.Cluster, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Cluster{}, err
	}
	return m.cfg.Store.Cluster(ctx)
}
