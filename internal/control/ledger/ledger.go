// Package ledger holds what the use cases share: they find templates in it,
// hold snapshots against removal, and write events that streams wait for.
// Truth is in the store; a hold and a waiting stream are of this process.
package ledger

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/store"
)

const (
	// EndWithin bounds what is recorded or undone after the client has left.
	EndWithin = 30 * time.Second
	// KeepKilled is how long the record of a sandbox is kept that ended.
	KeepKilled = 7 * 24 * time.Hour
)

// Snapshots removes what was saved of sandboxes and made of teams' templates;
// any other snapshot is left alone.
type Snapshots interface {
	RemoveSnapshot(ctx context.Context, id cay.SnapshotID) error
}

// Config is what a Ledger needs. Backlog may be nil.
type Config struct {
	Store     store.Store
	Snapshots Snapshots
	Backlog   Backlog
	// Extras are the templates that Cay brings only when an operator asks for
	// them.
	Extras []string
	// Reserved are the names of all templates that Cay brings.
	Reserved []string
	// TeamLimits are those of teams that have no limits of their own.
	TeamLimits cay.TeamLimits
	// Local finds the snapshot that this machine has of the same recipe as a template
	// that Cay brings: each machine makes its own. Nil takes those of the records.
	Local func(cay.Template) cay.SnapshotID
	Log   *slog.Logger
}

// Ledger is shared by all use cases of one server.
type Ledger struct {
	store     store.Store
	snapshots Snapshots
	backlog   Backlog
	extras    []string
	reserved  []string
	local     func(cay.Template) cay.SnapshotID
	log       *slog.Logger

	streams hub // events were recorded
	holds   *holds
	limits  limits
}

// New returns a ledger in which nothing is held. It knows no team's own limits
// before ReadLimits.
func New(cfg Config) *Ledger {
	l := &Ledger{
		store: cfg.Store, snapshots: cfg.Snapshots, backlog: cfg.Backlog, extras: cfg.Extras, reserved: cfg.Reserved, local: cfg.Local, log: cfg.Log,
		holds: newHolds(),
	}
	if l.backlog == nil {
		l.backlog = nothing{}
	}
	l.limits.defaults, l.limits.of = maps.Clone(cfg.TeamLimits), make(map[cay.TeamID]teamLimits)
	return l
}

// Do makes a change and records it in the audit log, in one transaction: both
// count, or none. It is for changes that give no event. Details are keys and
// values by turns.
func (l *Ledger) Do(ctx context.Context, who cay.Caller, action, target string, change func(tx store.Store) error, details ...string) error {
	return l.store.Tx(ctx, func(tx store.Store) error {
		if err := change(tx); err != nil {
			return err
		}
		return tx.AddAudit(ctx, audit.Row(who, action, target, cay.OutcomeOK, details...))
	})
}

// Now has the precision of all recorded times.
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// NoSandbox is the error for a sandbox that a team does not have.
func NoSandbox(id cay.SandboxID) error {
	return cay.Errorf(cay.NotFound, "sandbox %q not found: it doesn't exist or you don't have access to it", string(id))
}

// Known gives a sandbox that the store does not know the usual words.
func Known(err error, id cay.SandboxID) error {
	if cay.KindOf(err) == cay.NotFound {
		return NoSandbox(id)
	}
	return err
}
