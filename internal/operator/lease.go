package operator

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// NodeID is the name of the only machine.
const NodeID cay.NodeID = "local"

// nodeLease is how long a process has the records in PostgreSQL by the database's
// clock: a failover of the database takes less.
const nodeLease = time.Minute

// MachineName is the file of a data directory that has a name which no other has.
const MachineName = "machine.id"

// Lease is a process's right to write the records of this machine's sandboxes. In
// PostgreSQL the database refuses what the process writes once another has it. A
// file in the data directory is reached by one machine, whose lock is enough.
type Lease struct {
	records *store.DB
	epoch   int64 // 0 for a file
}

// TakeLease takes the records for the holder of the data directory's lock.
func TakeLease(ctx context.Context, cfg config.Config, records *store.DB) (Lease, error) {
	if cfg.DatabaseURL == "" {
		return Lease{records: records}, nil
	}
	machine, err := seal.Token(filepath.Join(cfg.Data, MachineName))
	if err != nil {
		return Lease{}, err
	}
	epoch, err := records.TakeNode(ctx, NodeID, machine, nodeLease)
	if err != nil {
		return Lease{}, err
	}
	records.Guard(NodeID, epoch)
	return Lease{records, epoch}, nil
}

// Ends reports whether the lease has an end, and so is renewed.
func (l Lease) Ends() bool { return l.epoch != 0 }

// Renew moves the end. store.ErrTakenOver means that another server has the records.
func (l Lease) Renew(ctx context.Context) error {
	return l.records.RenewNode(ctx, NodeID, l.epoch, nodeLease)
}

// Leave ends the lease.
func (l Lease) Leave(ctx context.Context) error {
	if !l.Ends() {
		return nil
	}
	return l.records.LeaveNode(ctx, NodeID, l.epoch)
}
