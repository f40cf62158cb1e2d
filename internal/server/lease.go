package server

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

// renewLease is how often a server says that it has the records.
const renewLease = 5 * time.Second

// takeLease has no other machine's server write the records of this one's
// sandboxes.
func (s *Server) takeLease(ctx context.Context) (err error) {
	if s.lease, err = operator.TakeLease(ctx, s.cfg, s.records); err != nil {
		return err
	}
	s.later(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		return s.lease.Leave(ctx)
	})
	return nil
}

// keepLease renews the lease until ctx ends, and has the server end when another one has
// the records.
func (s *Server) keepLease(ctx context.Context) {
	if s.member() {
		s.cluster.members.Run(ctx)
		return
	}
	if !s.lease.Ends() {
		return
	}
	for range ticks.Every(ctx, renewLease) {
		err := s.lease.Renew(ctx)
		switch {
		case errors.Is(err, store.ErrTakenOver):
			s.lose(cay.Wrap(cay.Conflict, err, "this server has lost its records to another one").
				WithHint("one server at a time has a database; stop the other one before this is started again"))
			return
		case err != nil && ctx.Err() == nil:
			s.log.WarnContext(ctx, "cannot renew the lease of the records", "err", err)
		}
	}
}

// followed has the server of a member end: another one has what it had, or may.
func (s *Server) followed(err error) {
	s.lose(cay.Wrap(cay.Conflict, err, "this node was declared gone, or removed, or another server has it").
		WithHint("start it again: it begins with what the records say is its"))
}
