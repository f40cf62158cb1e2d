package rest_test

import (
	"testing"

	"github.com/cay-run/cay"
)

func TestCompare(t *testing.T) {
	w := newWorld(t, "")
	path := "/cay/v1/sandboxes/" + w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	wantError(t, w.call("GET", path+"/diff", ``), 409, "no checkpoint")
	a := want[object](t, w.call("POST", path+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	b := want[object](t, w.call("POST", path+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	var asked [2]cay.Moment
	w.node.OnCompare = func(before, after cay.Moment) (cay.Comparison, error) {
		asked = [2]cay.Moment{before, after}
		return cay.Comparison{Changed: 1, Removed: 2, Changes: []cay.Change{{
			Path: "/x", Kind: cay.FileChanged, Diff: "--- a/x\n",
			Before: &cay.FileState{Type: "file", Mode: 0o4755, UID: 7, Size: 3}, After: &cay.FileState{Type: "symlink", Mode: 0o777, Target: "y"},
		}}}, nil
	}
	got := want[object](t, w.call("GET", "/cay/v1/checkpoints/"+a+"/diff?to="+b, ``), 200)
	if asked != [2]cay.Moment{{Snapshot: cay.SnapshotID(a)}, {Snapshot: cay.SnapshotID(b)}} {
		t.Errorf("compared %+v", asked)
	}
	x := got["changes"].([]any)[0].(object)
	before, after := x["before"].(object), x["after"].(object)
	if got["from"] != a || got["to"] != b || got["added"] != 0.0 || got["removed"] != 2.0 || x["path"] != "/x" || x["change"] != "changed" ||
		x["diff"] != "--- a/x\n" || before["mode"] != "4755" || before["uid"] != 7.0 || before["target"] != nil || after["target"] != "y" {
		t.Errorf("it says %v", got)
	}

	instance := w.node.Alive()[0].Spec.Instance
	if got := want[object](t, w.call("GET", path+"/diff?from="+a, ``), 200); got["from"] != a || got["to"] != nil ||
		asked != [2]cay.Moment{{Snapshot: cay.SnapshotID(a)}, {Instance: instance}} {
		t.Errorf("it says %v of %+v", got, asked)
	}
	want[any](t, w.call("POST", path[len("/cay/v1"):]+"/pause", ``), 204)
	if got := want[object](t, w.call("GET", path+"/diff", ``), 200); got["from"] != b || asked[1].Snapshot == "" {
		t.Errorf("it says %v of %+v", got, asked)
	}
	for address, code := range map[string]int{
		path + "/diff?from=snone":                         404,
		"/cay/v1/sandboxes/inone/diff":                    404,
		"/cay/v1/checkpoints/" + a + "/diff?to=snone":     404,
		"/cay/v1/checkpoints/snone/diff?to=" + b:          404,
		"/cay/v1/checkpoints/" + a + "/diff":              400,
		"/cay/v1/checkpoints/" + a + "/diff?to=../../etc": 404,
	} {
		if got := w.call("GET", address, ``); got.status != code {
			t.Errorf("%s: %d", address, got.status)
		}
	}
}
