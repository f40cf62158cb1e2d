package rest_test

import (
	"fmt"
	"testing"
)

// TestBadInput has each wrong state that callers can ask for, by the name that
// the contract and Cay's own rules give it. Nothing of it changes a sandbox.
func TestBadInput(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	path, own := "/sandboxes/"+id, "/cay/v1/sandboxes/"+id
	paused := "/sandboxes/" + w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	node := want[object](t, w.call("POST", own+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	inUse := want[object](t, w.call("POST", own+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	want[object](t, w.call("POST", own+"/rollback", fmt.Sprintf(`{"checkpointID":%q}`, inUse)), 200)
	stranger := want[object](t, w.call("POST", "/cay/v1"+paused+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	want[any](t, w.call("POST", paused+"/pause", `{}`), 204)
	theirs := want[object](t, w.callAs(w.other, "POST", "/v2/sandboxes", `{"templateID":"base","timeout":300}`), 201)["sandboxID"].(string)
	foreign := want[object](t, w.callAs(w.other, "POST", "/cay/v1/sandboxes/"+theirs+"/checkpoints", `{"label":"x"}`), 201)["checkpointID"].(string)
	to := func(id string) string { return fmt.Sprintf(`{"checkpointID":%q}`, id) }

	running := len(w.node.Alive())
	for _, tt := range []struct {
		name, method, path, body string
		code                     int
		text                     string
	}{
		{"pausing twice", "POST", paused + "/pause", `{}`, 409, "already paused"},
		{"pausing what is not there", "POST", "/sandboxes/inone/pause", `{}`, 404, "inone"},
		{"resuming a running one", "POST", path + "/resume", `{}`, 409, "already running"},
		{"resuming what is not there", "POST", "/sandboxes/inone/resume", `{}`, 404, "inone"},
		{"forking a paused one", "POST", paused + "/fork", `{}`, 409, "paused"},
		{"fork count 0", "POST", path + "/fork", `{"count":0}`, 400, "count"},
		{"fork count 101", "POST", path + "/fork", `{"count":101}`, 400, "count"},
		{"checkpoint fork count 0", "POST", "/cay/v1/checkpoints/" + node + "/fork", `{"count":0}`, 400, "count"},
		{"checkpoint fork count 101", "POST", "/cay/v1/checkpoints/" + node + "/fork", `{"count":101}`, 400, "count"},
		{"snapshot of a paused one", "POST", paused + "/snapshots", `{}`, 409, "paused"},
		{"checkpoint of a paused one", "POST", "/cay/v1" + paused + "/checkpoints", `{}`, 409, "paused"},
		{"timeout of a paused one", "POST", paused + "/timeout", `{"timeout":30}`, 409, "paused"},
		{"rollback to another team's node", "POST", own + "/rollback", to(foreign), 404, foreign},
		{"rollback of another team's sandbox", "POST", "/cay/v1/sandboxes/" + theirs + "/rollback", to(foreign), 404, theirs},
		{"rollback to another tree's node", "POST", own + "/rollback", to(stranger), 409, "not in the tree"},
		{"rollback to nothing", "POST", own + "/rollback", to("snone"), 404, "snone"},
		{"forking another team's node", "POST", "/cay/v1/checkpoints/" + foreign + "/fork", `{}`, 404, foreign},
		{"comparing with another team's node", "GET", "/cay/v1/checkpoints/" + node + "/diff?to=" + foreign, ``, 404, foreign},
		{"labelling another team's node", "PATCH", "/cay/v1/checkpoints/" + foreign, `{"label":"mine"}`, 404, foreign},
		{"deleting another team's node", "DELETE", "/cay/v1/checkpoints/" + foreign, ``, 404, foreign},
		{"deleting a node in use", "DELETE", "/cay/v1/checkpoints/" + inUse, ``, 409, "in use"},
		{"promoting itself", "POST", own + "/promote", fmt.Sprintf(`{"branch":%q}`, id), 400, "itself"},
		{"promoting another team's sandbox", "POST", own + "/promote", fmt.Sprintf(`{"branch":%q}`, theirs), 404, theirs},
		{"a label that cannot be printed", "PATCH", "/cay/v1/checkpoints/" + node, `{"label":"a\u0000b"}`, 400, "label"},
	} {
		t.Run(tt.name, func(t *testing.T) { wantError(t, w.call(tt.method, tt.path, tt.body), tt.code, tt.text) })
	}
	if n := len(w.node.Alive()); n != running {
		t.Errorf("%d instances run, %d before", n, running)
	}
}
