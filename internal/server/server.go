// Package server puts the parts of Cay together and runs them on one port.
//
// A server can be killed at any instruction: sandboxes are processes of their
// own, and the next server adopts them. Close and the end of Run therefore
// leave them alive; operator.Down is what ends them.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/logins"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/edge/certs"
	"github.com/cay-run/cay/internal/edge/console"
	"github.com/cay-run/cay/internal/edge/models"
	"github.com/cay-run/cay/internal/edge/proxy"
	"github.com/cay-run/cay/internal/edge/sshd"
	"github.com/cay-run/cay/internal/keys/identity"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
	"github.com/cay-run/cay/internal/machine/replica"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/operator/doctor"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/telemetry"
	"github.com/cay-run/cay/internal/template/build"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/oci"
	"github.com/cay-run/cay/internal/trail"
)

const (
	// drainTime is how long requests may go on after Run was told to end:
	// enough for a create, and not longer, because the next server cannot
	// answer before, and streams of commands may last for hours.
	drainTime = 3 * time.Second
	// requestsTime is longer than any request to the API goes on without its
	// client.
	requestsTime = 11 * time.Minute
	// idleTime is longer than any client's keep-alive, so that it is always
	// the client that lets go of an idle connection.
	idleTime = 11 * time.Minute
)

// Machine is how a server comes to the machine that it runs on.
type Machine struct {
	// Check refuses a machine that cannot run sandboxes, with a hint.
	Check func(ctx context.Context, cfg config.Config) error
	// Open opens it. The server has its data directory then.
	Open host.Opener
	// Images makes the root images of the templates that Cay brings; nil makes
	// them of Debian's packages.
	Images func(*snapshot.Dir) builtin.Images
	// Leases are the times of a cluster; zero for the usual ones.
	Leases nodes.Times
}

// ThisMachine is the machine that this process runs on.
func ThisMachine(cfg config.Config) Machine {
	if !cfg.RunsSandboxes() {
		return Machine{Check: func(context.Context, config.Config) error { return nil }, Open: host.OpenFront}
	}
	return Machine{Check: doctor.Required, Open: host.Open}
}

// Server is a whole Cay on one machine.
type Server struct {
	cfg      config.Config
	machine  Machine
	log      *slog.Logger
	team     cay.Team
	firstKey string
	tokensOf *auth.Tokens
	auth     *auth.Auth
	logins   *logins.Logins
	// adminToken opens all teams.
	adminToken string

	telemetry *telemetry.Telemetry
	host      *host.Machine
	replica   *replica.Replica            // nil without a bucket
	cache     atomic.Pointer[cache.Cache] // likewise
	diverted  sync.WaitGroup              // that serve what the packet filter diverts
	records   *store.DB
	lease     operator.Lease
	cluster   *cluster
	sealer    *seal.Key
	identity  *identity.Issuer
	authority *egress.Authority // of what guests see at egress
	templates *builtin.Builder
	backlog   *builtin.Backlog
	standIn   bool
	builds    *build.Builder
	images    *oci.Teams
	control   *control.Control
	audit     *audit.Log
	desk      *operator.Desk
	node      *node.Node
	egress    *egress.Proxy
	packages  *pkgcache.Cache // nil for none
	models    *models.Gateway
	proxy     *proxy.Proxy
	console   *console.Console
	api       http.Handler // without the ways of nodes and consoles to it
	arrivals  *arrivals    // connections of guests to sandboxes' public names
	ssh       *sshd.Server
	local     *certs.Local // nil where the server's certificates are not its own authority's
	tls       *tls.Config  // nil without certificates; http.Server changes one that it is given
	http      *http.Server
	listener  net.Listener // from Run on
	metricsAt net.Addr     // of the metrics page, from Run on; nil for none
	sshAt     net.Addr     // of the SSH server, likewise
	consoleAt net.Addr     // where the console alone listens, likewise

	ready   chan struct{}
	lost    context.Context // ends when the records are another server's; lose says why
	lose    context.CancelCauseFunc
	down    sync.Once // that the data directory's file system is
	running sync.WaitGroup
	// requests counts those to the API that are under way.
	requests requests
	closers  []func() error // in the order of opening
	once     sync.Once
	closed   error
}

// New makes a server: it checks the host, takes the data directory for itself
// and takes over the sandboxes that an earlier server left. Run must follow,
// and Close in the end. Templates that are built already are offered;
// Run builds the others.
func New(ctx context.Context, cfg config.Config, on Machine, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.Default()
	}
	log = slog.New(trail.Logs(log.Handler()))
	s := &Server{cfg: cfg, machine: on, log: log, ready: make(chan struct{}), backlog: builtin.NewBacklog(), cluster: new(cluster)}
	s.lost, s.lose = context.WithCancelCause(context.Background())
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// later has Close call f, before what was opened earlier.
func (s *Server) later(f func() error) { s.closers = append(s.closers, f) }

// Run serves until ctx ends, then lets requests finish for a while. Sandboxes
// live on. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	faces, err := listenHere(ctx, s.cfg.Listen)
	if err != nil {
		return err
	}
	for _, l := range faces {
		defer l.Close()
	}
	s.listener = faces[0]
	work, stop := context.WithCancel(trail.Watch(context.WithoutCancel(ctx), s.telemetry))
	defer stop()
	failed := make(chan error, len(faces)+3)
	if s.cfg.MetricsListen != "" {
		l, err := listen(ctx, s.cfg.MetricsListen)
		if err != nil {
			return err
		}
		s.metricsAt = l.Addr()
		m := &http.Server{Handler: s.telemetry.Handler(), ReadHeaderTimeout: time.Minute}
		defer m.Close()
		go func() { failed <- m.Serve(l) }()
	}
	if s.cfg.SSHListen != "" {
		l, err := listen(ctx, s.cfg.SSHListen)
		if err != nil {
			return err
		}
		s.sshAt = l.Addr()
		defer l.Close()
		go s.ssh.Serve(l)
	}
	if s.cfg.ConsoleListen != "" {
		l, err := listen(ctx, s.cfg.ConsoleListen)
		if err != nil {
			return err
		}
		s.consoleAt = l.Addr()
		faces = append(faces, l)
		defer l.Close()
	}
	operators, err := s.desk.Listen(ctx)
	if err != nil {
		return err
	}
	s.running.Go(func() { s.keepLease(work) })
	s.runControl(work)
	s.running.Go(func() { s.audit.Run(work) })
	s.running.Go(func() { s.desk.CollectAlways(work) })
	s.running.Go(func() { s.desk.ReplicateAlways(work) })
	s.running.Go(func() { s.desk.PrepareAlways(work) })
	s.running.Go(func() { s.keepCache(work) })
	s.running.Go(func() { s.desk.WatchDisk(work) })
	s.running.Go(func() { s.desk.Serve(work, operators) })
	for _, l := range faces {
		s.running.Go(func() { failed <- s.http.Serve(s.secure(l)) })
	}
	s.backlog.Begin(s.missingTemplates(work))
	s.running.Go(func() { s.buildTemplates(work) })
	inner := s.innerServer()
	s.running.Go(func() { _ = inner.Serve(s.arrivals) })
	peers := s.servePeers(failed)
	defer peers()
	close(s.ready)
	patience := requestsTime
	select {
	case <-ctx.Done():
	case <-s.lost.Done():
		err = context.Cause(s.lost)
		patience = drainTime // what is under way cannot be recorded any more
	case err = <-failed:
		err = cay.Wrap(cay.Internal, err, "the server cannot accept connections any more")
	}
	s.drain(peers)
	inner.Close()
	// A pause goes on though its client has gone: its outcome is recorded before
	// the records are closed.
	s.requests.wait(patience, func(n int) { s.log.InfoContext(ctx, "waiting for requests to the API to end", "requests", n) })
	stop()
	s.running.Wait()
	return err
}

// drain ends serving: no new requests, some time for those under way, also for those that
// other members brought, then a broken connection, which clients take for what it is.
func (s *Server) drain(peers func()) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	s.proxy.Drain()
	var brought sync.WaitGroup
	brought.Go(peers)
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
	brought.Wait()
	s.ssh.Close()
	s.proxy.Close()
}

// Ready is closed when the server answers.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Lost is closed when another server has the records. Run ends then, and may wait for ever
// for what saves a guest that stands still: nothing of that can be recorded, and the end of
// the process loses no more than Close does.
func (s *Server) Lost() <-chan struct{} { return s.lost.Done() }

// Addr is where the server listens. It is known once Ready is closed.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// MetricsAddr is where the metrics page is. It is known once Ready is closed,
// and nil where there is none.
func (s *Server) MetricsAddr() net.Addr { return s.metricsAt }

// SSHAddr is where the SSH server listens. It is known once Ready is closed, and
// nil where there is none.
func (s *Server) SSHAddr() net.Addr { return s.sshAt }

// ConsoleAddr is where the console alone listens. It is known once Ready is
// closed, and nil where there is no such place.
func (s *Server) ConsoleAddr() net.Addr { return s.consoleAt }

// FirstKey is the API key that the very first start of a data directory made;
// it is shown now or never. Empty on later starts.
func (s *Server) FirstKey() string { return s.firstKey }

// Close gives everything back that the server holds, and leaves sandboxes
// alive. It may be called again.
func (s *Server) Close() error {
	s.once.Do(func() {
		var errs []error
		for i := len(s.closers) - 1; i >= 0; i-- {
			errs = append(errs, s.closers[i]())
		}
		s.closed = errors.Join(errs...)
	})
	return s.closed
}

// explain puts that the data directory's file system is down in the place of
// what an operation makes of it, and tells the log once.
func (s *Server) explain(err error) error {
	down := loopfs.Down(s.cfg.Data)
	if down == nil {
		return err
	}
	s.down.Do(func() {
		var told *cay.Error
		if errors.As(down, &told) {
			s.log.Error(told.Error(), "hint", told.Hint)
		}
	})
	return down
}
