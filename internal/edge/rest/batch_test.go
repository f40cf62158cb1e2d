package rest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// outcomes are what a batch says of each sandbox: its code, 0 for done.
func (w *world) outcomes(t *testing.T, key, action string, ids ...string) (out []int) {
	t.Helper()
	body := fmt.Sprintf(`{"action":%q,"sandboxIDs":["%s"]}`, action, strings.Join(ids, `","`))
	for i, o := range want[object](t, w.callAs(key, "POST", "/cay/v1/sandbox-actions", body), 200)["outcomes"].([]any) {
		o := o.(object)
		if o["sandboxID"] != ids[i] {
			t.Errorf("outcome %d is of %v, want %s", i, o["sandboxID"], ids[i])
		}
		code := 0
		if e, ok := o["error"].(object); ok {
			code = int(e["code"].(float64))
			if e["message"] == "" {
				t.Errorf("%v says nothing", e)
			}
		}
		out = append(out, code)
	}
	return out
}

func (w *world) counts(t *testing.T, key, query string) string {
	t.Helper()
	n := want[object](t, w.callAs(key, "GET", "/cay/v1/sandbox-counts"+query, ""), 200)
	return fmt.Sprint(n["running"], " ", n["paused"])
}

// A batch has an outcome for each sandbox: one that fails stops no other, and what
// another team has is not found.
func TestActionsOnMany(t *testing.T) {
	w := newWorld(t, "")
	var ids []string
	for i := range 12 {
		ids = append(ids, w.create(fmt.Sprintf(`{"templateID":"base","metadata":{"half":"%d"}}`, i%2))["sandboxID"].(string))
	}
	if got := w.counts(t, w.key, ""); got != "12 0" {
		t.Errorf("counts at first: %s", got)
	}
	if got := w.outcomes(t, w.key, "pause", append(ids[:6:6], "inothere")...); fmt.Sprint(got) != "[0 0 0 0 0 0 404]" {
		t.Errorf("pause: %v", got)
	}
	if got := w.outcomes(t, w.key, "pause", ids[5], ids[6]); fmt.Sprint(got) != "[409 0]" {
		t.Errorf("pause of a paused one: %v", got)
	}
	for query, counts := range map[string]string{
		"": "5 7", "?metadata=half%3D1": "3 3", "?metadata=half%3D2": "0 0", "?template=base": "5 7", "?template=none": "0 0",
	} {
		if got := w.counts(t, w.key, query); got != counts {
			t.Errorf("counts%s: %s, want %s", query, got, counts)
		}
	}
	if got := w.outcomes(t, w.key, "resume", ids[0], ids[11]); fmt.Sprint(got) != "[0 409]" {
		t.Errorf("resume: %v", got)
	}
	for _, action := range []string{"pause", "resume", "kill"} {
		for _, code := range w.outcomes(t, w.other, action, ids...) {
			if code != 404 {
				t.Errorf("%s by another team: %d", action, code)
			}
		}
	}
	if got := w.counts(t, w.other, ""); got != "0 0" {
		t.Errorf("another team counts %s", got)
	}
	if got := w.counts(t, w.key, ""); got != "6 6" {
		t.Errorf("after another team's tries: %s", got)
	}
	if got := w.outcomes(t, w.key, "kill", ids...); fmt.Sprint(got) != "[0 0 0 0 0 0 0 0 0 0 0 0]" {
		t.Errorf("kill: %v", got)
	}
	if got := w.counts(t, w.key, ""); got != "0 0" {
		t.Errorf("in the end: %s", got)
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint("i", i)
	}
	for body, field := range map[string]string{
		`{"action":"dance","sandboxIDs":["i1"]}`:                               "action",
		`{"action":"kill","sandboxIDs":[]}`:                                    "sandboxIDs",
		`{"action":"kill","sandboxIDs":["i1","i1"]}`:                           "sandboxIDs",
		`{"action":"kill","sandboxIDs":["../x"]}`:                              "sandboxIDs",
		`{"action":"kill","sandboxIDs":["` + strings.Join(many, `","`) + `"]}`: "sandboxIDs",
		`{"action":"kill","sandboxIDs":["i1"],"timeout":5}`:                    "timeout",
	} {
		wantError(t, w.call("POST", "/cay/v1/sandbox-actions", body), 400, field)
	}
}

// Each sandbox of a batch counts as a request of its own.
func TestActionsOnManyHaveTheirRate(t *testing.T) {
	w := newWorld(t, "")
	limits := w.limited()
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	ids := []string{id}
	for i := range 9 {
		ids = append(ids, fmt.Sprint("i", i))
	}
	limits[cay.LimitWrites], limits[cay.LimitWriteBurst] = 1, 10
	w.outcomes(t, w.key, "pause", ids...)
	if r := w.call("POST", "/cay/v1/sandbox-actions", `{"action":"pause","sandboxIDs":["i1"]}`); r.status != 429 {
		t.Errorf("after ten writes of ten: %d %s", r.status, r.text)
	}
	// A resume takes the token of a create.
	limits[cay.LimitWrites], limits[cay.LimitWriteBurst] = 100, 100
	limits[cay.LimitCreates], limits[cay.LimitCreateBurst] = 1, 1
	want[any](t, w.call("POST", "/sandboxes", `{"templateID":"base"}`), 201)
	if got := w.outcomes(t, w.key, "resume", id); fmt.Sprint(got) != "[429]" {
		t.Errorf("a resume beyond the rate of creates: %v", got)
	}
}
