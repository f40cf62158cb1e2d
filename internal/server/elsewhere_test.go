package server_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// SSH at each node's port, at its one port and by links that name no sandbox reaches the
// sandboxes of all nodes, for their team, asleep or not.
func TestOtherNodes(t *testing.T) {
	ctx := t.Context()
	agent := servertest.RealAgent(t, t.TempDir())
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) {
		w.Config.SSHListen, w.Machine.Agent = "127.0.0.1:0", agent
	})
	c.AwaitReady(2)
	stranger, err := c.Nodes[0].Admin("").CreateTeam(ctx, "stranger")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := c.Nodes[0].Admin(stranger.ID).CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	boxes := map[int]string{} // by their node
	for i := 0; len(boxes) < 2 && i < 60; i++ {
		id := made(t, c.Nodes[0], "POST", "/sandboxes", `{"templateID":"base","secure":true,"timeout":3600,"autoPause":true,"autoResume":{"enabled":true}}`, "sandboxID")
		boxes[whereOf(c, id)[0]] = id
	}
	login := func(w *servertest.World, id, key string) (*ssh.Client, error) {
		return ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{
			User: id, Auth: []ssh.AuthMethod{ssh.Password(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
	}
	works := func(w *servertest.World, id string) {
		t.Helper()
		conn, err := login(w, id, w.Key)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s, err := conn.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		s.Stdin = strings.NewReader("in")
		out, err := s.CombinedOutput("cat; exit 3")
		if exit, ok := err.(*ssh.ExitError); string(out) != "in" || !ok || exit.ExitStatus() != 3 {
			t.Errorf("%q, %v", out, err)
		}
		over := http.Client{Transport: &http.Transport{DialContext: conn.DialContext}}
		resp, err := over.Get("http://localhost:8000/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		over.CloseIdleConnections()
	}
	for node, id := range boxes {
		for _, w := range c.Nodes {
			works(w, id)
			if conn, err := login(w, id, theirs.Key); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
				t.Errorf("another team is let in: %v", err)
				if conn != nil {
					conn.Close()
				}
			}
			if _, err := login(w, "inone", w.Key); err == nil {
				t.Error("let in to no sandbox")
			}
		}
		other := c.Nodes[1-node]
		pause := func() {
			t.Helper()
			if err := other.Client().Pause(ctx, id); err != nil {
				t.Fatal(err)
			}
			awaitNowhere(t, c, id)
		}
		pause()
		works(other, id) // which wakes it, where it is
		if on := whereOf(c, id); !slices.Equal(on, []int{node}) {
			t.Errorf("after SSH woke it, it is on %v", on)
		}

		access := made(t, other, "POST", "/cay/v1/sandboxes/"+id+"/access", "", "envdAccessToken")
		link := func(token string) string {
			file := guest.Signature{Path: "/etc/hostname"}
			return "/files?" + url.Values{"path": {file.Path}, "signature": {file.Sign("read", token)}}.Encode()
		}
		nothing := func(*http.Request) {}
		pause()
		if code := knock(t, other, link("another"), nothing, nil); code != http.StatusUnauthorized {
			t.Errorf("by another signature: %d", code)
		}
		if on := whereOf(c, id); len(on) != 0 {
			t.Errorf("another signature wakes it on %v", on)
		}
		knock(t, other, link(access), nothing, nil) // what the guest answers is its own
		if on := whereOf(c, id); !slices.Equal(on, []int{node}) {
			t.Errorf("after its link, it is on %v", on)
		}
	}
	// The connection ends with the key that opened it, at the node that let it in.
	inside, err := c.Nodes[0].Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "inside", Scopes: []string{"sandboxes:exec"}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := login(c.Nodes[0], boxes[1], inside.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := c.Nodes[0].Client().RemoveAPIKey(ctx, inside.ID); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = conn.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it outlives its key")
	}
}
