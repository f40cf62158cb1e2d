package server_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// limited changes limits of the first team as the operator does.
func limited(t *testing.T, w *servertest.World, limits map[string]*int64) client.Limits {
	t.Helper()
	all, err := w.Admin("").SetTeamLimits(t.Context(), "default", limits)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLimitsOverTheWire has 50 clients create at once, while the server runs.
func TestLimitsOverTheWire(t *testing.T) {
	w := servertest.Start(t)
	create := func() error {
		_, err := w.Client().Create(context.Background(), client.CreateOptions{Timeout: time.Hour})
		return err
	}
	fill := func(most int) {
		t.Helper()
		var made atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				switch err := create(); {
				case err == nil:
					made.Add(1)
				case cay.CodeOf(err) != cay.CodeTeamLimit:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if int(made.Load()) != most {
			t.Errorf("%d were made, %d may", made.Load(), most)
		}
	}
	limited(t, w, map[string]*int64{"sandboxes": new(int64(3))})
	fill(3)
	limited(t, w, map[string]*int64{"sandboxes": new(int64(5))})
	fill(2)
	w.Stop()
	w.Start()
	fill(0)
	limited(t, w, map[string]*int64{"sandboxes": new(int64(1))})
	list, err := w.Client().List(t.Context())
	if err != nil || len(list) != 5 {
		t.Errorf("%d sandboxes after the limit was lowered, %v", len(list), err)
	}
	all, err := w.Client().Limits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := all["sandboxes"]; got.Limit != 1 || !got.Own || got.Used == nil || *got.Used != 5 {
		t.Errorf("it is told as %+v", got)
	}
	if got := all["builds"]; got.Limit != 20 || got.Own || *got.Used != 0 {
		t.Errorf("a default is told as %+v", got)
	}
	if len(all) != len(cay.AllLimits()) {
		t.Errorf("%d limits are told", len(all))
	}
	var events []client.Event
	for e, err := range w.Client().Events(t.Context(), client.EventOptions{Type: string(cay.TeamLimitsChanged)}) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if len(events) != 3 || events[2].Data["limits"] != "sandboxes=1" || events[2].Data["before"] != "sandboxes=5" {
		t.Errorf("the events are %+v", events)
	}
}

// Bad changes are refused as a whole.
func TestBadLimitsOverTheWire(t *testing.T) {
	w := servertest.Start(t)
	limited(t, w, map[string]*int64{"sandboxes": new(int64(3))})
	const path = "/cay/v1/admin/teams/default/limits"
	for body, status := range map[string]int{
		`{"sandboxes":-1,"cpus":1}`:          400,
		`{"sandboxes":1.5}`:                  400,
		`{"sandboxes":"many"}`:               400,
		`{"sandboxes":9007199254740993}`:     400,
		`{"sandboxes":1e400}`:                400,
		`{"cpus":1,"limit":1}`:               400,
		`{"cpus":1,"limit":null}`:            400,
		`[]`:                                 400,
		`{`:                                  400,
		``:                                   400,
		`{"cpus":null}`:                      200,
		`{}`:                                 200,
		`{"snapshotBytes":9007199254740992}`: 200,
	} {
		if code, text := asked(t, w, "", "req-limits", http.MethodPatch, path, body); code != status {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if code, text := asked(t, w, "", "req-limits", http.MethodPatch, "/cay/v1/admin/teams/none/limits", `{}`); code != 404 {
		t.Errorf("no team: %d %s", code, text)
	}
	all := limited(t, w, nil)
	var own []string
	for name, one := range all {
		if one.Own {
			own = append(own, name)
		}
	}
	if slices.Sort(own); !slices.Equal(own, []string{"sandboxes", "snapshotBytes"}) || all["sandboxes"].Limit != 3 {
		t.Errorf("the limits are %+v", all)
	}
	if code, text := asked(t, w, "", "req-limits", http.MethodPut, path, `{"reads":1}`); code != 400 {
		t.Errorf("PUT: %d %s", code, text)
	}
	if code, text := asked(t, w, "", "req-limits", http.MethodPut, path, `{"cpus":4}`); code != 200 {
		t.Errorf("PUT: %d %s", code, text)
	}
	if all := limited(t, w, nil); all["sandboxes"].Own || all["cpus"].Limit != 4 {
		t.Errorf("PUT left %+v", all)
	}
}

// TestAWakeIsBounded has traffic meet a paused sandbox whose team may have no
// other that runs.
func TestAWakeIsBounded(t *testing.T) {
	w := servertest.Start(t)
	sleeper, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour, AutoResume: true})
	if err == nil {
		err = w.Client().Pause(t.Context(), sleeper.ID)
	}
	if err == nil {
		_, err = w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	}
	if err != nil {
		t.Fatal(err)
	}
	limited(t, w, map[string]*int64{"sandboxes": new(int64(1))})
	ask := func() *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "8000-" + sleeper.ID + ".example.com"
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	if r := ask(); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Should-Retry") != "false" {
		t.Errorf("%d, Should-Retry %q", r.StatusCode, r.Header.Get("Should-Retry"))
	}
	limited(t, w, map[string]*int64{"sandboxes": new(int64(2))})
	ask() // what the guest answers is its own
	if got, err := w.Client().Info(t.Context(), sleeper.ID); err != nil || got.State != string(cay.Running) {
		t.Errorf("after the limit was raised it is %+v, %v", got, err)
	}
}

// Requests beyond a rate are one row of the audit log for each class, with how
// many there were.
func TestRefusedRatesAreAudited(t *testing.T) {
	w := servertest.Start(t)
	limited(t, w, map[string]*int64{string(cay.LimitReads): new(int64(1)), string(cay.LimitReadBurst): new(int64(1))})
	refused := 0
	for begun := time.Now(); refused < 2 && time.Since(begun) < time.Minute; { // a request may take a token's time
		if code, _ := call(t, w, w.Key, "GET", "/v2/sandboxes", ""); code == http.StatusTooManyRequests {
			refused++
		}
	}
	w.Stop()
	told := 0
	for _, r := range auditRows(t, w) {
		if r.Action != "rate.refused" {
			continue
		}
		if r.Target != "read" || r.Outcome != cay.OutcomeFailed || r.Actor.Kind != cay.ActorKey || r.Team == "" {
			t.Errorf("%+v", r)
		}
		n := 1
		if times := r.Details["times"]; times != "" {
			n, _ = strconv.Atoi(times)
		}
		told += n
	}
	if refused < 2 || told != refused {
		t.Errorf("%d were refused, %d are told", refused, told)
	}
}
