package rest_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
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

// A search finds lines of all of a team's sandboxes, of those that are over too,
// and of no other team's.
func TestSearchInLogs(t *testing.T) {
	w := newWorld(t, "")
	begun := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	said := int64(0)
	w.node.OnDiary = func(_ cay.InstanceID, after int64) (guest.Diary, error) {
		out := guest.Diary{Epoch: "e"}
		if after == 0 {
			said++
			at := begun.Add(time.Duration(said) * time.Second)
			out.Entries = []guest.DiaryEntry{
				{Seq: 1, At: at, Level: "info", Logger: "process", Message: fmt.Sprintf("Process %d started", said)},
				{Seq: 2, At: at, Level: "error", Logger: "guard", Message: fmt.Sprintf("Killed for 100%% of memory, %d", said)},
			}
		}
		return out, nil
	}
	var ids []string
	for range 3 {
		id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
		want[object](t, w.call("GET", "/v2/sandboxes/"+id+"/logs", ""), 200) // it is read
		ids = append(ids, id)
	}
	want[any](t, w.call("DELETE", "/sandboxes/"+ids[0], ""), 204)
	find := func(query string) (lines []string, complete bool) {
		t.Helper()
		got := want[object](t, w.call("GET", "/cay/v1/logs"+query, ""), 200)
		for _, l := range got["lines"].([]any) {
			l := l.(object)
			lines = append(lines, fmt.Sprint(slices.Index(ids, l["sandboxID"].(string)), " ", l["message"]))
		}
		return lines, got["complete"].(bool)
	}
	at := func(s int) string {
		return url.QueryEscape(begun.Add(time.Duration(s) * time.Second).UTC().Format(time.RFC3339Nano))
	}
	for query, wanted := range map[string]struct {
		lines    []string
		complete bool
	}{
		"?search=KILLED":                                {[]string{"2 Killed for 100% of memory, 3", "1 Killed for 100% of memory, 2", "0 Killed for 100% of memory, 1"}, true},
		"?search=started&limit=2":                       {[]string{"2 Process 3 started", "1 Process 2 started"}, false},
		"?level=error&from=" + at(3):                    {[]string{"2 Killed for 100% of memory, 3"}, true},
		"?search=100%25&to=" + at(2):                    {[]string{"0 Killed for 100% of memory, 1"}, true},
		"?search=100%25&to=" + at(2) + "&from=" + at(1): {[]string{"0 Killed for 100% of memory, 1"}, true},
		"?search=nothing+is+like+this":                  {nil, true},
	} {
		if lines, complete := find(query); !slices.Equal(lines, wanted.lines) || complete != wanted.complete {
			t.Errorf("%s: %q, complete %v", query, lines, complete)
		}
	}
	if lines, complete := find(""); len(lines) != 6 || !complete {
		t.Errorf("everything: %q %v", lines, complete)
	}
	if r := w.callAs(w.other, "GET", "/cay/v1/logs", ""); r.status != 200 || strings.Contains(r.text, "Killed") {
		t.Errorf("another team: %d %s", r.status, r.text)
	}
	for query, field := range map[string]string{
		"?limit=0": "limit", "?limit=1001": "limit", "?level=bad": "level", "?search=" + strings.Repeat("x", 257): "search", "?from=" + at(2) + "&to=" + at(1): "from",
	} {
		wantError(t, w.call("GET", "/cay/v1/logs"+query, ""), 400, field)
	}
}
