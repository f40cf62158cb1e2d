package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

func TestMain(m *testing.M) {
	// The agent reaps programs that were told to end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/cay-run/cay/internal/inside/agent/reap.(*Child).Status"))
}

// patience bounds what should take no time; a loaded machine takes some.
const patience = time.Minute

const (
	ours, theirs = cay.TeamID("ours"), cay.TeamID("theirs")
	box, other   = "ibox", "iother" // of ours and of theirs
	password     = "e2b_ours"
)

// world is a server in front of a real agent.
type world struct {
	t      *testing.T
	server *Server
	addr   string
	signer ssh.Signer  // registered by ours
	gone   atomic.Bool // or was
	// removeKey removes the API key that let the last client in.
	removeKey context.CancelFunc
	visited   chan visited
	log       lines
}

// lines are what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// visited is what the server told of a connection.
type visited struct {
	who  cay.Caller
	id   cay.SandboxID
	ends bool
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	return key
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, visited: make(chan visited, 100)}
	reaper := reap.New(false)
	t.Cleanup(reaper.Close)
	quiet := slog.New(slog.DiscardHandler)
	a := agent.New(agent.Config{Reaper: reaper, Log: quiet, Root: accounts(t)})
	t.Cleanup(a.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = agent.Serve(ctx, l, a.Handler(), quiet) }()
	t.Cleanup(func() { cancel(); <-served })
	w.signer, err = ssh.NewSignerFromKey(newKey(t))
	must(t, err)
	w.server, err = New(Config{
		HostKey: newKey(t),
		Password: func(_ context.Context, key string) (cay.TeamID, cay.KeyID, error) {
			if key != password {
				return "", "", errors.New("no such key")
			}
			return ours, "the key", nil
		},
		While: func(ctx context.Context, _ cay.TeamID, key cay.KeyID) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			if key != "" {
				w.removeKey = cancel
			}
			return ctx, cancel
		},
		Owner: func(_ context.Context, id cay.SandboxID) (cay.TeamID, error) {
			switch id {
			case box:
				return ours, nil
			case other:
				return theirs, nil
			}
			return "", cay.Errorf(cay.NotFound, "no sandbox %q", id)
		},
		Opens: func(_ context.Context, team cay.TeamID, fingerprint string) (bool, error) {
			return team == ours && !w.gone.Load() && fingerprint == ssh.FingerprintSHA256(w.signer.PublicKey()), nil
		},
		Visited: func(who cay.Caller, id cay.SandboxID, ends bool) {
			select {
			case w.visited <- visited{who, id, ends}:
			default: // of many connections nothing is asked
			}
		},
		Enter: func(context.Context, cay.TeamID, cay.SandboxID) error { return nil },
		Keep:  func(context.Context, cay.TeamID, cay.SandboxID) error { return nil },
		Dial: func(ctx context.Context, _ cay.SandboxID, port int) (net.Conn, error) {
			if port != guest.AgentPort {
				return nil, cay.Errorf(cay.Unavailable, "nothing listens")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		},
		Token: func(cay.SandboxID) string { return "" },
		Log:   slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	must(t, err)
	t.Cleanup(w.server.Close)
	w.serve()
	return w
}

// serve has the world's server serve at an address of its own.
func (w *world) serve() {
	own, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.t, err)
	w.t.Cleanup(func() { own.Close() })
	w.addr = own.Addr().String()
	go w.server.Serve(own)
}

// newCluster is a world whose clients talk to a server that has no sandboxes, and joins
// them to the one that has.
func newCluster(t *testing.T) *world {
	w := newWorld(t)
	far, cfg := w.server, w.server.cfg
	cfg.Dial = func(context.Context, cay.SandboxID, int) (net.Conn, error) {
		t.Error("it looked for the sandbox on its own machine")
		return nil, cay.Errorf(cay.NotFound, "it is elsewhere")
	}
	cfg.Elsewhere = func(_ context.Context, team cay.TeamID, _ cay.SandboxID, by []cay.Origins) (io.ReadWriteCloser, error) {
		here, there := wire(t)
		go far.ServeRelayed(there, team, by)
		return here, nil
	}
	var err error
	w.server, err = New(cfg)
	must(t, err)
	t.Cleanup(w.server.Close)
	w.serve()
	return w
}

// both runs a test of a machine alone and of a cluster.
func both(t *testing.T, test func(*testing.T, *world)) {
	t.Run("alone", func(t *testing.T) { test(t, newWorld(t)) })
	t.Run("cluster", func(t *testing.T) { test(t, newCluster(t)) })
}

// accounts is a root whose usual user is the one that runs the test.
func accounts(t *testing.T) string {
	root := t.TempDir()
	for file, text := range map[string]string{
		"passwd": fmt.Sprintf("user:x:%d:%d::%s:/bin/bash\n", os.Geteuid(), os.Getegid(), root), "group": "",
	} {
		must(t, os.MkdirAll(root+"/etc", 0o755))
		must(t, os.WriteFile(root+"/etc/"+file, []byte(text), 0o644))
	}
	return root
}

func (w *world) dial(user string, how ...ssh.AuthMethod) (*ssh.Client, error) {
	return ssh.Dial("tcp", w.addr, &ssh.ClientConfig{
		User: user, Auth: how, Timeout: patience,
		HostKeyCallback: ssh.FixedHostKey(w.server.signer.PublicKey()),
	})
}

func (w *world) enter() *ssh.Client {
	w.t.Helper()
	c, err := w.dial(box, ssh.Password(password))
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

func TestWhoIsLetIn(t *testing.T) {
	w := newWorld(t)
	stranger, err := ssh.NewSignerFromKey(newKey(t))
	must(t, err)
	mine, foreign := ssh.PublicKeys(w.signer), ssh.PublicKeys(stranger)
	for name, tc := range map[string]struct {
		user string
		how  ssh.AuthMethod
		in   bool
	}{
		"a key of the team":              {box, mine, true},
		"as an account inside":           {box + "+root", mine, true},
		"an API key":                     {box, ssh.Password(password), true},
		"another key":                    {box, foreign, false},
		"another password":               {box, ssh.Password("e2b_other"), false},
		"no password":                    {box, ssh.Password(""), false},
		"another team's sandbox, by key": {other, mine, false},
		"another team's, by API key":     {other, ssh.Password(password), false},
		"no such sandbox":                {"inone", ssh.Password(password), false},
		"no id":                          {"../box", ssh.Password(password), false},
		"no name":                        {"", ssh.Password(password), false},
		"a long name inside":             {box + "+" + strings.Repeat("x", 65), mine, false},
	} {
		c, err := w.dial(tc.user, tc.how)
		if (err == nil) != tc.in {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
	if _, err := w.dial(box); err == nil {
		t.Error("let in without anything")
	}
}

// A key that is removed ends what it opened, and nothing else.
func TestReview(t *testing.T) {
	w := newWorld(t)
	byPassword := w.enter()
	byKey, err := w.dial(box, ssh.PublicKeys(w.signer))
	must(t, err)
	defer byKey.Close()
	w.server.Review(ours)
	_, err = open(t, byKey).Output("true") // it is still its team's
	must(t, err)
	w.gone.Store(true)
	w.server.Review(theirs)
	_, err = open(t, byKey).Output("true")
	must(t, err)
	w.server.Review(ours)
	ended := make(chan error, 1)
	go func() { ended <- byKey.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a connection outlived its key")
	}
	_, err = open(t, byPassword).Output("true")
	must(t, err)
	w.removeKey()
	go func() { ended <- byPassword.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a connection outlived its API key")
	}
}

// wire is both ends of a connection.
func wire(t *testing.T) (here, there net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	here, err = net.Dial("tcp", l.Addr().String())
	must(t, err)
	t.Cleanup(func() { here.Close() })
	there, err = l.Accept()
	must(t, err)
	return here, there
}

// trusted dials as a caller whose team is known.
func (w *world) trusted(user string) (*ssh.Client, error) {
	here, there := wire(w.t)
	go w.server.ServeTrusted(there, cay.Caller{Team: ours})
	conn, channels, requests, err := ssh.NewClientConn(here, "cay", &ssh.ClientConfig{
		User: user, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// Each connection that was let in is told when it begins and when it ends, with
// the key that opened it.
func TestVisited(t *testing.T) { both(t, areVisited) }

func areVisited(t *testing.T, w *world) {
	c, err := w.dial(box, ssh.PublicKeys(w.signer))
	must(t, err)
	begun := <-w.visited
	c.Close()
	ended := <-w.visited
	if begun.ends || !ended.ends || begun.id != box || ended.id != box || begun.who.Team != ours || begun.who.From.Address != "127.0.0.1" ||
		string(begun.who.Key) != ssh.FingerprintSHA256(w.signer.PublicKey()) {
		t.Errorf("%+v %+v", begun, ended)
	}
	id := begun.who.From.Request
	if id == "" || ended.who.From.Request != id || strings.Count(w.log.String(), " request="+id) != 2 {
		t.Errorf("its id is %q, then %q, in %s", id, ended.who.From.Request, w.log.String())
	}
	if _, err := w.dial(other, ssh.PublicKeys(w.signer)); err == nil {
		t.Error("let in to another team's sandbox")
	}
	if c, err := w.dial(box, ssh.Password(password)); err != nil {
		t.Error(err)
	} else if begun := <-w.visited; begun.who.Key != "the key" || begun.who.From.Request == id {
		t.Errorf("by password: %+v", begun)
	} else {
		c.Close()
		<-w.visited
	}
}

func TestTrustedSeeTheirTeamAlone(t *testing.T) {
	w := newWorld(t)
	c, err := w.trusted(box)
	must(t, err)
	out, err := open(t, c).Output("echo in")
	if string(out) != "in\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	c.Close()
	if _, err := w.trusted(other); err == nil {
		t.Error("let in to another team's sandbox")
	}
}

func open(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	must(t, err)
	return s
}

func TestPrograms(t *testing.T) { both(t, programs) }

func programs(t *testing.T, w *world) {
	c := w.enter()
	s := open(t, c)
	must(t, s.Setenv("LC_TEST", "a b"))
	s.Stdin = strings.NewReader("input")
	var errs bytes.Buffer
	s.Stderr = &errs
	out, err := s.Output(`cat; echo " $LC_TEST"; echo bad >&2; exit 5`)
	var status *ssh.ExitError
	if string(out) != "input a b\n" || errs.String() != "bad\n" || !errors.As(err, &status) || status.ExitStatus() != 5 {
		t.Errorf("%q, %q, %v", out, errs.String(), err)
	}
	s = open(t, c)
	must(t, s.RequestPty("xterm", 24, 80, nil))
	must(t, s.WindowChange(30, 100))
	in, err := s.StdinPipe()
	must(t, err)
	var screen bytes.Buffer
	s.Stdout = &screen
	must(t, s.Shell())
	_, err = io.WriteString(in, "stty size; echo $TERM; exit 4\n")
	must(t, err)
	if err := s.Wait(); !errors.As(err, &status) || status.ExitStatus() != 4 {
		t.Errorf("%v: %s", err, screen.String())
	}
	if got := screen.String(); !strings.Contains(got, "30 100\r\n") || !strings.Contains(got, "xterm\r\n") {
		t.Errorf("the terminal said %q", got)
	}
}

// TestErrorsAreWhole: what a program says last on its second stream arrives.
func TestErrorsAreWhole(t *testing.T) { both(t, errorsAreWhole) }

func errorsAreWhole(t *testing.T, w *world) {
	c := w.enter()
	const size = 1 << 20
	for range 5 {
		s := open(t, c)
		var errs bytes.Buffer
		s.Stderr = &errs
		if err := s.Run(fmt.Sprintf("head -c %d /dev/zero >&2", size)); err != nil || errs.Len() != size {
			t.Fatalf("%d bytes of %d, %v", errs.Len(), size, err)
		}
	}
}

// TestHangUp: a program ends with its caller.
func TestHangUp(t *testing.T) { both(t, hangUp) }

func hangUp(t *testing.T, w *world) {
	c := w.enter()
	mark := t.TempDir() + "/ended"
	s := open(t, c)
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Start("trap 'touch "+mark+"; exit' TERM; echo ready; while :; do sleep 0.1; done"))
	ready := make([]byte, 6)
	_, err = io.ReadFull(out, ready)
	must(t, err)
	c.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it runs on")
		}
	}
}

func TestWhatIsNotOffered(t *testing.T) { both(t, whatIsNotOffered) }

func whatIsNotOffered(t *testing.T, w *world) {
	c := w.enter()
	for _, kind := range []string{"x11", "tun@openssh.com", "direct-streamlocal@openssh.com", "", strings.Repeat("x", 1000)} {
		if _, _, err := c.OpenChannel(kind, []byte("junk")); err == nil {
			t.Errorf("a channel of type %.40q was opened", kind)
		}
	}
	for _, payload := range [][]byte{
		nil, []byte("junk"), ssh.Marshal(forwarded{"localhost", 0, "", 0}), ssh.Marshal(forwarded{"localhost", 65536 + 80, "", 0}),
		ssh.Marshal(forwarded{"169.254.169.254", 80, "", 0}), ssh.Marshal(forwarded{"10.0.0.1", 80, "", 0}),
		ssh.Marshal(forwarded{"localhost", guest.AgentPort, "", 0}), ssh.Marshal(forwarded{"localhost", 9, "", 0}),
	} {
		if _, _, err := c.OpenChannel("direct-tcpip", payload); err == nil {
			t.Errorf("forwarded: %q", payload)
		}
	}
	for _, path := range []string{"", "relative", "@abstract", "/" + strings.Repeat("x", maxSocketPath), "/a\x00b"} {
		if _, _, err := c.OpenChannel("direct-streamlocal@openssh.com", ssh.Marshal(socketed{Path: path})); err == nil {
			t.Errorf("socket: %q", path)
		}
	}
	for _, request := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "no-more-sessions@openssh.com"} {
		if ok, _, err := c.SendRequest(request, true, []byte("junk")); ok || err != nil {
			t.Errorf("%s: %t, %v", request, ok, err)
		}
	}
	ch, requests, err := c.OpenChannel("session", nil)
	must(t, err)
	go ssh.DiscardRequests(requests)
	for request, payload := range map[string][]byte{
		"exec": []byte("junk"), "subsystem": ssh.Marshal(textRequest{"netconf"}), "pty-req": []byte("junk"), "env": []byte("\x00"),
		"window-change": nil, "signal": ssh.Marshal(textRequest{"KILL"}), "auth-agent-req@openssh.com": nil, "x11-req": nil,
	} {
		if ok, err := ch.SendRequest(request, true, payload); ok || err != nil {
			t.Errorf("%s: %t, %v", request, ok, err)
		}
	}
	if ok, err := ch.SendRequest("exec", true, ssh.Marshal(textRequest{"exit"})); !ok || err != nil {
		t.Errorf("it does not work any more: %t, %v", ok, err)
	}
	if ok, _ := ch.SendRequest("exec", true, ssh.Marshal(textRequest{"exit"})); ok {
		t.Error("two programs in a session")
	}
}

func TestChannelsAreBounded(t *testing.T) { both(t, channelsAreBounded) }

func channelsAreBounded(t *testing.T, w *world) {
	c := w.enter()
	for range perConn {
		_, requests, err := c.OpenChannel("session", nil)
		must(t, err)
		go ssh.DiscardRequests(requests)
	}
	_, _, err := c.OpenChannel("session", nil)
	var refused *ssh.OpenChannelError
	if !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage {
		t.Errorf("one more: %v", err)
	}
}

func TestConnectionsOfATeamAreBounded(t *testing.T) {
	w := newWorld(t)
	for range perTeam {
		// It is counted after its caller was greeted, and before its first channel.
		_, err := w.enter().NewSession()
		must(t, err)
	}
	c, err := w.dial(box, ssh.Password(password))
	if err == nil { // it is cut once it was let in
		defer c.Close()
		if _, err := c.NewSession(); err == nil {
			t.Error("one more was served")
		}
	}
}

// FuzzGreeting sends any greeting: no stranger is let in.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14" + strings.Repeat("\x00", 30)))
	f.Add(append([]byte("SSH-2.0-x\r\n"), bytes.Repeat([]byte{0xff}, 64)...))
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{signer: signer, ctx: context.Background()}
	f.Fuzz(func(t *testing.T, in []byte) {
		here, there := net.Pipe()
		go func() {
			go io.Copy(io.Discard, here)
			_, _ = here.Write(in)
			here.Close()
		}()
		if _, _, _, err := ssh.NewServerConn(there, s.stranger()); err == nil {
			t.Fatal("let in")
		}
		there.Close()
	})
}
