package rest_test

import (
	"context"
	"testing"

	"github.com/cay-run/cay"
)

// TestARestoreThatDoesNotEnd fails each restore as an engine does that has
// waited long enough. Each verb answers with the code, its sandbox is what it
// was, and the same request succeeds when the restore does.
func TestARestoreThatDoesNotEnd(t *testing.T) {
	w := newWorld(t, "")
	box := func() string { return "/sandboxes/" + w.create(`{"templateID":"base"}`)["sandboxID"].(string) }
	paused := func() string {
		path := box()
		want[any](t, w.call("POST", path+"/pause", ``), 204)
		return path
	}
	rolledBack := box()
	node := want[object](t, w.call("POST", "/cay/v1"+rolledBack+"/checkpoints", `{}`), 201)["checkpointID"].(string)
	source := box()
	saved := want[object](t, w.call("POST", source+"/snapshots", `{}`), 201)["snapshotID"].(string)

	for _, tt := range []struct {
		name, sandbox, state string
		path, body           string
		status               int
	}{
		{name: "resume", sandbox: paused(), state: "paused", path: "/resume", body: `{"timeout":60}`, status: 201},
		{name: "connect", sandbox: paused(), state: "paused", path: "/connect", body: `{"timeout":60}`, status: 201},
		{name: "rollback", sandbox: "/cay/v1" + rolledBack, path: "/rollback", body: `{"checkpointID":"` + node + `"}`, status: 200},
		{name: "create", path: "/v2/sandboxes", body: `{"templateID":"` + saved + `"}`, status: 201},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(w.node.Alive())
			w.node.OnCreate = endless
			r := w.call("POST", tt.sandbox+tt.path, tt.body)
			wantRetry(t, r, 503, cay.RetryOf(endless(t.Context(), cay.InstanceSpec{})))
			if got := want[object](t, r, 503)["error_code"]; got != cay.CodeRestoreTimeout {
				t.Errorf("the code is %v", got)
			}
			if tt.state != "" {
				if got := want[object](t, w.call("GET", tt.sandbox, ""), 200)["state"]; got != tt.state {
					t.Errorf("it is %v", got)
				}
			}
			if n := len(w.node.Alive()); n > before { // the one that the rollback replaced may end only now
				t.Errorf("%d instances, %d before", n, before)
			}
			w.node.OnCreate = nil
			want[object](t, w.call("POST", tt.sandbox+tt.path, tt.body), tt.status)
		})
	}
	t.Run("fork", func(t *testing.T) { // an error each
		w.node.OnCreate = endless
		forks := want[[]object](t, w.call("POST", source+"/fork", `{"count":2}`), 201)
		w.node.OnCreate = nil
		for _, f := range forks {
			if e, _ := f["error"].(object); e["error_code"] != cay.CodeRestoreTimeout {
				t.Errorf("a fork is %v", f)
			}
		}
		if got := want[object](t, w.call("GET", source, ""), 200)["state"]; got != "running" {
			t.Errorf("the source is %v", got)
		}
	})
}

func endless(context.Context, cay.InstanceSpec) error {
	return cay.Errorf(cay.Unavailable, "the memory was not restored in 45s").WithCode(cay.CodeRestoreTimeout)
}
