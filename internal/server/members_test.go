package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/openapi"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Each of Cay's own operations with a JSON body refuses a member that it does not know.
func TestOwnRoutesKnowTheirMembers(t *testing.T) {
	w := servertest.New(t)
	team := agentTeam(t, w)
	key := w.AddKey(cay.APIKey{Team: team, Name: "all", Grant: []string{"admin"}})
	w.Start()
	var contract struct {
		Paths map[string]map[string]yaml.Node
	}
	if err := yaml.Unmarshal(openapi.Cay, &contract); err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("{sandboxID}", string(cay.NewSandboxID()), "{port}", "80", "{teamID}", string(team), "{checkpointID}", string(cay.NewSnapshotID()), "{name}", "x", "{keyID}", string(cay.NewKeyID()))
	tried := 0
	for path, methods := range contract.Paths {
		for method, node := range methods {
			var o struct {
				OperationID string                           `yaml:"operationId"`
				RequestBody struct{ Content map[string]any } `yaml:"requestBody"`
			}
			if !slices.Contains([]string{"post", "put", "patch", "delete"}, method) {
				continue
			}
			if err := node.Decode(&o); err != nil {
				t.Fatal(err)
			}
			if o.RequestBody.Content["application/json"] == nil {
				continue
			}
			at := names.Replace(path)
			for strings.Contains(at, "{") { // any other id
				at = at[:strings.Index(at, "{")] + string(cay.NewApprovalID()) + at[strings.Index(at, "}")+1:]
			}
			code, text := call(t, w, key, strings.ToUpper(method), at, `{"nosuchmember":1}`)
			if code != http.StatusBadRequest || !strings.Contains(text, "nosuchmember") {
				t.Errorf("%s %s (%s): %d %s", method, at, o.OperationID, code, text)
			}
			tried++
		}
	}
	if tried < 30 {
		t.Errorf("only %d operations have a body", tried)
	}
}

// The near name is suggested, also of what is inside; and E2B's routes ignore members.
func TestNearMembers(t *testing.T) {
	w := servertest.Start(t)
	for body, want := range map[string]string{
		`{"name":"b","key":"x","limit":"1","meter":"sandbox_seconds","period":"day"}`: `"key": there is no such member; did you mean keyID?`,
		`{"nmae":"b"}`:                           `"nmae": there is no such member; did you mean name?`,
		`{"name":"b","labels":{"a":1},"zzzz":1}`: `there is no such member`,
	} {
		code, text := call(t, w, w.Key, "POST", "/cay/v1/budgets", body)
		var out struct{ Message string }
		if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusBadRequest || !strings.Contains(out.Message, want) {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if code, text := call(t, w, w.Key, "POST", "/cay/v1/triggers", `{"kind":"hook","name":"n","filters":[{"pth":"a"}]}`); code != http.StatusBadRequest || !strings.Contains(text, "filters.") || !strings.Contains(text, "did you mean path") {
		t.Errorf("a member of an entry: %d %s", code, text)
	}
	if code, text := call(t, w, w.Key, "POST", "/sandboxes", fmt.Sprintf(`{"templateID":"base","timeout":60,"nosuchmember":%d}`, 1)); code != http.StatusCreated {
		t.Errorf("E2B's route: %d %s", code, text)
	}
}
