// Package operator is what concerns a whole machine and no team: the socket on
// which a server answers its operator, root, with both of its ends, and what an
// operator does without a server. A command of the operator never opens the
// records of a server that runs: it asks the server.
package operator

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/template/build"
	"github.com/cay-run/cay/internal/template/builtin"
)

// Host is the part of a configuration that the machine needs.
func Host(cfg config.Config) host.Config {
	limit, err := cfg.PackageBytes()
	return host.Config{
		Data: cfg.Data, Run: cfg.Run,
		NetworkName: cfg.NetworkName, Network: cfg.Network, NetworkOpen: cfg.NetworkOpen, NetworkClosed: cfg.NetworkClosed, Resolvers: cfg.Resolvers,
		Packages: err == nil && limit > 0, ServerPorts: cfg.ClientPorts(), AllQuestions: cfg.LocalhostName() || cfg.Models,
		RestoreTimeout: cfg.RestoreTimeout, Disk: Reserve(cfg),
	}
}

// Reserve is the disk of the data directory, with the part that new work leaves
// alone.
func Reserve(cfg config.Config) disk.Reserve {
	bytes, _ := cfg.ReserveBytes() // a configuration that is wrong is refused when it is read
	return disk.Reserve{Dir: cfg.Data, Bytes: bytes}
}

// Config is the parts of a server that its operator asks about.
type Config struct {
	Host host.Config
	Team cay.Team // that offers what Cay brings, and gets new keys
	// AdminToken is what opens all teams.
	AdminToken string
	Store      *store.DB
	Control    *control.Control
	Audit      *audit.Log
	Node       *node.Node
	Snapshots  *snapshot.Dir
	Templates  *builtin.Builder
	Builds     *build.Builder
	Packages   *pkgcache.Cache // nil for none
	Replica    Replica         // nil for none
	// Cached tells what the data directory holds that the bucket has too.
	Cached  func() (cache.State, error)
	Backlog *builtin.Backlog // of the templates that the server builds by itself
	Disk    disk.Reserve
	// Copied is told, again and again, which snapshots the bucket has, and whether to ask the
	// records which of them lack a copy; nil without one.
	Copied func(ctx context.Context, has func(cay.SnapshotID) bool, ask bool)
	// Leads reports whether this server does what one does for all; nil for a server
	// that is alone.
	Leads func() bool
	// Publish offers a template that Cay brings to every team.
	Publish func(context.Context, builtin.Result) error
	Log     *slog.Logger
}

// Desk answers the operator of a server.
type Desk struct {
	cfg        Config
	collecting sync.Mutex // one garbage collection waits for another
	uncopied   atomic.Int64
	hurry      chan struct{} // a token where a copy is waited for
	copied     copies
	filed      filed
	made       atomic.Int64 // when the last copy was whole, in nanoseconds
	failing    [2]setback   // of copies' files and of their root images
	telling    sync.Mutex   // one tells the records at a time
	offered    offers

	taking sync.Mutex
	taken  bool // the bucket is this server's to write
}

// New returns the desk of a server.
func New(cfg Config) *Desk {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Desk{
		cfg: cfg, hurry: make(chan struct{}, 1),
		filed: filed{of: map[cay.SnapshotID]time.Time{}, some: make(chan struct{}, 1)},
	}
}

// newKey makes a key of the first team.
func (d *Desk) newKey(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", cay.Errorf(cay.Invalid, "a key has a name")
	}
	key, _, err := auth.Issue(ctx, d.cfg.Store, d.cfg.Team.ID, name)
	return key, err
}
