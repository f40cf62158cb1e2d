package triggers

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/command"
	"github.com/cay-run/cay/internal/ticks"
)

// answerMost bounds what is read of an agent's answer, in bytes: the guest is
// hostile.
const answerMost = 4 << 10

// guestClient reaches the agent of a sandbox.
type guestClient struct {
	token string
	http  *http.Client
	agent command.Client
}

const agentURL = "http://agent"

func (t *Triggers) guestOf(box cay.Sandbox) *guestClient {
	access, _ := t.sandboxes.TokensOf(box)
	web := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.sandboxes.Dial(ctx, box.ID, guest.AgentPort)
		},
		MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
	}}
	return &guestClient{token: access, http: web, agent: command.NewClient(web, agentURL)}
}

func (g *guestClient) close() { g.http.CloseIdleConnections() }

// write writes a file.
func (g *guestClient) write(ctx context.Context, path, user string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, agentURL+guest.FilesPath+"?"+query.Encode(), bytes.NewReader(content))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	r.Header.Set("X-Access-Token", g.token)
	resp, err := g.http.Do(r)
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "the agent of the sandbox does not take the payload")
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		return nil
	}
	var said struct {
		Message string `json:"message"`
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, answerMost)) // what there is of it
	_ = json.Unmarshal(text, &said)                              // the guest shaped it
	return cay.Errorf(cay.Conflict, "the payload could not be written to %s: %s", path, cay.Fit(said.Message, 300))
}

// forget removes a file of a user's; one that stays does no harm.
func (g *guestClient) forget(path, user string) {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	_ = command.Run(ctx, g.agent, command.Command{User: user, Dir: "/", Token: g.token, Args: []string{"/bin/rm", "-f", path}})
}

// kill ends a command. One that the agent has not said to run may be on its way
// there: it is looked for a while.
func (g *guestClient) kill(c command.Command, begun bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	for tries := 0; tries < 20; tries++ {
		if command.Kill(ctx, g.agent, c) == nil || begun || !ticks.Wait(ctx, 100*time.Millisecond) {
			return
		}
	}
}
