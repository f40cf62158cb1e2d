// Package host is the machine that a server runs on: its directories, which
// one server at a time may have, and its engine, network, snapshots and volumes,
// opened in the order that they need.
package host

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/embedded"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/engine/runsc"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
	"github.com/cay-run/cay/internal/machine/volume"
	"github.com/cay-run/cay/internal/machine/volume/loop"
)

// Config says where a server of this machine has its things.
type Config struct {
	Data string // what survives a reboot
	Run  string // what does not
	// NetworkName prefixes everything that is named on the host: network
	// namespaces, interfaces, the nftables table and cgroups.
	NetworkName    string
	Network        netip.Prefix   // where sandboxes get their addresses from
	NetworkOpen    []netip.Prefix // private ranges that they may reach
	NetworkClosed  []netip.Prefix // public ranges that they may not reach
	Resolvers      []netip.AddrPort
	RestoreTimeout time.Duration // 0 is the engine's own
	Packages       bool          // the gateway answers for package indices
	ServerPorts    []uint16      // of the server's names, which guests may reach
	AllQuestions   bool          // names are the server's that no other name server knows
	Disk           disk.Reserve  // of the data directory's disk
}

// Database is the file of the records.
func (c Config) Database() string { return filepath.Join(c.Data, "cay.db") }

// Instances is where instances write, and their journals.
func (c Config) Instances() string { return filepath.Join(c.Data, "instances") }

// Operator is the socket on which the server answers its operator.
func (c Config) Operator() string { return filepath.Join(c.Run, "operator.sock") }

// Volumes is where volumes are.
func (c Config) Volumes() string { return filepath.Join(c.Data, "volumes") }

// Reserved is the mount that instances share with the host.
func (c Config) Reserved() string { return filepath.Join(c.Run, "reserved") }

// Engine is an engine that can remove what it made on the host for itself.
type Engine interface {
	engine.Engine
	Teardown() error
}

// Net is the network of sandboxes; *vnet.Manager is the real one.
type Net interface {
	node.Net
	// Dial reaches the internet as a sandbox would.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Closed reports whether an address is closed to sandboxes.
	Closed(netip.Addr) bool
	Resolvers() []netip.AddrPort
	Diverted() vnet.Diverted
	// Close leaves slots and packet filter as they are; Teardown removes them.
	Close() error
	Teardown(ctx context.Context) error
}

// Volumes keeps volumes; *loop.Storage is the real one.
type Volumes interface {
	volume.Storage
	// Close leaves what is attached as it is; Teardown unmounts all.
	Close() error
	Teardown() error
}

// Machine is an open machine.
type Machine struct {
	Binaries  embedded.Binaries
	Engine    Engine
	Snapshots *snapshot.Dir
	Volumes   Volumes
	Net       Net
	// Room tells what the machine has left; nil asks this host.
	Room func() (node.Room, error)
}

// Opener opens a machine; Open is the real one.
type Opener func(ctx context.Context, cfg Config, log *slog.Logger) (*Machine, error)

// Open opens this machine. The caller has its data directory (Take) and closes
// the network in the end. The order is fixed: the mount that instances share
// is there before an instance is, the engine's programs are unpacked before the
// engine looks for them, and the network comes last, because it alone must be
// closed again.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*Machine, error) {
	var m Machine
	err := node.ShareMount(cfg.Reserved())
	if err != nil {
		return nil, cay.Wrap(cay.Unsupported, err, "the run directory cannot be a shared mount").
			WithHint("run as root, and not in a container without CAP_SYS_ADMIN")
	}
	if m.Binaries, err = embedded.Unpack(cfg.Data); err != nil {
		return nil, err
	}
	if m.Snapshots, err = snapshot.Open(cfg.Data); err != nil {
		return nil, err
	}
	if m.Volumes, err = loop.Open(ctx, cfg.Volumes(), cfg.Disk, log); err != nil {
		return nil, err
	}
	m.Engine, err = runsc.Open(runsc.Config{
		Engines: m.Binaries.EngineDir,
		Hash:    m.Binaries.EngineHash,
		Run:     cfg.Run,
		Cgroup:  cfg.NetworkName,

		RestoreLimit: cfg.RestoreTimeout,
	})
	if err != nil {
		return nil, err
	}
	m.Net, err = vnet.Open(ctx, vnet.Config{
		Name: cfg.NetworkName, Network: cfg.Network, Opened: cfg.NetworkOpen, Closed: cfg.NetworkClosed, Resolvers: cfg.Resolvers, Packages: cfg.Packages,
		ServerPorts: cfg.ServerPorts, AllQuestions: cfg.AllQuestions,
	})
	if err != nil {
		return nil, err
	}
	log.DebugContext(ctx, "machine opened", "engine", m.Binaries.EngineHash, "network", cfg.Network)
	return &m, nil
}

// killsAtOnce bounds how many sandboxes EndAll ends at the same time.
const killsAtOnce = 4

// EndAll ends every instance of the engine. One that cannot be ended does not
// keep the others alive.
func EndAll(ctx context.Context, e Engine) error {
	all, err := e.List(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(all))
	var kills errgroup.Group
	kills.SetLimit(killsAtOnce)
	for i, id := range all {
		kills.Go(func() error {
			errs[i] = e.Kill(ctx, id)
			return nil
		})
	}
	_ = kills.Wait() // errs has them
	return errors.Join(errs...)
}

// Remove ends all instances and removes everything of them from the host:
// containers, network, mounts, run directory. It does what it can after a
// failure too, but no address is freed that an instance may still have.
func (m *Machine) Remove(ctx context.Context, cfg Config) error {
	if err := EndAll(ctx, m.Engine); err != nil {
		return errors.Join(err, m.Net.Close())
	}
	if err := m.Net.Teardown(ctx); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "the sandboxes' network was not removed as a whole")
	}
	err := errors.Join(
		m.Engine.Teardown(),
		m.Volumes.Teardown(),
		m.Snapshots.Sweep(), // no instance reads files of removed ones any more
		node.UnshareMount(cfg.Reserved()),
		emptyDir(cfg.Instances()),
	)
	m.Snapshots.Settle()
	// Directories go only when they are empty; the run directory may be a mount
	// of the operator's.
	for _, path := range []string{cfg.Operator(), filepath.Join(cfg.Run, "arriving", "socket"), filepath.Join(cfg.Run, "arriving"), filepath.Join(cfg.Run, "engine"), filepath.Join(cfg.Run, "runsc"), cfg.Run} {
		os.Remove(path)
	}
	if err != nil {
		return cay.Wrap(cay.Internal, err, "something of the sandboxes is left below %s or %s", cfg.Run, cfg.Data)
	}
	return nil
}

// makeDirs makes the data and the run directory.
func makeDirs(cfg Config) error {
	if err := loopfs.Down(cfg.Data); err != nil {
		return err
	}
	for _, dir := range []string{cfg.Data, cfg.Run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return cay.Wrap(cay.Unavailable, err, "cannot make the directory %s", dir).
				WithHint("run as root, or set CAY_DATA_DIR and CAY_RUN_DIR")
		}
	}
	return nil
}

// emptyDir removes everything in a directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
