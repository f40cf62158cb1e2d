package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func kinds(list []any) (out []string) {
	for _, e := range list {
		out = append(out, e.(object)["type"].(string)+" "+e.(object)["reason"].(string))
	}
	return out
}

func TestEventsOfALife(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	path := "/sandboxes/" + id
	want[any](t, w.call("POST", path+"/timeout", `{"timeout":600}`), 204)
	want[any](t, w.call("POST", path+"/refreshes", `{"duration":610}`), 204) // no news
	want[any](t, w.call("POST", path+"/pause", ``), 204)
	want[object](t, w.call("POST", path+"/connect", `{"timeout":60}`), 201)
	want[[]object](t, w.call("POST", path+"/fork", `{"timeout":60}`), 201)
	want[object](t, w.call("POST", path+"/snapshots", `{}`), 201)
	want[any](t, w.call("DELETE", path, ""), 204)
	got := want[object](t, w.call("GET", "/cay/v1"+path+"/events", ""), 200)
	list := got["events"].([]any)
	wanted := []string{
		"sandbox.created asked", "sandbox.running asked", "sandbox.timeout_changed asked",
		"sandbox.pausing asked", "sandbox.paused asked", "sandbox.resuming asked", "sandbox.resumed asked",
		"sandbox.forked asked", "sandbox.checkpointed asked", "sandbox.killed asked",
	}
	if strings.Join(kinds(list), "\n") != strings.Join(wanted, "\n") {
		t.Fatalf("got  %q\nwant %q", kinds(list), wanted)
	}
	if data := list[0].(object)["data"].(object); data["by"] == "" || data["template"] != string(w.base.ID) {
		t.Errorf("created with %v", data)
	}
	all := want[object](t, w.call("GET", "/cay/v1/events?limit=1000", ""), 200)
	if n := len(all["events"].([]any)); n != len(wanted)+2 { // the fork's
		t.Errorf("%d events in all", n)
	}
	page := want[object](t, w.call("GET", "/cay/v1/events?limit=2&after=1", ""), 200)
	if first := page["events"].([]any)[0].(object); first["seq"] != 2.0 || page["next"] != 3.0 {
		t.Errorf("a page is %v", page)
	}
	if none := want[object](t, w.call("GET", "/cay/v1/events?after=-1", ""), 200); none["next"] != all["next"] || len(none["events"].([]any)) != 0 {
		t.Errorf("after the newest: %v", none)
	}
	one := want[object](t, w.call("GET", "/cay/v1/events?type=sandbox.killed", ""), 200)
	if len(one["events"].([]any)) != 1 {
		t.Errorf("by type: %v", one)
	}
	wantError(t, w.callAs(w.other, "GET", "/cay/v1"+path+"/events", ""), 404, "doesn't exist")
	if list := want[object](t, w.callAs(w.other, "GET", "/cay/v1/events", ""), 200); len(list["events"].([]any)) != 0 || list["next"] != 0.0 {
		t.Errorf("another team sees %v", list)
	}
	for query, field := range map[string]string{"limit=0": "limit", "limit=1001": "limit", "after=-2": "after", "after=x": "after"} {
		wantError(t, w.call("GET", "/cay/v1/events?"+query, ""), 400, field)
	}
	wantError(t, w.callAs("", "GET", "/cay/v1/events", ""), 401, "key")
	wantError(t, w.call("GET", "/cay/v1/nothing", ""), 404, "no such route")
	wantError(t, w.call("POST", "/cay/v1/events", ""), 405, "not allowed")
}

// follow opens a stream and returns its events; the channel is closed when it
// ends.
func (w *world) follow(ctx context.Context, path string, header ...string) <-chan object {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", w.key)
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
		w.t.Fatalf("a stream is %d, %q", resp.StatusCode, got)
	}
	out := make(chan object, 1000)
	go func() {
		defer close(out)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e object
				if json.Unmarshal([]byte(data), &e) == nil {
					out <- e
				}
			}
		}
	}()
	return out
}

func TestStreamGoesOnWhereItBroke(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"].(string)
	path := "/cay/v1/sandboxes/" + id + "/events"
	ctx, leave := context.WithCancel(t.Context())
	events := w.follow(ctx, path)
	if a, b := <-events, <-events; a["type"] != "sandbox.created" || b["type"] != "sandbox.running" {
		t.Fatalf("it begins with %v, %v", a, b)
	}
	want[any](t, w.call("POST", "/sandboxes/"+id+"/pause", ``), 204)
	last := <-events
	leave()
	want[object](t, w.call("POST", "/sandboxes/"+id+"/connect", `{"timeout":60}`), 201)
	if last["type"] != "sandbox.pausing" {
		t.Fatalf("it goes on with %v", last)
	}
	events = w.follow(t.Context(), path+"?after=1", "Last-Event-ID", "3")
	want[any](t, w.call("DELETE", "/sandboxes/"+id, ``), 204)
	var got []string
	for e := range events { // ends with the sandbox
		got = append(got, e["type"].(string))
	}
	if strings.Join(got, " ") != "sandbox.paused sandbox.resuming sandbox.resumed sandbox.killed" {
		t.Errorf("it goes on with %v", got)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", w.url+path, nil)
	req.Header.Set("X-API-KEY", w.key)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", "7")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 204 {
		t.Errorf("a browser that has all is answered %d", resp.StatusCode)
	}
}

func TestStreamOfATeamEndsWithTheServer(t *testing.T) {
	w := newWorld(t, "")
	w.create(`{"templateID":"base","timeout":300}`)
	events := w.follow(t.Context(), "/cay/v1/events?after=-1")
	id := w.create(`{"templateID":"base","timeout":300}`)["sandboxID"]
	if e := <-events; e["sandboxID"] != id || e["type"] != "sandbox.created" {
		t.Errorf("it begins with %v", e)
	}
	if e := <-events; e["type"] != "sandbox.running" {
		t.Errorf("it goes on with %v", e)
	}
	w.control.EndStreams()
	if e, more := <-events; more {
		t.Errorf("it does not end: %v", e)
	}
}

// A stream ends with the key that opened it.
func TestStreamEndsWithItsKey(t *testing.T) {
	w := newWorld(t, "")
	made := want[object](t, w.call("POST", "/api-keys", `{"name":"short"}`), 201)
	first := w.key
	w.key = made["key"].(string)
	events := w.follow(t.Context(), "/cay/v1/events?after=-1")
	w.key = first
	w.create(`{"templateID":"base","timeout":300}`)
	if e := <-events; e["type"] != "sandbox.created" {
		t.Errorf("it begins with %v", e)
	}
	<-events
	if r := w.call("DELETE", "/api-keys/"+made["id"].(string), ""); r.status != 204 {
		t.Fatalf("the key was not removed: %+v", r)
	}
	// It may tell of the removal itself before it ends.
	for e := range events {
		if e["type"] != string(cay.KeyRemoved) {
			t.Errorf("it goes on: %v", e)
		}
	}
}

// A stream of one kind of events reads the others once: what it asks for begins
// after the newest event that there was.
func TestAStreamReadsEventsOnce(t *testing.T) {
	w := newWorld(t, "")
	asked := make(chan store.EventQuery, 100)
	w.store.asked = asked
	events := w.follow(t.Context(), "/cay/v1/events?type=sandbox.killed")
	<-asked
	for read := int64(0); read < 6; {
		w.create(`{"templateID":"base"}`) // two events, of other kinds
		if q := <-asked; q.After < read {
			t.Errorf("it asks for what is after %d, and has read up to %d", q.After, read)
		}
		var err error
		if read, err = w.store.LastEvent(t.Context(), w.team.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.control.EndStreams()
	if e, more := <-events; more {
		t.Errorf("it tells of %v", e)
	}
}

func TestReportsAreBounded(t *testing.T) {
	w := newWorld(t, "")
	id := cay.SandboxID(w.create(`{"templateID":"base"}`)["sandboxID"].(string))
	for range 100 {
		if err := w.control.Report(t.Context(), id, cay.ProcessKilled, cay.ReasonMemory, "name", "\x1b[31m"+strings.Repeat("x", 9999)); err != nil {
			t.Fatal(err)
		}
	}
	got := want[object](t, w.call("GET", "/cay/v1/events?type=process.killed&limit=1000", ""), 200)["events"].([]any)
	if len(got) < 20 || len(got) == 100 {
		t.Errorf("%d events of 100", len(got))
	}
	if name := got[0].(object)["data"].(object)["name"].(string); len(name) > 512 || strings.ContainsRune(name, 0x1b) {
		t.Errorf("the name is %q", name)
	}
}
