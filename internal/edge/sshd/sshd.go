package sshd

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/trail"
)

const (
	greetWithin  = 30 * time.Second // until a caller has logged in
	greeting     = 128              // callers that have not yet, shared by networks; more are turned away
	perTeam      = 64               // connections of a team
	perConn      = 32               // channels of a connection
	maxTries     = 6
	maxHead      = 64 << 10 // of what an agent answers
	maxMessage   = 8 << 20
	aliveEvery   = 30 * time.Second // the client is asked
	aliveWithin  = 90 * time.Second // and answers, or is taken for gone
	keepEvery    = time.Minute      // the sandbox's end is put off
	versionLabel = "SSH-2.0-Cay"
)

// Config gives a Server its accounts and its sandboxes. All of it is required
// but Log.
type Config struct {
	// HostKey is the server's.
	HostKey ed25519.PrivateKey
	// Password returns the team whose API key that is, and the key's id.
	Password func(ctx context.Context, key string) (cay.TeamID, cay.KeyID, error)
	// While returns a context that ends when a team's API key opens nothing any
	// more, or without a key, when the team is disabled.
	While func(ctx context.Context, team cay.TeamID, key cay.KeyID) (context.Context, context.CancelFunc)
	// Owner returns a sandbox's team. NotFound of one that is over.
	Owner func(ctx context.Context, id cay.SandboxID) (cay.TeamID, error)
	// Elsewhere connects to the SSH server of the machine that has a sandbox, which serves a
	// caller of its team as ServeRelayed does; nil where that is this one. Without it all are.
	Elsewhere func(ctx context.Context, team cay.TeamID, id cay.SandboxID, by []cay.Origins) (io.ReadWriteCloser, error)
	// Opens reports whether a team registered the key of a fingerprint.
	Opens func(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error)
	// Enter has a team's sandbox run for some minutes at least, and wakes it
	// if need be.
	Enter func(ctx context.Context, team cay.TeamID, id cay.SandboxID) error
	// Keep puts the end of a sandbox that runs off for some minutes.
	Keep func(ctx context.Context, team cay.TeamID, id cay.SandboxID) error
	// Used is told before a program is started.
	Used func(ctx context.Context, id cay.SandboxID)
	// MayStart returns why a program may not be started that parties ask for, which are
	// not known where none is named; it may wait until ctx ends. Nil lets every one start.
	MayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	// Adder is the party that registered the key of a fingerprint; nil where it is not
	// known. It is required beside MayStart.
	Adder func(ctx context.Context, team cay.TeamID, fingerprint string) (*cay.Origins, error)
	// Dial connects to a port of a sandbox that runs.
	Dial func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	// Token is the access token of a sandbox's agent, empty for none.
	Token func(id cay.SandboxID) string
	// Visited is told of each connection to a sandbox that begins, and that
	// ends: the key of the caller is the API key or the fingerprint of the SSH
	// key that let it in. Nil tells none.
	Visited func(who cay.Caller, id cay.SandboxID, ends bool)
	// Refused is told of each caller that was not let in; nil tells none.
	Refused func()
	Log     *slog.Logger
}

// Server serves SSH. Its methods are safe for concurrent use.
type Server struct {
	cfg    Config
	signer ssh.Signer
	ctx    context.Context
	cancel context.CancelFunc
	greets *shares.Bound[string]
	work   sync.WaitGroup

	mu    sync.Mutex
	over  bool
	teams map[cay.TeamID]int  // connections
	keyed map[*visit]struct{} // those that logged in with a key
}

// New returns a server that does not serve yet.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	signer, err := ssh.NewSignerFromKey(cfg.HostKey)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the SSH host key is of no use")
	}
	s := &Server{cfg: cfg, signer: signer, greets: shares.New[string](greeting, 0), teams: map[cay.TeamID]int{}, keyed: map[*visit]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// HostKey is the public key that clients should see, as known_hosts has it.
func (s *Server) HostKey() string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.signer.PublicKey())))
}

// Close breaks every connection and waits for the work to end.
func (s *Server) Close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// Serve takes connections until the listener is closed.
func (s *Server) Serve(l net.Listener) {
	for c := range conns.Each(l) {
		network := networkOf(c)
		if !s.greets.Take(network, 1) {
			c.Close()
			continue
		}
		if !s.begin() {
			c.Close()
			return
		}
		go func() {
			defer s.work.Done()
			s.serve(c, s.stranger(), known{}, func() { s.greets.Give(network, 1) })
		}()
	}
}

// networkOf is the network that a connection comes from.
func networkOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return shares.Network(host, 64)
}

// ServeTrusted serves one connection of a caller that is known already, to its
// end.
func (s *Server) ServeTrusted(c net.Conn, who cay.Caller) {
	s.serveKnown(c, known{Caller: who})
}

// ServeRelayed is ServeTrusted of a caller that another machine has let in, which tells
// of the visit and of the parties that ask. The sandbox is this machine's, or nowhere.
func (s *Server) ServeRelayed(c net.Conn, team cay.TeamID, by []cay.Origins) {
	s.serveKnown(c, known{Caller: cay.Caller{Team: team}, relayed: true, by: by})
}

func (s *Server) serveKnown(c net.Conn, who known) {
	if !s.begin() {
		c.Close()
		return
	}
	defer s.work.Done()
	s.serve(c, s.member(who.Team), who, func() {})
}

// known is a caller that need not log in; zero for one that must.
type known struct {
	cay.Caller
	relayed bool          // by the machine that it talks to
	by      []cay.Origins // of one that is relayed
}

func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.work.Add(1)
	return true
}

// enterTeam counts a connection of a team, or says that there are too many.
func (s *Server) enterTeam(team cay.TeamID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.teams[team] >= perTeam {
		return false
	}
	s.teams[team]++
	return true
}

func (s *Server) leaveTeam(team cay.TeamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.teams[team]--; s.teams[team] == 0 {
		delete(s.teams, team)
	}
}

// serve greets a caller, says so, and serves it to its end. The caller is known
// already, or is zero.
func (s *Server) serve(c net.Conn, cfg *ssh.ServerConfig, known known, greeted func()) {
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	id := idOf(known)
	log := s.cfg.Log.With("request", id)
	conn, channels, requests, err := ssh.NewServerConn(c, cfg)
	greeted()
	if err != nil {
		log.Debug("an SSH caller was not let in", "from", c.RemoteAddr(), "err", err)
		if s.cfg.Refused != nil {
			s.cfg.Refused()
		}
		return
	}
	_ = c.SetDeadline(time.Time{})
	who := callerOf(conn.Permissions)
	if !s.enterTeam(who.team) {
		log.Warn("a team has too many SSH connections", "team", who.team, "most", perTeam)
		return
	}
	defer s.leaveTeam(who.team)
	v := newVisit(s, conn, who, log)
	if v.by, err = s.asking(known, who); err != nil {
		log.Warn("it is not known which party an SSH key is of", "team", who.team, "err", err)
		return
	}
	ctx, done := s.cfg.While(s.ctx, who.team, who.apiKey)
	defer done()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if who.key != "" {
		s.mu.Lock()
		s.keyed[v] = struct{}{}
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			delete(s.keyed, v)
			s.mu.Unlock()
		}()
		s.review(v) // the key may have gone while its owner was greeted
	}
	if s.cfg.Visited != nil && !known.relayed {
		visitor := who.as(known.Caller, conn, id)
		s.cfg.Visited(visitor, who.sandbox, false)
		defer s.cfg.Visited(visitor, who.sandbox, true)
	}
	if s.cfg.Elsewhere != nil && !known.relayed {
		far, err := s.cfg.Elsewhere(ctx, who.team, who.sandbox, v.by)
		if err != nil {
			log.Warn("an SSH connection does not reach the node of its sandbox", "sandbox", who.sandbox, "err", err)
			v.refuse(publicText(err), channels, requests)
			return
		}
		if far != nil {
			v.relay(far, conn.User(), channels, requests)
			return
		}
	}
	v.serve(channels, requests)
}

// asking are the parties that ask for what a visit starts; none where they are not known.
func (s *Server) asking(known known, who caller) ([]cay.Origins, error) {
	switch {
	case known.relayed:
		return known.by, nil
	case known.Team != "":
		return []cay.Origins{known.Origins()}, nil
	case who.apiKey != "":
		return []cay.Origins{{Key: who.apiKey}}, nil
	case s.cfg.Adder == nil:
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, greetWithin)
	defer cancel()
	by, err := s.cfg.Adder(ctx, who.team, who.key)
	if by == nil || err != nil {
		return nil, err
	}
	return []cay.Origins{*by}, nil
}

// idOf is the id of a connection: that of the request which became it, or a new
// one.
func idOf(known known) string {
	if known.From != nil && known.From.Request != "" {
		return known.From.Request
	}
	return trail.NewID()
}

// as is the account as the party that asks. One that is known keeps its name.
func (a caller) as(known cay.Caller, conn ssh.ConnMetadata, id string) cay.Caller {
	if known.Team != "" {
		return known
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	key := a.apiKey
	if key == "" {
		key = cay.KeyID(a.key)
	}
	return cay.Caller{Team: a.team, Key: key, From: &cay.Origin{Request: id, Address: host, Agent: string(conn.ClientVersion())}}
}

// Review ends the connections that were opened with keys which their teams have
// no more.
func (s *Server) Review(team cay.TeamID) {
	s.mu.Lock()
	keyed := slices.Collect(maps.Keys(s.keyed))
	s.mu.Unlock()
	for _, v := range keyed {
		if v.who.team == team {
			s.review(v)
		}
	}
}

// review ends a connection unless its key is known to be its team's still.
func (s *Server) review(v *visit) {
	ctx, cancel := context.WithTimeout(s.ctx, greetWithin)
	defer cancel()
	if ok, err := s.cfg.Opens(ctx, v.who.team, v.who.key); err != nil || !ok {
		v.conn.Close()
	}
}

// caller is the account that logged in.
type caller struct {
	team    cay.TeamID
	sandbox cay.SandboxID
	user    string    // inside; empty for the sandbox's usual one
	key     string    // the fingerprint of that which let it in; empty for others
	apiKey  cay.KeyID // the same of an API key as the password
}

// The names of what Permissions carry.
const (
	extTeam    = "cay-team"
	extSandbox = "cay-sandbox"
	extUser    = "cay-user"
	extKey     = "cay-key"
	extAPIKey  = "cay-api-key"
)

func callerOf(p *ssh.Permissions) caller {
	return caller{
		team: cay.TeamID(p.Extensions[extTeam]), sandbox: cay.SandboxID(p.Extensions[extSandbox]), user: p.Extensions[extUser],
		key: p.Extensions[extKey], apiKey: cay.KeyID(p.Extensions[extAPIKey]),
	}
}

// errDenied is the one answer to every caller that is refused.
var errDenied = errors.New("permission denied")

// letIn are the permissions of a team's member for the sandbox that the user's
// name says, <id> or <id>+<user inside>, if it is the team's.
func (s *Server) letIn(name string, team cay.TeamID) (*ssh.Permissions, error) {
	id, user, err := splitName(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, greetWithin)
	defer cancel()
	owner, err := s.cfg.Owner(ctx, id)
	if err != nil || owner != team {
		return nil, errDenied
	}
	return &ssh.Permissions{Extensions: map[string]string{
		extTeam: string(team), extSandbox: string(id), extUser: user,
	}}, nil
}

const maxUser = 64

func splitName(name string) (id cay.SandboxID, user string, err error) {
	text, user, _ := strings.Cut(name, "+")
	if !cay.ValidID(text) || len(user) > maxUser {
		return "", "", errDenied
	}
	return cay.SandboxID(text), user, nil
}

func (s *Server) base() *ssh.ServerConfig {
	cfg := &ssh.ServerConfig{MaxAuthTries: maxTries, ServerVersion: versionLabel}
	cfg.AddHostKey(s.signer)
	return cfg
}

// stranger is the configuration for a client of unknown team.
func (s *Server) stranger() *ssh.ServerConfig {
	cfg := s.base()
	cfg.PublicKeyCallback = func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		id, _, err := splitName(m.User())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(s.ctx, greetWithin)
		defer cancel()
		team, err := s.cfg.Owner(ctx, id)
		if err != nil {
			return nil, errDenied
		}
		print := ssh.FingerprintSHA256(key)
		if ok, err := s.cfg.Opens(ctx, team, print); err != nil || !ok {
			return nil, errDenied
		}
		in, err := s.letIn(m.User(), team)
		if err == nil {
			in.Extensions[extKey] = print
		}
		return in, err
	}
	cfg.PasswordCallback = func(m ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
		ctx, cancel := context.WithTimeout(s.ctx, greetWithin)
		defer cancel()
		team, key, err := s.cfg.Password(ctx, string(password))
		if err != nil {
			return nil, errDenied
		}
		in, err := s.letIn(m.User(), team)
		if err == nil {
			in.Extensions[extAPIKey] = string(key)
		}
		return in, err
	}
	return cfg
}

// member is the configuration for a client of a known team.
func (s *Server) member(team cay.TeamID) *ssh.ServerConfig {
	cfg := s.base()
	cfg.NoClientAuth = true
	cfg.NoClientAuthCallback = func(m ssh.ConnMetadata) (*ssh.Permissions, error) { return s.letIn(m.User(), team) }
	return cfg
}

// halfCloser ends what is sent and goes on reading.
type halfCloser interface{ CloseWrite() error }

// join copies between two streams until both directions ended. A broken one
// ends both.
func join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	one := func(to, from io.ReadWriteCloser) {
		_, err := io.Copy(to, from)
		half, ok := to.(halfCloser)
		if err != nil || !ok || half.CloseWrite() != nil {
			a.Close()
			b.Close()
		}
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
	a.Close()
	b.Close()
}
