package server_test

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/edge/mcp"
	"github.com/cay-run/cay/internal/server/servertest"
)

// headers are put on every request.
type headers map[string]string

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	return through{h, http.DefaultTransport}.RoundTrip(r)
}

// through puts headers on what goes by another transport.
type through struct {
	headers headers
	by      http.RoundTripper
}

func (h through) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.headers {
		r.Header.Set(name, value)
	}
	return h.by.RoundTrip(r)
}

// tools connects a client of the protocol, as a program with that name, with a key.
func tools(t *testing.T, w *servertest.World, key, name string) *sdk.ClientSession {
	t.Helper()
	return toolsWith(t, w, headers{"Authorization": "Bearer " + key}, name)
}

func toolsWith(t *testing.T, w *servertest.World, h headers, name string) *sdk.ClientSession {
	t.Helper()
	return toolsAt(t, w.URL(), &http.Client{Transport: h}, name)
}

func toolsAt(t *testing.T, url string, by *http.Client, name string) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: name, Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url + mcp.Path, HTTPClient: by, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Tools ask the API for a client that comes from elsewhere over TLS, where keys in the clear
// are refused.
func TestToolsFromElsewhere(t *testing.T) {
	w := servertest.New(t)
	w.Config.Listen, w.Config.TLS = elsewhere(t)+":0", config.TLSLocal
	w.Start()
	secure := http.DefaultTransport.(*http.Transport).Clone()
	secure.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	t.Cleanup(secure.CloseIdleConnections)
	by := &http.Client{Transport: through{headers{"Authorization": "Bearer " + w.Key}, secure}}
	if text, _, failed := use(t, toolsAt(t, "https://"+w.Addr().String(), by, "far"), "list_sandboxes", nil); failed {
		t.Error(text)
	}
}

// elsewhere is an address of this machine that does not look like its own.
func elsewhere(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if at, ok := one.(*net.IPNet); ok && at.IP.To4() != nil && !at.IP.IsLoopback() {
			return at.IP.String()
		}
	}
	t.Skip("NOT TESTED HERE: this machine has no IPv4 address beside loopback")
	return ""
}

// use calls a tool and returns its text, its structured content and whether it
// failed.
func use(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (text string, out map[string]any, failed bool) {
	t.Helper()
	result, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return err.Error(), nil, true
	}
	for _, c := range result.Content {
		if c, ok := c.(*sdk.TextContent); ok {
			text += c.Text
		}
	}
	out, _ = result.StructuredContent.(map[string]any)
	return text, out, result.IsError
}

// toolRow is what a tool needs: the scopes that each of which it lacks is told, and
// arguments that name what the first team has. inside marks those that need a
// program inside, which no machine in memory has.
type toolRow struct {
	scopes cay.Scopes
	args   map[string]any
	inside bool
	action string // that the audit log has of what it changes
}

const (
	opens  = cay.ReadSandboxes | cay.WriteSandboxes | cay.ExecSandboxes
	reads  = cay.ReadSandboxes
	writes = cay.WriteSandboxes
)

// toolRows are all tools. {sandboxID} and {checkpointID} stand for the first
// team's.
func toolRows(own map[string]string) map[string]toolRow {
	box, point := own["sandboxID"], own["checkpointID"]
	in := func(more ...string) map[string]any {
		args := map[string]any{"sandbox_id": box}
		for i := 0; i < len(more); i += 2 {
			args[more[i]] = more[i+1]
		}
		return args
	}
	port := in()
	port["port"] = 8000
	const exec = cay.WriteSandboxes | cay.ExecSandboxes
	return map[string]toolRow{
		"create_sandbox":   {writes, map[string]any{"template": "ours-too"}, false, "sandbox.created"},
		"list_sandboxes":   {reads, map[string]any{}, false, ""},
		"destroy_sandbox":  {writes, in(), false, "sandbox.killed"},
		"why":              {reads, in(), false, ""},
		"run_code":         {exec, in("code", "1"), true, ""},
		"execute_command":  {exec, in("command", "true"), true, ""},
		"process_output":   {exec, in("process_id", "aaaaaaaaaa-7"), true, ""},
		"process_input":    {exec, in("process_id", "aaaaaaaaaa-7"), true, ""},
		"process_signal":   {exec, in("process_id", "aaaaaaaaaa-7"), true, ""},
		"upload_file":      {exec, in("path", "a", "content", "a"), true, ""},
		"download_file":    {exec, in("path", "a"), true, ""},
		"list_files":       {exec, in(), true, ""},
		"move_file":        {exec, in("source", "a", "destination", "b"), true, ""},
		"delete_file":      {exec, in("path", "a"), true, ""},
		"create_folder":    {exec, in("path", "a"), true, ""},
		"get_file_info":    {exec, in("path", "a"), true, ""},
		"preview_link":     {exec, port, false, ""},
		"checkpoint":       {exec, in(), false, "sandbox.checkpointed"},
		"rollback":         {writes, in("checkpoint_id", point), false, "sandbox.rolled_back"},
		"fork":             {writes, map[string]any{"checkpoint_id": point}, false, "sandbox.created"},
		"diff":             {reads, in("from_checkpoint_id", point), true, ""},
		"screenshot":       {exec, in(), true, ""},
		"request_approval": {writes, map[string]any{"title": "may I?", "wait": 0, "sandbox_id": box}, false, "approval.requested"},
		"approval_status":  {reads, map[string]any{"approval_id": own["approvalID"], "wait": 0}, false, ""},
	}
}

// Each tool asks for the scopes of what it does over REST, finds nothing of another
// team's, and is in the audit log; there is no tool without a row.
func TestTools(t *testing.T) {
	w := servertest.Start(t)
	own := belongings(t, w)
	rows := toolRows(own)
	if _, err := w.Admin("").CreateTeam(t.Context(), "stranger"); err != nil {
		t.Fatal(err)
	}
	stranger, err := w.Admin("stranger").CreateAPIKey(t.Context(), client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := tools(t, w, w.Key, "walk").ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
		if _, ok := rows[tool.Name]; !ok {
			t.Errorf("the tool %s has no row here", tool.Name)
		}
		if tool.Description == "" || tool.Annotations == nil || tool.Annotations.ReadOnlyHint && tool.Annotations.DestructiveHint != nil && *tool.Annotations.DestructiveHint {
			t.Errorf("%s is not described: %+v", tool.Name, tool)
		}
	}
	keys := &keyring{t, w, own["teamID"], map[cay.Scopes]string{}}
	other := tools(t, w, stranger.Key, "walk")
	before := possessions(t, w)
	for _, name := range names {
		row := rows[name]
		for _, scope := range row.scopes.Names() {
			one, _ := cay.ScopesOf([]string{scope})
			text, _, failed := use(t, tools(t, w, keys.with(cay.TeamScopes&^one), "walk"), name, row.args)
			if !failed || !strings.Contains(text, scope) || !strings.Contains(text, cay.CodeScope) {
				t.Errorf("%s without %s: %v %.300s", name, scope, failed, text)
			}
		}
		text, out, failed := use(t, other, name, row.args)
		mine := name == "list_sandboxes" || name == "create_sandbox" // they name nothing
		if !failed && !mine || mine && tells(fmt.Sprint(text, out), own) {
			t.Errorf("%s of another team's: %v %.300s", name, failed, text)
		}
		if named := row.args["sandbox_id"] != nil || row.args["checkpoint_id"] != nil; named && !strings.Contains(text, "not found") {
			t.Errorf("%s of another team's does not say that it is not found: %.300s", name, text)
		}
	}
	if after := possessions(t, w); ofTeam(after) != ofTeam(before) {
		t.Errorf("a caller that may not changed something:\nbefore %s\nafter  %s", before, after)
	}
	// A caller that may does all of it, the end of the sandbox last.
	slices.SortFunc(names, func(a, b string) int {
		last := func(name string) int { return slices.Index([]string{"destroy_sandbox"}, name) }
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a, b))
	})
	for _, name := range names {
		row := rows[name]
		s := toolsWith(t, w, headers{"X-API-Key": w.Key, "X-Request-Id": "req-" + name, "User-Agent": "modelled/1"}, "walk")
		text, _, failed := use(t, s, name, row.args)
		if failed && (!row.inside || strings.Contains(text, cay.CodeScope)) {
			t.Errorf("%s: %.300s", name, text)
		}
	}
	w.Stop()
	audited := auditRows(t, w)
	for _, name := range names {
		called, changed := 0, 0
		for _, r := range audited {
			if r.Action == "tool.called" && r.Target == name && r.Actor.Name == "first" {
				called++
			}
			if r.Request == "req-"+name && r.Action == rows[name].action {
				if changed++; r.Address == "" || r.Agent != "modelled/1" || r.Actor.Kind != cay.ActorKey || r.Outcome != cay.OutcomeOK {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
		if called == 0 {
			t.Errorf("no row says that %s was called", name)
		}
		if rows[name].action != "" && changed != 1 {
			t.Errorf("%s has %d rows of %s", name, changed, rows[name].action)
		}
	}
	text, err := json.Marshal(audited)
	if err != nil || strings.Contains(string(text), w.Key) {
		t.Errorf("a row has the key: %v", err)
	}
}

// A caller that is not known gets nothing, and the answer asks for a key.
func TestModelsNeedAKey(t *testing.T) {
	w := servertest.Start(t)
	own := belongings(t, w)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"destroy_sandbox","arguments":{"sandbox_id":"` + own["sandboxID"] + `"}}}`
	over := voids(t, w, "default")
	for _, path := range []string{mcp.Path, mcp.CodePath} {
		for what, v := range over {
			code, text := postTo(t, w, path, headers{"Authorization": "Bearer " + v.key}, body)
			if code != v.status || !strings.Contains(text, v.code) {
				t.Errorf("%s with %s: %d %s", path, what, code, text)
			}
		}
		for what, h := range map[string]headers{"no key": {}, "a wrong key": {"X-API-Key": "e2b_" + strings.Repeat("0", 40)}, "no bearer": {"Authorization": "Basic " + w.Key}} {
			if code, text := postTo(t, w, path, h, body); code != http.StatusUnauthorized {
				t.Errorf("%s with %s: %d %s", path, what, code, text)
			}
		}
	}
	if _, err := w.Client().Info(t.Context(), own["sandboxID"]); err != nil {
		t.Errorf("the sandbox: %v", err)
	}
}

// post sends one message.
func post(t *testing.T, w *servertest.World, h headers, body string) (int, string) {
	t.Helper()
	return postTo(t, w, mcp.Path, h, body)
}

func postTo(t *testing.T, w *servertest.World, path string, h headers, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if host, ok := h["Host"]; ok {
		r.Host = host
	}
	resp, err := h.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			return resp.StatusCode, text.String()
		}
	}
}

// Pages of browsers may use the face under the server's own names alone: a page
// elsewhere that has its name lead here is refused.
func TestPagesOfOthersAreRefused(t *testing.T) {
	w := servertest.New(t)
	w.Config.Domain = "cay.example"
	w.Start()
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	key := "Bearer " + w.Key
	for _, one := range []struct {
		host, origin, site string
		code               int
	}{
		{"", "", "", 200}, {"proxied.example", "", "", 200},
		{"localhost:7070", "http://localhost:7070", "same-origin", 200},
		{"127.0.0.1:7070", "http://127.0.0.1:7070", "", 200}, {"[::1]:7070", "http://[::1]:7070", "", 200},
		{"api.cay.example", "https://api.cay.example", "", 200}, {"CAY.example", "https://cay.EXAMPLE", "", 200},
		{"evil.example:7070", "http://evil.example:7070", "same-origin", 403},
		{"localhost:7070", "http://evil.example", "cross-site", 403}, {"localhost:7070", "null", "", 403},
		{"localhost:7070", "http://localhost:3000", "", 403}, {"localhost:7070", "", "cross-site", 403},
		{"8080-iabc.cay.example", "https://8080-iabc.cay.example", "", 400}, // a sandbox's own page: its id is none
		{"api.cay.example.evil.example", "https://api.cay.example.evil.example", "", 403},
	} {
		h := headers{"Authorization": key}
		for name, value := range map[string]string{"Host": one.host, "Origin": one.origin, "Sec-Fetch-Site": one.site} {
			if value != "" {
				h[name] = value
			}
		}
		for _, path := range []string{mcp.Path, mcp.CodePath} {
			code, text := postTo(t, w, path, h, list)
			if code != one.code && (one.code != 400 || code == 200) {
				t.Errorf("%s %+v: %d %.200s", path, one, code, text)
			}
		}
	}
}

// Clients of each revision list and call, by one handler.
func TestRevisionsOfTheProtocol(t *testing.T) {
	w := servertest.Start(t)
	key := "Bearer " + w.Key
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
		code, text := post(t, w, headers{"Authorization": key}, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`)
		if code != 200 || !strings.Contains(text, `"protocolVersion":"`+version+`"`) || !strings.Contains(text, "instructions") {
			t.Errorf("%s: initialize: %d %.300s", version, code, text)
		}
		h := headers{"Authorization": key, "Mcp-Protocol-Version": version}
		if version == "2024-11-05" {
			delete(h, "Mcp-Protocol-Version")
		}
		if code, text := post(t, w, h, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); code != http.StatusAccepted {
			t.Errorf("%s: initialized: %d %s", version, code, text)
		}
		if code, text := post(t, w, h, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_sandboxes","arguments":{}}}`); code != 200 || !strings.Contains(text, "no sandboxes") {
			t.Errorf("%s: call: %d %.300s", version, code, text)
		}
	}
	h := headers{"Authorization": key, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "list_sandboxes"}
	code, text := post(t, w, h, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_sandboxes","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"new","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if code != 200 || !strings.Contains(text, "no sandboxes") {
		t.Errorf("2026-07-28: %d %.300s", code, text)
	}
}

// Nonsense is answered with what would be sense.
func TestToolsSayWhatIsWrong(t *testing.T) {
	w := servertest.Start(t)
	s := tools(t, w, w.Key, "nonsense")
	for _, one := range []struct {
		name string
		args map[string]any
		says string
	}{
		{"runcode", nil, "did you mean run_code?"},
		{"RUN_CODE", nil, "did you mean run_code?"},
		{"process", nil, "process_output or process_input or process_signal"},
		{"zzz", nil, "there are create_sandbox, list_sandboxes"},
		{"run_code", map[string]any{}, "code"},
		{"run_code", map[string]any{"code": 7}, "code"},
		{"run_code", map[string]any{"code": "1", "lang": "python"}, "lang"},
		{"run_code", map[string]any{"code": "1", "timeout": -1}, "timeout"},
		{"run_code", map[string]any{"code": "1", "timeout": 1e9}, "timeout"},
		{"why", map[string]any{"sandbox_id": "../../teams"}, "has not the form of an id"},
		{"why", map[string]any{"sandbox_id": "inone"}, "not found"},
		{"process_output", map[string]any{"process_id": "../etc-1"}, "process_id"},
		{"process_signal", map[string]any{"process_id": "aaaaaaaaaa-1", "signal": "TERM; rm -rf /"}, "signal"},
		{"upload_file", map[string]any{"path": "a", "content": "&", "encoding": "base64"}, "base64"},
		{"list_files", map[string]any{"depth": 99}, "depth"},
		{"preview_link", map[string]any{"port": 0}, "port"},
		{"destroy_sandbox", map[string]any{}, "no default sandbox"},
		{"create_sandbox", map[string]any{"template": "nothing-such"}, "nothing-such"},
	} {
		text, _, failed := use(t, s, one.name, one.args)
		if !failed || !strings.Contains(text, one.says) {
			t.Errorf("%s %v: %v %.300s", one.name, one.args, failed, text)
		}
	}
	for _, body := range []string{
		"", "{}", "[]", "null", "7", "[[]]", strings.Repeat("[", 1<<16), `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`,
		`{"jsonrpc":"2.0","id":{},"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"method":"nothing/such"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":null}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":"{}"}}`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"create_sandbox"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"id":1,"method":"tools/list"}`,
	} {
		if code, text := post(t, w, headers{"X-API-Key": w.Key}, body); code >= 500 {
			t.Errorf("%.100s: %d %.300s", body, code, text)
		}
	}
	if code, text := post(t, w, headers{"X-API-Key": w.Key}, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); code != 200 || !strings.Contains(text, "run_code") {
		t.Errorf("without params: %d %.300s", code, text)
	}
	if list, err := w.Client().List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("nonsense made sandboxes: %v %v", list, err)
	}
}

// A default sandbox is of one caller and one client: found again, made once by
// calls at the same time, and no other's, also where another claims its mark.
func TestDefaultSandboxes(t *testing.T) {
	w := servertest.Start(t)
	second, err := w.Admin("default").CreateAPIKey(t.Context(), client.NewAPIKey{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	of := func(s *sdk.ClientSession) string {
		_, out, failed := use(t, s, "preview_link", map[string]any{"port": 80})
		id, _ := out["sandbox_id"].(string)
		if failed || id == "" {
			t.Fatalf("no default sandbox: %v", out)
		}
		return id
	}
	first := tools(t, w, w.Key, "claude")
	ids := make([]string, 5)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() { ids[i] = of(first) })
	}
	all.Wait()
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1 {
		t.Fatalf("five callers at once have %v", ids)
	}
	own := ids[0]
	info, err := w.Client().Info(t.Context(), own)
	if err != nil || info.Alias != "code-interpreter-v1" {
		t.Fatalf("%+v %v", info, err)
	}
	if again := of(tools(t, w, w.Key, "claude")); again != own {
		t.Errorf("another connection has %s, not %s", again, own)
	}
	if named := of(toolsWith(t, w, headers{"X-API-Key": w.Key, mcp.NameHeader: "claude"}, "anything")); named != own {
		t.Errorf("the name of a header has %s, not %s", named, own)
	}
	for what, other := range map[string]*sdk.ClientSession{"another client": tools(t, w, w.Key, "cursor"), "another key": tools(t, w, second.Key, "claude")} {
		if id := of(other); id == own {
			t.Errorf("%s has the sandbox of the first", what)
		}
	}
	if _, _, failed := use(t, first, "destroy_sandbox", nil); failed {
		t.Error("it cannot be destroyed")
	}
	// A key of the team copies the mark: its sandbox is not found.
	if _, err := w.ClientOf(second.Key).Create(t.Context(), client.CreateOptions{Metadata: info.Metadata, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	planted, err := w.ClientOf(second.Key).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range planted {
		if box.ID == of(first) {
			t.Errorf("another key's sandbox %s is the default one", box.ID)
		}
	}
	// Paused, it wakes.
	own = of(first)
	if err := w.Client().Pause(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if id := of(first); id != own {
		t.Errorf("when paused it is %s, not %s", id, own)
	}
	if info, err := w.Client().Info(t.Context(), own); err != nil || info.State != "running" {
		t.Errorf("it did not wake: %+v %v", info, err)
	}
	w.Stop()
	w.Start()
	if id := of(tools(t, w, w.Key, "claude")); id != own {
		t.Errorf("after a restart it is %s, not %s", id, own)
	}
}

// Messages take from the rate of the team, say what is left of it and when to come
// again, and are told in the audit log when they are too many.
func TestModelsHaveARate(t *testing.T) {
	w := servertest.Start(t)
	limited(t, w, map[string]*int64{string(cay.LimitReads): new(int64(1)), string(cay.LimitReadBurst): new(int64(2))})
	codes := map[int]int{}
	for i := range 6 {
		resp := messaged(t, w, []string{mcp.Path, mcp.CodePath}[i%2], headers{"X-API-Key": w.Key}, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		codes[resp.StatusCode]++
		h := resp.Header
		if h.Get("RateLimit-Limit") != "2" || h.Get("RateLimit-Remaining") == "" || h.Get("RateLimit-Reset") == "" {
			t.Errorf("%d says of the rate %v", resp.StatusCode, h)
		}
		if resp.StatusCode == http.StatusTooManyRequests && (h.Get("Should-Retry") != "true" || h.Get("Retry-After") != "1") {
			t.Errorf("a refusal says %v", h)
		}
	}
	if codes[http.StatusTooManyRequests] == 0 || codes[200] == 0 {
		t.Errorf("%v", codes)
	}
	resp := messaged(t, w, mcp.CodePath, headers{"X-API-Key": "e2b_" + strings.Repeat("0", 40)}, `{}`)
	if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Should-Retry") != "false" {
		t.Errorf("a wrong key: %d %v", resp.StatusCode, resp.Header)
	}
	w.Stop()
	if !slices.ContainsFunc(auditRows(t, w), func(r cay.AuditRow) bool { return r.Action == "rate.refused" && r.Target == "read" }) {
		t.Error("no row of the audit log tells of refused messages")
	}
}

// messaged sends a message and drops what is answered.
func messaged(t *testing.T, w *servertest.World, path string, h headers, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := h.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

// A tool that is at work ends with the key that asked for it, or with that key's
// team.
func TestToolsEndWithTheirKey(t *testing.T) {
	w := servertest.New(t)
	asked, ended := make(chan struct{}), make(chan struct{})
	w.Machine.Agent = http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) { // it never answers
		if !strings.HasPrefix(r.URL.Path, "/filesystem.") { // by the server itself
			http.NotFound(answer, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // else its end is not seen
		asked <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	w.Start()
	ctx := t.Context()
	if _, err := w.Admin("").CreateTeam(ctx, "blue"); err != nil {
		t.Fatal(err)
	}
	for what, end := range map[string]func(id string) error{
		"a removed key": func(id string) error { return w.Admin("blue").RemoveAPIKey(ctx, id) },
		"a disabled team": func(string) error {
			_, err := w.Admin("").DisableTeam(ctx, "blue", false)
			return err
		},
	} {
		if _, err := w.Admin("").DisableTeam(ctx, "blue", true); err != nil {
			t.Fatal(err)
		}
		key, err := w.Admin("blue").CreateAPIKey(ctx, client.NewAPIKey{Name: "k"})
		if err != nil {
			t.Fatal(err)
		}
		box, err := w.ClientOf(key.Key).Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		session := tools(t, w, key.Key, "c")
		told := make(chan bool, 1)
		go func() {
			result, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "list_files", Arguments: map[string]any{"path": "/", "sandbox_id": box.ID}})
			told <- err != nil || result.IsError
		}()
		<-asked
		if err := end(key.ID); err != nil {
			t.Fatal(err)
		}
		<-ended
		if !<-told {
			t.Errorf("%s: the tool had a result", what)
		}
	}
}

// A key that may use one template makes sandboxes of that one where it names none.
func TestToolsOfABoundedKey(t *testing.T) {
	w := servertest.New(t)
	key := w.AddKey(cay.APIKey{Team: agentTeam(t, w), Name: "bounded", Bounds: cay.KeyBounds{Templates: []string{"base"}}})
	w.Start()
	text, out, failed := use(t, tools(t, w, key, "a model"), "create_sandbox", map[string]any{})
	if failed || out["template"] != "base" {
		t.Errorf("%v %s", out, text)
	}
}
