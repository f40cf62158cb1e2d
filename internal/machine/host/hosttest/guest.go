package hosttest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// AppPort is where every guest has a program of its user's.
const AppPort = 8000

// Memory is what a guest knows, and what a snapshot of it holds.
type Memory struct {
	SandboxID string
	Token     string
	Env       map[string]string
	// Said is what its user's program was told by PUT.
	Said string
	// Lines are what its agent tells of in its diary.
	Lines []guest.DiaryEntry
}

// Guest stands for all that runs in an instance: the agent, the interpreter
// and a program of its user's, which is an HTTP server that answers GET with
// what it was last sent by PUT.
type Guest struct {
	mu      sync.Mutex
	memory  Memory
	onDiary func()

	servers []io.Closer
	serving sync.WaitGroup
}

func newGuest(addr netip.Addr, memory Memory, more http.Handler, ports map[int]func(net.Conn)) (*Guest, error) {
	g := &Guest{memory: memory}
	agent := http.NewServeMux()
	agent.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	agent.HandleFunc("POST /init", g.init)
	agent.HandleFunc("GET "+guest.DiaryPath, g.diary)
	agent.HandleFunc("GET /envs", g.envs)
	if more != nil {
		agent.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			if !g.opens(r) {
				http.Error(w, "the token is not this agent's", http.StatusUnauthorized)
				return
			}
			more.ServeHTTP(w, r)
		})
	}
	interp := http.NewServeMux()
	interp.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	for port, h := range map[int]http.Handler{
		guest.AgentPort: agent, guest.InterpPort: interp, AppPort: http.HandlerFunc(g.app),
	} {
		l, err := net.Listen("tcp4", net.JoinHostPort(addr.String(), strconv.Itoa(port)))
		if err != nil {
			g.close()
			return nil, err
		}
		server := &http.Server{Handler: h}
		g.servers = append(g.servers, server)
		g.serving.Go(func() { _ = server.Serve(l) })
	}
	for port, serve := range ports {
		l, err := net.Listen("tcp4", net.JoinHostPort(addr.String(), strconv.Itoa(port)))
		if err != nil {
			g.close()
			return nil, err
		}
		p := &plainPort{Listener: l, open: map[net.Conn]bool{}}
		g.servers = append(g.servers, p)
		g.serving.Go(func() { p.serve(serve) })
	}
	return g, nil
}

// close ends the guest; its connections break.
func (g *Guest) close() {
	for _, s := range g.servers {
		s.Close()
	}
	g.serving.Wait()
}

// Memory returns what the guest knows.
func (g *Guest) Memory() Memory {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.memory
	m.Env, m.Lines = maps.Clone(m.Env), slices.Clone(m.Lines)
	return m
}

// opens reports whether a request has the agent's token, if it has one.
func (g *Guest) opens(r *http.Request) bool {
	token := g.Memory().Token
	return token == "" || r.Header.Get("X-Access-Token") == token
}

func (g *Guest) init(w http.ResponseWriter, r *http.Request) {
	var in guest.Init
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !g.opens(r) {
		http.Error(w, "the token is not this agent's", http.StatusUnauthorized)
		return
	}
	g.mu.Lock()
	g.memory.SandboxID, g.memory.Token, g.memory.Env = in.SandboxID, in.AccessToken, in.EnvVars
	g.mu.Unlock()
	_ = json.NewEncoder(w).Encode(guest.InitReply{Protocol: guest.Protocol, Version: guest.EnvdVersion})
}

// OnDiary has the agent call a function before it tells its diary, which is asked for
// between the record of a sandbox's end and the end of its instance.
func (g *Guest) OnDiary(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onDiary = f
}

// Say has the agent tell a line in its diary.
func (g *Guest) Say(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory.Lines = append(g.memory.Lines, guest.DiaryEntry{Seq: int64(len(g.memory.Lines)) + 1, At: time.Now(), Level: "info", Logger: "test", Message: text})
}

func (g *Guest) diary(w http.ResponseWriter, r *http.Request) {
	if !g.opens(r) {
		http.Error(w, "the token is not this agent's", http.StatusUnauthorized)
		return
	}
	g.mu.Lock()
	first := g.onDiary
	g.mu.Unlock()
	if first != nil {
		first()
	}
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	lines := g.Memory().Lines
	_ = json.NewEncoder(w).Encode(guest.Diary{Epoch: "1", Entries: lines[min(max(int(after), 0), len(lines)):]})
}

func (g *Guest) envs(w http.ResponseWriter, r *http.Request) {
	if !g.opens(r) {
		http.Error(w, "the token is not this agent's", http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(g.Memory().Env)
}

// app is the program of the guest's user.
func (g *Guest) app(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		g.mu.Lock()
		g.memory.Said = string(text)
		g.mu.Unlock()
	}
	fmt.Fprint(w, g.Memory().Said)
}

// plainPort is a port of a guest whose connections are served as they are.
type plainPort struct {
	net.Listener
	mu   sync.Mutex
	open map[net.Conn]bool // nil once it is closed
}

func (p *plainPort) serve(one func(net.Conn)) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := p.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.open == nil {
			c.Close()
		} else {
			p.open[c] = true
		}
		p.mu.Unlock()
		all.Go(func() {
			one(c)
			c.Close()
			p.mu.Lock()
			delete(p.open, c)
			p.mu.Unlock()
		})
	}
}

// Close breaks all connections.
func (p *plainPort) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
	p.open = nil
	return p.Listener.Close()
}
