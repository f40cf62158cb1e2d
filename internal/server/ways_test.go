package server_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// entry is a way to a port of a sandbox. It returns why it was not let in.
type entry func(port int) error

// entries are all ways to the ports of a sandbox whose bytes the server does not read,
// or does.
func entries(t *testing.T, w *servertest.World, key string, box *client.Sandbox) (plain, read map[string]entry) {
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
			c, err := w.ClientOf(key).Dial(ctx, box.ID, port)
			if err == nil {
				c.Close()
			}
			return err
		},
		"a port by websocket": joined("", "X-API-Key", key),
		"a port by ticket": func(port int) error {
			code, text := call(t, w, key, "POST", "/cay/v1/tickets", fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, box.ID, port))
			if code != http.StatusCreated {
				return fmt.Errorf("status %d: %s", code, text)
			}
			return joined(ticket(t, w, key, fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, box.ID, port)))(port)
		},
		"ssh -L": func(port int) error {
			c, err := ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{User: box.ID, Auth: []ssh.AuthMethod{ssh.Password(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
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
			if path != "/s/ID/PORT/stranger/.." {
				r.Header.Set("X-Access-Token", box.AccessToken)
			}
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
		"without a token":     sent("", "/s/ID/PORT/stranger/.."),
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
	var after int64
	for e, err := range decider.Events(t.Context(), client.EventOptions{Sandbox: box}) {
		if err != nil {
			t.Fatal(err)
		}
		after = e.Seq
	}
	return decides(t, decider, box, after, run, func(id string) {
		if _, err := decider.DecideApproval(t.Context(), id, false, "", ""); err != nil {
			t.Error(err)
		}
	})
}

// decides runs what may ask, with the decisions about its question, which is the first
// after an event.
func decides(t *testing.T, reader *client.Client, box string, after int64, run func() error, decide func(id string)) (title string, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(); cancel() }()
	e, asked := reader.WaitFor(ctx, box, after, string(cay.ApprovalRequested))
	if asked != nil {
		return "", <-ended
	}
	decide(e.Data["approval"])
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
	free, _ := entries(t, w, w.Key, create())
	for what := range free {
		asked := create("never") // of its own: a no stands for a minute
		plain, _ := entries(t, w, w.Key, asked)
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
	_, read := entries(t, w, w.Key, create())
	for what := range read {
		all := create("*")
		_, read := entries(t, w, w.Key, all)
		title, err := asks(t, decider, all.ID, func() error { return read[what](49999) })
		if !strings.Contains(title, "Run python code") || err == nil || !strings.Contains(err.Error(), cay.CodeCommandDenied) {
			t.Errorf("%s: asked %q, ended with %v", what, title, err)
		}
	}
}

// party is a credential that starts commands, or decides.
type party struct{ name, key string }

// parties are credentials of one team: of the one that asks and of those near it, the one
// that made the sandbox, and one that has nothing to do with either.
func parties(t *testing.T, w *servertest.World) (asker, maker, other party, near []party, session string) {
	t.Helper()
	team := agentTeam(t, w)
	person := func(id string) cay.PersonID {
		w.Records(func(db *store.DB) {
			p := cay.Person{ID: cay.PersonID(id), Email: id + "@example.com", CreatedAt: time.Now()}
			err := db.AddPerson(t.Context(), p)
			if err == nil {
				err = db.AddMember(t.Context(), cay.Member{Team: team, Person: p.ID, Role: cay.Owner, AddedAt: time.Now()})
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		return cay.PersonID(id)
	}
	ann, bob := person(string(cay.NewPersonID())), person(string(cay.NewPersonID()))
	x := cay.Session{SessionOwner: cay.SessionOwner{Person: ann}}
	session = auth.NewSession(&x)
	w.Records(func(db *store.DB) {
		if err := db.AddSession(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	})
	of := func(name string, p cay.PersonID, exchange string) party {
		return party{name, w.AddKey(cay.APIKey{Team: team, Name: name, CreatedBy: string(p), Person: p, Exchange: exchange})}
	}
	asker, maker, other = of("the same key", ann, "a job"), of("the key that made the sandbox", "", ""), of("a key of another person", bob, "another job")
	near = []party{asker, of("another key of the same person", ann, ""), of("an exchange of the same subject", "", "a job"), maker}
	w.Start()
	child, err := w.ClientOf(asker.key).CreateAPIKey(t.Context(), client.NewAPIKey{Name: "child"})
	if err != nil {
		t.Fatal(err)
	}
	return asker, maker, other, append(near, party{"a child key", child.Key}), session
}

// starts are all ways to start something in a sandbox that another party made. They ask in
// the name of the requesting party.
func starts(t *testing.T, w *servertest.World, asker, maker party, session string, box *client.Sandbox) map[string]func() error {
	t.Helper()
	ctx := t.Context()
	api := w.ClientOf(asker.key)
	run := func(c client.Command) func() error {
		return func() error {
			own, err := api.Connect(ctx, box.ID, time.Hour)
			if err == nil {
				_, err = own.Run(ctx, c)
			}
			return err
		}
	}
	at := func(user, key string, in func(*ssh.Client) error) func() error {
		return func() error {
			c, err := ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.Password(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
			if err != nil {
				return err
			}
			defer c.Close()
			return in(c)
		}
	}
	exec := func(c *ssh.Client) error {
		s, err := c.NewSession()
		if err != nil {
			return err
		}
		defer s.Close()
		var errs strings.Builder
		s.Stderr = &errs
		if err := s.Run("true"); err != nil {
			return fmt.Errorf("%w: %s", err, errs.String())
		}
		return nil
	}
	hook := func(by party, o client.TriggerOptions) client.Trigger {
		o.Name, o.SandboxID, o.After = ptr(string(cay.NewTriggerID())), &box.ID, ptr("keep")
		if o.Command == nil {
			o.Command = ptr("true")
		}
		x, err := w.ClientOf(by.key).CreateTrigger(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	over := func(id string) error {
		if r := ended(t, w, id); r.State != "succeeded" {
			return fmt.Errorf("%s: %s", r.State, r.Error)
		}
		return nil
	}
	fire := func(x client.Trigger) error {
		_, answer, text := deliver(t, w, x, bearer(x), "{}")
		id, ok := answer["runID"].(string)
		if !ok {
			return fmt.Errorf("%s", text)
		}
		return over(id)
	}
	tool := func(name string, args map[string]any) func() error {
		return func() error {
			args["sandbox_id"] = box.ID
			result, err := tools(t, w, asker.key, "a model").CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
			if err == nil && result.IsError {
				err = fmt.Errorf("%v", result.Content[0])
			}
			return err
		}
	}
	signer, public := freshSSHKey(t)
	if _, err := api.AddSSHKey(ctx, "its own "+box.ID, public); err != nil {
		t.Fatal(err)
	}
	plain, _ := entries(t, w, asker.key, box)
	return map[string]func() error{
		"SDK": run(client.Command{Path: "true"}), "services": run(client.Command{Path: "/bin/bash", Args: []string{"-c", "systemctl start web"}}),
		"SDK, run_code": func() error {
			own, err := api.Connect(ctx, box.ID, time.Hour)
			if err != nil {
				return err
			}
			_, read := entries(t, w, asker.key, own)
			return read["by headers"](49999)
		},
		"port": func() error { return plain["a port"](49999) }, "port by ticket": func() error { return plain["a port by ticket"](49999) },
		"SSH by key as password": at(box.ID, asker.key, exec), "SSH forward": func() error { return plain["ssh -L"](49999) },
		"SSH terminal": at(box.ID, asker.key, func(c *ssh.Client) error {
			s, err := c.NewSession()
			if err == nil {
				err = s.RequestPty("xterm", 24, 80, nil)
			}
			if err != nil {
				return err
			}
			return s.Run("true")
		}),
		"SSH by registered key": func() error {
			c, err := ssh.Dial("tcp", w.SSHAddr(), &ssh.ClientConfig{User: box.ID, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
			if err != nil {
				return err
			}
			defer c.Close()
			return exec(c)
		},
		"SSH over the API": func() error {
			conn, err := api.DialSSH(ctx)
			if err != nil {
				return err
			}
			c, channels, requests, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{User: box.ID, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
			if err != nil {
				return err
			}
			defer c.Close()
			return exec(ssh.NewClient(c, channels, requests))
		},
		"hook": func() error { return fire(hook(asker, client.TriggerOptions{Kind: "hook", Proof: ptr("bearer")})) },
		"hook of another, changed": func() error {
			x := hook(maker, client.TriggerOptions{Kind: "hook", Proof: ptr("bearer")})
			if _, err := api.UpdateTrigger(ctx, x.ID, client.TriggerOptions{Command: ptr("true ")}); err != nil {
				return err
			}
			return fire(x)
		},
		"trigger of another, started by hand": func() error {
			x := hook(maker, client.TriggerOptions{Kind: "hook", Proof: ptr("bearer")})
			r, err := api.StartRun(ctx, x.ID, "text/plain", nil)
			if err != nil {
				return err
			}
			return over(r.ID)
		},
		"MCP, a command": tool("execute_command", map[string]any{"command": "true"}), "MCP, code": tool("run_code", map[string]any{"code": "1"}),
		"console": func() error {
			status, text := as(t, w, session, "POST", "/cay/v1/sandboxes/"+box.ID+"/access", "")
			var access struct{ EnvdAccessToken string }
			if err := json.Unmarshal([]byte(text), &access); err != nil || status != http.StatusOK {
				return fmt.Errorf("%d %s", status, text)
			}
			_, read := entries(t, w, asker.key, &client.Sandbox{ID: box.ID, AccessToken: access.EnvdAccessToken})
			return read["by the console's"](49999)
		},
	}
}

// The party that asks decides by none of its credentials, whichever way it starts
// something in a sandbox that another one made; a party that has nothing to do with it
// decides.
func TestAskersDoNotDecide(t *testing.T) {
	w := servertest.New(t)
	w.Config.SSHListen = "127.0.0.1:0"
	w.Machine.Agent = servertest.RealAgent(t, t.TempDir())
	asker, maker, other, near, session := parties(t, w)
	create := func() *client.Sandbox {
		t.Helper()
		box, err := w.ClientOf(maker.key).Create(t.Context(), client.CreateOptions{Timeout: time.Hour, AskCommands: []string{"*"}})
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	try := func(what string, box *client.Sandbox, start func() error) {
		t.Run(what, func(t *testing.T) {
			title, err := decides(t, w.ClientOf(other.key), box.ID, 0, start, func(id string) {
				for _, by := range near {
					_, err := w.ClientOf(by.key).DecideApproval(t.Context(), id, true, "", "")
					switch {
					case what == "console" && by.name == "an exchange of the same subject":
						continue // a person is no job: it decides below
					case cay.CodeOf(err) != cay.CodeApprovalOwn:
						t.Errorf("%s decides: %v", by.name, err)
					}
				}
				if what == "console" {
					if status, text := as(t, w, session, "POST", "/cay/v1/approvals/"+id+"/decide", `{"approve":true}`); status != http.StatusForbidden || !strings.Contains(text, cay.CodeApprovalOwn) {
						t.Errorf("the session that asks decides: %d %s", status, text)
					}
					return
				}
				if _, err := w.ClientOf(other.key).DecideApproval(t.Context(), id, true, "", ""); err != nil {
					t.Errorf("%s does not decide: %v", other.name, err)
				}
			})
			if title == "" || err != nil && strings.Contains(err.Error(), "command_") {
				t.Errorf("asked %q, ended with %v", title, err)
			}
		})
	}
	for what := range starts(t, w, asker, maker, session, create()) {
		box := create()
		try(what, box, starts(t, w, asker, maker, session, box)[what])
	}
	box := create()
	x, err := w.ClientOf(asker.key).CreateTrigger(t.Context(), client.TriggerOptions{
		Kind: "schedule", Name: ptr("yearly"), SandboxID: &box.ID, Command: ptr("true"), Cron: ptr("0 0 1 1 *"),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Records(func(db *store.DB) { // its time has come
		now, err := db.TriggerOf(t.Context(), cay.TriggerID(x.ID))
		if err == nil {
			err = db.MoveTrigger(t.Context(), now.ID, now.Next, time.Now())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	w.Start()
	try("schedule", box, func() error {
		for {
			runs, err := w.ClientOf(maker.key).TriggerRuns(t.Context(), client.TriggerRunOptions{Trigger: x.ID})
			if err != nil || len(runs) > 0 {
				return cmp.Or(err, fmt.Errorf("%s", ended(t, w, runs[0].ID).Error))
			}
		}
	})
}

// freshSSHKey is a new key, and its public half for authorized_keys.
func freshSSHKey(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return signer, string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
}
