package server_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// at sends a request to a host of the server.
func at(t *testing.T, w *servertest.World, method, host, path, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	return atURL(t, w.URL(), method, host, path, body, headers...)
}

// atURL does so where a server listens.
func atURL(t *testing.T, url, method, host, path, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// opened trades what logs in for a session.
func opened(t *testing.T, w *servertest.World, what, value string) (token string, status int, text string) {
	t.Helper()
	body, _ := json.Marshal(map[string]string{what: value})
	status, _, text = at(t, w, "POST", "console.localhost", "/api/cay/v1/console-sessions", string(body))
	var got struct{ Token string }
	_ = json.Unmarshal([]byte(text), &got)
	return got.Token, status, text
}

// as asks below /api of the console with a session.
func as(t *testing.T, w *servertest.World, token, method, path, body string) (int, string) {
	t.Helper()
	status, _, text := at(t, w, method, "console.localhost", "/api"+path, body, "Authorization", "Bearer "+token)
	return status, text
}

// No way to a sandbox answers at the console's origin but calls of its agent and its
// interpreter that name it in headers, the agent's with its token; and the console answers nowhere else.
func TestConsoleOrigin(t *testing.T) {
	w := servertest.New(t)
	w.Config.ConsoleListen = "127.0.0.1:0"
	w.Start()
	box, err := w.Client().Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const host = "console.localhost"
	// The page, built or not, and never the guest's.
	for _, path := range []string{"/", "/s/" + box.ID + "/8000/", "/sandboxes/" + box.ID, "/files?path=/etc/passwd"} {
		status, h, text := at(t, w, "GET", host, path, "", "E2b-Sandbox-Id", box.ID, "E2b-Sandbox-Port", "8000", "Accept", "text/html")
		if status != http.StatusOK && status != http.StatusNotImplemented || !strings.Contains(text, "Cay") || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") || len(h["Set-Cookie"]) > 0 {
			t.Errorf("%s: %d %v %.200s", path, status, h, text)
		}
	}
	agent := func(token, port string) (int, string) {
		status, _, text := at(t, w, "GET", host, "/agent/envs", "", "E2b-Sandbox-Id", box.ID, "E2b-Sandbox-Port", port, "X-Access-Token", token)
		return status, text
	}
	var access struct{ EnvdAccessToken, State string }
	code, text := call(t, w, w.Key, "POST", "/cay/v1/sandboxes/"+box.ID+"/access", "")
	if err := json.Unmarshal([]byte(text), &access); err != nil || code != http.StatusOK || access.EnvdAccessToken == "" || access.State != "running" {
		t.Fatalf("access: %d %s", code, text)
	}
	if status, text := agent(access.EnvdAccessToken, "49983"); status != http.StatusOK {
		t.Errorf("the agent: %d %s", status, text)
	}
	if status, text := agent("wrong", "49983"); status != http.StatusUnauthorized {
		t.Errorf("the agent with a wrong token: %d %s", status, text)
	}
	for port, closed := range map[string]bool{"8000": true, "49999": false, "49998": true, "0": true, "": true} {
		if status, text := agent(access.EnvdAccessToken, port); (status == http.StatusBadRequest) != closed {
			t.Errorf("port %q: %d %s", port, status, text)
		}
	}
	if status, _, text := at(t, w, "GET", host, "/agent/init", "", "E2b-Sandbox-Id", box.ID, "E2b-Sandbox-Port", "49983", "X-Access-Token", access.EnvdAccessToken); status < 400 {
		t.Errorf("a route of the server's own: %d %s", status, text)
	}
	if status, _, text := at(t, w, "GET", "8000-"+box.ID+".localhost", "/api/cay/v1/caller", "", "X-API-Key", w.Key); strings.Contains(text, "teamID") {
		t.Errorf("the API at a sandbox's name: %d %s", status, text)
	}
	if status, _, text := at(t, w, "GET", "localhost", "/", "", "Accept", "text/html"); status != http.StatusNotFound || !strings.Contains(text, "console.localhost") {
		t.Errorf("the way to the console: %d %s", status, text)
	}
	// Where the console alone listens, any name and any address leads to it.
	_, port, _ := net.SplitHostPort(w.ConsoleAddr().String())
	for _, name := range []string{"", "8000-" + box.ID + ".localhost", "192.0.2.1:" + port, "evil.example"} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+w.ConsoleAddr().String()+"/s/"+box.ID+"/8000/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			req.Host = name
		}
		tr := &http.Transport{DisableKeepAlives: true}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(text), "Cay") || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%q: %d %.200s %v", name, resp.StatusCode, text, err)
		}
	}
	if l, err := w.Client().ConsoleLink(t.Context()); err != nil || !strings.HasPrefix(l.URL, "http://127.0.0.1:"+port+"/login#") {
		t.Errorf("a link to it: %+v, %v", l, err)
	}
	if _, _, text := at(t, w, "GET", "127.0.0.1:"+port, "/settings.json", ""); strings.Contains(text, "ports") {
		t.Errorf("the one port, by the name of the console's: %s", text)
	}
	// A pause is not undone, and the end not moved, by a question for tokens.
	if err := w.Client().Pause(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	if code, text := call(t, w, w.Key, "POST", "/cay/v1/sandboxes/"+box.ID+"/access", ""); code != http.StatusOK || !strings.Contains(text, `"state":"paused"`) {
		t.Errorf("access of a paused one: %d %s", code, text)
	}
	if got, err := w.Client().Info(t.Context(), box.ID); err != nil || got.State != "paused" {
		t.Errorf("it is %q, %v", got.State, err)
	}
}

// A link opens the console once, as the party that asked for it.
func TestConsoleLinks(t *testing.T) {
	w := servertest.Start(t)
	link := func(c *client.Client) client.ConsoleLink {
		l, err := c.ConsoleLink(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	_, port, _ := net.SplitHostPort(w.Addr().String())
	l := link(w.Client())
	if l.URL != "http://console.localhost:"+port+"/login#"+l.Code || len(l.Code) < 26 {
		t.Errorf("%+v", l)
	}
	token, status, text := opened(t, w, "code", l.Code)
	if status != http.StatusCreated || !strings.HasPrefix(token, "cay_session_") {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := as(t, w, token, "GET", "/cay/v1/caller", ""); status != http.StatusOK || !strings.Contains(text, `"kind":"key"`) || !strings.Contains(text, `"teamName":"default"`) {
		t.Errorf("caller: %d %s", status, text)
	}
	for name, code := range map[string]string{"a second time": l.Code, "another": strings.Repeat("A", 26)} {
		if _, status, text := opened(t, w, "code", code); status != http.StatusNotFound || !strings.Contains(text, cay.CodeLoginUnknown) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	for name, body := range map[string]string{"nothing": `{}`, "both": `{"code":"x","key":"y"}`} {
		if status, _, text := at(t, w, "POST", "console.localhost", "/api/cay/v1/console-sessions", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	// A key that ends before its link is used.
	made, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	l = link(w.ClientOf(made.Key))
	if err := w.Client().RemoveAPIKey(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if _, status, text := opened(t, w, "code", l.Code); status != http.StatusNotFound {
		t.Errorf("a link of a removed key: %d %s", status, text)
	}
	// So does a restart.
	l = link(w.Client())
	w.Stop()
	w.Start()
	if _, status, _ := opened(t, w, "code", l.Code); status != http.StatusNotFound {
		t.Errorf("a link from before a restart: %d", status)
	}
	if status, text := as(t, w, token, "GET", "/cay/v1/caller", ""); status != http.StatusOK {
		t.Errorf("a session from before a restart: %d %s", status, text)
	}
	for range 30 {
		_, status, _ = opened(t, w, "code", "wrong")
	}
	if status != http.StatusTooManyRequests {
		t.Errorf("the thirtieth guess: %d", status)
	}
}

// A key becomes a session with its scopes and bounds, which is listed, ended, and
// ends with the key and what it holds open.
func TestSessionsOfKeys(t *testing.T) {
	w := servertest.Start(t)
	made, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "viewer", Scopes: []string{"viewer"}, Metadata: map[string]string{"who": "us"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, status, text := opened(t, w, "key", "e2b_"+strings.Repeat("0", 40)); status != http.StatusUnauthorized {
		t.Errorf("a wrong key: %d %s", status, text)
	}
	one, _, _ := opened(t, w, "key", made.Key)
	two, _, _ := opened(t, w, "key", made.Key)
	other, _, _ := opened(t, w, "key", w.Key)
	if status, text := as(t, w, one, "POST", "/sandboxes", `{"templateID":"base"}`); status != http.StatusForbidden || !strings.Contains(text, cay.CodeScope) {
		t.Errorf("a create by a viewer: %d %s", status, text)
	}
	if status, text := as(t, w, one, "GET", "/cay/v1/sessions", ""); status != http.StatusOK || !strings.HasPrefix(text, "[{") || strings.Count(text, `"id"`) != 2 || strings.Contains(text, "cay_session") {
		t.Errorf("sessions: %d %s", status, text)
	}
	if status, _ := as(t, w, one, "DELETE", "/cay/v1/sessions", ""); status != http.StatusNoContent {
		t.Errorf("ending the others: %d", status)
	}
	for name, want := range map[string]struct {
		token  string
		status int
	}{"the one": {one, 200}, "the other of the key": {two, 401}, "another key's": {other, 200}} {
		if status, text := as(t, w, want.token, "GET", "/v2/sandboxes", ""); status != want.status {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	// A stream that the session holds open ends with the key.
	req, _ := http.NewRequestWithContext(t.Context(), "GET", w.URL()+"/api/cay/v1/events?after=-1", nil)
	req.Host = "console.localhost"
	req.Header.Set("Authorization", "Bearer "+one)
	req.Header.Set("Accept", "text/event-stream")
	tr := &http.Transport{DisableKeepAlives: true}
	stream, err := tr.RoundTrip(req)
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", stream, err)
	}
	defer stream.Body.Close()
	if err := w.Client().RemoveAPIKey(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(stream.Body) // returns, because the stream ends
	if status, text := as(t, w, one, "GET", "/cay/v1/caller", ""); status != http.StatusUnauthorized || !strings.Contains(text, cay.CodeSessionEnded) {
		t.Errorf("after its key: %d %s", status, text)
	}
	if status, _ := as(t, w, other, "POST", "/cay/v1/logout", ""); status != http.StatusNoContent {
		t.Errorf("logout: %d", status)
	}
	if status, _ := as(t, w, other, "GET", "/cay/v1/caller", ""); status != http.StatusUnauthorized {
		t.Errorf("after logout: %d", status)
	}
}

// The operator's session acts in the team that a request names, and ends with the
// operator's token.
func TestSessionsOfTheOperator(t *testing.T) {
	w := servertest.Start(t)
	l, err := w.Admin("").ConsoleLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, status, text := opened(t, w, "code", l.Code)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := as(t, w, token, "GET", "/cay/v1/caller", ""); status != http.StatusOK || !strings.Contains(text, `"kind":"operator"`) || strings.Contains(text, "teamID") {
		t.Errorf("without a team: %d %s", status, text)
	}
	ask := func(path string) (int, string) {
		status, _, text := at(t, w, "GET", "console.localhost", "/api"+path, "", "Authorization", "Bearer "+token, "X-Team-ID", "default")
		return status, text
	}
	if status, text := ask("/cay/v1/caller"); status != http.StatusOK || !strings.Contains(text, `"teamName":"default"`) || !strings.Contains(text, `"admin"`) {
		t.Errorf("with a team: %d %s", status, text)
	}
	w.Stop()
	w.Config.AdminToken = strings.Repeat("n", 40)
	w.Start()
	if status, text := ask("/v2/sandboxes"); status != http.StatusUnauthorized {
		t.Errorf("after another token of the operator: %d %s", status, text)
	}
}
