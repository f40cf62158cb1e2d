package server

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/replica"
	"github.com/cay-run/cay/internal/operator"
)

// copyAwaited is how long a start waits for a snapshot that another node has just made.
// One that waits in vain is offered to other nodes, of which one may have it.
const copyAwaited = 15 * time.Second

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
		return operator.Reserve(s.cfg).Room("a snapshot of the bucket", bytes)
	})
	if s.member() {
		s.replica.Await(copyAwaited)
	}
	s.later(s.replica.Close)
	return nil
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

// copies is where snapshots are copied to; nil without a bucket.
func (s *Server) copies() operator.Replica {
	if s.replica == nil {
		return nil
	}
	return s.replica
}
