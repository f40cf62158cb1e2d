package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// entry is a way to a port of a sandbox. It returns why it was not let in.
type entry func(port int) error

// entries are all ways to the ports of a sandbox whose bytes the server does not read,
// or does.
func entries(t *testing.T, w *servertest.World, box *client.Sandbox) (plain, read map[string]entry) {
	ctx := t.Context()
	joined := func(by string, headers ...string) entry {
		return func(port int) error {
			c, status := socket(t, w, "", fmt.Sprintf("/cay/v1/sandboxes/%s/ports/%d", box.ID, port), by, headers...)
			if status != http.StatusSwitchingProtocols {
				return fmt.Errorf("status %d", status)
			}
			return c.CloseNow()
		}
	}
	plain = map[string]entry{
		"a port": func(port int) error {
			c, err := w.Client().Dial(ctx, box.ID, port)
			if err == nil {
				c.Close()
			}
			return err
		},
		"a port by websocket": joined("", "X-API-Key", w.Key),
		"a port by ticket": func(port int) error {
			code, text := call(t, w, w.Key, "POST", "/cay/v1/tickets", fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, box.ID, port))
			if code != http.StatusCreated {
				return fmt.Errorf("status %d: %s", code, text)
			}
			return joined(ticket(t, w, w.Key, fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, box.ID, port)))(port)
		},
		"ssh -L": func(port int) error {
			c, err := ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{User: box.ID, Auth: []ssh.AuthMethod{ssh.Password(w.Key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
			if err != nil {
				return err
			}
			defer c.Close()
			far, err := c.Dial("tcp", fmt.Sprintf("localhost:%d", port))
			if err == nil {
				far.Close()
			}
			return err
		},
	}
	sent := func(host, path string, headers ...string) entry {
		return func(port int) error {
			name := strings.NewReplacer("PORT", fmt.Sprint(port), "ID", box.ID)
			r, err := http.NewRequestWithContext(ctx, "POST", w.URL()+name.Replace(path)+"/execute", strings.NewReader(`{"code":"1"}`))
			if err != nil {
				return err
			}
			r.Host = name.Replace(host)
			r.Header.Set("X-Access-Token", box.AccessToken)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], name.Replace(headers[i+1]))
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if resp.StatusCode == http.StatusForbidden {
				return fmt.Errorf("%s", text)
			}
			return err
		}
	}
	read = map[string]entry{
		"by host":             sent("PORT-ID.localhost", ""),
		"by path":             sent("", "/s/ID/PORT"),
		"by headers":          sent("", "", "E2b-Sandbox-Id", "ID", "E2b-Sandbox-Port", "PORT"),
		"by host, upgraded":   sent("PORT-ID.localhost", "", "Connection", "Upgrade", "Upgrade", "tcp"),
		"by the console's":    sent("console.localhost", "/agent", "E2b-Sandbox-Id", "ID", "E2b-Sandbox-Port", "PORT", "Origin", "http://console.localhost", "Sec-Fetch-Site", "same-origin"),
		"by path, not clean":  sent("", "/s/ID/PORT/x/.."),
		"by host, not clean":  sent("PORT-ID.localhost", "//."),
		"by headers, escaped": sent("", "/%2e", "E2b-Sandbox-Id", "ID", "E2b-Sandbox-Port", "PORT"),
	}
	return plain, read
}

// asks runs what may ask, and denies it if it does. It reports the question's title,
// empty for none, and how what asked ended.
func asks(t *testing.T, decider *client.Client, box string, run func() error) (title string, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := decider.WaitFor(ctx, box, 0, string(cay.SandboxCreated))
	if err != nil {
		t.Fatal(err)
	}
	after := events.Seq
	for e, err := range decider.Events(ctx, client.EventOptions{Sandbox: box, After: after}) {
		if err != nil {
			t.Fatal(err)
		}
		after = max(after, e.Seq)
	}
	ended := make(chan error, 1)
	go func() { ended <- run(); cancel() }()
	e, asked := decider.WaitFor(ctx, box, after, string(cay.ApprovalRequested))
	if asked != nil {
		return "", <-ended
	}
	if _, err := decider.DecideApproval(t.Context(), e.Data["approval"], false, "", ""); err != nil {
		t.Error(err)
	}
	return e.Data["title"], <-ended
}

// One table of ports decides for every way in: what the server does not read of the
// interpreter's is asked about with any pattern, the agent's port is closed to it, and
// the ports of users are free.
func TestDoors(t *testing.T) {
	w := servertest.New(t)
	w.Config.SSHListen = "127.0.0.1:0"
	w.Start()
	decider := w.ClientOf(operatorsKey(t, w, "approvals:decide", "sandboxes:read").Key)
	create := func(patterns ...string) *client.Sandbox {
		t.Helper()
		box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour, AskCommands: patterns})
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	free, _ := entries(t, w, create())
	for what := range free {
		asked := create("never") // of its own: a no stands for a minute
		plain, _ := entries(t, w, asked)
		enter := plain[what]
		title, err := asks(t, decider, asked.ID, func() error { return enter(49999) })
		if title == "" || err == nil {
			t.Errorf("%s, to the interpreter: asked %q, ended with %v", what, title, err)
		}
		if title, err := asks(t, decider, asked.ID, func() error { return enter(49983) }); title != "" || err == nil {
			t.Errorf("%s, to the agent: asked %q, ended with %v", what, title, err)
		}
		if title, err := asks(t, decider, asked.ID, func() error { return enter(hosttest.AppPort) }); title != "" || err != nil {
			t.Errorf("%s, to a user's port: asked %q, ended with %v", what, title, err)
		}
		if err := free[what](49999); err != nil {
			t.Errorf("%s, to the interpreter of a sandbox without patterns: %v", what, err)
		}
	}
	_, read := entries(t, w, create())
	for what := range read {
		all := create("*")
		_, read := entries(t, w, all)
		title, err := asks(t, decider, all.ID, func() error { return read[what](49999) })
		if !strings.Contains(title, "Run python code") || err == nil || !strings.Contains(err.Error(), cay.CodeCommandDenied) {
			t.Errorf("%s: asked %q, ended with %v", what, title, err)
		}
	}
}
