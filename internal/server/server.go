// Package server puts the parts of Cay together and runs them on one port.
//
// A server can be killed at any instruction: sandboxes are processes of their
// own, and the next server adopts them. Close and the end of Run therefore
// leave them alive; Down is what ends them.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/build"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/doctor"
	"github.com/cay-run/cay/internal/egress"
	"github.com/cay-run/cay/internal/embedded"
	"github.com/cay-run/cay/internal/engine/runsc"
	"github.com/cay-run/cay/internal/logbook"
	"github.com/cay-run/cay/internal/node"
	"github.com/cay-run/cay/internal/oci"
	"github.com/cay-run/cay/internal/packages"
	"github.com/cay-run/cay/internal/proxy"
	"github.com/cay-run/cay/internal/rest"
	"github.com/cay-run/cay/internal/seal"
	"github.com/cay-run/cay/internal/snapshot"
	"github.com/cay-run/cay/internal/sshd"
	"github.com/cay-run/cay/internal/storage"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/template"
	"github.com/cay-run/cay/internal/vnet"
)

const (
	// nodeID is the name of the only machine.
	nodeID cay.NodeID = "local"
	// drainTime is how long requests may go on after Run was told to end:
	// enough for a create, and not longer, because the next server cannot
	// answer before, and streams of commands may last for hours.
	drainTime = 3 * time.Second
	// idleTime is longer than any client's keep-alive, so that it is always
	// the client who lets go of an idle connection.
	idleTime = 11 * time.Minute
)

// Server is a whole Cay on one machine.
type Server struct {
	cfg      config.Config
	log      *slog.Logger
	team     cay.Team
	firstKey string
	tokensOf *auth.Tokens

	snapshots *snapshot.Dir
	templates *template.Builder
	builds    *build.Builder
	images    *oci.Teams
	control   *control.Control
	node      *node.Node
	egress    *egress.Proxy
	packages  *packages.Cache // nil for none
	proxy     *proxy.Proxy
	ssh       *sshd.Server
	http      *http.Server
	listener  net.Listener // from Run on

	ready   chan struct{}
	down    sync.Once // that the data directory's file system is
	running sync.WaitGroup
	closers []func() error // in the order of opening
	once    sync.Once
	closed  error
}

// New makes a server: it checks the host, takes the data directory for itself
// and takes over the sandboxes that an earlier server left. Run must follow,
// and Close in the end. Templates that are built already are offered;
// EnsureTemplates builds the others.
func New(ctx context.Context, cfg config.Config, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.Default()
	}
	s := &Server{cfg: cfg, log: log, ready: make(chan struct{})}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	m, err := openMachine(ctx, s.cfg, s.log)
	if err != nil {
		return err
	}
	s.snapshots = m.snapshots
	s.later(func() error { s.snapshots.Settle(); return nil })
	s.later(m.net.Close)
	if err := s.openNode(ctx, m); err != nil {
		return err
	}
	if err := s.openControl(ctx, m); err != nil {
		return err
	}
	for _, name := range s.templates.Wanted() {
		if built, err := s.templates.Current(name); err == nil {
			if err := s.publish(ctx, built); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin takes the directories, which only one server can have, and looks the
// host over.
func (s *Server) begin(ctx context.Context) error {
	lock, err := takeData(ctx, s.cfg)
	if err != nil {
		return err
	}
	s.later(lock.Close)
	return doctor.Required(ctx, s.cfg)
}

func (s *Server) openNode(ctx context.Context, m *machine) error {
	if err := node.ShareMount(reservedDir(s.cfg)); err != nil {
		return cay.Wrap(cay.Unsupported, err, "the run directory cannot be a shared mount").
			WithHint("run as root, and not in a container without CAP_SYS_ADMIN")
	}
	s.proxy = proxy.New(proxy.Config{
		Lookup: s.lookup,
		Asleep: s.asleep,
		Wake:   s.wake,
		Used:   s.used,
		Tokens: s.tokens,
		Domain: s.cfg.Domain,
		Paths:  s.cfg.PathForm(),
		Log:    s.log,
	})
	s.later(func() error { s.proxy.Close(); return nil })
	tokens, err := auth.OpenTokens(s.cfg.Data)
	if err != nil {
		return err
	}
	s.tokensOf = tokens
	authority, err := s.openEgress(m)
	if err != nil {
		return err
	}
	pool, err := poolMemory(s.cfg)
	if err != nil {
		return err
	}
	s.node, err = node.Open(ctx, node.Config{
		Dir:       instancesDir(s.cfg),
		Reserved:  reservedDir(s.cfg),
		Engine:    m.engine,
		Net:       m.net,
		Egress:    s.egress,
		Authority: string(authority.PEM()),
		Snapshots: m.snapshots,
		OnGone:    s.proxy.Cut,
		Token:     tokens.Access,
		Log:       s.log,

		PoolMemory:  pool,
		TrustAlways: s.packages != nil,
	})
	if err != nil {
		return err
	}
	s.later(s.node.Close)
	s.templates = template.New(template.Config{
		Data:        s.cfg.Data,
		Engine:      m.engine,
		Net:         m.net,
		Snapshots:   m.snapshots,
		AgentPath:   m.binaries.AgentPath,
		AgentDigest: m.binaries.AgentDigest,
		Authority:   authority.PEM(),
		Log:         s.log,
	})
	s.images = oci.NewTeams(filepath.Join(s.cfg.Data, "oci"), oci.Options{Allowed: s.cfg.Registries, PlainHTTP: s.cfg.PlainRegistries})
	cfg := build.Config{
		Data: s.cfg.Data, Engine: m.engine, Net: m.net, Snapshots: m.snapshots, Log: s.log,
		Times: build.Times{Step: s.cfg.BuildStepTimeout, Ready: s.cfg.BuildReadyTimeout}, Images: s.images, AgentPath: m.binaries.AgentPath, Sandboxes: s.node,
	}
	if s.packages != nil {
		cfg.Names, cfg.Authority = s.egress, string(authority.PEM())
	}
	s.builds, err = build.New(ctx, cfg)
	return err
}

func (s *Server) openControl(ctx context.Context, m *machine) error {
	key, err := seal.Open(s.cfg.Data)
	if err != nil {
		return err
	}
	db, err := store.OpenSealed(ctx, databasePath(s.cfg), key)
	if err != nil {
		return err
	}
	s.later(db.Close)
	if s.team, s.firstKey, err = auth.FirstStart(ctx, db); err != nil {
		return err
	}
	logs, err := logbook.Open(filepath.Join(s.cfg.Data, "logs"))
	if err != nil {
		return err
	}
	s.control, err = control.Open(ctx, control.Config{
		Store: db, Node: s.node, NodeID: nodeID, Tokens: s.tokensOf, Sealer: key, Logs: logs, Log: s.log,
		TeamSandboxes: s.cfg.TeamSandboxes, TeamMemoryMB: s.cfg.TeamMemoryMB,
		Builder: s.builds, Reserved: template.Names(), Extras: template.Extras(),
	})
	if err != nil {
		return err
	}
	if err := s.openSSH(auth.New(db)); err != nil {
		return err
	}
	face := rest.New(rest.Config{
		Control: s.control, Auth: auth.New(db), Domain: s.cfg.Domain, Links: s.tokensOf, Log: s.log,
		Images: s.images, Dial: s.proxy.Dial, SSH: s.ssh, SSHListen: s.cfg.SSHListen, Explain: s.explain,
	})
	s.http = &http.Server{
		Handler:           s.proxy.Wrap(face),
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       idleTime,
		Protocols:         new(http.Protocols),
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.http.RegisterOnShutdown(s.control.EndStreams)
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	return s.openTLS()
}

// later has Close call f, before what was opened earlier.
func (s *Server) later(f func() error) { s.closers = append(s.closers, f) }

// Run serves until ctx ends, then lets requests finish for a while. Sandboxes
// live on. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	var err error
	if s.listener, err = listen(ctx, s.cfg.Listen); err != nil {
		return err
	}
	defer s.listener.Close()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	failed := make(chan error, 2)
	if s.cfg.MetricsListen != "" {
		l, err := listen(ctx, s.cfg.MetricsListen)
		if err != nil {
			return err
		}
		m := &http.Server{Handler: http.HandlerFunc(s.serveMetrics), ReadHeaderTimeout: time.Minute}
		defer m.Close()
		go func() { failed <- m.Serve(l) }()
	}
	if s.cfg.SSHListen != "" {
		l, err := listen(ctx, s.cfg.SSHListen)
		if err != nil {
			return err
		}
		defer l.Close()
		go s.ssh.Serve(l)
	}
	s.running.Go(func() { s.control.Run(work) })
	s.running.Go(func() { s.collectAlways(work) })
	s.running.Go(func() { failed <- s.http.Serve(s.secure(s.listener)) })
	if err := s.serveOperator(work); err != nil {
		return err
	}
	close(s.ready)
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = cay.Wrap(cay.Internal, err, "the server cannot accept connections any more")
	}
	s.drain()
	stop()
	s.running.Wait()
	return err
}

// drain ends serving: no new requests, some time for those under way, then a
// broken connection, which clients take for what it is.
func (s *Server) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	s.proxy.Drain()
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
	s.ssh.Close()
	s.proxy.Close()
}

// Ready is closed when the server answers.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is where the server listens. It is known once Ready is closed.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

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

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, "# HELP cay_sandboxes Sandboxes that run on this machine.\n# TYPE cay_sandboxes gauge\n")
	fmt.Fprintf(w, "cay_sandboxes %d\n", len(s.node.Instances()))
	writePool(w, s.node.Pool())
	if s.packages != nil {
		writePackages(w, s.packages.Stats())
	}
}

// listen takes a port, or says how to get one.
func listen(ctx context.Context, address string) (net.Listener, error) {
	patient := net.ListenConfig{KeepAliveConfig: conns.Patience}
	l, err := patient.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, cay.Wrap(cay.Conflict, err, "cannot listen on %s", address).
			WithHint("choose another address, or stop what uses it (`ss -ltnp` names it)")
	}
	return l, nil
}

func makeDirs(cfg config.Config) error {
	if err := storage.Down(cfg.Data); err != nil {
		return err
	}
	for _, dir := range []string{cfg.Data, cfg.Run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return cay.Wrap(cay.Unavailable, err, "cannot make the directory %s", dir).
				WithHint("run as root, or set CAY_DATA_DIR and CAY_RUN_DIR")
		}
	}
	return nil
}

func databasePath(cfg config.Config) string { return filepath.Join(cfg.Data, "cay.db") }
func instancesDir(cfg config.Config) string { return filepath.Join(cfg.Data, "instances") }
func reservedDir(cfg config.Config) string  { return filepath.Join(cfg.Run, "reserved") }

// machine is what a server and Down both work with.
type machine struct {
	binaries  embedded.Binaries
	engine    *runsc.Engine
	snapshots *snapshot.Dir
	net       *vnet.Manager
}

func openMachine(ctx context.Context, cfg config.Config, log *slog.Logger) (*machine, error) {
	var m machine
	var err error
	if m.binaries, err = embedded.Unpack(cfg.Data); err != nil {
		return nil, err
	}
	if m.snapshots, err = snapshot.Open(cfg.Data); err != nil {
		return nil, err
	}
	m.engine, err = runsc.Open(runsc.Config{
		Engines: m.binaries.EngineDir,
		Hash:    m.binaries.EngineHash,
		Run:     cfg.Run,
		Cgroup:  cfg.NetworkName,
	})
	if err != nil {
		return nil, err
	}
	m.net, err = vnet.Open(ctx, vnet.Config{Name: cfg.NetworkName, Network: cfg.Network, Opened: cfg.NetworkOpen, Resolvers: cfg.Resolvers, Packages: packagesOn(cfg)})
	if err != nil {
		return nil, err
	}
	log.Debug("machine opened", "engine", m.binaries.EngineHash, "network", cfg.Network)
	return &m, nil
}
