package rest_test

import (
	"fmt"
	"testing"
)

func TestTrees(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base","timeout":300,"secure":true}`)
	id := box["sandboxID"].(string)
	path := "/cay/v1/sandboxes/" + id
	a := want[object](t, w.call("POST", path+"/checkpoints", `{"label":"first"}`), 201)
	b := want[object](t, w.call("POST", path+"/checkpoints", ``), 201)
	if a["label"] != "first" || a["parentID"] != nil || b["parentID"] != a["checkpointID"] || b["kind"] != "memory" || b["sizeBytes"].(float64) <= 0 {
		t.Errorf("checkpoints %v, %v", a, b)
	}
	node := "/cay/v1/checkpoints/" + a["checkpointID"].(string)
	back := fmt.Sprintf(`{"checkpointID":%q}`, a["checkpointID"])
	moved := want[object](t, w.call("POST", path+"/rollback", back), 200)
	if moved["state"] != "running" || moved["sandboxID"] != id || moved["checkpoint"].(object)["label"] != "first" {
		t.Errorf("rolled back as %v", moved)
	}
	wantError(t, w.call("POST", path+"/undo", ``), 409, "oldest")
	forks := want[[]object](t, w.call("POST", node+"/fork", `{"count":2,"timeout":60}`), 201)
	if len(forks) != 2 || forks[0]["sandbox"].(object)["envdAccessToken"] == box["envdAccessToken"] {
		t.Fatalf("forks %v", forks)
	}
	fork := forks[0]["sandbox"].(object)["sandboxID"].(string)
	tree := want[object](t, w.call("GET", "/cay/v1/sandboxes/"+fork+"/checkpoints", ``), 200)
	if tree["root"] != id || len(tree["checkpoints"].([]any)) != 2 || len(tree["branches"].([]any)) != 3 {
		t.Errorf("tree %v", tree)
	}
	wantError(t, w.call("DELETE", node, ``), 409, "in use")
	if n := want[object](t, w.call("PATCH", node, `{"label":"again"}`), 200); n["label"] != "again" {
		t.Errorf("labelled as %v", n)
	}
	moved = want[object](t, w.call("POST", path+"/promote", fmt.Sprintf(`{"branch":%q}`, fork)), 200)
	if moved["sandboxID"] != id {
		t.Errorf("promoted as %v", moved)
	}
	wantError(t, w.call("GET", "/sandboxes/"+fork, ``), 404, fork)
	want[object](t, w.call("POST", path+"/rollback", fmt.Sprintf(`{"checkpointID":%q}`, b["checkpointID"])), 200)
	want[any](t, w.call("DELETE", "/sandboxes/"+forks[1]["sandbox"].(object)["sandboxID"].(string), ``), 204)
	want[any](t, w.call("DELETE", node, ``), 204)
}

func TestAutoCheckpoints(t *testing.T) {
	w := newWorld(t, "")
	path := "/cay/v1/sandboxes/" + w.create(`{"templateID":"base"}`)["sandboxID"].(string) + "/auto-checkpoints"
	if off := want[object](t, w.call("GET", path, ``), 200); len(off) != 0 {
		t.Errorf("at first %v", off)
	}
	on := want[object](t, w.call("PUT", path, `{"everySeconds":30,"beforeCommands":true}`), 200)
	if again := want[object](t, w.call("GET", path, ``), 200); again["everySeconds"] != 30.0 || again["keep"] != 10.0 || on["beforeCommands"] != true {
		t.Errorf("set as %v, %v", on, again)
	}
	for _, body := range []string{`{"everySeconds":-1}`, `{"everySeconds":100000}`, `{"beforeCommands":true,"keep":1000}`, `{"everySeconds":5,"kind":"odd"}`} {
		if got := w.call("PUT", path, body); got.status != 400 {
			t.Errorf("%s: %d", body, got.status)
		}
	}
	if off := want[object](t, w.call("PUT", path, `{}`), 200); len(off) != 0 {
		t.Errorf("turned off as %v", off)
	}
}

func TestAutoCheckpointsAtCreation(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","autoCheckpoints":{"beforeCommands":true,"keep":3,"kind":"files"}}`)["sandboxID"].(string)
	got := want[object](t, w.call("GET", "/cay/v1/sandboxes/"+id+"/auto-checkpoints", ``), 200)
	if got["beforeCommands"] != true || got["keep"] != 3.0 || got["kind"] != "files" || got["everySeconds"] != nil {
		t.Errorf("made with %v", got)
	}
	for _, auto := range []string{`{"everySeconds":-1}`, `{"beforeCommands":true,"keep":1000}`, `{"everySeconds":5,"kind":"odd"}`} {
		if got := w.call("POST", "/v2/sandboxes", `{"templateID":"base","autoCheckpoints":`+auto+`}`); got.status != 400 {
			t.Errorf("%s: %d", auto, got.status)
		}
	}
	if n := len(w.node.Alive()); n != 1 {
		t.Errorf("%d sandboxes run", n)
	}
}

func TestWrongTrees(t *testing.T) {
	w := newWorld(t, "")
	path := "/cay/v1/sandboxes/" + w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	for _, tt := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"POST", path + "/rollback", `{}`, 400, "checkpointID"},
		{"POST", path + "/rollback", `{"checkpointID":"snone"}`, 404, "snone"},
		{"POST", path + "/undo", ``, 409, "no checkpoint"},
		{"POST", path + "/promote", `{}`, 400, "branch"},
		{"POST", path + "/promote", `{"branch":"inone"}`, 404, "inone"},
		{"POST", path + "/checkpoints", `{"kind":"odd"}`, 400, "kind"},
		{"GET", "/cay/v1/sandboxes/inone/checkpoints", ``, 404, "inone"},
		{"POST", "/cay/v1/checkpoints/snone/fork", `{}`, 404, "snone"},
		{"POST", "/cay/v1/checkpoints/snone/fork", `{"count":0}`, 400, "count"},
		{"PATCH", "/cay/v1/checkpoints/snone", `{"label":"x"}`, 404, "snone"},
		{"DELETE", "/cay/v1/checkpoints/snone", ``, 404, "snone"},
	} {
		wantError(t, w.call(tt.method, tt.path, tt.body), tt.code, tt.text)
	}
}
