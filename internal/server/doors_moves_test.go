package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Each door leads into a sandbox after it has moved, at every node, and what was open breaks; while
// its node is away each answers in time with what to do, and none hangs.
func TestDoorsOfAMovedSandbox(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	agent := servertest.RealAgent(t, t.TempDir())
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) {
		w.Config.SSHListen, w.Machine.Agent = "127.0.0.1:0", agent
	})
	c.AwaitReady(2)
	id := onEach(t, c)[1]
	first, second := c.Nodes[0], c.Nodes[1]
	login := func(w *servertest.World) (*ssh.Client, error) {
		return ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{User: id, Auth: []ssh.AuthMethod{ssh.Password(first.Key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	}
	opens := func(w *servertest.World) *websocket.Conn {
		t.Helper()
		by := ticket(t, w, first.Key, fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, id, hosttest.AppPort))
		conn, status := socket(t, w, "", fmt.Sprintf("/cay/v1/sandboxes/%s/ports/%d", id, hosttest.AppPort), by)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("a tunnel to a port: %d", status)
		}
		return conn
	}
	tunnel := opens(first)
	shell, err := login(first)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	session, err := shell.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("sleep 8"); err != nil {
		t.Fatal(err)
	}

	moves := nodeOf(t, second)
	if err := first.Admin("").DrainNode(ctx, moves, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, moves, func(n client.ClusterNode) bool { return n.Draining && n.Running+n.Starting+n.Paused == 0 })
	within(t, "the tunnel that was open", func() {
		if _, _, err := tunnel.Read(ctx); err == nil {
			t.Error("a tunnel goes on that led to where the sandbox was")
		}
	})
	within(t, "the command that was under way by SSH", func() { _ = session.Wait() })
	if on := whereOf(c, id); !slices.Equal(on, []int{0}) {
		t.Fatalf("it has moved to %v", on)
	}
	for i, w := range c.Nodes {
		opens(w)
		conn, err := login(w)
		if err != nil {
			t.Fatalf("SSH at node %d: %v", i, err)
		}
		if s, err := conn.NewSession(); err != nil {
			t.Error(err)
		} else if out, err := s.Output("echo in"); err != nil || string(out) != "in\n" {
			t.Errorf("SSH at node %d: %q, %v", i, out, err)
		}
		conn.Close()
		if text, _, failed := use(t, tools(t, w, first.Key, "any"), "execute_command", map[string]any{"sandbox_id": id, "command": "echo in"}); failed || strings.TrimSpace(text) != "in" {
			t.Errorf("a tool at node %d: %s", i, text)
		}
		if _, err := w.Client().AskApproval(ctx, client.NewApproval{SandboxID: id, Title: "may I"}); err != nil {
			t.Errorf("a question at node %d: %v", i, err)
		}
	}

	first.Stop()
	awaitLead(t, second)
	var doors sync.WaitGroup
	for what, try := range map[string]func() (string, bool){
		"a ticket": func() (string, bool) {
			code, text := call(t, second, first.Key, "POST", "/cay/v1/tickets", fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, id, hosttest.AppPort))
			return text, code == http.StatusServiceUnavailable && strings.Contains(text, cay.CodeNodeAway)
		},
		"a request": func() (string, bool) {
			code, text := intoSandbox(t, second, id, "GET", "/", nil)
			return text, code == http.StatusServiceUnavailable && strings.Contains(text, cay.CodeNodeAway)
		},
		"SSH": func() (string, bool) {
			conn, err := login(second)
			if err != nil {
				return err.Error(), false
			}
			defer conn.Close()
			s, err := conn.NewSession()
			if err != nil { // the log-in succeeds, and the channel says why it does not open
				return err.Error(), strings.Contains(err.Error(), "node is away: try again")
			}
			s.Close()
			return "it opens", false
		},
		"a tool": func() (string, bool) {
			text, _, failed := use(t, tools(t, second, first.Key, "any"), "execute_command", map[string]any{"sandbox_id": id, "command": "echo in"})
			return text, failed && strings.Contains(text, "node")
		},
		"a timeout": func() (string, bool) {
			code, text := call(t, second, first.Key, "POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`)
			return text, code == http.StatusServiceUnavailable && strings.Contains(text, cay.CodeNodeAway)
		},
	} {
		doors.Go(func() {
			within(t, what, func() {
				if text, ok := try(); !ok {
					t.Errorf("%s while the node is away: %s", what, text)
				}
			})
		})
	}
	doors.Wait()
	first.Start()
	awaitNode(t, c, nodeOf(t, first), func(n client.ClusterNode) bool { return n.State == string(cay.NodeReady) })
	if code, text := intoSandbox(t, second, id, "GET", "/", nil); code != http.StatusOK {
		t.Errorf("when its node is back: %d %s", code, text)
	}
}

// within fails where something does not end.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); do() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Errorf("%s hangs", what)
	}
}
