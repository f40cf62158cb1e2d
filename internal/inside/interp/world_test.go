package interp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// limit is for what must happen at all; it is generous because the machine
// may be busy.
const limit = 3 * time.Minute

// imports tries once what kernels need: it takes seconds.
var imports = sync.OnceValues(func() (path string, err error) {
	path = os.Getenv("CAY_TEST_PYTHON")
	if path == "" {
		path, _ = filepath.Abs("../../../build/pyenv/bin/python")
	}
	return path, exec.Command(path, "-c", "import ipykernel, pandas, matplotlib, PIL").Run()
})

// python finds an interpreter with ipykernel: CAY_TEST_PYTHON, or what
// `make build/pyenv` makes.
func python(t testing.TB) string {
	t.Helper()
	path, err := imports()
	if err != nil {
		text := "no Python with ipykernel, pandas, matplotlib and pillow at " + path +
			": run `make build/pyenv`, or set CAY_TEST_PYTHON (" + err.Error() + ")"
		if os.Getenv("CI") != "" || os.Getenv("CAY_TEST_PYTHON") != "" {
			t.Fatal(text)
		}
		t.Skip(text)
	}
	return path
}

// world is a server over HTTP.
type world struct {
	*Server
	url string
	mu  sync.Mutex
	env map[string]string
}

func (w *world) setEnv(env map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.env = env
}

// newWorld starts a server with a default context that is not warmed, unless
// start.
func newWorld(t testing.TB, start bool) *world {
	t.Helper()
	languages := slices.DeleteFunc(Languages(), func(lang string) bool { return lang == langJava }) // takes its time
	w := openWorld(t, Config{Python: python(t), Languages: languages})
	if start {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := w.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// openWorld serves kernels that start when they are asked for.
func openWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "cayi") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // kernels may run as another user
		t.Fatal(err)
	}
	w := &world{}
	cfg.Dir, cfg.Home = dir, t.TempDir()
	cfg.Env = func() map[string]string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.env
	}
	w.Server, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(w.Handler())
	w.url = srv.URL
	t.Cleanup(func() {
		srv.CloseClientConnections()
		w.Close()
		srv.Close()
		_ = os.RemoveAll(dir)
	})
	return w
}

// event is a line of a stream.
type event map[string]any

func (e event) kind() string { s, _ := e["type"].(string); return s }

func (e event) text(name string) string { s, _ := e[name].(string); return s }

// execution is what a client gathers.
type execution struct {
	events         []event
	stdout, stderr string
	results        []event
	lines          []string // of the results, as they came
	err            event
	count          float64
}

func (x *execution) text() string {
	for _, r := range x.results {
		if r["is_main_result"] == true {
			return r.text("text")
		}
	}
	return ""
}

func (w *world) post(ctx context.Context, t testing.TB, path string, body any) *http.Response {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	// Without a length, as through some proxies.
	chunked := io.MultiReader(bytes.NewReader(b))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, chunked)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// execute runs a request to the end of its stream.
func (w *world) execute(t testing.TB, body map[string]any) *execution {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	resp := w.post(ctx, t, "/execute", body)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%v answered %d: %s", body, resp.StatusCode, b)
	}
	return gather(t, resp.Body)
}

func gather(t testing.TB, r io.Reader) *execution {
	t.Helper()
	x := &execution{}
	printed := map[string]*strings.Builder{"stdout": {}, "stderr": {}}
	defer func() { x.stdout, x.stderr = printed["stdout"].String(), printed["stderr"].String() }()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("stream: %v after %d events", err, len(x.events))
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if e.kind() == "result" {
			x.lines = append(x.lines, string(line))
		}
		if out := printed[e.kind()]; out != nil {
			out.WriteString(e.text("text"))
		}
		x.add(e)
	}
	if n := len(x.events); n == 0 || x.events[n-1].kind() != "end_of_execution" {
		t.Fatalf("the stream does not end as it should: %v", x.events)
	}
	return x
}

func (x *execution) add(e event) {
	if e.kind() == "keepalive" {
		return
	}
	x.events = append(x.events, e)
	switch e.kind() {
	case "result":
		x.results = append(x.results, e)
	case "error":
		x.err = e
	case "number_of_executions":
		x.count, _ = e["execution_count"].(float64)
	}
}

// shows fails unless code prints a line of JSON and then shows the same as the
// field of its result, sign for sign.
func (w *world) shows(t *testing.T, lang, field, code string) {
	t.Helper()
	x := w.in(t, lang, code)
	if x.err != nil || len(x.lines) != 1 || x.stdout == "" {
		t.Fatalf("%s: %.2000v", lang, x.events)
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(x.lines[0]), &got); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSuffix(x.stdout, "\n"); string(got[field]) != want {
		at := 0
		for at < min(len(want), len(got[field])) && want[at] == got[field][at] {
			at++
		}
		from := max(0, at-30)
		t.Errorf("%s: %s came as %.60s, where the code has %.60s", lang, field, string(got[field])[min(from, len(got[field])):], want[min(from, len(want)):])
	}
}

// run executes code in the default context.
func (w *world) run(t testing.TB, code string) *execution {
	t.Helper()
	return w.execute(t, map[string]any{"code": code})
}

// get runs code that must not fail and returns its main text.
func (w *world) get(t *testing.T, code string) string {
	t.Helper()
	x := w.run(t, code)
	if x.err != nil {
		t.Fatalf("%s: %v", code, x.err)
	}
	return x.text()
}
