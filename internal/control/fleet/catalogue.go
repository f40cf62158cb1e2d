// Package fleet is the catalogue: templates and their tags, snapshots, secrets,
// and the lists of sandboxes and events. All of it is read from the store and
// written to it; the package has no state of its own.
package fleet

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Node says what groups of snapshots, and what teams saved of sandboxes, take on
// its disk.
type Node interface {
	SavedBytes(ctx context.Context, team cay.TeamID, but ...cay.SnapshotID) (int64, error)
	DiskUse(ctx context.Context, groups [][]cay.SnapshotID) ([]cay.DiskUse, error)
}

// Builds are told of templates that are removed: Cancel ends a build that waits
// or runs, Tidy gives up what only removed snapshots needed.
type Builds interface {
	Cancel(id cay.BuildID)
	Tidy()
}

// Config is what a Catalogue needs.
type Config struct {
	Ledger *ledger.Ledger
	Store  store.Store
	Node   Node
	Builds Builds
	Sealer Sealer // nil keeps no secrets
}

// Catalogue carries the use cases out.
type Catalogue struct {
	ledger *ledger.Ledger
	store  store.Store
	node   Node
	builds Builds
	sealer Sealer
}

// New returns the catalogue of a store.
func New(cfg Config) *Catalogue {
	return &Catalogue{cfg.Ledger, cfg.Store, cfg.Node, cfg.Builds, cfg.Sealer}
}
