package host

import (
	"archive/tar"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
	"github.com/cay-run/cay/internal/machine/volume/loop"
)

// OpenFront opens a machine that runs no sandboxes: it has no engine and no network for
// them, and leaves the host as it is.
func OpenFront(ctx context.Context, cfg Config, log *slog.Logger) (*Machine, error) {
	snapshots, err := snapshot.Open(cfg.Data)
	if err != nil {
		return nil, err
	}
	volumes, err := loop.Open(ctx, cfg.Volumes(), cfg.Disk, log)
	if err != nil {
		return nil, err
	}
	return &Machine{Engine: noEngine{}, Snapshots: snapshots, Volumes: volumes, Net: noNet{}}, nil
}

var errFront = cay.Errorf(cay.Unsupported, "this server is a front alone: it runs no sandboxes").WithHint("CAY_ROLES says so")

// noEngine has no instances. A start is refused.
type noEngine struct{}

func (noEngine) Fingerprint() engine.Fingerprint                   { return engine.Fingerprint{Name: "none"} }
func (noEngine) Capabilities() engine.Capabilities                 { return engine.Capabilities{} }
func (noEngine) CanRestore(cay.Snapshot) error                     { return errFront }
func (noEngine) CanBoot(cay.Snapshot) error                        { return errFront }
func (noEngine) Boot(context.Context, engine.BootSpec) error       { return errFront }
func (noEngine) Restore(context.Context, engine.RestoreSpec) error { return errFront }
func (noEngine) Checkpoint(context.Context, cay.InstanceID, string, engine.After) (cay.Snapshot, error) {
	return cay.Snapshot{}, errFront
}
func (noEngine) SnapshotFiles(context.Context, cay.InstanceID, string) (cay.Snapshot, error) {
	return cay.Snapshot{}, errFront
}
func (noEngine) Hold(context.Context, cay.InstanceID) error     { return errFront }
func (noEngine) Release(context.Context, cay.InstanceID) error  { return errFront }
func (noEngine) Freeze(context.Context, cay.InstanceID) error   { return errFront }
func (noEngine) Thaw(context.Context, cay.InstanceID) error     { return errFront }
func (noEngine) Kill(context.Context, cay.InstanceID) error     { return nil }
func (noEngine) Watch(cay.InstanceID) (<-chan cay.Death, error) { return nil, errFront }
func (noEngine) List(context.Context) ([]cay.InstanceID, error) { return nil, nil }
func (noEngine) Adopt(context.Context, cay.InstanceID) error    { return errFront }
func (noEngine) Usage(context.Context, cay.InstanceID) (cay.Usage, error) {
	return cay.Usage{}, errFront
}
func (noEngine) SaveSize(context.Context, cay.InstanceID, bool) (int64, error)     { return 0, errFront }
func (noEngine) LoadAll(context.Context, cay.InstanceID) error                     { return errFront }
func (noEngine) RecordWorkingSet(context.Context, cay.InstanceID, io.Writer) error { return errFront }
func (noEngine) Changes(context.Context, cay.InstanceID) (io.ReadCloser, error)    { return nil, errFront }
func (noEngine) ReadFiles(string, func(*tar.Header, io.Reader) error) error        { return errFront }
func (noEngine) Teardown() error                                                   { return nil }

// noNet has no slots, and nothing is diverted to it.
type noNet struct{}

func (noNet) Acquire(context.Context) (vnet.Slot, error)                { return vnet.Slot{}, errFront }
func (noNet) Release(context.Context, vnet.Slot) error                  { return nil }
func (noNet) Adopt(context.Context, int) (vnet.Slot, error)             { return vnet.Slot{}, errFront }
func (noNet) Apply(context.Context, vnet.Slot, cay.NetworkPolicy) error { return errFront }
func (noNet) Fence(context.Context, vnet.Slot) error                    { return errFront }
func (noNet) KeepLease(context.Context, time.Duration) error            { return nil }
func (noNet) Reclaim(context.Context) error                             { return nil }
func (noNet) Sent(vnet.Slot) int64                                      { return 0 }
func (noNet) Dial(context.Context, string, string) (net.Conn, error)    { return nil, errFront }
func (noNet) Closed(netip.Addr) bool                                    { return true }
func (noNet) Resolvers() []netip.AddrPort                               { return nil }
func (noNet) Diverted() vnet.Diverted                                   { return vnet.Diverted{} }
func (noNet) Close() error                                              { return nil }
func (noNet) Teardown(context.Context) error                            { return nil }

var (
	_ Engine   = noEngine{}
	_ Net      = noNet{}
	_ node.Net = noNet{}
)
