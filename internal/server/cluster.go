package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/control/triggers"
	"github.com/cay-run/cay/internal/control/volumes"
	"github.com/cay-run/cay/internal/edge/front"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/ticks"
)

// cluster is what a member has beside what a machine alone has.
type cluster struct {
	members  *nodes.Members
	front    *front.Front
	listener net.Listener
	// inside serves requests that members bring: without the check of TLS, which
	// the front made.
	inside http.Handler

	publishing sync.Mutex

	mu    sync.Mutex
	own   map[string]cay.SnapshotID // the snapshots of templates that Cay brings, by their names
	names map[cay.TemplateID][]string
}

// elsewhere reports whether another node that takes sandboxes has a processor with such
// features; nil on a machine alone.
func (s *Server) elsewhere() func(ctx context.Context, features []string) bool {
	if !s.member() {
		return nil
	}
	return func(ctx context.Context, features []string) bool { return s.cluster.members.Elsewhere(ctx, features) }
}

// bring has another node hand a sandbox over to this one; nil on a machine alone.
func (s *Server) bring() func(ctx context.Context, id cay.SandboxID) error {
	if !s.member() {
		return nil
	}
	return func(ctx context.Context, id cay.SandboxID) error { return s.cluster.front.Bring(ctx, id) }
}

// member reports whether this machine is one of a cluster.
func (s *Server) member() bool { return s.lease.Member != nil }

// openCluster takes this node's place in its cluster, if it is one of it.
func (s *Server) openCluster(ctx context.Context) (err error) {
	if !s.member() {
		return nil
	}
	if s.cfg.ClusterAddress == "" {
		return cay.Errorf(cay.Invalid, "this machine is node %s of a cluster, and CAY_CLUSTER_ADDRESS is not set", s.lease.Node).
			WithHint("it is where the other members reach this machine, such as 10.0.0.1:7071")
	}
	if s.replica == nil && s.cfg.RunsSandboxes() {
		return cay.Errorf(cay.Invalid, "a node of a cluster needs CAY_BUCKET, through which nodes share snapshots")
	}
	if err := s.identity.Keep(); err != nil {
		return err
	}
	c := s.cluster
	if c.listener, err = listen(ctx, s.cfg.ClusterAddress); err != nil {
		return err
	}
	s.later(func() error {
		if err := c.listener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	host, _, _ := net.SplitHostPort(s.cfg.ClusterAddress)
	_, port, _ := net.SplitHostPort(c.listener.Addr().String())
	c.members = nodes.New(nodes.Config{
		Store: s.records, Ledger: s.control.Ledger(), Times: s.machine.Leases,
		Self: cay.Node{ID: s.lease.Node, Epoch: s.lease.Epoch, Address: net.JoinHostPort(host, port), Version: cay.Version},
		Use:  s.use, Front: !s.cfg.RunsSandboxes(), Alone: !s.cfg.Fronts(),
		Drained: s.drained,
		Renewed: s.renewed,
		EndLost: s.endLost,
		Lead:    s.lead,
		Busy:    s.control.Queue.Busy,
		Silent:  s.silent, Lost: s.followed,
		Token: func() (text, digest, bundle string, err error) { return operator.Bundle(s.cfg.Data) },
		Log:   s.log,
	})
	var copies http.Handler
	if s.replica != nil {
		copies = s.replica
	}
	c.front = front.New(front.Config{
		Copies:  copies,
		Members: c.members, Own: s.lease.Member, Homes: s.records,
		Alone: !s.cfg.Fronts(),
		Has:   s.control.Has, Adopt: s.control.Adopt, Take: s.control.Take, Give: s.control.Give, Names: s.console.Names(s.proxy.Names, s.proxy.AgentOf), Console: s.console, Log: s.log,
		Asked: s.control.Triggers.Serve, Dial: s.proxy.Dial,
		Shell: func(c net.Conn, team cay.TeamID, by []cay.Origins) { s.ssh.ServeRelayed(c, team, by) },
	})
	s.later(c.front.Close)
	return c.members.Open(ctx)
}

// nodes are the ways of the runs of triggers to other nodes; nil for a machine alone.
func (s *Server) nodes() triggers.Nodes {
	if !s.member() {
		return nil
	}
	return s.cluster
}

// Ask and Dial are the front's, which is made after what they serve.
func (c *cluster) Ask(ctx context.Context, id cay.SandboxID, template string, call []byte) ([]byte, error) {
	return c.front.Ask(ctx, id, template, call)
}

func (c *cluster) Dial(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error) {
	return c.front.Dial(ctx, id, port)
}

// between is a handler that brings requests to their nodes, where there are others.
func (s *Server) between(next http.Handler) http.Handler {
	if !s.member() {
		return next
	}
	return s.cluster.front.Wrap(next)
}

// drained has this node follow its record.
func (s *Server) drained(how cay.Drain) {
	s.control.Drained(how)
	s.node.Drain(how == cay.DrainNone)
}

// renewed lets act for longer what acts with the lease of this node alone.
func (s *Server) renewed(ctx context.Context, lasts time.Duration) {
	if err := s.node.KeepLease(ctx, lasts); err != nil {
		s.log.ErrorContext(ctx, "sandboxes that go on elsewhere when this node is lost are cut off", "err", err)
	}
}

// silent cuts what is open, and stops what another node may have soon.
func (s *Server) silent() {
	s.proxy.Break()
	if err := s.node.StandStill(context.Background()); err != nil {
		s.log.Error("sandboxes that go on elsewhere do not stand still: they send nothing", "err", err)
	}
}

// endLost records what a node took along that is gone, and has other nodes go on with what
// is to.
func (s *Server) endLost(ctx context.Context, node cay.NodeID) error {
	moving, err := s.control.EndLost(ctx, node)
	errs := []error{err}
	for _, box := range moving {
		errs = append(errs, s.cluster.front.Rescue(ctx, box))
	}
	return errors.Join(errs...)
}

// use is what this node tells of itself.
func (s *Server) use() (out cay.NodeUse, ready bool) {
	out = s.control.Use()
	out.CPUs, out.Warm, out.Front = runtime.NumCPU(), s.warm(), !s.cfg.RunsSandboxes()
	if s.cfg.RunsSandboxes() {
		out.CPUFeatures = s.host.Engine.Fingerprint().CPUFeatures
	}
	if room, err := s.node.Room(); err == nil {
		out.MemoryMB, out.MemoryFreeMB = int(room.Memory>>20), int(room.MemoryFree>>20)
	}
	select {
	case <-s.ready:
		return out, len(s.backlog.Names()) == 0
	default:
		return out, false
	}
}

// warm counts the instances without an owner by the id and the names of their
// template, which a create may name it by.
func (s *Server) warm() map[string]int {
	out := map[string]int{}
	for id, n := range s.node.Pool().Ready {
		if n == 0 {
			continue
		}
		out[string(id)] = n
		for _, name := range s.namesOf(id) {
			out[name] = n
		}
	}
	return out
}

// namesOf are the names of a template that every team finds by them.
func (s *Server) namesOf(id cay.TemplateID) []string {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if names, ok := c.names[id]; ok {
		return names
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	t, err := s.records.Template(ctx, s.team.ID, id)
	if err != nil && cay.KindOf(err) != cay.NotFound {
		return nil
	}
	var names []string
	if err == nil && t.Public {
		for _, name := range t.Names {
			names = append(names, strings.ToLower(name))
		}
	}
	if c.names == nil {
		c.names = map[cay.TemplateID][]string{}
	}
	c.names[id] = names
	return names
}

// keepOwn notes this machine's snapshot of a template that Cay brings.
func (s *Server) keepOwn(built builtin.Result) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own = map[string]cay.SnapshotID{}
	}
	c.own[built.Name] = built.Snapshot.ID
}

// localSnapshot is the snapshot to start a template from on this machine: of one that
// Cay brings its own, else the recorded one. The recorded one may be of another engine than
// this machine has, while the nodes of a cluster are upgraded one after the other.
func (s *Server) localSnapshot(t cay.Template) cay.SnapshotID {
	if t.Team != s.team.ID || t.RecipeDigest == "" {
		return t.Snapshot
	}
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range t.Names {
		if own, ok := c.own[name]; ok {
			return own
		}
	}
	return t.Snapshot
}

// leads reports whether this server does what one does for all: alone it does.
func (s *Server) leads() bool {
	return !s.member() || s.cluster.members != nil && s.cluster.members.Leads()
}

// lead does what one node does for all, until ctx ends.
func (s *Server) lead(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.control.RunForAll(ctx) })
	wg.Go(func() { s.logins.Run(ctx) })
	for ctx.Err() == nil {
		err := s.publishBuilt(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			s.log.WarnContext(ctx, "the templates that Cay brings cannot be offered now; it is tried again", "err", err)
		}
		ticks.Wait(ctx, renewLease)
	}
}

// followOthers has this node know what others changed: limits of teams, teams that
// were removed, and credentials that open nothing any more.
func (s *Server) followOthers(ctx context.Context) {
	for range ticks.Every(ctx, renewLease) {
		if err := s.control.Ledger().RereadLimits(ctx); err != nil && ctx.Err() == nil {
			s.log.DebugContext(ctx, "cannot read the limits of teams again", "err", err)
		}
		if err := s.control.EndOfRemoved(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sandboxes of a removed team could not be ended yet", "err", err)
		}
		s.auth.Review(ctx)
	}
}

// clusterServer serves the other members.
func (s *Server) clusterServer() *http.Server {
	face := s.cluster.front.Server(s.cluster.inside)
	face.BaseContext = s.watched
	return face
}

// runControl runs the use cases: of a member those of its own sandboxes, and for all
// while it leads.
func (s *Server) runControl(ctx context.Context) {
	if !s.member() {
		s.running.Go(func() { _ = s.control.Run(ctx) })
		s.running.Go(func() { s.control.MoveAlways(ctx, nil, nil) })
		s.running.Go(func() { s.logins.Run(ctx) })
		return
	}
	s.running.Go(func() { _ = s.control.RunOwn(ctx) })
	s.running.Go(func() { s.followOthers(ctx) })
	s.running.Go(func() { s.control.MoveAlways(ctx, s.cluster.front.Hand, s.cluster.front.Whole) })
	s.running.Go(func() { s.control.Approvals.Follow(ctx) })
}

// servePeers serves the other members until stop, which lets their requests finish
// for a while.
func (s *Server) servePeers(failed chan<- error) (stop func()) {
	if !s.member() {
		return func() {}
	}
	face := s.clusterServer()
	go func() {
		if err := face.ServeTLS(front.Listen(s.cluster.listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		if face.Shutdown(ctx) != nil {
			face.Close()
		}
	})
}

// volumes is where volumes are; nil in a cluster, whose nodes would each have others.
func (s *Server) volumes() volumes.Storage {
	if s.member() {
		return nil
	}
	return s.host.Volumes
}

func (s *Server) localOf() func(cay.Template) cay.SnapshotID {
	if !s.member() {
		return nil
	}
	return s.localSnapshot
}

// membersFace is what the API tells of the cluster; nil for a machine alone.
func (s *Server) membersFace() rest.Members {
	if !s.member() {
		return nil
	}
	return s.cluster.members
}
