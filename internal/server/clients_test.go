package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// clientWorld is a server of which each text of cay.ClientTexts is got.
type clientWorld struct {
	t *testing.T
	*servertest.World
	box *client.Sandbox
}

// requested records a build of a template that is its own, and returns the path of it.
func (w *clientWorld) requested(name string) (template, build string) {
	w.t.Helper()
	code, text := call(w.t, w.World, w.Key, "POST", "/v3/templates", `{"name":"`+name+`"}`)
	var out struct{ TemplateID, BuildID string }
	if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusAccepted {
		w.t.Fatalf("%d %s", code, text)
	}
	return out.TemplateID, out.BuildID
}

// underWay has another node build a template for as long as the test lasts.
func (w *clientWorld) underWay(build string) {
	w.t.Helper()
	w.Stop()
	w.Records(func(db *store.DB) {
		team, err := db.TeamByName(w.t.Context(), "default")
		must(w.t, err)
		b, err := db.Build(w.t.Context(), team.ID, cay.BuildID(build))
		must(w.t, err)
		b.State = cay.BuildBuilding
		must(w.t, db.PutBuild(w.t.Context(), b))
		must(w.t, db.QueueBuild(w.t.Context(), b, "sealed", ""))
		_, _, err = db.TakeBuild(w.t.Context(), "another", 100, time.Hour)
		must(w.t, err)
	})
	w.Start()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts a build.
func (w *clientWorld) start(template, build string) (int, string) {
	return call(w.t, w.World, w.Key, "POST", "/v2/templates/"+template+"/builds/"+build,
		`{"fromTemplate":"base"}`)
}

func (w *clientWorld) create(template string) (int, string) {
	return call(w.t, w.World, w.Key, "POST", "/v2/sandboxes", `{"templateID":"`+template+`"}`)
}

// within has a request made while a limit of the team is 1.
func (w *clientWorld) within(limit string, f func() (int, string)) (int, string) {
	limited(w.t, w.World, map[string]*int64{limit: new(int64(1))})
	defer limited(w.t, w.World, map[string]*int64{limit: nil})
	return f()
}

// inSandbox sends a request to a port of a sandbox.
func (w *clientWorld) inSandbox(id, port, token, method, path string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.URL()+path, strings.NewReader("x"))
	if err != nil {
		w.t.Fatal(err)
	}
	for name, value := range map[string]string{
		"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": port, "X-Access-Token": token, "Content-Type": "application/octet-stream",
	} {
		req.Header.Set(name, value)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// clientCases get the errors of which clients read texts, by route and status; of
// those that have several causes, all.
func (w *clientWorld) clientCases() map[string][]func() (int, string) {
	agent := func(method, path string) (int, string) {
		return w.inSandbox(w.box.ID, "49983", w.box.AccessToken, method, path)
	}
	const start = "POST /v2/templates/{templateID}/builds/{buildID}"
	busyTemplate, busyBuild := w.requested("busy")
	waitTemplate, waitBuild := w.requested("waits")
	w.underWay(busyBuild)
	return map[string][]func() (int, string){
		"any sandbox 502 was not found":         {func() (int, string) { return w.inSandbox("i0123456789abcdefghij", "49983", "", "GET", "/health") }},
		"any sandbox 502 sandbox was not found": {func() (int, string) { return w.inSandbox("i0123456789abcdefghij", "49983", "", "GET", "/health") }},
		"any sandbox 502 port is not open":      {func() (int, string) { return w.inSandbox(w.box.ID, "4444", "", "GET", "/") }},
		"POST /v2/sandboxes 429 maximum number of concurrent": {
			func() (int, string) { return w.within("sandboxes", func() (int, string) { return w.create("base") }) },
			func() (int, string) { return w.within("cpus", func() (int, string) { return w.create("base") }) },
			func() (int, string) { return w.within("memoryMB", func() (int, string) { return w.create("base") }) },
			func() (int, string) { return w.within("diskMB", func() (int, string) { return w.create("base") }) },
		},
		"POST /v2/sandboxes 429 limit": {
			func() (int, string) { return w.within("sandboxes", func() (int, string) { return w.create("base") }) },
		},
		"POST /v3/templates 429 maximum number of concurrent": {func() (int, string) {
			return w.within("builds", func() (int, string) { return call(w.t, w.World, w.Key, "POST", "/v3/templates", `{"name":"more"}`) })
		}},
		start + " 429 maximum number of concurrent": {func() (int, string) {
			return w.within("builds", func() (int, string) { return w.start(waitTemplate, waitBuild) })
		}},
		start + " 409 ": {func() (int, string) { return w.start(busyTemplate, busyBuild) }},
		"POST /v2/sandboxes 404 does not exist": {
			func() (int, string) { return w.create("busy") },
			func() (int, string) { return w.create("busy:default") },
			func() (int, string) { return w.create("busy:" + busyBuild) },
			func() (int, string) { return w.create(busyTemplate + ":" + busyBuild) },
			func() (int, string) { return w.create("base:v7") },
			func() (int, string) { return w.create("base:" + waitBuild) },
		},
		"POST /v2/sandboxes 404 not found": {func() (int, string) { return w.create("never-made") }},
		"GET /templates/{templateID}/builds/{buildID}/status 404 not found": {func() (int, string) {
			return call(w.t, w.World, w.Key, "GET", "/templates/"+busyTemplate+"/builds/0c5e5b5e-0000-4000-8000-000000000000/status", "")
		}},
		"POST /files of a sandbox 400 is a directory": {func() (int, string) { return agent("POST", "/files?path=/") }},
		"POST /v2/sandboxes 401 API key": {
			func() (int, string) { return call(w.t, w.World, "", "POST", "/v2/sandboxes", "{}") },
			func() (int, string) { return call(w.t, w.World, "e2b_0000", "POST", "/v2/sandboxes", "{}") },
		},
	}
}

// TestClientTexts gets each error of cay.ClientTexts from a server, and looks for the
// text that the client looks for.
func TestClientTexts(t *testing.T) {
	w := &clientWorld{t: t, World: servertest.New(t)}
	w.Machine.Agent = servertest.RealAgent(t, t.TempDir())
	w.Start()
	var err error
	w.box, err = w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	must(t, err)
	cases := w.clientCases()
	for _, row := range cay.ClientTexts() {
		key := strings.Join([]string{row.Route, strconv.Itoa(row.Status), row.Text}, " ")
		if len(cases[key]) == 0 {
			t.Errorf("%s: no case gets it: %s", row.Client, key)
		}
		for i, get := range cases[key] {
			if code, text := get(); code != row.Status || !strings.Contains(text, row.Text) {
				t.Errorf("%s, case %d: %d %s, want %d with %q", key, i, code, text, row.Status, row.Text)
			}
		}
	}
}

// TestAloneTooLarge tries a template that is too large even on an empty server: a client
// that waits for room is not to wait.
func TestAloneTooLarge(t *testing.T) {
	w := servertest.Start(t)
	limited(t, w, map[string]*int64{"memoryMB": new(int64(1))})
	code, text := call(t, w, w.Key, "POST", "/v2/sandboxes", `{"templateID":"base"}`)
	if code != http.StatusTooManyRequests || strings.Contains(text, "maximum number of concurrent") || !strings.Contains(text, "alone") {
		t.Errorf("%d %s", code, text)
	}
}

// TestInspectLink follows the link that E2B's command line prints for a new sandbox.
func TestInspectLink(t *testing.T) {
	w := servertest.Start(t)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for id, want := range map[string]int{"iexample0000000000000": http.StatusFound, "a%2Fb": http.StatusBadRequest} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", w.URL()+"/dashboard/inspect/sandbox/"+id, nil)
		must(t, err)
		resp, err := tr.RoundTrip(req)
		must(t, err)
		resp.Body.Close()
		to := resp.Header.Get("Location")
		if resp.StatusCode != want || want == http.StatusFound && !strings.HasSuffix(to, "/sandboxes/"+id) {
			t.Errorf("%s: %d, %q", id, resp.StatusCode, to)
		}
	}
}
