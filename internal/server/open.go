package server

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/edge/desktop"
	"github.com/cay-run/cay/internal/edge/mcp"
	"github.com/cay-run/cay/internal/edge/models"
	"github.com/cay-run/cay/internal/edge/proxy"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/operator/doctor"
	"github.com/cay-run/cay/internal/template/build"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/oci"
	"github.com/cay-run/cay/internal/trail"
)

// open puts the parts together, each after what it needs; Close gives them back
// in the opposite order.
//
//   - begin comes before anything in the directories is read: one server at a
//     time has them.
//   - The telemetry comes early, so that it is told of all that comes after, and
//     sends its last spans when all is closed.
//   - The records come before all that may write them, so that they are closed
//     after it: a guest's connection asks for secrets, and a refusal is an event.
//   - The machine comes next, without which nothing runs.
//   - The proxy comes before the node, which tells it of each instance that is
//     over, also of those that it finds dead; the egress, because the node sets
//     the rules of each instance that it adopts.
//   - The node adopts what an earlier server left and ends whatever else the
//     engine runs. No build may have borrowed an instance by then: templates and
//     builds come after it.
//   - Control compares the records with what the node has. Calls of the parts
//     above that need it wait until Run, for ready.
//   - The faces come last: nothing of theirs listens before Run.
func (s *Server) open(ctx context.Context) error {
	steps := []func(context.Context) error{
		s.begin, s.openTelemetry, s.openRecords, s.openMachine, s.openReplica, s.openProxy, s.openNode, s.openTemplates, s.openControl, s.openConsole, s.openCluster, s.openFaces, s.openMetrics, s.publishBuilt,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// begin takes the directories, which only one server can have, and looks the
// host over.
func (s *Server) begin(ctx context.Context) error {
	lock, err := host.Take(ctx, operator.Host(s.cfg))
	if err != nil {
		return err
	}
	s.later(lock.Close)
	if err := doctor.Port(ctx, s.cfg); err != nil {
		return err
	}
	return s.machine.Check(ctx, s.cfg)
}

// openRecords opens the records, with the key of what is sealed in them.
func (s *Server) openRecords(ctx context.Context) (err error) {
	if s.sealer, err = seal.Open(s.cfg.Data); err != nil {
		return err
	}
	if s.tokensOf, err = auth.OpenTokens(s.cfg.Data); err != nil {
		return err
	}
	if s.records, err = operator.OpenRecords(ctx, s.cfg, s.sealer); err != nil {
		return err
	}
	s.records.Observe(s.telemetry)
	s.later(s.records.Close)
	return s.takeLease(ctx)
}

// openMachine opens the machine.
func (s *Server) openMachine(ctx context.Context) (err error) {
	at := operator.Host(s.cfg)
	at.Disk = s.reserve()
	if s.host, err = s.machine.Open(ctx, at, s.log); err != nil {
		return err
	}
	s.later(func() error { s.host.Snapshots.Settle(); return nil })
	s.later(func() error { s.diverted.Wait(); return nil })
	s.later(s.host.Volumes.Close)
	s.later(s.host.Net.Close)
	return nil
}

// openProxy makes the ways to sandboxes, and from them outwards.
func (s *Server) openProxy(context.Context) error {
	s.proxy = proxy.New(proxy.Config{
		Lookup:   s.lookup,
		Asleep:   s.asleep,
		Wake:     s.wake,
		Fate:     s.fate,
		Used:     s.used,
		MayStart: s.mayStart,
		AccessOf: func(id cay.SandboxID, token string) (string, cay.Origins, bool) {
			return s.tokensOf.AccessOf(id, token)
		},
		Tokens: s.tokens,
		Domain: s.cfg.Domain,
		Paths:  s.cfg.PathForm(),
		Log:    s.log,
	})
	s.later(func() error { s.proxy.Close(); return nil })
	if err := s.openEgress(); err != nil {
		return err
	}
	return s.openLocal()
}

// ownAuthority is the authority of the server's own names, which guests trust:
// they reach each other by them. Nil where there is none.
func (s *Server) ownAuthority() []byte {
	if s.local == nil {
		return nil
	}
	return s.local.PEM()
}

// openNode adopts what an earlier server left.
func (s *Server) openNode(ctx context.Context) error {
	pool, err := poolMemory(s.cfg)
	if err != nil {
		return err
	}
	percent, err := s.cfg.LoadPercent()
	if err != nil {
		return err
	}
	s.node, err = node.Open(ctx, node.Config{
		Dir:       operator.Host(s.cfg).Instances(),
		Disk:      s.reserve(),
		Reserved:  operator.Host(s.cfg).Reserved(),
		Engine:    s.host.Engine,
		Net:       s.host.Net,
		Egress:    s.egress,
		Authority: string(s.authority.PEM()) + string(s.ownAuthority()),
		Snapshots: s.host.Snapshots,
		Fetch:     s.fetch(),
		Record:    s.recordOf(),
		Elsewhere: s.elsewhere(),
		Arrive:    s.arrive(),
		Ahead:     s.ahead(),
		Volumes:   s.host.Volumes,
		OnGone:    s.proxy.Cut,
		Token:     s.tokensOf.Access,
		Traffic:   s.tokensOf.Traffic,
		Room:      s.host.Room,
		Log:       s.log,

		Loading:     loadings[s.cfg.MemoryLoading].common,
		OwnLoading:  loadings[s.cfg.MemoryLoading].own,
		Sharing:     sharings[s.cfg.MemorySharing],
		LoadReserve: percent,
		PoolMemory:  pool,
		TrustAlways: s.packages != nil,
	})
	if err != nil {
		return err
	}
	s.later(s.node.Close)
	return nil
}

// The settings of memory, as the node has them.
var (
	loadings = map[string]struct{ common, own engine.Loading }{
		config.LoadAuto:   {engine.Demand, engine.Eager},
		config.LoadEager:  {engine.Eager, engine.Eager},
		config.LoadDemand: {engine.Demand, engine.Demand},
	}
	sharings = map[string]node.Sharing{config.ShareAll: node.ShareAll, config.ShareTeam: node.ShareTeam, config.ShareOff: node.ShareNone}
)

// openTemplates makes the builders of templates: of those that Cay brings, and
// of users'.
func (s *Server) openTemplates(context.Context) (err error) {
	var images builtin.Images
	if s.machine.Images != nil {
		images = s.machine.Images(s.host.Snapshots)
	}
	s.templates = builtin.New(builtin.Config{
		Data:            s.cfg.Data,
		Node:            s.node,
		Snapshots:       s.host.Snapshots,
		Images:          images,
		AgentPath:       s.host.Binaries.AgentPath,
		AgentDigest:     s.host.Binaries.AgentDigest,
		GatewayPath:     s.host.Binaries.GatewayPath,
		GatewayDigest:   s.host.Binaries.GatewayDigest,
		Authority:       s.authority.PEM(),
		ServerAuthority: s.ownAuthority(),
		Log:             s.log,
	})
	s.images = oci.NewTeams(filepath.Join(s.cfg.Data, "oci"), oci.Options{
		Allowed: s.cfg.Registries, PlainHTTP: s.cfg.PlainRegistries, Disk: operator.Reserve(s.cfg),
		Networks: outside.Networks{Opened: s.cfg.NetworkOpen, Closed: append(slices.Clone(s.cfg.NetworkClosed), s.cfg.Network)},
	})
	s.builds, err = build.New(build.Config{
		Data: s.cfg.Data, Node: s.node, Snapshots: s.host.Snapshots, Fetch: s.fetch(), Images: s.images, AgentPath: s.host.Binaries.AgentPath,
		Times: build.Times{Step: s.cfg.BuildStepTimeout, Ready: s.cfg.BuildReadyTimeout}, Disk: operator.Reserve(s.cfg), Log: s.log,
	})
	return err
}

// openControl brings the records and the node to agree.
func (s *Server) openControl(ctx context.Context) (err error) {
	if s.team, s.firstKey, err = auth.FirstStart(ctx, s.records); err != nil {
		return err
	}
	s.auth = auth.New(s.records)
	if s.adminToken, err = s.openAdmin(); err != nil {
		return err
	}
	logs, err := logbook.Open(filepath.Join(s.cfg.Data, "logs"))
	if err != nil {
		return err
	}
	if err := s.openAudit(); err != nil {
		return err
	}

	limits, err := s.cfg.TeamLimits()
	if err != nil {
		return err
	}
	s.control, err = control.Open(ctx, control.Config{
		Store: s.records, Node: s.node.Service(), NodeID: s.lease.Node, Member: s.member(), Leads: s.leads, Elsewhere: s.elsewhere(), Bring: s.bring(), Tokens: s.tokensOf, Sealer: s.sealer, Logs: logs, Audit: s.audit, Log: s.log, Auth: s.auth,
		TeamLimits: limits,
		Volumes:    s.volumes(),
		Local:      s.localOf(),
		Copies:     s.replica != nil, Durable: s.cfg.PauseDurable, Hurry: func() { s.desk.Hurry() },
		CopiesFail: func(since time.Time) error { return s.desk.CopiesFail(since) },
		Networks: outside.Networks{
			Opened: s.cfg.NetworkOpen, Trusted: s.cfg.WebhookOpen, Closed: append(slices.Clone(s.cfg.NetworkClosed), s.cfg.Network),
		},
		ModelNetworks: s.modelNetworks(),
		Dial:          s.proxy.Dial,
		MayStart:      s.mayStartNow,
		Nodes:         s.nodes(),
		Links:         s.tokensOf,
		URL:           s.cfg.URL(),
		Full:          s.nearlyFull,
		Builder:       s.builds, Images: s.images, Reserved: builtin.Names(), Extras: builtin.Extras(), Backlog: s.backlog,
	})
	if err != nil {
		return err
	}
	s.models = models.New(models.Config{Providers: s.control.Providers, Networks: s.modelNetworks(), Watch: s.telemetry, Log: s.log})
	s.later(func() error { s.models.Close(); return nil })
	if err := s.openLogins(); err != nil {
		return err
	}
	s.desk = operator.New(operator.Config{
		Host: operator.Host(s.cfg), Team: s.team, Store: s.records, Control: s.control, Node: s.node,
		Snapshots: s.host.Snapshots, Templates: s.templates, Builds: s.builds, Packages: s.packages,
		AdminToken: s.adminToken, Replica: s.copies(), Cached: s.cached, Leads: s.leads, Copied: s.control.Copied,
		Disk: s.reserve(), Publish: s.publish, Backlog: s.backlog, Audit: s.audit, Log: s.log,
	})
	s.openCache()
	return nil
}

// openAdmin has the operator's token open all teams: the one of the settings, else
// that of the data directory.
func (s *Server) openAdmin() (token string, err error) {
	if token = s.cfg.AdminToken; token == "" {
		token, err = auth.OpenAdmin(s.cfg.Data)
	}
	s.auth.TrustAdmin(token)
	return token, err
}

// openFaces makes what answers clients.
func (s *Server) openFaces(context.Context) error {
	if err := s.openSSH(s.auth); err != nil {
		return err
	}
	limiter := rates.New(s.control.LimitsOf)
	face := rest.New(rest.Config{
		Fleet: s.control.Catalogue, Sandboxes: s.control.Controller, Usage: s.control.Meter, Builds: s.control.Queue, Accounts: s.control.Accounts, Machine: s.has, Checks: s.looked, Upkeep: s.upkeep(), Members: s.membersFace(), Auth: s.auth, Domain: s.cfg.Domain, Links: s.tokensOf, Content: content{s}, Log: s.log,
		Webhooks: s.control.Hooks, Triggers: s.control.Triggers, Approvals: s.control.Approvals, Providers: s.control.Providers,
		Volumes: s.control.Vols, VolumeTokens: s.tokensOf,
		Logins: s.logins, URL: s.cfg.URL(), Console: s.ConsoleURL,
		Desktops: desktop.New(desktop.Config{Dial: s.proxy.Dial, Log: s.log}),
		Dial:     s.proxy.Dial, MayStart: s.mayStartNow, SSH: s.ssh, SSHListen: s.cfg.SSHListen, Explain: s.explain,
		Defaults: builtin.Descriptions(), Identity: s.identity, Audit: s.audit, Rates: limiter,
	})
	tools := mcp.New(mcp.Config{
		Auth: s.auth, Fleet: s.control.Catalogue, Rates: limiter, Audit: s.audit, Log: s.log,
		URL: s.cfg.URL(), Domain: s.cfg.ClientDomain(), Template: builtin.CodeInterpreter, Version: cay.Version,
		Serve: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.cluster.inside.ServeHTTP(w, r) }),
	})
	s.api = s.requests.count(face)
	s.cluster.inside = trail.Follow(trail.REST, s.between(s.console.Wrap(s.proxy.Wrap(tools.Wrap(s.console.Elsewhere(s.api))))))
	s.http = newHTTP(s.cluster.inside, s.log)
	s.http.BaseContext = s.watched
	s.http.RegisterOnShutdown(s.control.EndStreams)
	return s.openTLS()
}

// newHTTP is a server as clients need it, on whichever port. Go's own bound of 250
// requests under way on a connection of HTTP/2 holds back all others of that client
// without a word until their time is over, where 250 commands run; the agent's own
// bound is as high.
func newHTTP(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: h, ReadHeaderTimeout: time.Minute, IdleTimeout: idleTime,
		Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2048},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// publishBuilt offers the templates that are built already.
func (s *Server) publishBuilt(ctx context.Context) error {
	if !s.cfg.RunsSandboxes() {
		return nil
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
