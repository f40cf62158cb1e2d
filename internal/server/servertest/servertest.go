// Package servertest runs whole servers in a test, over a machine in memory:
// without root and in milliseconds. Everything but the machine is real: the
// records, the node, the templates' builds, the one port, the operator's
// socket. A server can be stopped and started again over what it left.
package servertest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/control/nodes"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/server"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/image"
	"github.com/cay-run/cay/internal/trail"
)

// World is a machine, a data directory and the server that runs there.
type World struct {
	t testing.TB
	// Config may be changed while no server runs.
	Config  config.Config
	Machine *hosttest.Machine
	// Leases are the times of a cluster; zero for the usual ones.
	Leases nodes.Times
	// Key is the key that the first start made.
	Key string

	server *server.Server
	stop   context.CancelFunc
	ended  chan error // gets what Run returned
	log    log
}

// New makes a world whose server does not run yet.
func New(t testing.TB) *World {
	t.Helper()
	run, err := os.MkdirTemp("", "cay") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	w := &World{t: t, Config: config.Default()}
	w.Config.Data, w.Config.Run = t.TempDir(), run
	w.Config.Listen, w.Config.TLS = "127.0.0.1:0", config.TLSOff
	w.Config.DiskReserve = "1MiB" // the test's disk may be small
	w.Config.PoolMemory = "0"     // a test that wants a pool says so
	t.Cleanup(func() {
		if w.server != nil {
			w.Stop()
		}
		w.log.check(t)
		os.RemoveAll(run)
	})
	w.Machine = hosttest.New(t)
	return w
}

// Start makes a world and starts its server.
func Start(t testing.TB) *World {
	t.Helper()
	w := New(t)
	w.Start()
	return w
}

// On is the machine as a server gets it.
func (w *World) On() server.Machine {
	return server.Machine{
		Leases: w.Leases,
		Check:  func(context.Context, config.Config) error { return nil },
		Open:   w.open(),
		Images: func(snapshots *snapshot.Dir) builtin.Images {
			return images{dir: w.Config.Data, snapshots: snapshots}
		},
	}
}

// open is how the machine is opened: a front has none.
func (w *World) open() host.Opener {
	if !w.Config.RunsSandboxes() {
		return host.OpenFront
	}
	return w.Machine.Open
}

// Open makes a server and does not run it. The caller closes it.
func (w *World) Open() (*server.Server, error) { return w.openOn(w.On()) }

func (w *World) openOn(on server.Machine) (*server.Server, error) {
	level := slog.LevelDebug // unless the world says otherwise
	if w.Config.LogLevel != "" {
		level, _ = w.Config.Level()
	}
	return server.New(w.t.Context(), w.Config, on, trail.NewLog(&w.log, w.Config.LogFormat == "json", level))
}

// place has a first start find records without rows, for which no migration need run.
func (w *World) place() {
	w.t.Helper()
	if left, err := os.ReadDir(w.Config.Data); err == nil && len(left) == 0 && w.Config.DatabaseURL == "" {
		storetest.Place(w.t, operator.Host(w.Config).Database())
	}
}

// Start starts the server and returns when it has built its templates.
func (w *World) Start() {
	w.t.Helper()
	w.Run(w.Begin(func(*server.Machine) {}))
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.Operator().WaitForTemplates(ctx, nil, func(string, int) {}); err != nil {
		w.t.Fatal(err)
	}
}

// Begin makes a server for Run, on a machine that change has changed.
func (w *World) Begin(change func(*server.Machine)) *server.Server {
	w.t.Helper()
	w.place()
	on := w.On()
	change(&on)
	s, err := w.openOn(on)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// Run runs a server, and returns when it answers.
func (w *World) Run(s *server.Server) {
	w.t.Helper()
	if key := s.FirstKey(); key != "" {
		w.Key = key
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	w.server, w.stop, w.ended = s, stop, make(chan error, 1)
	go func() { w.ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-w.ended:
		w.ended <- err
		w.t.Fatalf("the server ended before it was ready: %v", err)
	}
}

// Stop has the server end, as SIGTERM does, and waits for it. Sandboxes live
// on.
func (w *World) Stop() {
	w.t.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		w.t.Errorf("Run: %v", err)
	}
	if err := w.server.Close(); err != nil {
		w.t.Errorf("Close: %v", err)
	}
	w.server = nil
}

// AddTeam adds a team, while no server runs, and returns a key of it.
func (w *World) AddTeam(name string) (team cay.Team, key string) {
	w.t.Helper()
	w.Records(func(db *store.DB) {
		team = cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: time.Now()}
		if err := db.AddTeam(w.t.Context(), team); err != nil {
			w.t.Fatal(err)
		}
		var err error
		if key, _, err = auth.Issue(w.t.Context(), db, team.ID, name); err != nil {
			w.t.Fatal(err)
		}
	})
	return team, key
}

// Records opens the records while no server runs.
func (w *World) Records(use func(*store.DB)) {
	w.t.Helper()
	if w.server != nil {
		w.t.Fatal("the server has the records")
	}
	w.place()
	sealer, err := seal.Open(w.Config.Data)
	if err != nil {
		w.t.Fatal(err)
	}
	db, err := operator.OpenRecords(w.t.Context(), w.Config, sealer)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	use(db)
}

// AddKey adds a key of a team, while no server runs, and returns it.
func (w *World) AddKey(k cay.APIKey) (key string) {
	w.t.Helper()
	w.Records(func(db *store.DB) {
		key = auth.NewKey(&k)
		if err := db.AddKey(w.t.Context(), k); err != nil {
			w.t.Fatal(err)
		}
	})
	return key
}

// URL is where the server answers.
func (w *World) URL() string { return "http://" + w.server.Addr().String() }

// Addr is the same as an address.
func (w *World) Addr() net.Addr { return w.server.Addr() }

// MetricsURL is the server's metrics page.
func (w *World) MetricsURL() string { return "http://" + w.server.MetricsAddr().String() + "/metrics" }

// SSHAddr is where the server's SSH server listens.
func (w *World) SSHAddr() string { return w.server.SSHAddr().String() }

// ConsoleAddr is where the console alone listens.
func (w *World) ConsoleAddr() net.Addr { return w.server.ConsoleAddr() }

// Client talks to the server as the first team.
func (w *World) Client() *client.Client { return w.ClientOf(w.Key) }

// ClientOf talks to the server with a key.
func (w *World) ClientOf(key string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Config{APIKey: key, APIURL: w.URL()})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// Admin talks to the server as its operator, about a team, by id or name, or
// about none.
func (w *World) Admin(team string) *client.Client {
	w.t.Helper()
	token, err := w.Operator().AdminToken(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := client.New(client.Config{AdminToken: token, Team: team, APIURL: w.URL()})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// Operator talks to the server as root does.
func (w *World) Operator() operator.Client { return operator.Ask(w.Config) }

// Ended gets what the server's run returned, of one that ends by itself. Forget
// must follow.
func (w *World) Ended() <-chan error { return w.ended }

// Forget closes a server that has ended by itself.
func (w *World) Forget() {
	w.t.Helper()
	w.stop()
	if err := w.server.Close(); err != nil {
		w.t.Logf("Close: %v", err)
	}
	w.server = nil
}

// Down is `cay down`, while no server runs.
func (w *World) Down() error {
	w.t.Helper()
	if w.server != nil {
		w.t.Fatal("the server runs in this process, which Down would end")
	}
	return operator.Down(w.t.Context(), w.Config, w.Machine.Open, slog.New(slog.NewTextHandler(&w.log, nil)))
}

// Log is what servers have logged in this world.
func (w *World) Log() string {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return w.log.text.String()
}

// images makes root images that hold nothing but their recipe's name.
type images struct {
	dir       string
	snapshots *snapshot.Dir
}

func (i images) Build(_ context.Context, r image.Recipe, _ []image.File, p image.Progress) (string, error) {
	p(r.Name+": writing the image", 97)
	path := filepath.Join(i.dir, "image")
	if err := os.WriteFile(path, fmt.Appendf(nil, "the root of %s, %s", r.Name, r.Digest()), 0o600); err != nil {
		return "", err
	}
	return i.snapshots.AddImage(path)
}

func (images) Prune(context.Context, bool, ...image.Recipe) ([]cay.Garbage, error) { return nil, nil }

// log keeps what a server logs.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// check fails a test whose server used its records after it had closed them,
// and shows the log of one that failed.
func (l *log) check(t testing.TB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(l.text.String(), "database is closed") {
		t.Error("the server used its records after it had closed them")
	}
	if t.Failed() {
		t.Logf("the log:\n%s", l.text.String())
	}
}
