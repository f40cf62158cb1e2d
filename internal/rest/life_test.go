package rest_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base","timeout":300,"secure":true,"autoPause":true,"autoResume":{"enabled":true}}`)
	path := "/sandboxes/" + box["sandboxID"].(string)
	wantError(t, w.call("POST", path+"/resume", ``), 409, "running")
	want[any](t, w.call("POST", path+"/pause", ``), 204)
	wantError(t, w.call("POST", path+"/pause", `{"memory":true}`), 409, "already paused")
	wantError(t, w.call("POST", path+"/timeout", `{"timeout":30}`), 409, "paused")
	wantError(t, w.call("POST", path+"/fork", `{}`), 409, "paused")
	wantError(t, w.call("POST", path+"/snapshots", `{}`), 409, "paused")
	info := want[object](t, w.call("GET", path, ""), 200)
	lifecycle := info["lifecycle"].(object)
	if info["state"] != "paused" || lifecycle["autoResume"] != true || lifecycle["onTimeout"] != "pause" {
		t.Errorf("paused as %v", info)
	}
	if list := want[[]object](t, w.call("GET", "/v2/sandboxes?state=paused", ""), 200); len(list) != 1 || list[0]["endAt"] != info["endAt"] {
		t.Errorf("listed as %v", list)
	}
	again := want[object](t, w.call("POST", "/v2"+path+"/connect", ``), 201)
	if again["sandboxID"] != box["sandboxID"] || again["envdAccessToken"] != box["envdAccessToken"] {
		t.Errorf("resumed as %v, was %v", again, box)
	}
	want[object](t, w.call("POST", path+"/connect", `{"timeout":10}`), 200)
	want[any](t, w.call("POST", path+"/pause", `{}`), 204)
	want[object](t, w.call("POST", path+"/resume", `{"timeout":30,"autoPause":false}`), 201)
	if info := want[object](t, w.call("GET", path, ""), 200); info["lifecycle"].(object)["onTimeout"] != "kill" {
		t.Errorf("resumed as %v", info)
	}
	want[any](t, w.call("POST", path+"/pause", `{}`), 204)
	want[any](t, w.call("DELETE", path, ""), 204)
	wantError(t, w.call("POST", path+"/pause", ``), 404, "doesn't exist or you don't have access to it")
	if n := len(w.node.Snapshots()); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

func TestFilesOnly(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base","autoPause":true,"autoPauseMemory":false}`)
	path := "/sandboxes/" + box["sandboxID"].(string)
	if info := want[object](t, w.call("GET", path, ""), 200); info["lifecycle"].(object)["onTimeout"] != "pause" {
		t.Errorf("created as %v", info)
	}
	want[any](t, w.call("POST", path+"/pause", `{"memory":false}`), 204)
	if all := w.node.Snapshots(); len(all) != 1 || all[0].Kind != cay.FilesSnapshot {
		t.Errorf("saved as %+v", all)
	}
	wantError(t, w.call("POST", path+"/pause", `{"memory":false}`), 409, "already paused")
	again := want[object](t, w.call("POST", "/v2"+path+"/connect", `{"memory":false}`), 201)
	if again["sandboxID"] != box["sandboxID"] || again["notice"] != nil || !w.node.Instances()[0].Spec.FilesOnly {
		t.Errorf("resumed as %v", again)
	}
	want[object](t, w.call("POST", path+"/connect", `{"timeout":10,"memory":false}`), 200) // it runs already
	want[object](t, w.call("POST", path+"/snapshots", `{"memory":false}`), 201)
	if all := w.node.Snapshots(); len(all) != 2 || all[0].Kind != cay.FilesSnapshot || all[1].Kind != cay.FilesSnapshot {
		t.Errorf("saved as %+v", all)
	}
	want[any](t, w.call("POST", path+"/pause", ``), 204)
	w.node.Notice = "the memory is gone"
	again = want[object](t, w.call("POST", path+"/resume", `{"memory":false}`), 201)
	info := want[object](t, w.call("GET", path, ""), 200)
	if again["notice"] != "the memory is gone" || info["notice"] != "the memory is gone" {
		t.Errorf("resumed as %v, %v", again, info)
	}
}

func TestForks(t *testing.T) {
	w := newWorld(t, "")
	box := w.create(`{"templateID":"base"}`)
	path := "/sandboxes/" + box["sandboxID"].(string)
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"count":-9223372036854775808}`} {
		wantError(t, w.call("POST", path+"/fork", body), 400, "count")
	}
	wantError(t, w.call("POST", path+"/fork", `{"timeout":0}`), 400, "timeout")
	if one := want[[]object](t, w.call("POST", path+"/fork", ``), 201); len(one) != 1 || one[0]["error"] != nil {
		t.Errorf("forks: %v", one)
	}
	w.node.OnSave = func(cay.InstanceID) error { return cay.Errorf(cay.NoSpace, "the disk is full") }
	wantError(t, w.call("POST", path+"/fork", ``), 507, "is full")
	wantError(t, w.call("POST", path+"/pause", ``), 507, "is full")
	if info := want[object](t, w.call("GET", path, ""), 200); info["state"] != "running" {
		t.Errorf("it is %v", info)
	}
	wantError(t, w.callAs(w.other, "POST", path+"/fork", ``), 404, "doesn't exist")
	wantError(t, w.callAs(w.other, "POST", path+"/pause", ``), 404, "doesn't exist")
	wantError(t, w.callAs(w.other, "POST", path+"/snapshots", ``), 404, "doesn't exist")
}

func TestSnapshots(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	path := "/sandboxes/" + id + "/snapshots"
	plain := want[object](t, w.call("POST", path, ``), 201)["snapshotID"].(string)
	named := want[object](t, w.call("POST", path, `{"name":"mine"}`), 201)
	again := want[object](t, w.call("POST", path, `{"name":"mine"}`), 201)
	name := w.team.Name + "/mine:default"
	if named["snapshotID"] != name || again["snapshotID"] != name || !strings.HasSuffix(plain, ":default") {
		t.Errorf("snapshots %v, %v, %s", named, again, plain)
	}
	first := w.call("GET", "/snapshots?limit=1&sandboxID="+id, "")
	token := first.header.Get("X-Next-Token")
	list := want[[]object](t, first, 200)
	list = append(list, want[[]object](t, w.call("GET", "/snapshots?limit=1&sandboxID="+id+"&nextToken="+token, ""), 200)...)
	if len(list) != 2 || list[0]["snapshotID"] == list[1]["snapshotID"] || token == "" {
		t.Errorf("listed as %v", list)
	}
	for query, n := range map[string]int{"name=mine": 1, "name=nope": 0, "sandboxID=inope": 0, "": 2} {
		if list := want[[]object](t, w.call("GET", "/snapshots?"+query, ""), 200); len(list) != n {
			t.Errorf("%s finds %v", query, list)
		}
	}
	if list := want[[]object](t, w.callAs(w.other, "GET", "/snapshots", ""), 200); len(list) != 0 {
		t.Errorf("another team sees %v", list)
	}
	wantError(t, w.callAs(w.other, "DELETE", "/templates/"+url.PathEscape(plain), ""), 404, "not found")
	wantError(t, w.callAs(w.other, "DELETE", "/templates/base", ""), 403, "another team")
	wantError(t, w.call("DELETE", "/templates/base", ""), 400, "use it")
	for _, ref := range []string{plain, name} {
		child := w.create(`{"templateID":"` + ref + `"}`)["sandboxID"].(string)
		wantError(t, w.call("DELETE", "/templates/"+url.PathEscape(ref), ""), 400, "use it")
		want[any](t, w.call("DELETE", "/sandboxes/"+child, ""), 204)
		want[any](t, w.call("DELETE", "/templates/"+url.PathEscape(ref), ""), 204)
		wantError(t, w.call("DELETE", "/templates/"+url.PathEscape(ref), ""), 404, "not found")
	}
	if n := len(w.node.Snapshots()); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}
