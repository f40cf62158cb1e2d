package rest_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

func TestLogs(t *testing.T) {
	w := newWorld(t, "")
	w.node.OnDiary = func(_ cay.InstanceID, after int64) (guest.Diary, error) {
		out := guest.Diary{Epoch: "e"}
		if after == 0 {
			out.Entries = []guest.DiaryEntry{{Seq: 1, At: time.Now(), Level: "warn", Logger: "guard", Message: "careful", Fields: map[string]string{"pid": "7"}}}
		}
		return out, nil
	}
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	path := "/sandboxes/" + id + "/logs"
	v1 := want[object](t, w.call("GET", path, ""), 200)
	logs := v1["logs"].([]any)
	if len(logs) != 3 || len(v1["logEntries"].([]any)) != 3 {
		t.Fatalf("got %v", v1)
	}
	for i, message := range []string{"sandbox created", "sandbox running", "careful"} {
		var line map[string]string
		if err := json.Unmarshal([]byte(logs[i].(object)["line"].(string)), &line); err != nil {
			t.Fatal(err)
		}
		if line["message"] != message || line["level"] == "" || line["logger"] == "" {
			t.Errorf("line %d is %v", i, line)
		}
	}
	if tail := want[object](t, w.call("GET", path+"?limit=1", ""), 200)["logs"].([]any); len(tail) != 1 || tail[0].(object)["line"] != logs[2].(object)["line"] {
		t.Errorf("the newest is %v", tail)
	}
	if head := want[object](t, w.call("GET", path+"?limit=1&start=0", ""), 200)["logs"].([]any); head[0].(object)["line"] != logs[0].(object)["line"] {
		t.Errorf("the oldest is %v", head)
	}
	for query, wanted := range map[string]string{
		"": "careful", "?direction=forward": "sandbox created", "?level=warn": "careful", "?search=runn": "sandbox running",
		"?direction=backward&limit=1": "careful", "?direction=forward&cursor=0&limit=1": "sandbox created",
	} {
		got := want[object](t, w.call("GET", "/v2"+path+query, ""), 200)["logs"].([]any)
		if len(got) == 0 || got[0].(object)["message"] != wanted {
			t.Errorf("%s: %v", query, got)
		}
	}
	if got := want[object](t, w.call("GET", "/v2"+path+"?cursor=1000", ""), 200)["logs"].([]any); len(got) != 0 {
		t.Errorf("before there was anything: %v", got)
	}
	for query, field := range map[string]string{
		"?limit=0": "limit", "?limit=1001": "limit", "?cursor=-1": "cursor", "?direction=up": "direction", "?level=bad": "level",
	} {
		wantError(t, w.call("GET", "/v2"+path+query, ""), 400, field)
	}
	wantError(t, w.callAs(w.other, "GET", path, ""), 404, "doesn't exist")
	wantError(t, w.callAs(w.other, "GET", "/v2"+path, ""), 404, "doesn't exist")
	want[any](t, w.call("DELETE", "/sandboxes/"+id, ""), 204)
	if got := want[object](t, w.call("GET", "/v2"+path, ""), 200)["logs"].([]any); len(got) != 4 || got[0].(object)["message"] != "sandbox killed" {
		t.Errorf("after its end: %v", got)
	}
}
