// Package agent is the daemon inside a sandbox: one HTTP server that runs
// processes, moves files and gets the sandbox's identity from its host.
package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/fs"
	"github.com/cay-run/cay/internal/inside/agent/proc"
	"github.com/cay-run/cay/internal/inside/agent/reap"
	"github.com/cay-run/cay/internal/inside/agent/user"
	"github.com/cay-run/cay/internal/inside/agent/wire"
	"github.com/cay-run/cay/internal/inside/services"
)

// maxMessage bounds one message of the process service: a write to a standard
// input travels in one.
const maxMessage = 64 << 20

// Config is what an Agent works with.
type Config struct {
	// Reaper starts the processes. The caller closes it.
	Reaper *reap.Reaper
	// Root is where the sandbox's files are: its root directory if empty.
	// Only /init, the accounts and the figures obey it.
	Root string
	// Log hears of failures; slog.Default if nil.
	Log *slog.Logger
	// First says that the agent is PID 1 of a sandbox: starts wait for room there.
	First bool
	// Services are those that the agent runs as PID 1; nil for none.
	Services *services.Manager
}

// Agent is the daemon.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	users   user.DB
	procs   *proc.Service
	files   *fs.Service
	handler http.Handler
	cpu     cpuMeter
	ended   ended
	diary   diary

	initing sync.Mutex // one /init at a time
	plainCA bool       // the certificates are known to be the image's own; guarded by initing
	marked  bool       // the files are there that tell what every sandbox is; guarded by initing
	// mounts are what the last call of /init has mounted; a memory snapshot has
	// them and this list alike. Guarded by initing.
	mounts []mounted

	mu          sync.RWMutex
	token       string
	defaultUser string
	defaultDir  string
	templateEnv map[string]string
	sandboxEnv  map[string]string
	limits      limits
	hooks       []func(context.Context, guest.Init) error
}

// New returns an agent that has no identity yet.
func New(cfg Config) *Agent {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &Agent{cfg: cfg, defaultUser: guest.User}
	a.log = slog.New(diaryHandler{Handler: cfg.Log.Handler(), diary: &a.diary})
	a.diary.begin()
	accounts := user.Open(cfg.Root)
	a.users = accounts
	processes := proc.Config{
		Reaper:   cfg.Reaper,
		Users:    accounts,
		Defaults: a.defaults,
		Env:      a.Env,
		Note:     func(message string, fields ...string) { a.diary.note("", "info", "process", message, fields...) },
	}
	if cfg.First {
		processes.Room = room{slots: processLimit(), sample: takeSample, limit: a.promised}.lacks
	}
	a.procs = proc.New(processes)
	a.files = fs.New(fs.Config{
		Users:       accounts,
		DefaultUser: func() string { u, _ := a.defaults(); return u },
		DefaultDir:  func() string { _, d := a.defaults(); return d },
		Token:       a.Token,
		Log:         a.log,
	})
	a.cpu.start(a.procRoot(), time.Now())
	a.handler = a.routes()
	return a
}

// Handler serves everything that the agent offers.
func (a *Agent) Handler() http.Handler { return a.handler }

// Close ends what the agent keeps for its clients. Processes go on.
func (a *Agent) Close() { a.files.Close() }

// OnInit adds a function that every /init calls after the agent took its new
// identity. An error of it is an error of /init. It must not be called once
// the agent serves.
func (a *Agent) OnInit(f func(context.Context, guest.Init) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hooks = append(a.hooks, f)
}

// Env returns a copy of the sandbox-wide environment: the template's, and the
// sandbox's on top.
func (a *Agent) Env() map[string]string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	env := make(map[string]string, len(a.templateEnv)+len(a.sandboxEnv))
	maps.Copy(env, a.templateEnv)
	maps.Copy(env, a.sandboxEnv)
	return env
}

// Token returns the access token that calls must carry, empty for none.
func (a *Agent) Token() string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.token
}

func (a *Agent) defaults() (name, dir string) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.defaultUser, a.defaultDir
}

// routes mounts all parts, innermost the mux, outermost what holds for every
// answer.
func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", health)
	mux.HandleFunc("GET /metrics", a.metrics)
	mux.HandleFunc("GET /envs", a.envs)
	mux.HandleFunc("POST /init", a.init)
	mux.HandleFunc("POST "+guest.TunnelPath, tunnel)
	mux.HandleFunc("GET "+guest.DiaryPath, a.serveDiary)
	mux.HandleFunc("POST "+guest.RestPath, a.rest)
	mux.HandleFunc("POST "+guest.WakePath, a.wake)
	_, procs := a.procs.Handler(connect.WithReadMaxBytes(maxMessage))
	wire.Mount(mux, process.File_process_proto, procs)
	a.files.Routes(mux)
	return a.recovered(cors(a.authorised(uncompressed(routed(mux)))))
}

// bootServices is how long /init waits for the services that start with a boot. A
// caller gives /init half a minute.
const bootServices = 15 * time.Second

// rest stops the services, and wake starts those again: their files are read
// between the two.
func (a *Agent) rest(w http.ResponseWriter, _ *http.Request) {
	n := 0
	if a.cfg.Services != nil {
		n = a.cfg.Services.Rest()
	}
	writeJSON(w, map[string]int{"stopped": n})
}

func (a *Agent) wake(w http.ResponseWriter, _ *http.Request) {
	if a.cfg.Services != nil {
		a.cfg.Services.Wake()
	}
	w.WriteHeader(http.StatusNoContent)
}

// health says that the agent serves.
func health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// envs answers with the sandbox-wide environment.
func (a *Agent) envs(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.Env()) }
