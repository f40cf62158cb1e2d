package server

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/replica"
	"github.com/cay-run/cay/internal/operator"
)

// copyAwaited is how long a start waits for a snapshot that neither the bucket has nor the node
// that made it gives, as while its server starts anew. One that waits in vain is offered to other
// nodes.
const copyAwaited = 5 * time.Second

// openReplica opens the bucket that snapshots are copied to, if there is one. It is
// asked nothing yet: a start waits for no bucket that is away.
func (s *Server) openReplica(context.Context) error {
	at := s.cfg.Bucket.Bucket
	if at == "" {
		return nil
	}
	bucket, err := blob.Open(at, os.Getenv)
	if err != nil {
		return err
	}
	secret, err := seal.Secret(filepath.Join(s.cfg.Data, seal.File))
	if err != nil {
		return err
	}
	machine, err := seal.Token(filepath.Join(s.cfg.Data, operator.MachineName))
	if err != nil {
		return err
	}
	if s.member() { // all nodes write: snapshots share no names, and the one that leads removes
		machine = "cluster " + s.lease.Member.Cluster
	}
	s.replica = replica.New(bucket, s.host.Snapshots, s.host.Binaries.EngineDir, secret, machine, func(bytes int64) error {
		return s.reserve().Room("a snapshot of the bucket", bytes)
	})
	if s.member() {
		s.replica.Await(copyAwaited)
		s.replica.Ask(s.makers, s.log)
	}
	s.later(s.replica.Close)
	return nil
}

// makers finds the nodes that made a snapshot, and how to ask them for it; where the records do not
// tell, as those of before a cluster, all that run sandboxes. This one, which lacks it, is as one that
// is gone.
func (s *Server) makers(ctx context.Context, id cay.SnapshotID) (out []replica.Maker, err error) {
	made, err := s.records.SnapshotMakers(ctx, id)
	unknown := err == nil && len(made) == 0
	if unknown {
		made, err = s.runners(ctx)
	}
	for _, node := range made {
		m := replica.Maker{Node: node, Maybe: unknown}
		n, err := s.cluster.members.Node(ctx, node)
		switch {
		case err != nil && cay.KindOf(err) != cay.NotFound:
			return nil, err
		case err == nil && n.State != cay.NodeGone && node != s.lease.Node:
			m.Ask = s.cluster.front.AskFor(n)
		}
		out = append(out, m)
	}
	return out, err
}

// runners lists the nodes that run sandboxes.
func (s *Server) runners(ctx context.Context) (out []cay.NodeID, err error) {
	all, err := s.records.Nodes(ctx)
	for _, n := range all {
		if !n.Front && n.State != cay.NodeJoined {
			out = append(out, n.ID)
		}
	}
	return out, err
}

// openCache has what the bucket has too give way to the rest, where there is a bucket.
func (s *Server) openCache() {
	if s.replica == nil {
		return
	}
	s.cache.Store(cache.New(cache.Config{
		Dir: s.host.Snapshots, Copies: s.replica, Disk: operator.Reserve(s.cfg),
		Limit: func(disk int64) int64 {
			bytes, _ := s.cfg.CacheBytes(disk) // a configuration that is wrong is refused when it is read
			return bytes
		},
		Copied: s.desk.HasCopy, Pinned: s.control.Ledger().Holds, Idle: s.desk.Idle, Log: s.log,
	}))
}

// cached tells what the cache holds; nothing without a bucket.
func (s *Server) cached() (cache.State, error) {
	c := s.cache.Load()
	if c == nil {
		return cache.State{}, nil
	}
	out, err := c.Look()
	if why := s.desk.CopiesFail(time.Now().Add(-time.Minute)); why != nil {
		out.CopiesFail = why.Error()
	}
	return out, err
}

// reserve is the disk of the data directory. The cache gives way to work that it has no room for.
func (s *Server) reserve() disk.Reserve {
	out := operator.Reserve(s.cfg)
	out.GiveWay = func(enough func() bool) {
		if c := s.cache.Load(); c != nil {
			c.GiveWay(enough)
		}
	}
	return out
}

// nearlyFull reports whether new work will be refused soon for want of disk.
func (s *Server) nearlyFull() bool {
	level, err := operator.Reserve(s.cfg).Level()
	return err == nil && level.Near()
}

// keepCache keeps the cache within its bounds until ctx ends.
func (s *Server) keepCache(ctx context.Context) {
	if c := s.cache.Load(); c != nil {
		c.Run(ctx)
	}
}

// fetch is how the node gets what its data directory lacks; nil without a bucket.
func (s *Server) fetch() func(context.Context, cay.SnapshotID) error {
	if s.replica == nil {
		return nil
	}
	return s.replica.Fetch
}

// recordOf is how the node reads the records of what it lacks.
func (s *Server) recordOf() func(context.Context, cay.SnapshotID) (cay.Snapshot, error) {
	if s.replica == nil {
		return nil
	}
	return s.replica.Record
}

// arrive is fetch for instances that start while a snapshot arrives.
func (s *Server) arrive() func(context.Context, cay.SnapshotID) (engine.Arrival, error) {
	if s.replica == nil {
		return nil
	}
	return s.replica.Arrive
}

// ahead is how a copy begins before its snapshot is there; nil without a bucket.
func (s *Server) ahead() func(cay.SnapshotID, string) {
	if s.replica == nil {
		return nil
	}
	return s.replica.Ahead
}

// copies is where snapshots are copied to; nil without a bucket.
func (s *Server) copies() operator.Replica {
	if s.replica == nil {
		return nil
	}
	return s.replica
}
