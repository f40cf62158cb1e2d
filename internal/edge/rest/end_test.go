package rest_test

import (
	"context"
	"testing"

	"github.com/cay-run/cay"
)

func TestWhyASandboxEnded(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","metadata":{"a":"b"}}`)["sandboxID"].(string)
	path := "/cay/v1/sandboxes/" + id + "/end"
	wantError(t, w.call("GET", path, ""), 409, "is running")
	saved := want[object](t, w.call("POST", "/sandboxes/"+id+"/snapshots", `{}`), 201)["snapshotID"]
	want[any](t, w.call("DELETE", "/sandboxes/"+id, ""), 204)
	wantError(t, w.call("GET", "/sandboxes/"+id, ""), 404, "doesn't exist")
	got := want[object](t, w.call("GET", path, ""), 200)
	if got["reason"] != "asked" || got["by"] == nil || got["byName"] == nil || got["snapshotID"] != saved ||
		got["templateID"] != string(w.base.ID) || got["alias"] != "base" || got["metadata"].(object)["a"] != "b" || got["evidence"] != nil {
		t.Errorf("it ended as %v", got)
	}
	wantError(t, w.callAs(w.other, "GET", path, ""), 404, "doesn't exist")
	wantError(t, w.call("GET", "/cay/v1/sandboxes/inone/end", ""), 404, "doesn't exist")
}

func TestWhyASandboxDidNotStart(t *testing.T) {
	w := newWorld(t, "")
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		return cay.Errorf(cay.Unavailable, "its agent did not answer")
	}
	wantError(t, w.call("POST", "/sandboxes", `{"templateID":"base"}`), 503, "did not answer")
	list := want[object](t, w.call("GET", "/cay/v1/events?type=sandbox.killed", ""), 200)["events"].([]any)
	if len(list) != 1 {
		t.Fatalf("events %v", list)
	}
	got := want[object](t, w.call("GET", "/cay/v1/sandboxes/"+list[0].(object)["sandboxID"].(string)+"/end", ""), 200)
	if got["reason"] != "failed_start" || got["evidence"] != "its agent did not answer" {
		t.Errorf("it ended as %v", got)
	}
}
