package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/inside/interp"
)

// interpTime is how long the code interpreter works, in every language that
// can run here; without it a moment, in two. The server runs in this process:
// its clients are few and close what they open.
const interpTime = "CAY_SOAK_INTERP"

// tasks are the code of one round in each language: a value, what fails, a
// flood, and what ends the kernel.
var tasks = map[string]struct{ value, fail, flood, die string }{
	"python": {"sum(range(1000))", "1/0", "for i in range(20000): print(i)", "import os; os._exit(1)"},
	"javascript": {"[1, 2].map((n) => n * n)", "null.x", "for (let i = 0; i < 20000; i++) console.log(i)",
		"process.kill(process.pid, 'SIGKILL')"},
	"bash": {"echo $((6 * 7))", "false", "seq 20000", "kill -9 $$"},
	"r":    {"sum(1:1000)", "stop('no')", "for (i in 1:20000) cat(i, '\\n')", "tools::pskill(Sys.getpid(), 9)"},
	"java": {"int sum = 0;\nfor (int i = 0; i < 1000; i++) sum += i;\nsum", "int[] none = {}; none[1]",
		"for (int i = 0; i < 20000; i++) System.out.println(i);", "Runtime.getRuntime().halt(1);"},
}

// coder is a client of the interpreter.
type coder struct {
	t    *testing.T
	url  string
	http *http.Client
	done int // executions
}

func (c *coder) ask(ctx context.Context, method, path string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return c.http.Do(r)
}

// execute runs code to its end and returns its events' types and error names.
func (c *coder) execute(body map[string]any) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := c.ask(ctx, http.MethodPost, "/execute", body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var seen strings.Builder
	for lines := json.NewDecoder(resp.Body); lines.More(); {
		var event struct{ Type, Name string }
		if err := lines.Decode(&event); err != nil {
			c.t.Fatal(err)
		}
		fmt.Fprintf(&seen, "%s%s ", event.Type, event.Name)
	}
	c.done++
	if !strings.HasSuffix(seen.String(), "end_of_execution ") {
		c.t.Fatalf("%v has no end: %d %.300s", body, resp.StatusCode, seen.String())
	}
	return seen.String()
}

// abandon runs code and leaves at its first words.
func (c *coder) abandon(lang, code string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resp, err := c.ask(ctx, http.MethodPost, "/execute", map[string]any{"code": code, "language": lang})
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, 100); err != nil {
		c.t.Fatal(err)
	}
	c.done++
}

// round does all that clients do, once, in one language.
func (c *coder) round(lang string, end bool) {
	c.t.Helper()
	task := tasks[lang]
	for _, code := range []string{task.value, task.fail, task.flood} {
		seen := c.execute(map[string]any{"code": code, "language": lang, "env_vars": map[string]string{"NAME": lang}})
		if failed := strings.Contains(seen, "error"); failed != (code == task.fail) {
			c.t.Fatalf("%s: %q gives %.300s", lang, code, seen)
		}
	}
	c.abandon(lang, task.flood)
	var made struct{ ID string }
	resp, err := c.ask(context.Background(), http.MethodPost, "/contexts", map[string]string{"language": lang})
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&made)
		resp.Body.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.execute(map[string]any{"code": task.value, "context_id": made.ID})
	if resp, err = c.ask(context.Background(), http.MethodDelete, "/contexts/"+made.ID, nil); err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	if end {
		if seen := c.execute(map[string]any{"code": task.die, "language": lang}); !strings.Contains(seen, "UnexpectedEndOfExecution") {
			c.t.Fatalf("%s: its kernel did not die: %s", lang, seen)
		}
		c.execute(map[string]any{"code": task.value, "language": lang})
	}
}

func TestInterpreterKeepsNothing(t *testing.T) {
	var long time.Duration
	wanted := []string{"bash", "javascript"}
	if s := os.Getenv(interpTime); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
		wanted = slices.Collect(maps.Keys(tasks))
	}
	cfg, langs := programs(t, wanted)
	srv, err := interp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	web := httptest.NewServer(srv.Handler())
	defer web.Close()
	c := &coder{t: t, url: web.URL, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, lang := range langs { // every kernel runs, caches fill once
		c.round(lang, true)
	}
	idle := settle(t, kept{Descriptors: 1 << 20, Goroutines: 1 << 20, Children: len(langs), Heap: 1 << 40})
	before := resident(t)
	for begun, n := time.Now(), 0; time.Since(begun) < long; n++ {
		c.round(langs[n%len(langs)], n%7 == 0)
	}
	c.round(langs[0], false)
	idle.Heap += 4 << 20
	idle.Children = len(langs)
	after := settle(t, idle)
	grown := resident(t) - before
	t.Logf("%s, %d executions in %s: %+v, then %+v; kernels grew by %d MB from %d MB",
		strings.Join(langs, ", "), c.done, long, idle, after, grown>>20, before>>20)
	if grown > 200<<20 {
		t.Errorf("the kernels' memory grew by %d MB", grown>>20)
	}
}

// programs are the languages that can run here.
func programs(t *testing.T, wanted []string) (interp.Config, []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cays") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := interp.Config{Dir: dir, Home: t.TempDir(), Python: os.Getenv("CAY_TEST_PYTHON")}
	if cfg.Python == "" {
		cfg.Python, _ = filepath.Abs("../../build/pyenv/bin/python")
	}
	var langs []string
	for lang, probe := range map[string][]string{
		"bash":   {"bash", "--version"},
		"python": {cfg.Python, "-c", "import ipykernel"}, "javascript": {"node", "--version"},
		"r": {"Rscript", "-e", "library(repr)"}, "java": {"java", "-version"},
	} {
		if !slices.Contains(wanted, lang) {
			continue
		}
		if err := exec.Command(probe[0], probe[1:]...).Run(); err != nil {
			t.Logf("without %s: %s: %v", lang, probe[0], err)
			continue
		}
		langs = append(langs, lang)
	}
	return cfg, langs
}

// settle waits until this process keeps no more than bound.
func settle(t *testing.T, bound kept) kept {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		now, err := measure()
		if err != nil {
			t.Fatal(err)
		}
		if now.Children <= bound.Children && now.Descriptors <= bound.Descriptors && now.Goroutines <= bound.Goroutines && now.Heap <= bound.Heap {
			return now
		}
		if time.Now().After(deadline) {
			t.Fatalf("kept: %+v; it should be %+v", now, bound)
		}
	}
}

// resident is the memory of all children, in bytes.
func resident(t *testing.T) (total int64) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(text)) {
			status, _ := os.ReadFile("/proc/" + pid + "/statm")
			var size, pages int64
			_, _ = fmt.Sscan(string(status), &size, &pages)
			total += pages * int64(os.Getpagesize())
		}
	}
	return total
}
