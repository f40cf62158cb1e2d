package rest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/controltest"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
	"github.com/cay-run/cay/internal/template/oci"
)

// world is a REST face over a real control and store, with a node in memory.
type world struct {
	t       testing.TB
	url     string
	handler http.Handler
	direct  http.Handler // is called in place of the server, where a test sets it
	store   *counted
	node    *controltest.Node
	control *control.Control
	team    cay.Team
	key     string
	other   string // a key of another team
	base    cay.Template
}

func newWorld(t testing.TB, domain string) *world {
	t.Helper()
	w := unserved(t, domain)
	server := httptest.NewServer(w.handler)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// unserved is a world without a server: what listens holds a test's time up.
func unserved(t testing.TB, domain string) *world {
	t.Helper()
	s := &counted{DB: storetest.Open(t, filepath.Join(t.TempDir(), "cay.db"))}
	var err error
	w := &world{t: t, store: s, node: controltest.NewNode()}
	if w.team, w.key, err = auth.FirstStart(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if w.other, _, err = auth.Issue(t.Context(), s, other.ID, "k"); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	logs, err := logbook.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := control.Config{
		Store: s, Node: w.node, NodeID: "local", Tokens: tokens, Sealer: sealer, Logs: logs,
		Images: oci.NewTeams(t.TempDir(), oci.Options{}), Auth: auth.New(s),
	}
	if w.control, err = control.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	w.base, err = w.control.Publish(t.Context(), fleet.Publication{
		Team: w.team.ID, Names: []string{"base"}, Public: true, Snapshot: "s1", EnvdVersion: "0.6.13",
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024}, RecipeDigest: "d",
	})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = rest.New(rest.Config{Fleet: w.control.Catalogue, Sandboxes: w.control.Controller, Builds: w.control.Queue, Accounts: w.control.Accounts, Auth: cfg.Auth, Domain: domain,
		Webhooks: w.control.Hooks,
		Defaults: map[string]string{"base": "what base is for"}})
	return w
}

// counted is a store that notes which events were asked for.
type counted struct {
	*store.DB
	asked chan store.EventQuery
}

func (s *counted) Events(ctx context.Context, q store.EventQuery) ([]cay.Event, error) {
	if s.asked != nil {
		s.asked <- q
	}
	return s.DB.Events(ctx, q)
}

type reply struct {
	status int
	header http.Header
	text   string
}

func (w *world) call(method, path, body string) reply { return w.callAs(w.key, method, path, body) }

func (w *world) callAs(key, method, path, body string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-API-KEY", key)
	}
	if w.direct != nil {
		answer := httptest.NewRecorder()
		w.direct.ServeHTTP(answer, req)
		return reply{answer.Code, answer.Header(), answer.Body.String()}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

// want checks the status and decodes the body.
func want[T any](t testing.TB, r reply, status int) T {
	t.Helper()
	var out T
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.text)
	}
	if r.text == "" {
		return out
	}
	if err := json.Unmarshal([]byte(r.text), &out); err != nil {
		t.Fatalf("%v: %s", err, r.text)
	}
	return out
}

// wantError checks that an answer is an error as SDKs need it, whose message
// holds a text.
func wantError(t testing.TB, r reply, status int, holds string) {
	t.Helper()
	e := want[map[string]any](t, r, status)
	if e["code"] != float64(status) {
		t.Errorf("code %v, want %d", e["code"], status)
	}
	if message, _ := e["message"].(string); !strings.Contains(message, holds) || message == "" {
		t.Errorf("the message %q does not hold %q", message, holds)
	}
	if !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
		t.Errorf("an error is %q", r.header.Get("Content-Type"))
	}
}

type object = map[string]any

func (w *world) create(body string) object {
	w.t.Helper()
	return want[object](w.t, w.call("POST", "/v2/sandboxes", body), 201)
}

func TestCreateAnswersAsSDKsExpect(t *testing.T) {
	w := newWorld(t, "")
	v1 := want[object](t, w.call("POST", "/sandboxes", `{"templateID":"base","timeout":300,"secure":true,"metadata":{},"envVars":{},"autoPause":false,"allow_internet_access":true,"someday":1}`), 201)
	v2 := w.create(`{"templateID":"BASE:default"}`)
	for _, got := range []object{v1, v2} {
		if got["templateID"] != string(w.base.ID) || got["clientID"] == "" || got["envdVersion"] != "0.6.13" ||
			got["alias"] != "base" || got["envdAccessToken"] == nil {
			t.Errorf("got %v", got)
		}
		if domain, there := got["domain"]; !there || domain != nil {
			t.Errorf("domain is %v, %v, want null", domain, there)
		}
		if _, there := got["trafficAccessToken"]; there {
			t.Error("a public sandbox has a traffic token")
		}
	}
	plain := want[object](t, w.call("POST", "/sandboxes", `{"templateID":"default/base"}`), 201)
	if _, there := plain["envdAccessToken"]; there {
		t.Error("a sandbox that is not secure has an access token")
	}
	detail := want[object](t, w.call("GET", "/sandboxes/"+plain["sandboxID"].(string), ""), 200)
	start, _ := time.Parse(time.RFC3339, detail["startedAt"].(string))
	end, _ := time.Parse(time.RFC3339, detail["endAt"].(string))
	if end.Sub(start) != 15*time.Second || !strings.HasSuffix(detail["endAt"].(string), "Z") {
		t.Errorf("v1 without timeout: %v to %v", detail["startedAt"], detail["endAt"])
	}
	open := w.create(`{"templateID":"base","network":{"allowPublicTraffic":null}}`)
	if _, there := open["trafficAccessToken"]; there {
		t.Error("allowPublicTraffic null closes a sandbox")
	}
	closed := w.create(`{"templateID":"base","network":{"allowPublicTraffic":false,"denyOut":["0.0.0.0/0"],"allowOut":["1.1.1.1"]}}`)
	if closed["trafficAccessToken"] == nil {
		t.Error("a closed sandbox has no traffic token")
	}
}

func TestCreateReachesTheNode(t *testing.T) {
	w := newWorld(t, "")
	got := w.create(`{"templateID":"base","envVars":{"A":"1"},"allow_internet_access":false,"network":{"maskRequestHost":"localhost:${PORT}"}}`)
	spec := w.node.Alive()[0].Spec
	if spec.Env["A"] != "1" || spec.Network.AllowInternet || spec.Snapshot != "s1" || spec.Limits.MemoryMB != 512 ||
		spec.AccessToken != got["envdAccessToken"] || string(spec.Sandbox) != got["sandboxID"] ||
		spec.Network.MaskHost != "localhost:${PORT}" {
		t.Errorf("the node got %+v", spec)
	}
}

func TestDetailAndDomain(t *testing.T) {
	w := newWorld(t, "sandbox.test:7070")
	box := w.create(`{"templateID":"base","metadata":{"a":"b"}}`)
	got := want[object](t, w.call("GET", "/sandboxes/"+box["sandboxID"].(string)+"-00000000", ""), 200)
	if got["domain"] != "sandbox.test:7070" || got["state"] != "running" || got["cpuCount"] != 2.0 || got["memoryMB"] != 512.0 ||
		got["diskSizeMB"] != 1024.0 || got["metadata"].(object)["a"] != "b" || got["allowInternetAccess"] != true ||
		got["lifecycle"].(object)["onTimeout"] != "kill" || got["network"].(object)["allowPublicTraffic"] != true ||
		got["envdAccessToken"] != box["envdAccessToken"] {
		t.Errorf("got %v", got)
	}
	bare := w.create(`{"templateID":"base"}`)
	got = want[object](t, w.call("GET", "/sandboxes/"+bare["sandboxID"].(string), ""), 200)
	if _, there := got["metadata"]; there {
		t.Error("absent metadata is there")
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	w := newWorld(t, "")
	tests := []struct{ body, holds string }{
		{`{`, "JSON"},
		{``, "JSON"},
		{`[]`, "JSON object"},
		{`{}`, "templateID"},
		{`{"templateID":7}`, "templateID"},
		{`{"templateID":"a/b/c"}`, "templateID"},
		{`{"templateID":"base","timeout":0}`, "timeout"},
		{`{"templateID":"base","timeout":-1}`, "timeout"},
		{`{"templateID":"base","timeout":-9223372036854775808}`, "timeout"},
		{`{"templateID":"base","timeout":9223372036854775807}`, "timeout"},
		{`{"templateID":"base","timeout":1e40}`, "timeout"},
		{`{"templateID":"base","timeout":1.5}`, "timeout"},
		{`{"templateID":"base","timeout":"60"}`, "timeout"},
		{`{"templateID":"base","metadata":{"a":1}}`, "metadata"},
		{`{"templateID":"base","metadata":{"a":"\u0000"}}`, "metadata"},
		{`{"templateID":"base","envVars":{"A=B":"1"}}`, "envVars"},
		{`{"templateID":"base","envVars":{"":"1"}}`, "envVars"},
		{`{"templateID":"base","network":{"denyOut":["example.org"]}}`, "denyOut"},
		{`{"templateID":"base","network":{"maskRequestHost":"ü"}}`, "maskRequestHost"},
		{`{"templateID":"base","network":{"httpsPorts":[0]}}`, "network.httpsPorts"},
		{`{"templateID":"base","network":{"httpsPorts":[8443,49983]}}`, "network.httpsPorts"},
		{`{"templateID":"base","autoPauseMemory":false}`, "autoPauseMemory"},
		{`{"templateID":"base","volumeMounts":[{"name":"v","path":"/v"}]}`, "volumeMounts"},
	}
	for _, tt := range tests {
		wantError(t, w.call("POST", "/sandboxes", tt.body), 400, tt.holds)
		wantError(t, w.call("POST", "/v2/sandboxes", tt.body), 400, tt.holds)
	}
	wantError(t, w.call("POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`), 400,
		"You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.")
	wantError(t, w.call("POST", "/sandboxes", `{"templateID":"base","envVars":{"A":"`+strings.Repeat("x", 2<<20)+`"}}`), 413, "1 MiB")
	wantError(t, w.call("POST", "/sandboxes", `{"templateID":"nope"}`), 404, "not found")
	wantError(t, w.call("POST", "/sandboxes", `{"templateID":"base:v2"}`), 404, "does not exist for template")
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances came of bad requests", n)
	}
}

func TestKeys(t *testing.T) {
	w := newWorld(t, "")
	for _, key := range []string{"", "e2b_", "e2b_" + strings.Repeat("0", 40)} {
		wantError(t, w.callAs(key, "GET", "/v2/sandboxes", ""), 401, "API key")
		wantError(t, w.callAs(key, "POST", "/v2/sandboxes", "{"), 401, "API key")
		wantError(t, w.callAs(key, "POST", "/sandboxes/ix/pause", ""), 401, "API key")
	}
	want[any](t, w.callAs("", "GET", "/health", ""), 204)
	req, _ := http.NewRequest("GET", w.url+"/sandboxes", nil)
	req.Header.Set("Authorization", "bearer "+w.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("the key as bearer: %d", resp.StatusCode)
	}
}

func TestAnotherTeamSeesNothing(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	none := "i" + strings.Repeat("0", 20)
	for _, tt := range []struct{ method, path, body string }{
		{"GET", "/sandboxes/%s", ""},
		{"DELETE", "/sandboxes/%s", ""},
		{"POST", "/sandboxes/%s/connect", `{"timeout":60}`},
		{"POST", "/v2/sandboxes/%s/connect", ""},
		{"POST", "/sandboxes/%s/timeout", `{"timeout":60}`},
		{"POST", "/sandboxes/%s/refreshes", `{}`},
		{"GET", "/sandboxes/%s/metrics", ""},
	} {
		theirs := w.callAs(w.other, tt.method, strings.Replace(tt.path, "%s", id, 1), tt.body)
		wantError(t, theirs, 404, "doesn't exist or you don't have access to it")
		absent := w.callAs(w.other, tt.method, strings.Replace(tt.path, "%s", none, 1), tt.body)
		if strings.ReplaceAll(theirs.text, id, "") != strings.ReplaceAll(absent.text, none, "") {
			t.Errorf("%s %s tells a foreign sandbox from none: %s / %s", tt.method, tt.path, theirs.text, absent.text)
		}
	}
	if list := want[[]object](t, w.callAs(w.other, "GET", "/v2/sandboxes", ""), 200); len(list) != 0 {
		t.Errorf("the other team lists %v", list)
	}
	if _, ended := w.node.Ended(w.node.Alive()[0].Spec.Instance); ended {
		t.Error("the other team ended it")
	}
	want[object](t, w.callAs(w.other, "POST", "/sandboxes", `{"templateID":"base"}`), 201) // base is public
}

func TestLifeOfASandbox(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	endAt := func() string {
		return want[object](t, w.call("GET", "/sandboxes/"+id, ""), 200)["endAt"].(string)
	}
	first := endAt()
	want[object](t, w.call("POST", "/sandboxes/"+id+"/connect", `{"timeout":10}`), 200)
	want[object](t, w.call("POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":20,"memory":true}`), 200)
	want[any](t, w.call("POST", "/sandboxes/"+id+"/refreshes", `{"duration":100}`), 204)
	want[any](t, w.call("POST", "/sandboxes/"+id+"/refreshes", ``), 204)
	if now := endAt(); now != first {
		t.Errorf("shorter connects moved endAt from %s to %s", first, now)
	}
	want[object](t, w.call("POST", "/v2/sandboxes/"+id+"/connect", `{"timeout":3000}`), 200)
	second := endAt()
	if second <= first {
		t.Errorf("a longer connect left endAt at %s", second)
	}
	want[any](t, w.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":30}`), 204)
	if third := endAt(); third >= first {
		t.Errorf("a shorter timeout left endAt at %s", third)
	}
	wantError(t, w.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":-1}`), 400, "timeout")
	wantError(t, w.call("POST", "/sandboxes/"+id+"/timeout", `{}`), 400, "timeout")
	wantError(t, w.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":99999999999}`), 400, "timeout")
	wantError(t, w.call("POST", "/sandboxes/"+id+"/connect", `{}`), 400, "timeout")
	wantError(t, w.call("POST", "/sandboxes/"+id+"/connect", `{"timeout":0}`), 400, "timeout")
	wantError(t, w.call("POST", "/sandboxes/"+id+"/refreshes", `{"duration":-1}`), 400, "duration")
	want[any](t, w.call("DELETE", "/sandboxes/"+id, ""), 204)
	for _, r := range []reply{
		w.call("DELETE", "/sandboxes/"+id, ""), w.call("GET", "/sandboxes/"+id, ""),
		w.call("POST", "/v2/sandboxes/"+id+"/connect", ""),
	} {
		wantError(t, r, 404, "not found")
	}
	id = w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	want[any](t, w.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":0}`), 204)
	wantError(t, w.call("GET", "/sandboxes/"+id, ""), 404, "not found")
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances are left", n)
	}
}

func TestAFullMachineSaysWhenToTryAgain(t *testing.T) {
	w := newWorld(t, "")
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		return cay.Errorf(cay.Unavailable, "no room").WithCode(cay.CodeCapacity).WithHint("end some")
	}
	r := w.call("POST", "/v2/sandboxes", `{"templateID":"base"}`)
	wantError(t, r, http.StatusServiceUnavailable, "end some")
	if e := want[object](t, r, http.StatusServiceUnavailable); e["error_code"] != cay.CodeCapacity || r.header.Get("Retry-After") != "5" {
		t.Errorf("%v, to be tried after %q", e, r.header.Get("Retry-After"))
	}
}
