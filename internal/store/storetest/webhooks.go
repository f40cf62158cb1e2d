package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func webhook(team cay.TeamID, created int) cay.Webhook {
	return cay.Webhook{
		ID: cay.NewWebhookID(), Team: team, Name: "ours \"ü\"", URL: "https://example.com/a?b=c", Enabled: true,
		Events: []string{cay.LifecycleCreated, cay.AllEvents}, Sealed: "sealed", CreatedAt: at(created), UpdatedAt: at(created), Version: 1,
		ChosenBy: cay.Origins{Key: "k", Person: "p"},
	}
}

func testWebhooks(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	b := sandbox(team.ID, 1)
	noError(t, s.AddEvents(t.Context(), eventOf(b, 1, cay.SandboxForked), eventOf(b, 2, cay.SandboxForked)))
	one, two, theirs := webhook(team.ID, 1), webhook(team.ID, 2), webhook(other.ID, 3)
	for _, w := range []cay.Webhook{one, two, theirs} {
		noError(t, s.AddWebhook(t.Context(), w, 2))
	}
	wantKind(t, s.AddWebhook(t.Context(), webhook(team.ID, 4), 2), cay.Exhausted)
	one.Cursor, two.Cursor = 2, 2
	got, err := s.Webhook(t.Context(), team.ID, one.ID)
	noError(t, err)
	same(t, "a webhook", got, one)
	_, err = s.Webhook(t.Context(), other.ID, one.ID)
	wantKind(t, err, cay.NotFound)
	list, err := s.Webhooks(t.Context(), team.ID)
	noError(t, err)
	same(t, "a team's", list, []cay.Webhook{one, two})
	list, err = s.Webhooks(t.Context(), "")
	noError(t, err)
	same(t, "all", list, []cay.Webhook{one, two, theirs})

	wantKind(t, s.UpdateWebhook(t.Context(), one), cay.Conflict)
	one.Version, one.Name, one.Enabled, one.Events, one.Sealed = 2, "another", false, []string{"x"}, "anew"
	one.ChosenBy = cay.Origins{Key: "k2"}
	stranger := one
	stranger.Team = other.ID
	wantKind(t, s.UpdateWebhook(t.Context(), stranger), cay.Conflict)
	noError(t, s.UpdateWebhook(t.Context(), one))
	got, err = s.Webhook(t.Context(), team.ID, one.ID)
	noError(t, err)
	same(t, "a changed one", got, one)
	noError(t, s.AddEvents(t.Context(), eventOf(b, 3, cay.SandboxForked)))
	one.Version, one.Enabled, one.Cursor = 3, true, 3
	noError(t, s.UpdateWebhook(t.Context(), one))
	got, err = s.Webhook(t.Context(), team.ID, one.ID)
	noError(t, err)
	same(t, "one that is turned on again begins at the newest event", got, one)
	two.Version++
	noError(t, s.UpdateWebhook(t.Context(), two))
	got, err = s.Webhook(t.Context(), team.ID, two.ID)
	noError(t, err)
	same(t, "one that stayed on has its place", got, two)

	wantKind(t, s.RemoveWebhook(t.Context(), other.ID, one.ID), cay.NotFound)
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{attempt(one, 1, 1, 5)}, nil))
	noError(t, s.RemoveWebhook(t.Context(), team.ID, one.ID))
	wantKind(t, s.RemoveWebhook(t.Context(), team.ID, one.ID), cay.NotFound)
	none, err := s.Deliveries(t.Context(), store.DeliveryQuery{Webhook: one.ID, Limit: 9})
	noError(t, err)
	same(t, "deliveries of a removed one", len(none), 0)
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{attempt(one, 2, 1, 5)}, []store.WebhookProgress{{Webhook: one.ID, Cursor: 9}}))
	none, err = s.Deliveries(t.Context(), store.DeliveryQuery{Webhook: one.ID, Limit: 9})
	noError(t, err)
	same(t, "an attempt that ends after its webhook is", len(none), 0)
}

// attempt is one at a time, that succeeds.
func attempt(w cay.Webhook, seq int64, number, ms int) cay.WebhookAttempt {
	return cay.WebhookAttempt{
		ID: cay.NewDeliveryID(), Webhook: w.ID, Team: w.Team, Seq: seq, Event: cay.Event{Team: w.Team, Seq: seq}.ID(), Type: "sandbox.killed",
		Sandbox: "i1", Number: number, At: at(ms), Took: 7 * time.Millisecond, URL: w.URL, Body: `{"a":"ü"}`, RequestHeaders: "{}",
		ResponseHeaders: `{"b":"c"}`, ResponseBody: "ok", Status: 200,
	}
}

// failed is an attempt that failed and is repeated.
func failedAttempt(w cay.Webhook, seq int64, number, ms, next int) cay.WebhookAttempt {
	a := attempt(w, seq, number, ms)
	a.Status, a.Class, a.Error, a.Next = 500, cay.FailedHTTP, "the answer is 500", at(next)
	return a
}

func testAttempts(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	w, silent := webhook(team.ID, 1), webhook(team.ID, 2)
	noError(t, s.AddWebhook(t.Context(), w, 9))
	noError(t, s.AddWebhook(t.Context(), silent, 9))
	good, bad, again := attempt(w, 1, 1, 10), failedAttempt(w, 2, 1, 11, 20), failedAttempt(w, 3, 1, 12, 15)
	progress := []store.WebhookProgress{{Webhook: w.ID, Cursor: 3, FailingSince: at(11)}}
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{good, bad, again}, progress))
	got, err := s.Webhook(t.Context(), team.ID, w.ID)
	noError(t, err)
	w.Cursor, w.FailingSince = 3, at(11)
	same(t, "how far it is", got, w)
	retries, err := s.Retries(t.Context(), w.ID, 9)
	noError(t, err)
	same(t, "what is to be repeated", retries, []cay.WebhookAttempt{again, bad})
	told, err := s.Told(t.Context(), w.ID, 1)
	noError(t, err)
	same(t, "told after the first", told, []int64{2, 3})

	second := attempt(w, 3, 2, 16)
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{second}, []store.WebhookProgress{{Webhook: w.ID, Cursor: 2}}))
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{failedAttempt(w, 3, 2, 99, 100)}, nil)) // of the same number
	again.Next = time.Time{}
	got, err = s.Webhook(t.Context(), team.ID, w.ID)
	noError(t, err)
	same(t, "the cursor never goes back", got.Cursor, int64(3))
	same(t, "it fails no more", got.FailingSince.IsZero(), true)

	ds := func(list ...[]cay.WebhookAttempt) (out []cay.WebhookDelivery) {
		for _, attempts := range list {
			a := attempts[0]
			out = append(out, cay.WebhookDelivery{Event: a.Event, Type: a.Type, Sandbox: a.Sandbox, Attempts: attempts})
		}
		return out
	}
	d1, d2, d3 := []cay.WebhookAttempt{good}, []cay.WebhookAttempt{bad}, []cay.WebhookAttempt{again, second}
	yes, no := true, false
	for _, tt := range []struct {
		name string
		q    store.DeliveryQuery
		want []cay.WebhookDelivery
	}{
		{"all", store.DeliveryQuery{}, ds(d3, d2, d1)},
		{"oldest first", store.DeliveryQuery{Ascending: true}, ds(d1, d2, d3)},
		{"a page", store.DeliveryQuery{Limit: 1}, ds(d3)},
		{"the next page", store.DeliveryQuery{Limit: 1, After: &store.DeliveryCursor{At: again.At, Event: again.Event}}, ds(d2)},
		{"the next page upwards", store.DeliveryQuery{Ascending: true, After: &store.DeliveryCursor{At: good.At, Event: good.Event}}, ds(d2, d3)},
		{"failed", store.DeliveryQuery{Failed: &yes}, ds(d2)},
		{"not failed", store.DeliveryQuery{Failed: &no}, ds(d3, d1)},
		{"a while", store.DeliveryQuery{From: at(11), To: at(11)}, ds(d2)},
		{"one", store.DeliveryQuery{Event: good.Event}, ds(d1)},
		{"a type", store.DeliveryQuery{Types: []string{"x", "sandbox.killed"}}, ds(d3, d2, d1)},
		{"another type", store.DeliveryQuery{Types: []string{"x"}}, nil},
	} {
		tt.q.Webhook = w.ID
		if tt.q.Limit == 0 {
			tt.q.Limit = 9
		}
		list, err := s.Deliveries(t.Context(), tt.q)
		noError(t, err)
		same(t, tt.name, list, tt.want)
	}
	buckets, err := s.WebhookStats(t.Context(), w.ID, at(0), at(1000), 8*time.Millisecond)
	noError(t, err)
	total, failures := 0, 0
	for _, b := range buckets {
		total, failures = total+b.Total, failures+b.Failed
		if b.Least != good.Took || b.Most != good.Took || b.Sum != time.Duration(b.Total)*good.Took {
			t.Errorf("a bucket is %+v", b)
		}
	}
	same(t, "attempts", total, 4)
	same(t, "of them failed", failures, 2)
	if len(buckets) != 2 || !slices.IsSortedFunc(buckets, func(a, b cay.WebhookBucket) int { return a.At.Compare(b.At) }) {
		t.Errorf("buckets %+v", buckets)
	}

	wantKind(t, s.Redeliver(t.Context(), silent.ID, good.Event, at(50)), cay.NotFound)
	noError(t, s.Redeliver(t.Context(), w.ID, second.Event, at(50)))
	retries, err = s.Retries(t.Context(), w.ID, 9)
	noError(t, err)
	second.Next = at(50)
	same(t, "what is to be repeated, asked for", retries, []cay.WebhookAttempt{bad, second})

	n, err := s.PruneAttempts(t.Context(), at(12), 3)
	noError(t, err)
	same(t, "forgotten as there are too many", n, 1)
	n, err = s.PruneAttempts(t.Context(), at(16), 3)
	noError(t, err)
	same(t, "forgotten as it is old, but not what is to be repeated", n, 1)

	off := store.WebhookProgress{
		Webhook: w.ID, Cursor: 4, FailingSince: at(1), Disabled: cay.ReasonGone,
		Events: []cay.Event{{Team: team.ID, Type: cay.WebhookDisabled, At: at(60)}},
	}
	for range 2 { // the second one finds it so
		noError(t, s.RecordAttempts(t.Context(), nil, []store.WebhookProgress{off}))
	}
	got, err = s.Webhook(t.Context(), team.ID, w.ID)
	noError(t, err)
	w.Cursor, w.FailingSince, w.Enabled, w.Disabled, w.Version = 4, at(1), false, cay.ReasonGone, 2
	same(t, "one that the server turned off", got, w)
	noError(t, s.RecordAttempts(t.Context(), []cay.WebhookAttempt{failedAttempt(w, 9, 1, 70, 80)}, nil)) // that was under way
	retries, err = s.Retries(t.Context(), w.ID, 9)
	noError(t, err)
	same(t, "which repeats nothing", len(retries), 0)
	events, err := s.Events(t.Context(), store.EventQuery{Team: team.ID})
	noError(t, err)
	same(t, "it is told once", len(events), 1)
}

// testEventDetails reads back what events have for webhooks, and finds them by
// rules.
func testEventDetails(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 1)
	ran, network, failed := eventOf(b, 1, cay.SandboxRunning), eventOf(b, 2, cay.SandboxNetworkChanged), eventOf(b, 3, cay.SandboxPaused)
	ran.Instance, network.Outwards, failed.Reason = "n1", &cay.Outwards{Allow: []string{"a.b"}, Deny: []string{"*"}}, cay.ReasonFailed
	noError(t, s.AddEvents(t.Context(), ran, network, failed))
	ran.Seq, network.Seq, failed.Seq = 1, 2, 3
	rules := func(list ...store.EventRule) store.EventQuery { return store.EventQuery{Team: team.ID, Rules: list} }
	page := rules(store.EventRule{Type: cay.SandboxRunning}, store.EventRule{Type: cay.SandboxPaused})
	page.Limit, page.Offset = 1, 1
	for _, tt := range []struct {
		name string
		q    store.EventQuery
		want []cay.Event
	}{
		{"all", rules(), []cay.Event{ran, network, failed}},
		{"two types", rules(store.EventRule{Type: cay.SandboxRunning}, store.EventRule{Type: cay.SandboxPaused}), []cay.Event{ran, failed}},
		{"the second of two", page, []cay.Event{failed}},
		{"not with a reason", rules(store.EventRule{Type: cay.SandboxPaused, Not: cay.ReasonFailed}), nil},
		{"only with a reason", rules(store.EventRule{Type: cay.SandboxRunning, Only: cay.ReasonAsked}), []cay.Event{ran}},
	} {
		got, err := s.Events(t.Context(), tt.q)
		noError(t, err)
		same(t, tt.name, got, tt.want)
	}
	began, instance, err := s.RunOf(t.Context(), team.ID, b.ID, 3)
	noError(t, err)
	same(t, "its run began", began, at(1))
	same(t, "as", instance, ran.Instance)
	_, _, err = s.RunOf(t.Context(), team.ID, b.ID, 0)
	wantKind(t, err, cay.NotFound)
}
