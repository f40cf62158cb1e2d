package server_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// A server leaves no goroutine behind, however it ends.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// taken returns an address that another program listens on.
func taken(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A server whose port is taken says so before it touches anything.
func TestPortTaken(t *testing.T) {
	w := servertest.New(t)
	w.Config.Listen = taken(t)
	if _, err := w.Open(); cay.KindOf(err) != cay.Conflict {
		t.Errorf("New = %v, want a conflict", err)
	}
	for _, name := range []string{"instances", "cay.db", "engines"} {
		if _, err := os.Stat(filepath.Join(w.Config.Data, name)); !os.IsNotExist(err) {
			t.Errorf("%s was made", name)
		}
	}
	lock, err := host.Take(t.Context(), operator.Host(w.Config)) // it was given back
	if err != nil {
		t.Error(err)
	} else {
		lock.Close()
	}
}

// Run returns when one of its sockets cannot be had, and has started nothing
// then.
func TestRunReturnsEarly(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *config.Config){
		"the metrics' port":     func(t *testing.T, c *config.Config) { c.MetricsListen = taken(t) },
		"the SSH server's port": func(t *testing.T, c *config.Config) { c.SSHListen = taken(t) },
		"the operator's socket": func(t *testing.T, c *config.Config) {
			if err := os.MkdirAll(filepath.Join(operator.Host(*c).Operator(), "in the way"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"the operator's socket, others open": func(t *testing.T, c *config.Config) {
			c.MetricsListen, c.SSHListen = "127.0.0.1:0", "127.0.0.1:0"
			if err := os.MkdirAll(filepath.Join(operator.Host(*c).Operator(), "in the way"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			w := servertest.New(t)
			w.Records(func(*store.DB) {}) // which a start finds, and makes no tables
			spoil(t, &w.Config)
			s, err := w.Open()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Run(t.Context()); err == nil {
				t.Error("it ran")
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

// secret is an environment variable's value that must not lie on the disk as
// it is.
const secret = "a-value-that-is-sealed"

// populate makes a sandbox that runs and one that is paused, both with an
// environment and metadata, and says something to each.
func populate(t *testing.T, w *servertest.World) (running, paused *client.Sandbox) {
	t.Helper()
	c := w.Client()
	for _, box := range []**client.Sandbox{&running, &paused} {
		var err error
		*box, err = c.Create(t.Context(), client.CreateOptions{
			Env: map[string]string{"SECRET": secret}, Metadata: map[string]string{"owner": "a test"}, Timeout: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		ask(t, w, http.MethodPut, (*box).ID, "said to "+(*box).ID)
	}
	if err := c.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	return running, paused
}

// ask sends a request to a sandbox's program by path, and returns its answer.
func ask(t *testing.T, w *servertest.World, method, id, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL()+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", id)
	req.Header.Set("E2b-Sandbox-Port", "8000")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	return resp.StatusCode, string(text)
}

// states returns the state of each sandbox of the first team.
func states(t *testing.T, w *servertest.World) map[string]string {
	t.Helper()
	list, err := w.Client().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, box := range list {
		out[box.ID] = box.State
	}
	return out
}

// Sandboxes that run outlive the server, and those that are paused stay so:
// with environment, metadata, memory, tokens and way to them.
func TestRestart(t *testing.T) {
	w := servertest.Start(t)
	running, paused := populate(t, w)
	before, err := w.Client().Info(t.Context(), running.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if g := w.Machine.Guest(cay.SandboxID(running.ID)); g == nil {
		t.Fatal("the sandbox ended with its server")
	}
	w.Start()
	if got := states(t, w); got[running.ID] != "running" || got[paused.ID] != "paused" {
		t.Errorf("after the start: %v", got)
	}
	after, err := w.Client().Info(t.Context(), running.ID)
	if err != nil {
		t.Fatal(err)
	}
	if after.Metadata["owner"] != "a test" || !after.StartedAt.Equal(before.StartedAt) || !after.EndAt.Equal(before.EndAt) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if code, text := ask(t, w, http.MethodGet, running.ID, ""); code != 200 || text != "said to "+running.ID {
		t.Errorf("the one that ran: %d %s", code, text)
	}
	woken, err := w.Client().Connect(t.Context(), paused.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if woken.AccessToken != paused.AccessToken {
		t.Error("its access token changed")
	}
	if code, text := ask(t, w, http.MethodGet, paused.ID, ""); code != 200 || text != "said to "+paused.ID {
		t.Errorf("the one that was paused: %d %s", code, text)
	}
	for _, id := range []string{running.ID, paused.ID} {
		if m := w.Machine.Guest(cay.SandboxID(id)).Memory(); m.Env["SECRET"] != secret {
			t.Errorf("environment of %s: %v", id, m.Env)
		}
		if err := w.Client().Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left := w.Machine.Guests(); len(left) != 0 {
		t.Errorf("%d guests are left", len(left))
	}
}

// A sandbox that died while no server ran is found to be over, with its cause.
func TestDeathWithoutServer(t *testing.T) {
	w := servertest.Start(t)
	running, _ := populate(t, w)
	w.Stop()
	w.Machine.End(cay.SandboxID(running.ID))
	w.Start()
	if got := states(t, w); got[running.ID] != "" {
		t.Errorf("it is %s", got[running.ID])
	}
	end, err := w.Client().End(t.Context(), running.ID)
	if err != nil || end.Reason != string(cay.CauseHostLost) {
		t.Errorf("its end: %+v, %v", end, err)
	}
	if code, _ := ask(t, w, http.MethodGet, running.ID, ""); code == http.StatusOK {
		t.Error("it still answers")
	}
}

// The environment of a sandbox is in no file as it is, neither while the
// server runs nor after.
func TestRecordsAreSealed(t *testing.T) {
	w := servertest.Start(t)
	populate(t, w)
	search := func(when string) {
		files, err := filepath.Glob(filepath.Join(w.Config.Data, "cay.db*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no records: %v", err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), secret) {
				t.Errorf("%s the environment can be read in %s", when, filepath.Base(path))
			}
		}
	}
	search("while the server runs")
	w.Stop()
	search("after its end")
}

// `cay down` ends all that runs and says why, whatever of the records is
// sealed; the next start has the paused sandboxes.
func TestDown(t *testing.T) {
	w := servertest.Start(t)
	running, paused := populate(t, w)
	w.Stop()
	if err := w.Down(); err != nil {
		t.Fatal(err)
	}
	if left := w.Machine.Guests(); len(left) != 0 {
		t.Errorf("%d guests are left", len(left))
	}
	if _, err := os.Stat(w.Config.Run); !os.IsNotExist(err) {
		t.Errorf("the run directory is left: %v", err)
	}
	w.Start()
	if got := states(t, w); got[running.ID] != "" || got[paused.ID] != "paused" {
		t.Errorf("after down: %v", got)
	}
	end, err := w.Client().End(t.Context(), running.ID)
	if err != nil || end.Reason != string(cay.CauseAsked) {
		t.Errorf("its end: %+v, %v", end, err)
	}
	if _, err := w.Client().Connect(t.Context(), paused.ID, time.Hour); err != nil {
		t.Error(err)
	}
	if code, text := ask(t, w, http.MethodGet, paused.ID, ""); code != 200 || text != "said to "+paused.ID {
		t.Errorf("the one that was paused: %d %s", code, text)
	}
}

// The proxy has requests reach the program of the sandbox that they name, and
// no other; the agent is for those that have its token.
func TestProxy(t *testing.T) {
	w := servertest.Start(t)
	running, paused := populate(t, w)
	get := func(path string, header map[string]string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range header {
			req.Header.Set(name, value)
		}
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	agent := map[string]string{"E2b-Sandbox-Id": running.ID, "E2b-Sandbox-Port": "49983"}
	with := func(token string) map[string]string {
		return map[string]string{"E2b-Sandbox-Id": running.ID, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
	}
	for _, tt := range []struct {
		what, path string
		header     map[string]string
		code       int
		text       string
	}{
		{"by path", "/s/" + running.ID + "/8000/", nil, 200, "said to " + running.ID},
		{"by headers", "/", map[string]string{"E2b-Sandbox-Id": running.ID, "E2b-Sandbox-Port": "8000"}, 200, "said to " + running.ID},
		{"a port where nothing listens", "/", map[string]string{"E2b-Sandbox-Id": running.ID, "E2b-Sandbox-Port": "8001"}, 502, ""},
		{"a sandbox that is paused", "/", map[string]string{"E2b-Sandbox-Id": paused.ID, "E2b-Sandbox-Port": "8000"}, 502, ""},
		{"a sandbox that there is not", "/", map[string]string{"E2b-Sandbox-Id": "none", "E2b-Sandbox-Port": "8000"}, 502, ""},
		{"the agent, without its token", "/envs", agent, 401, ""},
		{"the agent, with another's", "/envs", with(paused.AccessToken), 401, ""},
		{"the agent, with its token", "/envs", with(running.AccessToken), 200, secret},
		{"a route of the agent's that is the host's", "/diary", with(running.AccessToken), 404, ""},
	} {
		code, text := get(tt.path, tt.header)
		if code != tt.code || !strings.Contains(text, tt.text) {
			t.Errorf("%s: %d %.200s, want %d", tt.what, code, text, tt.code)
		}
	}
	if err := w.Client().Kill(t.Context(), running.ID); err != nil {
		t.Fatal(err)
	}
	if code, text := get("/s/"+running.ID+"/8000/", nil); code != 502 {
		t.Errorf("after its end: %d %s", code, text)
	}
}

// A sandbox whose end is recorded gets no request, though its instance answers yet.
func TestNoRequestAfterTheEnd(t *testing.T) {
	w := servertest.Start(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked, over, killed := make(chan struct{}), make(chan struct{}), make(chan error)
	w.Machine.Guest(cay.SandboxID(box.ID)).OnDiary(func() { close(asked); <-over })
	go func() { killed <- box.Kill(t.Context()) }()
	<-asked
	if status, text := intoSandbox(t, w, box.ID, http.MethodGet, "/", http.NoBody); status != http.StatusBadGateway {
		t.Errorf("%d %s", status, text)
	}
	close(over)
	if err := <-killed; err != nil {
		t.Error(err)
	}
}

// The server answers its operator while it runs: keys, templates, what nothing
// needs, whole snapshots, a backup.
func TestOperator(t *testing.T) {
	w := servertest.Start(t)
	populate(t, w)
	key, err := w.Operator().NewKey(t.Context(), "me")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := w.ClientOf(key).List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("with the new key: %d sandboxes, %v", len(list), err)
	}
	if _, err := w.Operator().NewKey(t.Context(), ""); err == nil {
		t.Error("a key without a name was made")
	}
	if !w.Operator().Serving(t.Context()) {
		t.Error("no server answers")
	}
	if report, err := w.Operator().Packages(t.Context(), false); err != nil || report.On {
		t.Errorf("packages: %+v, %v", report, err)
	}
	verified := 0
	err = operator.Verify(t.Context(), w.Config, nil, func(v operator.Verified) {
		verified++
		if v.Error != "" {
			t.Errorf("snapshot %s: %s", v.ID, v.Error)
		}
	})
	if err != nil || verified != 4 { // three templates, one paused sandbox
		t.Errorf("%d snapshots were verified, %v", verified, err)
	}
	var collections sync.WaitGroup
	for range 3 { // they wait for each other, as for the server's own
		collections.Go(func() {
			if garbage, err := w.Operator().Collect(t.Context(), false); err != nil || len(garbage) != 0 {
				t.Errorf("garbage: %v, %v", garbage, err)
			}
		})
	}
	collections.Wait()
	backup := filepath.Join(t.TempDir(), "backup.tar")
	if err := w.Operator().Backup(t.Context(), backup); err != nil {
		t.Error(err)
	}
	allIsDocumented(t, w.Config.Data, backup)
	w.Stop()
	if w.Operator().Serving(t.Context()) {
		t.Error("a server answers after its end")
	}
	if _, err := w.Operator().NewKey(t.Context(), "late"); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a key without a server: %v", err)
	}

	other := servertest.New(t)
	if err := operator.Restore(t.Context(), other.Config, backup); err != nil {
		t.Fatal(err)
	}
	other.Start()
	if _, err := other.ClientOf(key).List(t.Context()); err != nil {
		t.Errorf("the key after a restore: %v", err)
	}
}

// allIsDocumented sees that docs/operate/data.md names all that is in a data
// directory, and that a backup has each file there that is a key: one that only
// its owner may read, and that is neither records nor a lock.
func allIsDocumented(t *testing.T, data, backup string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operate/data.md")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), "-wal"), "-shm")
		if name == "agent" {
			continue // of the machine in memory
		}
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "`"+name+"/") {
			t.Errorf("docs/operate/data.md does not name %s", name)
		}
		text, err := os.ReadFile(filepath.Join(data, e.Name()))
		if err != nil || name == "cay.db" || name == "lock" || name == "audit-heads.jsonl" {
			continue // a directory, or no key
		}
		if !bytes.Contains(archive, text) {
			t.Errorf("a backup lacks %s", name)
		}
	}
}

// Waiting requests are answered, or broken off, when the server ends; a guest
// that cannot be reached keeps nothing.
func TestStopUnderUse(t *testing.T) {
	w := servertest.Start(t)
	running, _ := populate(t, w)
	conn, err := net.Dial("tcp", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A request whose body never ends is under way in the guest.
	_, err = io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: "+running.ID+
		"\r\nE2b-Sandbox-Port: 8000\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection: %v", err)
	}
	w.Start()
	if code, text := ask(t, w, http.MethodGet, running.ID, ""); code != 200 || text != "said to "+running.ID {
		t.Errorf("after the restart: %d %s", code, text)
	}
}
