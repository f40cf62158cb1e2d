package server_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/server/servertest"
)

// beside are requests about a team's own things that name other things beside the path: a
// walk by the paths of the contracts refuses them for the path alone. {name} is the asking
// team's, {{name}} may be another's. The owner of both is answered with the status.
var beside = []struct {
	name, method, path, body string
	owner                    int // 0 for what the owner's own state forbids
}{
	{"a sandbox of a template", "POST", "/sandboxes", `{"templateID":"{{templateID}}"}`, 0},
	{"a sandbox of a snapshot", "POST", "/sandboxes", `{"templateID":"{{snapshotID}}"}`, 201},
	{"a volume in a sandbox", "POST", "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"{{volumeID}}","path":"/mnt/a"}]}`, 201},
	{"a sandbox beside one", "POST", "/sandboxes", `{"templateID":"base","near":"{{sandboxID}}"}`, 201},
	{"a secret in a rule", "POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.secrets.OURS}"}}}]}}}`, 201},
	{"a secret in a new rule", "PUT", "/sandboxes/{sandboxID}/network", `{"rules":{"a.example":[{"transform":{"headers":{"A":"${e2b.secrets.OURS}"}}}]}}`, 204},
	{"back to a checkpoint", "POST", "/cay/v1/sandboxes/{sandboxID}/rollback", `{"checkpointID":"{{checkpointID}}"}`, 200},
	{"a branch", "POST", "/cay/v1/sandboxes/{sandboxID}/promote", `{"branch":"{{forkID}}"}`, 200},
	{"a comparison of checkpoints", "GET", "/cay/v1/checkpoints/{checkpointID}/diff?to={{checkpointID}}", "", 0},
	{"a comparison of a sandbox", "GET", "/cay/v1/sandboxes/{sandboxID}/diff?from={{checkpointID}}", "", 0},
	{"a ticket", "POST", "/cay/v1/tickets", `{"sandboxID":"{{sandboxID}}","purpose":"desktop"}`, 201},
	{"a hook of a sandbox", "POST", "/cay/v1/triggers", `{"kind":"hook","name":"h","command":"true","proof":"bearer","sandboxID":"{{sandboxID}}"}`, 201},
	{"a schedule of a template", "POST", "/cay/v1/triggers", `{"kind":"schedule","name":"s","command":"true","cron":"0 0 1 1 *","template":"{{templateID}}"}`, 201},
	{"a hook that moves to a sandbox", "PATCH", "/cay/v1/triggers/{triggerID}", `{"sandboxID":"{{sandboxID}}"}`, 200},
	{"a question about a sandbox", "POST", "/cay/v1/approvals", `{"title":"may I?","sandboxID":"{{sandboxID}}"}`, 201},
	{"a budget of a key", "POST", "/cay/v1/budgets", `{"keyID":"{{/api-keys}}","meter":"creates","limit":"1000","period":"day"}`, 201},
	{"a tag of a template", "POST", "/templates/tags", `{"target":"{{templateID}}:default","tags":["theirs"]}`, 0},
	{"a tag of a build", "POST", "/templates/tags", `{"target":"{templateID}:{{buildID}}","tags":["theirs"]}`, 0},
	{"a build of another template", "POST", "/v2/templates/{templateID}/builds/{{buildID}}", `{"fromTemplate":"base"}`, 202},
	{"a template for a team", "POST", "/v3/templates", `{"name":"more","teamID":"{{teamID}}"}`, 202},
	{"a team's templates", "GET", "/v2/templates?teamID={{teamID}}", "", 200},
	{"a snapshot of a volume", "POST", "/cay/v1/volumes/{volumeID}/clone", `{"name":"copy","snapshot":"{{snapshotName}}"}`, 201},
	{"a redelivery of an event", "POST", "/cay/v1/webhooks/{webhookID}/deliveries/{{eventID}}/redeliver", "", 0},
}

var another = regexp.MustCompile(`\{\{([\w/-]+)\}\}`)

// with puts the asking team's things and the owner's into a text.
func with(text string, asking, owner map[string]string) string {
	text = another.ReplaceAllStringFunc(text, func(name string) string { return owner[strings.Trim(name, "{}")] })
	return parameter.ReplaceAllStringFunc(text, func(name string) string { return asking[strings.Trim(name, "{}")] })
}

// No request reaches another team's things by naming them beside its own.
func TestThingsOfAnotherTeamBesideOnesOwn(t *testing.T) {
	w := servertest.Start(t)
	own := belongings(t, w)
	own["snapshotID"] = made(t, w, "POST", "/sandboxes/"+own["sandboxID"]+"/snapshots", `{"name":"saved"}`, "snapshotID")
	own["forkID"] = forked(t, w, own["sandboxID"])
	first, theirs := w.Key, map[string]string{}
	w.Key = strangerOf(t, w)
	theirs["sandboxID"] = made(t, w, "POST", "/sandboxes", `{"templateID":"base","timeout":3600}`, "sandboxID")
	theirs["checkpointID"] = made(t, w, "POST", "/cay/v1/sandboxes/"+theirs["sandboxID"]+"/checkpoints", `{}`, "checkpointID")
	theirs["templateID"] = made(t, w, "POST", "/v3/templates", `{"name":"theirs"}`, "templateID")
	theirs["volumeID"] = made(t, w, "POST", "/volumes", `{"name":"theirs","caySizeMB":16}`, "volumeID")
	theirs["triggerID"] = made(t, w, "POST", "/cay/v1/triggers", `{"kind":"hook","proof":"bearer","name":"theirs","command":"true","after":"keep","sandboxID":"`+theirs["sandboxID"]+`"}`, "id")
	theirs["webhookID"] = made(t, w, "POST", "/events/webhooks",
		`{"name":"theirs","url":"https://127.1/","enabled":false,"events":["sandbox.lifecycle.created"],"signatureSecret":"theirs alone"}`, "id")
	stranger := w.Key
	w.Key = first
	before := possessions(t, w)
	for _, one := range beside {
		code, text := call(t, w, stranger, one.method, with(one.path, theirs, own), with(one.body, theirs, own))
		if code < 400 || code >= 500 {
			t.Errorf("%s: %d %.300s", one.name, code, text)
		}
	}
	code, text := call(t, w, stranger, "POST", "/cay/v1/sandbox-actions", `{"action":"kill","sandboxIDs":["`+own["sandboxID"]+`"]}`)
	if code != http.StatusOK || !strings.Contains(text, `"code":404`) {
		t.Errorf("an action on a sandbox: %d %s", code, text)
	}
	for _, path := range []string{"/cay/v1/runs?trigger=" + own["triggerID"], "/cay/v1/approvals?sandboxID=" + own["sandboxID"], "/cay/v1/audit?target=" + own["sandboxID"]} {
		if code, text := call(t, w, stranger, "GET", path, ""); code == http.StatusOK && tells(text, own) {
			t.Errorf("%s tells of another team: %.300s", path, text)
		}
	}
	if after := possessions(t, w); after != before {
		t.Errorf("a stranger changed something:\nbefore %s\nafter  %s", before, after)
	}
	// The owner of both is let: that the stranger is not is no slip of this test.
	for _, one := range beside {
		if one.owner == 0 {
			continue
		}
		if code, text := call(t, w, w.Key, one.method, with(one.path, own, own), with(one.body, own, own)); code != one.owner {
			t.Errorf("%s, of the owner: %d %.300s", one.name, code, text)
		}
	}
}

// strangerOf makes another team with a key that may do all.
func strangerOf(t *testing.T, w *servertest.World) string {
	t.Helper()
	if _, err := w.Admin("").CreateTeam(t.Context(), "stranger"); err != nil {
		t.Fatal(err)
	}
	return (&keyring{t, w, "stranger", map[cay.Scopes]string{}}).with(cay.TeamScopes)
}

// forked is a fork of a sandbox.
func forked(t *testing.T, w *servertest.World, sandbox string) string {
	t.Helper()
	code, text := call(t, w, w.Key, "POST", "/sandboxes/"+sandbox+"/fork", `{}`)
	var forks []struct{ Sandbox struct{ SandboxID string } }
	if err := json.Unmarshal([]byte(text), &forks); err != nil || code != http.StatusCreated || len(forks) != 1 || forks[0].Sandbox.SandboxID == "" {
		t.Fatalf("a fork: %d %s", code, text)
	}
	return forks[0].Sandbox.SandboxID
}
