package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// asked sends a request with an id of its own and a marked secret in its headers.
func asked(t *testing.T, w *servertest.World, key, id, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(path, "/admin/") {
		token, err := w.Operator().AdminToken(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Admin-Token", token)
	} else {
		req.Header.Set("X-API-Key", key)
	}
	req.Header.Set("X-Request-Id", id)
	req.Header.Set("X-Marked", "MARKED-SECRET")
	req.Header.Set("User-Agent", "audited/1")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	saysRetry(t, method+" "+path, resp)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// auditRows reads all rows of a server that has ended.
func auditRows(t *testing.T, w *servertest.World) []cay.AuditRow {
	t.Helper()
	var rows []cay.AuditRow
	w.Records(func(s *store.DB) {
		var err error
		if rows, err = s.Audit(t.Context(), store.AuditQuery{}); err != nil {
			t.Fatal(err)
		}
	})
	return rows
}

// marked are values that no row may have.
const marked = "MARKED-SECRET"

// succeed has bodies with which operations succeed, and marked secrets where
// they take any; TestAnotherTeam has the others.
var succeed = map[string]string{
	"createSandbox":      `{"templateID":"base","envVars":{"TOKEN":"` + marked + `"},"network":{"rules":{"example.com":[{"transform":{"headers":{"Authorization":"` + marked + `"}}}]}}}`,
	"createSandboxV2":    `{"templateID":"base","envVars":{"TOKEN":"` + marked + `"}}`,
	"createSecret":       `{"name":"ANOTHER","value":"` + marked + `"}`,
	"updateSecret":       `{"value":"` + marked + `"}`,
	"setSandboxTimeout":  `{"timeout":9000}`,
	"createTrigger":      `{"name":"theirs","kind":"hook","proof":"bearer","secret":"` + marked + `","template":"base","command":"true","env":{"TOKEN":"` + marked + `"}}`,
	"updateTrigger":      `{"env":{"TOKEN":"` + marked + `"}}`,
	"rotateTrigger":      `{"secret":"` + marked + `"}`,
	"createWebhook":      `{"name":"theirs","url":"https://127.1/","enabled":false,"events":["*"],"signatureSecret":"` + marked + `"}`,
	"rotateWebhook":      `{"signatureSecret":"` + marked + `"}`,
	"updateNetwork":      `{"allowOut":["1.1.1.1"]}`,
	"assignTags":         `{"target":"ours-too","tags":["theirs"]}`,
	"removeTags":         `{"name":"ours-too","tags":["theirs"]}`,
	"forkSandbox":        `{"count":2}`,
	"labelCheckpoint":    `{"label":"x"}`,
	"setAutoCheckpoints": `{"everySeconds":600,"keep":2}`,
	"addSSHKey":          `{"name":"another","publicKey":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJxXu1O4nB3V0o2c4n7e3nqf5dQ0mJw0k2m3aZ6q4u2W other"}`,
	"createSnapshot":     `{"name":"third"}`,
	"joinNetwork":        `{"network":"theirs","name":"web"}`,
	"setBandwidth":       `{"egressMbit":100}`,
	"adminUpdateTeam":    `{"name":"renamed"}`,
	"pullImage":          `{"name":"registry.example.com/x","registry":{"type":"registry","username":"u","password":"` + marked + `"}}`,
}

// TestEveryChangeIsAudited walks all operations that change something: each
// gives exactly one row of its action, with its key, request, outcome, and no
// secret.
func TestEveryChangeIsAudited(t *testing.T) {
	w := servertest.Start(t)
	own := belongings(t, w)
	actions, unaudited := rest.Actions(), rest.Unaudited()
	// Operations that end a thing which others need come last.
	rank := map[string]int{"pauseSandbox": 1, "resumeSandbox": 2, "killSandbox": 4, "adminUpdateTeam": 4, "adminRemoveTeam": 5}
	var changes []operation
	for _, op := range operations(t) {
		_, audited := actions[op.id]
		_, not := unaudited[op.id]
		switch {
		case audited && not:
			t.Errorf("%s is audited and is not", op.id)
		case !audited && !not && op.method != http.MethodGet:
			t.Errorf("%s changes something: internal/edge/rest/audit.go must name its action, or why it is not recorded", op.id)
		case !audited:
		default:
			changes = append(changes, op)
			if op.method == http.MethodDelete && rank[op.id] == 0 {
				rank[op.id] = 3
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b operation) int { return rank[a.id] - rank[b.id] })
	codes, admin := map[string]int{}, map[string]bool{}
	for _, op := range changes {
		path, body, _ := op.fill(own)
		if op.method == http.MethodGet || op.id == "getUploadLink" {
			body = ""
		}
		if own, ok := succeed[op.id]; ok {
			body = own
		}
		codes[op.id], _ = asked(t, w, w.Key, "req-"+op.id, op.method, path, body)
		admin[op.id] = strings.Contains(path, "/admin/")
	}
	w.Stop()
	rows := auditRows(t, w)
	more := map[string]string{"adminUpdateTeam": string(cay.TeamRenamed), "adminUpdatePerson": "person.disabled"}
	ok := 0
	for id, code := range codes {
		var found []cay.AuditRow
		for _, r := range rows {
			if r.Request == "req-"+id && (r.Action == actions[id] || r.Action == more[id]) {
				found = append(found, r)
			}
		}
		if len(found) != 1 {
			t.Errorf("%s (%d) has %d rows of %s: %+v", id, code, len(found), actions[id], found)
			continue
		}
		r := found[0]
		want := cay.OutcomeFailed
		switch {
		case code < 300:
			want = cay.OutcomeOK
			ok++
		case code == http.StatusForbidden:
			want = cay.OutcomeDenied
		}
		if id == "pullImage" || id == "importImage" { // the answer begins before it fails
			want = cay.OutcomeFailed
		}
		actor := cay.ActorKey
		if admin[id] {
			actor = cay.ActorAdmin
		}
		if r.Outcome != want || r.Actor.Kind != actor || actor == cay.ActorKey && (r.Actor.ID == "" || r.Actor.Name != "first") || r.Address == "" || r.Agent != "audited/1" || actor == cay.ActorKey && r.Team == "" {
			t.Errorf("%s (%d): %+v", id, code, r)
		}
	}
	if ok < 30 {
		t.Errorf("only %d operations succeeded: %v", ok, codes)
	}
	text, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{marked, w.Key, "hidden", "theirs alone"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("a row has the secret %s", secret)
		}
	}
}

// The operator has the log verified and the machine looked over, and no other party.
func TestVerificationAndChecks(t *testing.T) {
	w := servertest.Start(t)
	if code, text := call(t, w, w.Key, "POST", "/sandboxes", `{"templateID":"base"}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	var log struct {
		Rows, First, Last int64
		Key               string
		Broken            *struct{}
	}
	code, text := asked(t, w, "", "1", "GET", "/cay/v1/admin/audit/verification", "")
	if err := json.Unmarshal([]byte(text), &log); err != nil || code != http.StatusOK || log.Broken != nil || log.First != 1 || log.Last != log.Rows || len(log.Key) != 64 {
		t.Errorf("%d %s %v", code, text, err)
	}
	var checks []struct{ Name, Status, Detail string }
	code, text = asked(t, w, "", "2", "GET", "/cay/v1/admin/checks", "")
	if err := json.Unmarshal([]byte(text), &checks); err != nil || code != http.StatusOK || len(checks) < 10 {
		t.Errorf("%d %s %v", code, text, err)
	}
	for _, c := range checks {
		if c.Name == "" || c.Detail == "" || c.Status == "" {
			t.Errorf("%+v", c)
		}
	}
	for _, path := range []string{"/cay/v1/admin/audit/verification", "/cay/v1/admin/checks"} {
		if code, text := call(t, w, w.Key, "GET", path, ""); code != http.StatusForbidden {
			t.Errorf("%s by a team's key: %d %s", path, code, text)
		}
	}
	w.Stop()
	if rows := auditRows(t, w); int64(len(rows)) < log.Rows || log.Rows < 1 {
		t.Errorf("%d rows are kept, %d were verified", len(rows), log.Rows)
	}
}
