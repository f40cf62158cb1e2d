package operator

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// NodeID is the name of a machine that is alone.
const NodeID cay.NodeID = "local"

const (
	// NodeLease is how long a process has its node's records in PostgreSQL by the
	// database's clock: a failover of the database takes less.
	NodeLease = time.Minute
	// NodeSilent is how long a member is silent before another one declares it gone:
	// its server has stopped by then.
	NodeSilent = NodeLease + 15*time.Second
)

// MachineName is the file of a data directory that has a name which no other has.
const MachineName = "machine.id"

// Lease is a process's right to write the records of this machine's sandboxes. In
// PostgreSQL the database refuses what the process writes once another has it. A
// file in the data directory is reached by one machine, whose lock is enough.
type Lease struct {
	Node    cay.NodeID
	Epoch   int64          // 0 for a file
	Member  *member.Member // nil for a machine alone
	records *store.DB
}

// TakeLease takes the records for the holder of the data directory's lock: all of
// them, or those of a node of a cluster.
func TakeLease(ctx context.Context, cfg config.Config, records *store.DB) (Lease, error) {
	own, err := member.Open(cfg.Data)
	if err != nil {
		return Lease{}, err
	}
	l := Lease{Node: NodeID, Member: own, records: records}
	if cfg.DatabaseURL == "" {
		if own != nil {
			return Lease{}, cay.Errorf(cay.Conflict, "this machine is node %s of a cluster, and CAY_DATABASE_URL is not set", own.Node).
				WithHint("set it as it was for cay cluster join")
		}
		return l, nil
	}
	machine, err := seal.Token(filepath.Join(cfg.Data, MachineName))
	if err != nil {
		return Lease{}, err
	}
	if err := l.checkMember(ctx, cfg.Data, machine); err != nil {
		return Lease{}, err
	}
	if l.Epoch, err = records.TakeNode(ctx, l.Node, machine, NodeLease); err != nil {
		return Lease{}, err
	}
	records.Guard(l.Node, l.Epoch)
	return l, l.renewMember(ctx, cfg.Data, time.Now())
}

// renewMember gives this node a new certificate where its own is old. The records are changed between two
// writes of files: whenever it breaks off, the next start finds the certificate that the records have.
func (l *Lease) renewMember(ctx context.Context, data string, now time.Time) error {
	if l.Member == nil || !l.Member.IsOld(now) {
		return nil
	}
	c, err := l.records.Cluster(ctx)
	if err != nil {
		return err
	}
	secret, err := seal.Secret(filepath.Join(data, seal.File))
	if err != nil {
		return err
	}
	files, err := issue(c, secret, l.Node)
	if err != nil {
		return err
	}
	made, err := member.Parse(files)
	if err != nil {
		return err
	}
	if err := files.WriteNext(data); err != nil {
		return err
	}
	if err := l.records.SetFingerprint(ctx, l.Node, l.Epoch, made.Fingerprint); err != nil {
		return err
	}
	l.Member = made
	return member.TakeNext(data, made.Fingerprint)
}

// checkMember has the records and the machine agree on whether it is one of a
// cluster.
func (l *Lease) checkMember(ctx context.Context, data, machine string) error {
	c, err := l.records.Cluster(ctx)
	switch {
	case cay.KindOf(err) == cay.NotFound && l.Member == nil:
		return nil
	case cay.KindOf(err) == cay.NotFound:
		return cay.Errorf(cay.Conflict, "this machine is node %s of a cluster, and the database has none", l.Member.Node).
			WithHint("check CAY_DATABASE_URL")
	case err != nil:
		return err
	case l.Member == nil:
		return cay.Errorf(cay.Conflict, "the records are a cluster's, and this machine is no member of it").
			WithHint("cay cluster token on a member, then cay cluster join here, with an empty data directory")
	case l.Member.Cluster != c.ID:
		return cay.Errorf(cay.Conflict, "this machine is node %s of another cluster than the database has", l.Member.Node).
			WithHint("check CAY_DATABASE_URL")
	}
	n, err := l.records.Node(ctx, l.Member.Node)
	if err == nil && n.Fingerprint != l.Member.Fingerprint { // a renewal may have broken off
		if err = member.TakeNext(data, n.Fingerprint); err == nil {
			l.Member, err = member.Open(data)
		}
	}
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return cay.Errorf(cay.Denied, "this machine was node %s, which was removed from the cluster", l.Member.Node).
			WithHint("join again with an empty data directory and a new token")
	case err != nil:
		return err
	case n.Machine != machine || n.Fingerprint != l.Member.Fingerprint:
		return cay.Errorf(cay.Denied, "node %s is another machine: this data directory is a copy of its", n.ID).
			WithHint("each machine joins by itself, with an empty data directory")
	}
	l.Node = n.ID
	return nil
}

// Ends reports whether the lease has an end, and so is renewed.
func (l Lease) Ends() bool { return l.Epoch != 0 }

// Renew moves the end. store.ErrTakenOver means that another server has the records.
func (l Lease) Renew(ctx context.Context) error {
	return l.records.RenewNode(ctx, l.Node, l.Epoch, NodeLease)
}

// Leave ends the lease.
func (l Lease) Leave(ctx context.Context) error {
	switch {
	case !l.Ends():
		return nil
	case l.Member != nil:
		return l.records.StopNode(ctx, l.Node, l.Epoch)
	}
	return l.records.LeaveNode(ctx, l.Node, l.Epoch)
}

// clustered is the node of a member; empty for a machine alone, which has all
// sandboxes of the records.
func (l Lease) clustered() cay.NodeID {
	if l.Member == nil {
		return ""
	}
	return l.Node
}
