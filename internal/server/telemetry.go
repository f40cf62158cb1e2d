package server

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/telemetry"
	"github.com/cay-run/cay/internal/trail"
)

// openTelemetry makes what counts and traces.
func (s *Server) openTelemetry(ctx context.Context) (err error) {
	if s.telemetry, err = telemetry.New(ctx, os.Getenv, s.log); err != nil {
		return err
	}
	s.later(func() error {
		if err := s.telemetry.Close(); err != nil {
			s.log.Warn("the last traces are lost", "err", err)
		}
		return nil
	})
	return nil
}

// watched is the context of all requests of a listener.
func (s *Server) watched(net.Listener) context.Context {
	return trail.Watch(context.Background(), s.telemetry)
}

// openMetrics has the metrics page ask the parts, which are all there.
func (s *Server) openMetrics(context.Context) error {
	from := telemetry.Sources{
		Sandboxes: s.control.Counts,
		Instances: func() int { return len(s.node.Instances()) },
		Pool:      s.node.Pool,
		Turns:     s.node.Waiting,
		Builds:    s.queuedBuilds,
		Waiting:   s.records.Waiting,
		Egress:    s.egress.Decided,
		Events:    s.records.EventCount,
		Budgets:   s.control.Ratios,
		Disk:      operator.Reserve(s.cfg).Level,
		Room:      s.node.Room,
		Loading:   s.node.Loading,
	}
	if s.packages != nil {
		from.Packages = s.packages.Stats
	}
	if s.replica != nil {
		from.Copies = s.desk.Uncopied
		from.Cache = s.seenCache
	}
	if s.member() {
		from.Cluster = s.seenCluster
	}
	s.telemetry.Ask(from)
	return nil
}

// seenCache is what is here of what the bucket has.
func (s *Server) seenCache() telemetry.Cache {
	return telemetry.Cache{Stats: s.cache.Load().Stats(), Misses: s.replica.Fetched()}
}

// seenCluster is what this node knows of the cluster.
func (s *Server) seenCluster() telemetry.Cluster {
	seen, did := s.cluster.members.State(), s.cluster.front.Counts()
	return telemetry.Cluster{
		Nodes: seen.Nodes, Draining: seen.Draining, Leads: seen.Leads, Lease: seen.Lease, Clock: s.cluster.members.Clock(),
		Certificate: time.Until(s.lease.Member.Expires), Authority: time.Until(s.lease.Member.AuthorityExpires), FreeShare: seen.FreeShare,
		Answered: map[string]int64{"here": did.Here, "node": did.Node, "several": did.Several, "none": did.None}, Moved: did.Moved, Refused: did.Refused,
	}
}

// queuedBuilds counts the builds that wait and run, of all teams.
func (s *Server) queuedBuilds(ctx context.Context) (waiting, running int, err error) {
	all, err := s.records.QueuedBuilds(ctx)
	for _, one := range all {
		if one.Owner == "" {
			waiting++
		} else {
			running++
		}
	}
	return waiting, running, err
}
