package server_test

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// operation is one of the REST contracts.
type operation struct{ id, method, path, scope string }

// operations reads all of both contracts.
func operations(t *testing.T) []operation {
	t.Helper()
	var out []operation
	for _, name := range []string{"e2b.yaml", "cay.yaml"} {
		text, err := os.ReadFile("../../api/openapi/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var spec struct {
			Paths map[string]map[string]yaml.Node
		}
		if err := yaml.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		for path, methods := range spec.Paths {
			for method, node := range methods {
				if method == "parameters" {
					continue
				}
				var op struct {
					OperationID string `yaml:"operationId"`
					Scope       string `yaml:"x-scope"`
				}
				if err := node.Decode(&op); err != nil || op.OperationID == "" {
					t.Fatalf("%s %s has no operationId: %v", method, path, err)
				}
				out = append(out, operation{op.OperationID, strings.ToUpper(method), path, op.Scope})
			}
		}
	}
	slices.SortFunc(out, func(a, b operation) int { return cmp.Compare(a.id, b.id) })
	if len(out) < 80 {
		t.Fatalf("only %d operations were found", len(out))
	}
	return out
}

// call sends a request and returns the answer.
func call(t *testing.T, w *servertest.World, key, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if strings.Contains(path, "/ports/") { // else it is refused before it is looked for
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "tcp")
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // what follows has no end
		return resp.StatusCode, ""
	}
	saysRetry(t, method+" "+path, resp)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// saysRetry checks that a refusal says whether it is worth another try, and when:
// each that the walks of all operations meet.
func saysRetry(t *testing.T, what string, resp *http.Response) {
	t.Helper()
	if resp.StatusCode < 400 {
		return
	}
	should, after := resp.Header.Get("Should-Retry"), resp.Header.Get("Retry-After")
	if should != "true" && should != "false" || (should == "true") != (after != "") {
		t.Errorf("%s: %d with Should-Retry %q, Retry-After %q", what, resp.StatusCode, should, after)
	}
}

// made does an operation as the first team, which must succeed, and returns a
// field of the answer.
func made(t *testing.T, w *servertest.World, method, path, body, field string) string {
	t.Helper()
	code, text := call(t, w, w.Key, method, path, body)
	if code/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s %s: %s", method, path, text)
	}
	id, _ := out[field].(string)
	if id == "" {
		t.Fatalf("%s %s: %s has no %s", method, path, text, field)
	}
	return id
}

// belongings makes one of everything that a team may have, and returns what
// stands for it in the paths of the contracts.
func belongings(t *testing.T, w *servertest.World) map[string]string {
	t.Helper()
	box, err := w.Client().Create(t.Context(), client.CreateOptions{
		Timeout: time.Hour, Env: map[string]string{"A": "b"}, IdempotencyKey: "a-key-of-ours",
	})
	if err != nil {
		t.Fatal(err)
	}
	sandbox := "/sandboxes/" + box.ID
	own := map[string]string{
		"sandboxID": box.ID, "key": "a-key-of-ours", "port": "8000", "hash": strings.Repeat("a", 64), "tag": "default",
		"checkpointID":     made(t, w, "POST", "/cay/v1"+sandbox+"/checkpoints", `{"label":"ours"}`, "checkpointID"),
		"secretID":         made(t, w, "POST", "/secrets", `{"name":"OURS","value":"hidden"}`, "secretID"),
		"/api-keys":        made(t, w, "POST", "/api-keys", `{"name":"ours"}`, "id"),
		"/cay/v1/api-keys": made(t, w, "POST", "/cay/v1/api-keys", `{"name":"ours, too"}`, "id"),
		"webhookID": made(t, w, "POST", "/events/webhooks",
			`{"name":"ours","url":"https://127.1/","enabled":false,"events":["sandbox.lifecycle.created"],"signatureSecret":"whsec_b3VycyBhbG9uZQ=="}`, "id"),
		"/cay/v1/ssh-keys": made(t, w, "POST", "/cay/v1/ssh-keys",
			`{"name":"ours","publicKey":"`+sshKey+`"}`, "id"),
		"templateID": made(t, w, "POST", "/v3/templates", `{"name":"ours"}`, "templateID"),
		"alias":      "ours", "name": "ours",
	}
	own["eventID"] = made(t, w, "POST", "/cay/v1/webhooks/"+own["webhookID"]+"/test", "", "eventID")
	own["sessionID"], own["loginID"] = string(cay.NewSessionID()), "none"
	own["personID"] = made(t, w, "POST", "/cay/v1/members", `{"email":"ours@example.com","role":"developer"}`, "personID")
	own["nodeID"], own["/admin/teams"] = "local", made(t, w, "POST", "/api-keys", `{"name":"ours, as well"}`, "id")
	own["accessTokenID"], own["snapshotID"] = string(cay.NewKeyID()), "snone"
	own["budgetID"] = made(t, w, "POST", "/cay/v1/budgets", `{"meter":"creates","limit":"1000","period":"day"}`, "id")
	own["volumeID"] = made(t, w, "POST", "/volumes", `{"name":"ours","caySizeMB":16}`, "volumeID")
	own["snapshotName"] = made(t, w, "POST", "/cay/v1/volumes/ours/snapshots", `{"name":"ours"}`, "name")
	own["triggerID"] = made(t, w, "POST", "/cay/v1/triggers", `{"kind":"hook","proof":"bearer","name":"ours","command":"true","after":"keep","sandboxID":"`+box.ID+`"}`, "id")
	own["runID"] = made(t, w, "POST", "/cay/v1/triggers/ours/runs", "{}", "id")
	ended(t, w, own["runID"])
	own["approvalID"] = made(t, w, "POST", "/cay/v1/approvals", `{"title":"ours"}`, "id")
	own["providerName"] = made(t, w, "PUT", "/cay/v1/models/ours", `{"wire":"openai","url":"https://api.example/v1","secret":"OURS"}`, "name")
	own["buildID"] = made(t, w, "POST", "/v3/templates", `{"name":"ours"}`, "buildID")
	made(t, w, "POST", sandbox+"/snapshots", `{"name":"ours-too"}`, "snapshotID")
	code, text := call(t, w, w.Key, "GET", "/teams", "")
	var teams []struct{ TeamID string }
	if err := json.Unmarshal([]byte(text), &teams); code != 200 || err != nil || len(teams) != 1 {
		t.Fatalf("teams: %d %s", code, text)
	}
	own["teamID"] = teams[0].TeamID
	return own
}

// bodies are those of operations that need more than {} to be well formed;
// queries, what they need behind the path. Both name what the first team has.
var (
	bodies = map[string]string{
		"actOnSandboxes":         `{"action":"pause","sandboxIDs":["iother"]}`,
		"addSSHKey":              `{"name":"another","publicKey":"` + sshKey + `"}`,
		"allowEgress":            `{"allow":["example.com"]}`,
		"assignTags":             `{"target":"{templateID}:default","tags":["theirs"]}`,
		"connectSandbox":         `{"timeout":60}`,
		"adminCreateTeam":        `{"name":"theirs"}`,
		"createAPIKey":           `{"name":"theirs"}`,
		"createKey":              `{"name":"theirs"}`,
		"createSandbox":          `{"templateID":"{templateID}"}`,
		"createSandboxV2":        `{"templateID":"{templateID}"}`,
		"createWebhook":          `{"name":"theirs","url":"https://127.1/","enabled":false,"events":["*"],"signatureSecret":"theirs alone"}`,
		"createApproval":         `{"title":"theirs"}`,
		"decideApproval":         `{"approve":false}`,
		"createTicket":           `{"sandboxID":"{sandboxID}","purpose":"desktop"}`,
		"createTrigger":          `{"name":"theirs","kind":"schedule","cron":"0 0 1 1 *","template":"base","command":"true"}`,
		"setModelProvider":       `{"wire":"anthropic","url":"https://api.example"}`,
		"createSecret":           `{"name":"OURS","value":"theirs"}`,
		"joinNetwork":            `{"network":"theirs"}`,
		"promoteSandbox":         `{"branch":"iother"}`,
		"readDockerfile":         `{"dockerfile":"FROM e2bdev/base"}`,
		"removeTags":             `{"name":"{templateID}","tags":["theirs"]}`,
		"requestBuild":           `{"name":"theirs"}`,
		"requestBuildV2":         `{"name":"theirs"}`,
		"rollbackSandbox":        `{"checkpointID":"{checkpointID}"}`,
		"setSandboxTimeout":      `{"timeout":60}`,
		"startBuild":             `{"fromTemplate":"base"}`,
		"updateKey":              `{"name":"theirs"}`,
		"adminCreateKey":         `{"name":"theirs"}`,
		"setNodeStatus":          `{"status":"ready"}`,
		"addMember":              `{"email":"theirs@example.com","role":"viewer"}`,
		"adminCreateAccessToken": `{"name":"theirs"}`,
		"adminUpdatePerson":      `{"disabled":true}`,
		"createAccessToken":      `{"name":"theirs"}`,
		"setMemberRole":          `{"role":"viewer"}`,
	}
	queries = map[string]string{
		"compareCheckpoints":  "?to={checkpointID}",
		"getSandboxesMetrics": "?sandbox_ids={sandboxID}",
		"getTeamMetricsMax":   "?metric=concurrent_sandboxes",
		"listSnapshots":       "?sandboxID={sandboxID}",
		"tagExists":           "?tag=default",
	}
	// refused are the operations that do not answer a stranger with 404 though
	// they name what another team has.
	refused = map[string]int{
		"adminKillSandboxes":     http.StatusForbidden,
		"adminCancelBuilds":      http.StatusForbidden,
		"adminCreateKey":         http.StatusForbidden,
		"adminDeleteKey":         http.StatusForbidden,
		"getNode":                http.StatusForbidden,
		"setNodeStatus":          http.StatusForbidden,
		"adminRemoveNode":        http.StatusForbidden,
		"adminCreateAccessToken": http.StatusForbidden,
		"adminUpdatePerson":      http.StatusForbidden,
		"deleteAccessToken":      http.StatusForbidden,
		"adminListSessions":      http.StatusForbidden,
		"adminEndSessions":       http.StatusForbidden,
		"adminEndSession":        http.StatusForbidden,
		"endSession":             http.StatusForbidden,
		"adminGetTeam":           http.StatusForbidden,
		"adminGetTeamLimits":     http.StatusForbidden,
		"adminReplaceTeamLimits": http.StatusForbidden,
		"adminUpdateTeamLimits":  http.StatusForbidden,
		"adminRemoveTeam":        http.StatusForbidden,
		"adminUpdateTeam":        http.StatusForbidden,
		"adminVerifySnapshot":    http.StatusForbidden,
		"getTeamMetrics":         http.StatusForbidden,
		"getTeamMetricsMax":      http.StatusForbidden,
		"rebuildTemplateV1":      http.StatusGone,
		"startBuildV1":           http.StatusGone,
		"setModelProvider":       http.StatusOK, // of the stranger's own, by that name
	}
	// named are those that name it in their body alone.
	named = []string{"assignTags", "createSandbox", "createTicket", "createSandboxV2", "removeTags"}
	// absent are those whose object no test can make on a machine in memory.
	absent = []string{"getImage", "removeImage", "exportTemplate"}
)

const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGEu0bvUx5n9T0xZQ0n3cM5S0d1H3u3TtqgQpQ8l1Gqx ours"

var parameter = regexp.MustCompile(`\{(\w+)\}`)

// fill puts a team's belongings into the path, the query and the body of an
// operation, and reports whether it names any.
func (op operation) fill(own map[string]string) (path, body string, names bool) {
	put := func(text string) string {
		return parameter.ReplaceAllStringFunc(text, func(name string) string {
			name = strings.Trim(name, "{}")
			if name == "keyID" {
				name, _, _ = strings.Cut(op.path, "/{")
			}
			return own[name]
		})
	}
	if op.method != http.MethodGet && (op.method != http.MethodDelete || bodies[op.id] != "") {
		body = put(cmp.Or(bodies[op.id], "{}"))
	}
	return put(op.path + queries[op.id]), body, parameter.MatchString(op.path) || slices.Contains(named, op.id)
}

// Every operation of both contracts is closed without a key and with a wrong
// one, and does not find what another team has.
func TestAnotherTeam(t *testing.T) {
	w := servertest.Start(t)
	w.Stop()
	_, stranger := w.AddTeam("stranger")
	w.Start()
	own := belongings(t, w)
	before := possessions(t, w)
	for _, op := range operations(t) {
		path, body, names := op.fill(own)
		if op.id == "getHealth" { // the only one that is open
			if code, _ := call(t, w, "", op.method, path, ""); code != http.StatusNoContent {
				t.Errorf("health: %d", code)
			}
			continue
		}
		if op.scope == "none" { // logins and exchanges have tests of their own
			continue
		}
		for what, key := range map[string]string{"no key": "", "a wrong key": "e2b_" + strings.Repeat("0", 40), "no key's form": "x"} {
			if code, text := call(t, w, key, op.method, path, body); code != http.StatusUnauthorized {
				t.Errorf("%s with %s: %d %.200s", op.id, what, code, text)
			}
		}
		code, text := call(t, w, stranger, op.method, path, body)
		switch {
		case names && code != cmp.Or(refused[op.id], http.StatusNotFound):
			t.Errorf("%s of another team's: %d %.200s", op.id, code, text)
		case code >= 500:
			t.Errorf("%s: %d %.200s", op.id, code, text)
		case code/100 == 2 && tells(text, own):
			t.Errorf("%s tells of another team: %.500s", op.id, text)
		}
		if op.method != http.MethodGet || !names || slices.Contains(absent, op.id) {
			continue
		}
		// The owner finds it: that the stranger does not is no slip of this test.
		if code, text := call(t, w, w.Key, op.method, path, ""); code == http.StatusNotFound || code == http.StatusUnauthorized {
			t.Errorf("%s of its owner's: %d %.200s", op.id, code, text)
		}
	}
	if after := possessions(t, w); after != before {
		t.Errorf("a stranger changed something:\nbefore %s\nafter  %s", before, after)
	}
}

// tells reports whether a text has the id of something that a team has.
func tells(text string, own map[string]string) bool {
	for name, id := range own {
		if name == "nodeID" { // the machine's, which is in "localhost" too
			continue
		}
		if (strings.HasSuffix(name, "ID") || strings.HasPrefix(name, "/")) && strings.Contains(text, id) {
			return true
		}
	}
	return false
}

// lastUsed is recorded when it is convenient, and by requests that read.
var lastUsed = regexp.MustCompile(`"lastUsed":("[^"]*"|null),?`)

// possessions is what the first team sees of what it has.
func possessions(t *testing.T, w *servertest.World) string {
	t.Helper()
	var out strings.Builder
	for _, path := range []string{
		"/v2/sandboxes", "/templates", "/secrets", "/api-keys", "/cay/v1/ssh-keys", "/cay/v1/usage-labels", "/cay/v1/prices", "/events/webhooks",
		"/snapshots", "/cay/v1/networks", "/cay/v1/triggers", "/cay/v1/runs", "/cay/v1/approvals", "/cay/v1/budgets", "/cay/v1/members", "/cay/v1/volumes",
	} {
		code, text := call(t, w, w.Key, http.MethodGet, path, "")
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, text)
		}
		out.WriteString(path + " " + lastUsed.ReplaceAllString(text, ""))
	}
	return out.String()
}
