// Package control puts the use cases together, which are packages of their own:
// fleet has the catalogue and the lists, lifecycle the live sandboxes of one node,
// builds the queue of builds, accounts the teams, people and keys, usage what
// teams use and may use, volumes their files, webhooks what addresses outside are
// told, triggers what starts commands by itself, approvals what is asked and
// decided, providers which models sandboxes may ask. Truth is in the store; ledger is what they share, and none of them knows
// another.
package control

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/control/approvals"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/control/providers"
	"github.com/cay-run/cay/internal/control/triggers"
	"github.com/cay-run/cay/internal/control/usage"
	"github.com/cay-run/cay/internal/control/volumes"
	"github.com/cay-run/cay/internal/control/webhooks"
	"github.com/cay-run/cay/internal/store"
)

// Node is all that the use cases ask of a node.
type Node interface {
	lifecycle.Node
	fleet.Node
	ledger.Snapshots
	usage.Snapshots
}

// Config is what a Control needs. Logs keeps what guests say. Logs and Log
// may be nil.
type Config struct {
	Store  store.Store
	Node   Node
	NodeID cay.NodeID
	// Member says that other nodes have sandboxes in the records as well.
	Member bool
	// Leads reports whether this server does what one does for all; nil for one that always does.
	Leads func() bool
	// Elsewhere reports whether another node that takes sandboxes has a processor with such
	// features; nil on a machine alone.
	Elsewhere func(ctx context.Context, features []string) bool
	// Bring has another node hand a sandbox over to this one; nil on a machine alone.
	Bring func(ctx context.Context, id cay.SandboxID) error
	// Copies says that snapshots are copied to a bucket; Durable, that each pause that
	// was asked for waits for its copy.
	Copies, Durable bool
	// Hurry has the next copy begin at once; nil leaves it to its time.
	Hurry func()
	// CopiesFail is why copies do not get on, as was seen since a time; nil knows of nothing.
	CopiesFail func(since time.Time) error
	// Local finds this machine's snapshot of a template; nil takes the recorded one.
	Local  func(cay.Template) cay.SnapshotID
	Tokens lifecycle.Tokens
	Logs   *logbook.Book
	Audit  *audit.Log   // nil counts nothing
	Sealer fleet.Sealer // nil keeps no secrets and builds nothing
	Log    *slog.Logger
	// TeamLimits are those of teams that have no limits of their own.
	TeamLimits cay.TeamLimits
	// Builder builds templates; nil for a server that builds none. Reserved
	// are the names of templates that Cay brings, Extras those of them that are
	// there only when an operator asked for them.
	Builder  builds.Builder
	Auth     *auth.Auth    // checks the credentials; nil for one of its own
	Images   builds.Images // nil keeps none
	Reserved []string
	Extras   []string
	Volumes  volumes.Storage   // nil keeps none
	Networks webhooks.Networks // where webhooks may be; nil for no webhooks
	// ModelNetworks say where providers of models may be; nil for anywhere.
	ModelNetworks interface {
		Outside(netip.Addr) (bool, error)
	}
	Dial  triggers.Dial   // connects to a port of a sandbox; nil for no triggers
	Links approvals.Links // signs links that decide approvals; nil for none
	URL   string          // where clients find this server, for those links
	// MayStart returns why a command of a trigger may not start in a sandbox.
	MayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	// Nodes lead the runs of triggers to the sandboxes of other nodes; nil for a machine alone.
	Nodes triggers.Nodes
	// Full reports whether the disk of the data directory is nearly full; nil never.
	Full func() bool
	// Backlog has the templates of Reserved that are still being built; nil for none.
	Backlog ledger.Backlog
}

// Control is the sum of the use cases of one server.
type Control struct {
	*fleet.Catalogue
	*lifecycle.Controller
	*builds.Queue
	*accounts.Accounts
	*webhooks.Hooks
	*usage.Meter
	Vols      *volumes.Volumes
	Triggers  *triggers.Triggers
	Approvals *approvals.Approvals
	Providers *providers.Providers
	ledger    *ledger.Ledger
}

// Open brings store and node to agree, and then looks at the builds that an
// earlier server was at. Run must follow.
func Open(ctx context.Context, cfg Config) (*Control, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Control{ledger: ledger.New(ledger.Config{
		Store: cfg.Store, Snapshots: cfg.Node, Backlog: cfg.Backlog, Extras: cfg.Extras,
		Reserved: slices.Concat(cfg.Reserved, cfg.Extras), TeamLimits: cfg.TeamLimits, Local: cfg.Local, Log: cfg.Log,
	})}
	c.Vols = volumes.New(volumes.Config{Ledger: c.ledger, Store: cfg.Store, Storage: cfg.Volumes, Log: cfg.Log})
	if cfg.Leads == nil {
		cfg.Leads = func() bool { return true }
	}
	c.Meter = usage.New(usage.Config{Member: cfg.Member, Leads: cfg.Leads, Volumes: c.Vols, Ledger: c.ledger, Store: cfg.Store, Snapshots: cfg.Node, Node: cfg.NodeID, Log: cfg.Log})
	err := c.ledger.ReadLimits(ctx)
	if err != nil {
		return nil, err
	}
	c.Controller, err = lifecycle.Open(ctx, lifecycle.Config{
		Ledger: c.ledger, Store: cfg.Store, Node: cfg.Node, NodeID: cfg.NodeID, Member: cfg.Member, Leads: cfg.Leads, Elsewhere: cfg.Elsewhere, Bring: cfg.Bring, Tokens: cfg.Tokens, Logs: cfg.Logs, Audit: cfg.Audit, Log: cfg.Log,
		Budgets: c.Meter, Copies: cfg.Copies, Durable: cfg.Durable, Hurry: cfg.Hurry, CopiesFail: cfg.CopiesFail,
	})
	if err != nil {
		return nil, err
	}
	c.Attach(c.Controller)
	c.Queue, err = builds.Open(ctx, builds.Config{
		Ledger: c.ledger, Store: cfg.Store, Node: cfg.Node, NodeID: cfg.NodeID, Builder: cfg.Builder, Images: cfg.Images, Sealer: cfg.Sealer,
		Reserved: slices.Concat(cfg.Reserved, cfg.Extras), Full: cfg.Full, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	c.Catalogue = fleet.New(fleet.Config{Ledger: c.ledger, Store: cfg.Store, Node: cfg.Node, Builds: c.Queue, Sealer: cfg.Sealer})
	if cfg.Auth == nil {
		cfg.Auth = auth.New(cfg.Store)
	}
	c.Approvals = approvals.New(approvals.Config{Ledger: c.ledger, Store: cfg.Store, Links: cfg.Links, URL: cfg.URL, Member: cfg.Member, Log: cfg.Log})
	c.Hooks = webhooks.New(webhooks.Config{
		Ledger: c.ledger, Store: cfg.Store, Sealer: cfg.Sealer, Networks: cfg.Networks, Link: c.Approvals.LinkFor, Log: cfg.Log,
	})
	c.Triggers = triggers.New(triggers.Config{
		Ledger: c.ledger, Store: cfg.Store, Sealer: cfg.Sealer, Sandboxes: c.Controller, Dial: cfg.Dial, MayStart: cfg.MayStart, Nodes: cfg.Nodes, Leads: cfg.Leads, Log: cfg.Log,
	})
	c.Providers = providers.New(providers.Config{
		Ledger: c.ledger, Store: cfg.Store, Budgets: c.Meter, Secret: c.SecretValue, Networks: cfg.ModelNetworks, Audit: cfg.Audit,
	})
	c.Accounts = accounts.New(accounts.Config{
		Ledger: c.ledger, Store: cfg.Store, Auth: cfg.Auth, Possessions: c, TeamChanged: c.Hooks.TeamChanged, Log: cfg.Log,
	})
	if _, err := c.Vols.Sweep(ctx, false); err != nil {
		return nil, err
	}
	return c, nil
}

// Ledger is what use cases elsewhere share with these.
func (c *Control) Ledger() *ledger.Ledger { return c.ledger }

// Run keeps sandboxes to their time and to budgets, carries builds out, tells
// webhooks, starts what triggers say and ends approvals, until ctx ends.
// Sandboxes go on living then.
func (c *Control) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.RunForAll(ctx) })
	err := c.RunOwn(ctx)
	wg.Wait()
	return err
}

// RunOwn is the part of Run that each node of a cluster does for its own sandboxes.
func (c *Control) RunOwn(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.RunUses(ctx) })
	wg.Go(func() { c.Meter.Run(ctx) })
	wg.Go(func() { c.Vols.Run(ctx) })
	err := c.Controller.Run(ctx)
	wg.Wait()
	return err
}

// RunForAll is the part that one of them does for all.
func (c *Control) RunForAll(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.Queue.Run(ctx) })
	wg.Go(func() { c.RunAccounts(ctx) })
	wg.Go(func() { c.Hooks.Run(ctx) })
	wg.Go(func() { c.Triggers.Work(ctx) })
	wg.Go(func() { c.Approvals.Work(ctx) })
	wg.Wait()
}

// Needs reports whether a snapshot must be kept: a sandbox, a template or
// work in progress needs it, or that is unknown.
func (c *Control) Needs(ctx context.Context, id cay.SnapshotID) bool { return c.ledger.Needs(ctx, id) }

// Discard removes a snapshot if nothing needs it, and reports whether it did.
func (c *Control) Discard(ctx context.Context, id cay.SnapshotID) (bool, error) {
	return c.ledger.Discard(ctx, id)
}

// TellHead tells the caller's team of a signed head of the audit log.
func (c *Control) TellHead(ctx context.Context, who cay.Caller, h cay.AuditHead) error {
	if err := who.May(cay.Admin); err != nil {
		return err
	}
	return c.ledger.Add(ctx, ledger.NewEvent(who, cay.Sandbox{Team: who.Team}, cay.AuditCheckpoint, "",
		"rows", strconv.FormatInt(h.Seq, 10), "hash", h.Hash.String(), "at", ledger.Stamp(h.At),
		"key", hex.EncodeToString(h.Key), "signature", hex.EncodeToString(h.Signature)))
}

// RemoveVolumes removes a team's volumes with their snapshots.
func (c *Control) RemoveVolumes(ctx context.Context, who cay.Caller) error {
	return c.Vols.RemoveAll(ctx, who)
}

// LimitsOf returns what a team may have and do. The map is never written.
func (c *Control) LimitsOf(team cay.TeamID) cay.TeamLimits { return c.ledger.Limits(team) }

// Announce records an event of the machine for every team.
func (c *Control) Announce(ctx context.Context, what cay.EventType, reason string, data ...string) error {
	return c.ledger.Announce(ctx, what, reason, data...)
}
