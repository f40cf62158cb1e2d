package server

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
)

// A server whose records are in PostgreSQL has them for nodeLease by the database's
// clock, and says so again each renewNode: a failover of the database takes less.
const (
	nodeLease = time.Minute
	renewNode = 5 * time.Second
)

// takeNode has no other machine's server write the records of this one's
// sandboxes. A file in the data directory is reached by one machine, whose lock is
// enough.
func (s *Server) takeNode(ctx context.Context) error {
	if s.cfg.DatabaseURL == "" {
		return nil
	}
	machine, err := seal.Token(filepath.Join(s.cfg.Data, "machine.id"))
	if err != nil {
		return err
	}
	if s.epoch, err = s.records.TakeNode(ctx, nodeID, machine, nodeLease); err != nil {
		return err
	}
	s.later(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		return s.records.LeaveNode(ctx, nodeID, s.epoch)
	})
	return nil
}

// keepNode renews the lease until ctx ends, and tells lost when another server has
// the records.
func (s *Server) keepNode(ctx context.Context, lost chan<- error) {
	if s.cfg.DatabaseURL == "" {
		return
	}
	tick := time.NewTicker(renewNode)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.records.RenewNode(ctx, nodeID, s.epoch, nodeLease)
		switch {
		case cay.KindOf(err) == cay.Conflict:
			select {
			case lost <- cay.Wrap(cay.Conflict, err, "this server has lost its records to another one").
				WithHint("one server at a time has a database; stop the other one before this is started again"):
			default:
			}
			return
		case err != nil && ctx.Err() == nil:
			s.log.WarnContext(ctx, "cannot renew the lease of the records", "err", err)
		}
	}
}
