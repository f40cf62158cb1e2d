// Package console drives the console in a real browser: Chromium, by Playwright,
// on a whole server over a machine in memory, whose guests have a real agent.
package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth/oidc/oidctest"
	"github.com/cay-run/cay/internal/edge/console"
	"github.com/cay-run/cay/internal/edge/desktop"
	"github.com/cay-run/cay/internal/edge/desktop/desktoptest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// hostile is text that would do something if the page took it for more than text.
const hostile = "<img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m\u200b{{7*7}}${7*7}</script>"

// TestConsole runs flows.py and those beside it, a part of them unless CAY_CONSOLE_RUN says all or
// another, and says so where it cannot.
func TestConsole(t *testing.T) {
	// The pages in both themes and widths take minutes: make test-console has them.
	run := cmp.Or(os.Getenv("CAY_CONSOLE_RUN"), "link_logs_in or list_is_live or hostile_text or stranger or terminal_that or restarts or two_viewers")
	python := filepath.Join("..", "..", "build", "sdk", "python", "bin", "python")
	if lacks := lacking(python); lacks != "" && run == "all" {
		t.Fatal(lacks)
	} else if lacks != "" {
		t.Skip("NOT TESTED HERE: " + lacks)
	}
	data, home := t.TempDir(), t.TempDir()
	small(t, data)
	w := servertest.New(t)
	w.Config.Data = data
	w.Machine.Agent = servertest.RealAgent(t, home)
	screen := desktoptest.New(1024, 640)
	dev := free(t)
	w.Machine.Ports = map[int]func(net.Conn){desktop.Port: screen.Serve, 5173: func(c net.Conn) { join(c, dev) }}
	w.Config.PackageCache = "1GiB"
	w.Config.WebhookOpen = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	w.Start()
	seed(t, w)
	restarts := http.NewServeMux()
	restarts.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { w.Stop() })
	restarts.HandleFunc("POST /start", func(http.ResponseWriter, *http.Request) { w.Start() })
	restarts.HandleFunc("GET /screen", func(w http.ResponseWriter, r *http.Request) { paint(w, r, screen) })
	// The browser's relay leads to one port: the server comes back on it.
	w.Stop()
	port := free(t)
	w.Config.Listen = fmt.Sprintf("127.0.0.1:%d", port)
	provider := logins(t, w, port)
	w.Start()
	stop := serve(t, restarts)
	drive(t, w, python, run, []string{"flows.py", "many.py", "team.py", "upkeep.py", "decisions.py"},
		"CONSOLE_CONTROL="+stop, "CONSOLE_HOSTILE="+hostile, "CONSOLE_HOME="+home, "CONSOLE_PROVIDER="+provider, fmt.Sprintf("CONSOLE_VITE=%d", dev))
}

// TestManyNodes is nodes.py on a cluster of a thousand nodes, of which one runs.
func TestManyNodes(t *testing.T) {
	if run := os.Getenv("CAY_CONSOLE_RUN"); run != "all" && run != "nodes" {
		t.Skip("NOT TESTED HERE: make test-console has it")
	}
	python := filepath.Join("..", "..", "build", "sdk", "python", "bin", "python")
	if lacks := lacking(python); lacks != "" {
		t.Fatal(lacks)
	}
	c := servertest.StartCluster(t, 1, servertest.Steady, func(w *servertest.World) { w.Config.PackageCache = "1GiB" })
	c.AwaitReady(1)
	c.Crowd(999)
	drive(t, c.Nodes[0], python, "all", []string{"nodes.py"})
}

// drive runs flows of some files, those of a name unless it is all, on a server.
func drive(t *testing.T, w *servertest.World, python, run string, files []string, env ...string) {
	t.Helper()
	admin, err := w.Operator().AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end, bounded := t.Deadline()
	if !bounded {
		end = time.Now().Add(time.Hour)
	}
	ctx, cancel := context.WithDeadline(t.Context(), end.Add(-time.Minute)) // before the test ends, which cleans up
	defer cancel()
	args := []string{"-m", "pytest", "-q", "-rP", "--tb=short", "--maxfail=" + cmp.Or(os.Getenv("CAY_CONSOLE_MAXFAIL"), "1"), "-p", "no:cacheprovider", "--durations=5"}
	if run != "all" {
		args = append(args, "-k", run)
	}
	cmd := exec.CommandContext(ctx, python, append(args, files...)...)
	cmd.Env = append(append(os.Environ(), env...),
		"CONSOLE_API="+w.URL(), "CONSOLE_KEY="+w.Key, "CONSOLE_ADMIN="+admin, "CONSOLE_DATA="+w.Config.Data,
		"PYTHONPATH="+filepath.Join("..", "e2e", "python"), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// lacking says what this machine lacks for the tests, if anything.
func lacking(python string) string {
	if _, err := fs.Stat(console.Page(), "index.html"); err != nil {
		return "the console's page is not built (make console)"
	}
	if os.Getuid() != 0 {
		return "the browser's network namespace wants root"
	}
	for _, need := range []string{python, "/usr/bin/chromium"} {
		if _, err := os.Stat(need); err != nil {
			return need + " is missing (make setup)"
		}
	}
	return ""
}

// small gives a directory a disk of its own, which a test can fill.
func small(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512m,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// paint answers with the input that the screens of all sandboxes were sent, after it
// has painted a rectangle on them: x, y, width, height, red, green and blue.
func paint(w http.ResponseWriter, r *http.Request, screen *desktoptest.Server) {
	if text := r.FormValue("paint"); text != "" {
		var x, y, width, height int
		var red, green, blue byte
		if _, err := fmt.Sscanf(text, "%d,%d,%d,%d,%d,%d,%d", &x, &y, &width, &height, &red, &green, &blue); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		screen.Paint(x, y, width, height, red, green, blue)
	}
	events := [][]int{}
	for _, e := range screen.Events() {
		numbers := []int{}
		for _, b := range e {
			numbers = append(numbers, int(b))
		}
		events = append(events, numbers)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"events": events, "conns": screen.Conns()})
}

// logins has people log in at a provider of tests, and returns its port.
func logins(t *testing.T, w *servertest.World, port int) string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(oidctest.Secret), 0o600); err != nil {
		t.Fatal(err)
	}
	idp := oidctest.New(t)
	idp.LogIn(map[string]any{"sub": "ann", "email": "ann@example.com", "email_verified": true, "name": "Ann <b>bold</b>"})
	c := &w.Config
	c.PublicURL, c.OIDCIssuer, c.OIDCClientID, c.OIDCClientSecretFile = fmt.Sprintf("http://localhost:%d", port), idp.URL, oidctest.ClientID, secret
	c.OIDCRules, c.OIDCDomains = []string{"email:*@example.com -> team default as developer"}, []string{"example.com"}
	return idp.URL[strings.LastIndex(idp.URL, ":")+1:]
}

// seed gives the team one of everything, with names that are hostile where the
// server takes them.
func seed(t *testing.T, w *servertest.World) {
	t.Helper()
	c, ctx := w.Client(), t.Context()
	for i := range 6 {
		meta := map[string]string{"first": "yes", "user": fmt.Sprintf("user-%d", i)}
		if i == 0 {
			meta["note"] = hostile
		}
		box, err := c.Create(ctx, client.CreateOptions{Timeout: time.Hour, Metadata: meta})
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			if err := c.Pause(ctx, box.ID); err != nil {
				t.Fatal(err)
			}
		}
		if i == 2 {
			if err := box.Kill(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.CreateAPIKey(ctx, client.NewAPIKey{Name: strings.ReplaceAll(hostile, "\x1b", ""), Scopes: cay.Viewer.Scopes().Names()}); err != nil {
		t.Log("a key of a hostile name is refused: ", err)
	}
}
