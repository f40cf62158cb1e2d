package rest_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
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
	if n := len(w.node.Saved()); n != 0 {
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
	if all := w.node.Saved(); len(all) != 1 || all[0].Kind != cay.FilesSnapshot {
		t.Errorf("saved as %+v", all)
	}
	wantError(t, w.call("POST", path+"/pause", `{"memory":false}`), 409, "already paused")
	again := want[object](t, w.call("POST", "/v2"+path+"/connect", `{"memory":false}`), 201)
	if again["sandboxID"] != box["sandboxID"] || again["notice"] != nil || !w.node.Alive()[0].Spec.FilesOnly {
		t.Errorf("resumed as %v", again)
	}
	want[object](t, w.call("POST", path+"/connect", `{"timeout":10,"memory":false}`), 200) // it runs already
	want[object](t, w.call("POST", path+"/snapshots", `{"memory":false}`), 201)
	if all := w.node.Saved(); len(all) != 2 || all[0].Kind != cay.FilesSnapshot || all[1].Kind != cay.FilesSnapshot {
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
	if fmt.Sprint(named["names"]) != "["+w.team.Name+"/mine]" {
		t.Errorf("the names are %v", named["names"])
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
	if n := len(w.node.Saved()); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

// TestSnapshotTags has two states under one name, each with its tag.
func TestSnapshotTags(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	path := "/sandboxes/" + id + "/snapshots"
	full := w.team.Name + "/mine"
	v2 := want[object](t, w.call("POST", path, `{"name":"Mine:V2"}`), 201)
	if v2["snapshotID"] != full+":v2" || fmt.Sprint(v2["names"]) != "["+full+"]" {
		t.Errorf("the first is %v", v2)
	}
	wantError(t, w.call("POST", "/v2/sandboxes", `{"templateID":"mine"}`), 404, "mine")
	want[object](t, w.call("POST", path, `{"name":"mine"}`), 201)
	again := want[object](t, w.call("POST", path, `{"name":"mine:v2"}`), 201)
	if again["snapshotID"] != v2["snapshotID"] || len(w.node.Saved()) != 2 {
		t.Errorf("again %v, and the node keeps %d", again, len(w.node.Saved()))
	}
	for query, n := range map[string]int{"": 2, "name=mine": 1, "name=mine:v2": 1, "name=" + full + ":default": 1, "name=mine:v3": 0, "sandboxID=" + id: 2} {
		if list := want[[]object](t, w.call("GET", "/snapshots?"+query, ""), 200); len(list) != n {
			t.Errorf("%q finds %v", query, list)
		}
	}
	from := func(ref string) cay.SnapshotID {
		child := w.create(`{"templateID":"` + ref + `"}`)["sandboxID"].(string)
		defer w.call("DELETE", "/sandboxes/"+child, "")
		for _, one := range w.node.Alive() {
			if string(one.Spec.Sandbox) == child {
				return one.Spec.Snapshot
			}
		}
		t.Fatalf("no instance of %s", child)
		return ""
	}
	if a, b := from("mine"), from(full+":v2"); a == b {
		t.Errorf("both are made of %s", a)
	}
	want[any](t, w.call("DELETE", "/templates/"+url.PathEscape(full+":default"), ""), 204)
	wantError(t, w.call("POST", "/v2/sandboxes", `{"templateID":"mine"}`), 404, "mine")
	from("mine:v2")
	wantError(t, w.call("DELETE", "/templates/"+url.PathEscape(full+":default"), ""), 404, "does not exist")
	want[any](t, w.call("DELETE", "/templates/"+url.PathEscape(full+":v2"), ""), 204)
	wantError(t, w.call("GET", "/templates/mine", ""), 404, "not found")
	if n := len(w.node.Saved()); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

// TestTagPages has the pages of tags that E2B's console asks for.
func TestTagPages(t *testing.T) {
	w := newWorld(t, "")
	first := want[object](t, w.call("GET", "/templates/base", ""), 200)["buildID"].(string)
	for i := range 5 {
		body := fmt.Sprintf(`{"target":"base","tags":["v%d","busy"]}`, i)
		want[object](t, w.call("POST", "/templates/tags", body), 201)
	}
	if total := want[object](t, w.call("GET", "/templates/base/tags/count", ""), 200)["total"]; total != 7.0 {
		t.Errorf("%v tags, want 7: default, busy and v0 to v4", total)
	}
	for tag, exists := range map[string]bool{"V3": true, "v9": false} {
		got := want[object](t, w.call("GET", "/templates/base/tags/exists?tag="+tag, ""), 200)
		if got["exists"] != exists || got["normalizedTag"] != strings.ToLower(tag) {
			t.Errorf("tag %s: %v", tag, got)
		}
	}
	var tags []string
	for cursor := ""; ; {
		page := want[object](t, w.call("GET", "/templates/base/tags/groups?tagsLimit=3&assignmentLimit=2&sort=name_asc&tagsCursor="+cursor, ""), 200)
		for _, one := range page["tags"].([]any) {
			group := one.(object)
			tags = append(tags, group["tag"].(string))
			list := group["assignments"].([]any)
			if busy := group["tag"] == "busy"; group["hasMore"] != busy || busy != (len(list) == 2) || list[0].(object)["buildId"] != first {
				t.Errorf("group %v", group)
			}
		}
		if page["nextCursor"] == nil {
			break
		}
		cursor = page["nextCursor"].(string)
	}
	if got := strings.Join(tags, " "); got != "busy default v0 v1 v2 v3 v4" {
		t.Errorf("tags by name: %s", got)
	}
	found := want[object](t, w.call("GET", "/templates/base/tags/groups?search=V&sort=name_desc", ""), 200)["tags"].([]any)
	if len(found) != 5 || found[0].(object)["tag"] != "v4" {
		t.Errorf("a search finds %v", found)
	}
	seen := map[any]bool{}
	for cursor := ""; ; {
		page := want[object](t, w.call("GET", "/templates/base/tags/busy/assignments?limit=2&cursor="+cursor, ""), 200)
		for _, one := range page["data"].([]any) {
			seen[one.(object)["assignmentId"]] = true
		}
		if page["nextCursor"] == nil {
			break
		}
		cursor = page["nextCursor"].(string)
	}
	if len(seen) != 5 {
		t.Errorf("%d assignments over all pages", len(seen))
	}
	want[any](t, w.call("DELETE", "/templates/tags", `{"name":"base","tags":["busy"]}`), 204)
	gone := want[object](t, w.call("GET", "/templates/base/tags/busy/assignments", ""), 200)
	if len(gone["data"].([]any)) != 0 {
		t.Errorf("a tag that is removed has %v", gone)
	}
	for _, query := range []string{"groups?sort=up", "groups?tagsLimit=0", "groups?assignmentLimit=101", "groups?tagsCursor=x", "exists?tag=a%20b", "exists", "v1/assignments?cursor=!", "v1/assignments?limit=x"} {
		wantError(t, w.call("GET", "/templates/base/tags/"+query, ""), 400, "")
	}
	for _, path := range []string{"count", "groups", "exists?tag=v1", "v1/assignments"} {
		wantError(t, w.callAs(w.other, "GET", "/templates/base/tags/"+path, ""), 404, "not found")
		wantError(t, w.call("GET", "/templates/none/tags/"+path, ""), 404, "not found")
	}
}

// TestTagOfABuild points a tag at one build by its id.
func TestTagOfABuild(t *testing.T) {
	w := newWorld(t, "")
	old := want[object](t, w.call("GET", "/templates/base", ""), 200)["buildID"].(string)
	want[object](t, w.call("POST", "/templates/tags", `{"target":"base","tags":["keep"]}`), 201)
	if _, err := w.control.Publish(t.Context(), fleet.Publication{
		Team: w.team.ID, Names: []string{"base"}, Public: true, Snapshot: "s2", RecipeDigest: "d2",
	}); err != nil {
		t.Fatal(err)
	}
	target := string(w.base.ID) + ":" + old
	got := want[object](t, w.call("POST", "/templates/tags", `{"target":"`+target+`","tags":["stable"]}`), 201)
	if got["buildID"] != old {
		t.Errorf("stable is %v, want %s", got, old)
	}
	w.create(`{"templateID":"base:stable"}`)
	w.create(`{"templateID":"` + target + `"}`)
	for _, one := range w.node.Alive() {
		if one.Spec.Snapshot != "s1" {
			t.Errorf("made of %s", one.Spec.Snapshot)
		}
	}
	want[any](t, w.call("DELETE", "/templates/tags", `{"name":"base","tags":["stable","keep"]}`), 204)
	wantError(t, w.call("POST", "/templates/tags", `{"target":"`+target+`","tags":["late"]}`), 404, "does not exist")
}

// TestPauseWithAgent has the fields of a pause whose agent does not answer.
func TestPauseWithAgent(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	path := "/sandboxes/" + id
	detail := func() object { return want[object](t, w.call("GET", path, ""), 200) }
	if d := detail(); d["pauseMode"] != nil || d["envdUnresponsiveAtPause"] != nil {
		t.Errorf("a running one is %v", d)
	}
	w.node.OnResponds = func(context.Context, cay.InstanceID) error { return errors.New("silent") }
	for _, body := range []string{`{"requireHealthyGuest":true}`, `{"memory":false}`, `{"memory":false,"requireHealthyGuest":true}`} {
		r := w.call("POST", path+"/pause", body)
		wantRetry(t, r, 503, cay.Retry{})
		if code := want[object](t, r, 503)["error_code"]; code != cay.CodeGuestUnresponsive {
			t.Errorf("%s: error_code %v", body, code)
		}
	}
	want[any](t, w.call("POST", path+"/pause", ``), 204)
	listed := want[[]object](t, w.call("GET", "/v2/sandboxes", ""), 200)[0]
	if d := detail(); d["pauseMode"] != "full" || d["envdUnresponsiveAtPause"] != true || listed["envdUnresponsiveAtPause"] != true {
		t.Errorf("a paused one is %v, listed as %v", d, listed)
	}
	w.node.OnResponds = nil
	for _, try := range []reply{
		w.call("POST", path+"/connect", `{"timeout":60}`), w.call("POST", "/v2"+path+"/connect", ``),
		w.call("POST", path+"/resume", `{}`),
	} {
		wantRetry(t, try, 409, cay.Retry{})
		if code := want[object](t, try, 409)["error_code"]; code != cay.CodeSavedUnresponsive {
			t.Errorf("resumed: error_code %v", code)
		}
	}
	want[object](t, w.call("POST", "/v2"+path+"/connect", `{"memory":false}`), 201)
	want[any](t, w.call("POST", path+"/pause", `{"memory":false,"requireHealthyGuest":true}`), 204)
	if d := detail(); d["pauseMode"] != "filesystem" || d["envdUnresponsiveAtPause"] != nil {
		t.Errorf("saved without memory it is %v", d)
	}
}
