package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/store/storetest"
)

// invoke runs the program and returns what it printed.
func invoke(t *testing.T, environ []string, args ...string) (code int, out, errs string) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var o, e bytes.Buffer
	code = run(&app{ctx: t.Context(), in: in, out: &o, err: &e, environ: isolated(t, environ)}, args)
	return code, o.String(), e.String()
}

// isolated adds directories and an address to an environment that names none, so that
// no test reaches the server that this machine may run, nor its data.
func isolated(t *testing.T, environ []string) []string {
	t.Helper()
	own := []string{"CAY_DATA_DIR=" + t.TempDir(), "CAY_RUN_DIR=" + t.TempDir(), "CAY_LISTEN=127.0.0.1:1"}
	for _, entry := range own {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.ContainsFunc(environ, func(given string) bool { return strings.HasPrefix(given, name+"=") }) {
			environ = append(slices.Clip(environ), entry)
		}
	}
	machine := config.Default()
	if c, err := config.Load(environ); err == nil && (c.Data == machine.Data || c.Run == machine.Run || c.Listen == machine.Listen) {
		t.Fatalf("the test reaches the server of this machine: %v", environ)
	}
	return environ
}

// The list of commands in docs is the program's own: each command, with its help.
func TestDocsListEveryCommand(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("cay"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/use/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, leaf := range parser.Model.Leaves(true) {
		var words []string
		for n := leaf; n != nil; n = n.Parent {
			words = append([]string{n.Name}, words...)
		}
		row := fmt.Sprintf("| `%s` | %s |", strings.Join(words, " "), leaf.Help)
		want[row] = true
		if !strings.Contains(string(text), "\n"+row+"\n") {
			t.Errorf("docs/use/cli.md lacks: %s", row)
		}
	}
	for line := range strings.Lines(string(text)) {
		if row := strings.TrimSpace(line); strings.HasPrefix(row, "| `cay ") && !want[row] {
			t.Errorf("docs/use/cli.md has what the program lacks: %s", row)
		}
	}
}

// stand is a server that answers fixed texts.
func stand(t *testing.T, answers map[string]string) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			w.WriteHeader(404)
			body = `{"code":404,"message":"not found"}`
		}
		w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return []string{"E2B_API_KEY=k", "E2B_API_URL=" + server.URL}
}

func TestHelpAndUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"sandbox", "--help"}, {"server", "--help"}} {
		code, out, _ := invoke(t, nil, args...)
		if code != 0 || !strings.Contains(out, "Usage: cay") {
			t.Errorf("cay %v: %d, %q", args, code, out)
		}
	}
	if _, out, _ := invoke(t, nil, "server", "--help"); !strings.Contains(out, "CAY_LISTEN") {
		t.Errorf("server --help lists no settings: %s", out)
	}
	for _, args := range [][]string{{"nonsense"}, {"sandbox", "create", "--nonsense"}, {"sandbox", "exec"}} {
		code, _, errs := invoke(t, nil, args...)
		if code != wrongUsage || !strings.Contains(errs, "hint: cay --help") {
			t.Errorf("cay %v: %d, %q", args, code, errs)
		}
	}
}

func TestErrorsAreOneLineAndAHint(t *testing.T) {
	env := stand(t, nil)
	for _, tc := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, []string{"sandbox", "list"}, "E2B_API_KEY"},
		{[]string{"CAY_LISTN=x"}, []string{"env"}, "CAY_LISTN"},
		{[]string{"E2B_API_KEY=k", "E2B_API_URL=http://127.0.0.1:1"}, []string{"template", "list"}, "cay up"},
		{env, []string{"sandbox", "kill", "inone"}, "inone"},
		{env, []string{"sandbox", "kill"}, "--all"},
		{env, []string{"sandbox", "create", "--timeout", "0s"}, "--timeout"},
		{env, []string{"sandbox", "exec", "inone", "--"}, "which command"},
		{env, []string{"sandbox", "connect", "inone"}, "terminal"},
		{env, []string{"sandbox", "cp", "a", "b"}, "ID:"},
		{nil, []string{"storage", "create", "--size", "12"}, "100GiB"},
		{[]string{"CAY_DATA_DIR=/nonexistent/cay"}, []string{"env", "--new-key", "x"}, "cay up"},
	} {
		code, _, errs := invoke(t, tc.env, tc.args...)
		lines := strings.Split(strings.TrimSpace(errs), "\n")
		if code != 1 || !strings.HasPrefix(lines[0], "error: ") || len(lines) > 2 || !strings.Contains(errs, tc.want) {
			t.Errorf("cay %v: %d, %q, want something about %q", tc.args, code, errs, tc.want)
		}
	}
}

func TestSandboxCommands(t *testing.T) {
	start := time.Now().Add(-90 * time.Second).Format(time.RFC3339)
	end := time.Now().Add(10*time.Minute + 30*time.Second).Format(time.RFC3339)
	env := stand(t, map[string]string{
		"POST /v2/sandboxes": `{"sandboxID":"inew","templateID":"t"}`,
		"GET /v2/sandboxes": `[{"sandboxID":"iold","alias":"base","state":"running","startedAt":"` + start +
			`","endAt":"` + end + `","cpuCount":2,"memoryMB":1024,"metadata":{"b":"\u001b[31m","a":"1"}}]`,
		"DELETE /sandboxes/iold": "",
		"GET /cay/v1/disk-use":   `[{"templateID":"tid","ownBytes":1500000,"sharedBytes":2000000}]`,
		"GET /templates":         `[{"templateID":"tid","names":["base"],"memoryMB":512,"buildStatus":"ready"}]`,
	})
	if code, out, errs := invoke(t, env, "sandbox", "create"); code != 0 || out != "inew\n" {
		t.Errorf("create: %d, %q, %q", code, out, errs)
	}
	var made struct{ SandboxID string }
	if _, out, _ := invoke(t, env, "sandbox", "create", "base", "--json"); json.Unmarshal([]byte(out), &made) != nil || made.SandboxID != "inew" {
		t.Errorf("create --json: %q", out)
	}
	_, out, _ := invoke(t, env, "sandbox", "list")
	for _, want := range []string{"iold", "base", "running", "1m ago", "in 10m", "1 GB", "a=1 b=?[31m"} {
		if !strings.Contains(out, want) {
			t.Errorf("list lacks %q:\n%s", want, out)
		}
	}
	if code, out, errs := invoke(t, env, "sandbox", "kill", "--all"); code != 0 || out != "iold\n" {
		t.Errorf("kill --all: %d, %q, %q", code, out, errs)
	}
	if _, out, _ := invoke(t, env, "template", "list"); !strings.Contains(out, "512 MB") || !strings.Contains(out, "3.5 MB") {
		t.Errorf("template list: %s", out)
	}
	empty := stand(t, map[string]string{"GET /v2/sandboxes": "null", "GET /templates": "[]"})
	for _, args := range [][]string{{"sandbox", "list", "--json"}, {"template", "list", "--json"}} {
		if _, out, _ := invoke(t, empty, args...); out != "[]\n" {
			t.Errorf("%v of nothing: %q", args, out)
		}
	}
}

func TestEnvMakesKeys(t *testing.T) {
	data, run := t.TempDir(), t.TempDir()
	env := []string{"CAY_DATA_DIR=" + data, "CAY_RUN_DIR=" + run, "CAY_LISTEN=0.0.0.0:7777"}
	code, out, _ := invoke(t, env, "env")
	if code != 0 || !strings.Contains(out, "export E2B_SANDBOX_URL=http://localhost:7777\n") || strings.Contains(out, "export E2B_API_KEY") {
		t.Errorf("env: %d, %q", code, out)
	}
	db := storetest.Open(t, filepath.Join(data, "cay.db"))
	team, first, err := auth.FirstStart(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	// The command line never opens the records by itself: a newer program would
	// bring their schema up to date under a server that runs.
	if code, _, errs := invoke(t, env, "env", "--new-key", "me"); code != 1 || !strings.Contains(errs, "no server answers") {
		t.Errorf("env without a server: %d, %q", code, errs)
	}
	if keys, err := db.Keys(t.Context(), team.ID); err != nil || len(keys) != 1 {
		t.Errorf("without a server a key was made: %v, %v", keys, err)
	}
	desk := operator.New(operator.Config{Host: host.Config{Data: data, Run: run}, Team: team, Store: db})
	l, err := desk.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { desk.Serve(ctx, l) })
	defer func() { stop(); served.Wait() }()
	code, out, errs := invoke(t, env, "env", "--new-key", "me/ö %")
	key := regexp.MustCompile(`e2b_[0-9a-f]{40}`).FindString(out)
	if code != 0 || key == "" || key == first {
		t.Fatalf("env --new-key: %d, %q, %q", code, out, errs)
	}
	record, err := auth.New(db).Verify(t.Context(), key)
	if err != nil || record.Team != team.ID || record.Name != "me/ö %" {
		t.Errorf("the new key's record = %+v, %v", record, err)
	}
}

func TestDoctorAndVersion(t *testing.T) {
	env := []string{"CAY_DATA_DIR=" + t.TempDir(), "CAY_RUN_DIR=" + t.TempDir(), "CAY_LISTEN=127.0.0.1:0"}
	if _, out, _ := invoke(t, env, "doctor"); !strings.Contains(out, "nftables") || !strings.Contains(out, "kernel") {
		t.Errorf("doctor: %s", out)
	}
	var checks []struct{ Name, Status string }
	if _, out, _ := invoke(t, env, "doctor", "--json"); json.Unmarshal([]byte(out), &checks) != nil || len(checks) == 0 {
		t.Errorf("doctor --json: %s", out)
	}
	if code, out, _ := invoke(t, nil, "version"); code != 0 || !strings.HasPrefix(out, "cay ") {
		t.Errorf("version: %d, %q", code, out)
	}
}

func TestTableFits(t *testing.T) {
	tab := table{header: []string{"ID", "NAME", "NOTE"}}
	tab.add("i0123456789", "näme", strings.Repeat("long ", 20))
	for _, columns := range []int{0, 40, 60, 1} {
		var b strings.Builder
		tab.print(&b, columns)
		if !strings.Contains(b.String(), "i0123456789") {
			t.Errorf("%d columns: the id is cut:\n%s", columns, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); columns >= 40 && n > columns {
				t.Errorf("%d columns: a line of %d: %q", columns, n, line)
			}
		}
	}
}

func TestProgressOutsideATerminal(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.update("install", 10)
	p.update("install", 20)
	p.update("boot", -1)
	p.end()
	if got := b.String(); !regexp.MustCompile(`^\d+s install \(10%\)\n\d+s boot\n$`).MatchString(got) {
		t.Errorf("progress = %q", got)
	}
}

func TestLocalURL(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:7070": "http://localhost:7070",
		":80":            "http://localhost:80",
		"[::]:80":        "http://localhost:80",
		"10.0.0.1:80":    "http://10.0.0.1:80",
		"box.local:80":   "http://box.local:80",
	} {
		if got := localURL(in); got != want {
			t.Errorf("localURL(%s) = %s, want %s", in, got, want)
		}
	}
}

// The settings are looked at without a server.
func TestConfigCommands(t *testing.T) {
	if code, out, errs := invoke(t, nil, "config", "check"); code != 0 || out != "" || errs == "" {
		t.Errorf("check of defaults: %d, %q, %q", code, out, errs)
	}
	bad := []string{"CAY_LISTN=x", "CAY_LISTEN=x", "CAY_TLS=files"}
	code, out, _ := invoke(t, bad, "config", "check")
	if code != 1 || strings.Count(out, "✗") != 3 || strings.Count(out, "→") != 2 {
		t.Errorf("check of what is wrong: %d, %s", code, out)
	}
	var problems []problem
	if code, out, _ := invoke(t, bad, "config", "check", "--json"); code != 1 || json.Unmarshal([]byte(out), &problems) != nil || len(problems) != 3 {
		t.Errorf("check --json: %d, %s", code, out)
	}
	if code, out, _ := invoke(t, nil, "config", "check", "--json"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("check --json of defaults: %d, %s", code, out)
	}
	var all []config.Setting
	code, out, _ = invoke(t, []string{"CAY_PACKAGE_HOSTS=a=http://me:hidden@b/"}, "config", "print", "--json")
	if err := json.Unmarshal([]byte(out), &all); code != 0 || err != nil || len(all) != len(config.Variables)-2 || strings.Contains(out, "hidden") {
		t.Errorf("print --json: %d, %v, %s", code, err, out)
	}
	code, out, errs := invoke(t, bad, "config", "print")
	if code != 1 || !strings.Contains(out, "CAY_LISTEN") || !strings.Contains(errs, "config check") {
		t.Errorf("print of what is wrong: %d, %s, %s", code, out, errs)
	}
}
