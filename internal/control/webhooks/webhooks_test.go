package webhooks_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/webhooks"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// world is a store with a team, and hooks over a transport of the test's.
type world struct {
	*testing.T
	path     string
	store    *store.DB
	team     cay.Team
	receiver *receiver
	hooks    *webhooks.Hooks
	ledger   *ledger.Ledger
	look     time.Duration // how often hooks look for events that are not told; zero as usual
}

// receiver answers requests, and remembers them.
type receiver struct {
	mu     sync.Mutex
	got    []request
	answer func(request) (*http.Response, error) // nil is 200
}

type request struct {
	*http.Request
	body string
	at   time.Time
}

func (r request) id() string { return r.Header.Get("webhook-id") }

// RoundTrip implements http.RoundTripper.
func (r *receiver) RoundTrip(in *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return nil, err
	}
	got := request{in, string(body), time.Now()}
	r.mu.Lock()
	r.got = append(r.got, got)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		return answer(got)
	}
	return status(200)(got)
}

func (r *receiver) set(answer func(request) (*http.Response, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// all returns what came so far, and forgets it.
func (r *receiver) all() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.got
	r.got = nil
	return out
}

func status(code int, header ...string) func(request) (*http.Response, error) {
	return func(request) (*http.Response, error) {
		resp := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("an answer"))}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp, nil
	}
}

// hang answers when the request is given up.
func hang(r request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOfDays(t, 0)
}

// newWorldOfDays is newWorld for tests in which days go by: hooks look at each webhook
// so seldom, which in these tests is most of the work.
func newWorldOfDays(t *testing.T, look time.Duration) *world {
	t.Helper()
	w := &world{T: t, path: filepath.Join(t.TempDir(), "cay.db"), receiver: &receiver{}, look: look}
	w.store = storetest.Open(t, w.path)
	w.team = cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := w.store.AddTeam(t.Context(), w.team); err != nil {
		t.Fatal(err)
	}
	w.hooks, w.ledger = w.open(w.store, w.receiver)
	return w
}

// open opens hooks over a store.
func (w *world) open(s store.Store, transport http.RoundTripper) (*webhooks.Hooks, *ledger.Ledger) {
	w.Helper()
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		w.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	l := ledger.New(ledger.Config{Store: s, Log: log})
	return webhooks.New(webhooks.Config{Ledger: l, Store: s, Sealer: key, Transport: transport, LookAgain: w.look, Log: log}), l
}

// run runs hooks until the test or the returned function ends them.
func (w *world) run(h *webhooks.Hooks) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { h.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	w.Cleanup(stop)
	return stop
}

func (w *world) who() cay.Caller { return cay.ForTeam(w.team.ID) }

func pointer[T any](v T) *T { return &v }

const secret = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHM="

// add adds a webhook.
func (w *world) add(url string, events ...string) cay.Webhook {
	w.Helper()
	hook, _, err := w.hooks.CreateWebhook(w.Context(), w.who(), webhooks.WebhookChange{
		Name: pointer("a"), URL: &url, Events: events, Secret: pointer(secret),
	})
	if err != nil {
		w.Fatal(err)
	}
	return hook
}

// tell records an event of a sandbox.
func (w *world) tell(sandbox string, what cay.EventType, reason string) {
	w.Helper()
	s := cay.Sandbox{ID: cay.SandboxID(sandbox), Team: w.team.ID}
	if err := w.ledger.Add(w.Context(), ledger.NewEvent(w.who(), s, what, reason)); err != nil {
		w.Fatal(err)
	}
}

// hook returns a webhook as it is recorded.
func (w *world) hook(id cay.WebhookID) cay.Webhook {
	w.Helper()
	hook, err := w.hooks.Webhook(w.Context(), w.who(), id)
	if err != nil {
		w.Fatal(err)
	}
	return hook
}

// deliveries returns what was sent, oldest first.
func (w *world) deliveries(id cay.WebhookID) []cay.WebhookDelivery {
	w.Helper()
	list, err := w.hooks.Deliveries(w.Context(), w.who(), webhooks.DeliveryQuery{Webhook: id, Ascending: true, Limit: 1000})
	if err != nil {
		w.Fatal(err)
	}
	return list
}

// An event is repeated at the times that are promised, under one id, and not
// after the last of them.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfDays(t, time.Hour)
		w.receiver.set(status(500))
		w.run(w.hooks)
		hook := w.add("https://a.example/", "*")
		w.tell("i1", cay.SandboxForked, cay.ReasonAsked)
		waits := []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		}
		time.Sleep(4*24*time.Hour + 20*time.Hour)
		synctest.Wait()
		got := w.receiver.all()
		if len(got) != len(waits)+1 {
			t.Fatalf("%d attempts", len(got))
		}
		for i, wait := range waits {
			if after := got[i+1].at.Sub(got[i].at); after < wait || after > wait+wait/10+time.Second {
				t.Errorf("attempt %d came after %s, not %s and a little", i+2, after, wait)
			}
			if got[i+1].id() != got[0].id() || got[i+1].body != got[0].body {
				t.Errorf("attempt %d is %s %s", i+2, got[i+1].id(), got[i+1].body)
			}
			if got[i+1].Header.Get("e2b-delivery-id") == got[i].Header.Get("e2b-delivery-id") {
				t.Error("two attempts have one id")
			}
		}
		list := w.deliveries(hook.ID)
		if len(list) != 1 || len(list[0].Attempts) != 10 || list[0].Event != got[0].id() {
			t.Fatalf("deliveries %+v", list)
		}
		for i, a := range list[0].Attempts {
			if a.Number != i+1 || a.Status != 500 || a.Class != cay.FailedHTTP || a.ResponseBody != "an answer" || !a.Next.IsZero() {
				t.Errorf("attempt %+v", a)
			}
		}
		if now := w.hook(hook.ID); !now.Enabled || now.FailingSince.IsZero() {
			t.Errorf("the webhook is %+v", now)
		}
	})
}

// Five days of failure turn a webhook off, and others are told.
func TestFiveDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfDays(t, time.Hour)
		w.receiver.set(func(r request) (*http.Response, error) {
			if r.Host == "bad.example" {
				return nil, errors.New("connection refused")
			}
			return status(204)(r)
		})
		w.run(w.hooks)
		bad := w.add("https://bad.example/", string(cay.SandboxForked))
		w.add("https://good.example/", string(cay.WebhookDisabled))
		for range 10 {
			if !w.hook(bad.ID).Enabled {
				t.Fatal("it was turned off before five days")
			}
			w.tell("i1", cay.SandboxForked, cay.ReasonAsked)
			time.Sleep(12 * time.Hour)
		}
		w.tell("i1", cay.SandboxForked, cay.ReasonAsked)
		time.Sleep(time.Minute)
		synctest.Wait()
		now := w.hook(bad.ID)
		if now.Enabled || now.Disabled != cay.ReasonFailing {
			t.Errorf("the webhook is %+v", now)
		}
		var told []string
		for _, r := range w.receiver.all() {
			if r.Host == "good.example" {
				told = append(told, r.body)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0], `"webhook":"`+string(bad.ID)) || !strings.Contains(told[0], `"reason":"failing"`) {
			t.Errorf("others were told %q", told)
		}
		time.Sleep(48 * time.Hour)
		w.tell("i1", cay.SandboxForked, cay.ReasonAsked)
		synctest.Wait()
		if got := w.receiver.all(); len(got) > 0 {
			t.Errorf("it is told %d events more", len(got))
		}
	})
}

// An address that is gone is told nothing more, until it is turned on again;
// then it is told what happens from then on.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.receiver.set(status(410))
		w.run(w.hooks)
		hook := w.add("https://a.example/", string(cay.SandboxForked))
		w.tell("i1", cay.SandboxForked, "one")
		synctest.Wait()
		if now := w.hook(hook.ID); now.Enabled || now.Disabled != cay.ReasonGone {
			t.Errorf("the webhook is %+v", now)
		}
		if err := w.hooks.Redeliver(t.Context(), w.who(), hook.ID, w.deliveries(hook.ID)[0].Event); cay.KindOf(err) != cay.Conflict {
			t.Errorf("redeliver to one that is off: %v", err)
		}
		w.tell("i1", cay.SandboxForked, "two")
		time.Sleep(time.Hour)
		synctest.Wait()
		w.receiver.set(status(200))
		if _, err := w.hooks.UpdateWebhook(t.Context(), w.who(), hook.ID, webhooks.WebhookChange{Enabled: pointer(true)}); err != nil {
			t.Fatal(err)
		}
		w.tell("i1", cay.SandboxForked, "three")
		synctest.Wait()
		got := w.receiver.all()
		if len(got) != 2 || !strings.Contains(got[1].body, "three") {
			t.Errorf("it was told %v", got)
		}
		if now := w.hook(hook.ID); !now.Enabled || now.Disabled != "" {
			t.Errorf("the webhook is %+v", now)
		}
	})
}

// A disabled team's webhooks are told nothing, retries included, also by the next
// server. Enabled, they go on from where they stopped, in order; one that failed
// before is not turned off for the days in which it was not tried.
func TestADisabledTeamsWebhooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfDays(t, time.Hour)
		stop := w.run(w.hooks)
		hook := w.add("https://a.example/", string(cay.SandboxForked))
		disable := func(at time.Time) {
			t.Helper()
			w.team.DisabledAt = at
			if err := w.store.UpdateTeam(t.Context(), w.team); err != nil {
				t.Fatal(err)
			}
			w.hooks.TeamChanged(w.team.ID)
			synctest.Wait()
		}
		w.receiver.set(status(500))
		w.tell("i1", cay.SandboxForked, "one")
		synctest.Wait()
		disable(time.Now())
		w.tell("i2", cay.SandboxForked, "two")
		time.Sleep(24 * time.Hour)
		if got := w.receiver.all(); len(got) != 1 {
			t.Errorf("%d attempts, not the one from before", len(got))
		}
		stop()
		w.hooks, w.ledger = w.open(w.store, w.receiver)
		w.run(w.hooks)
		w.tell("i2", cay.SandboxForked, "three")
		time.Sleep(5 * 24 * time.Hour)
		if got := w.receiver.all(); len(got) != 0 {
			t.Errorf("the next server makes %d attempts", len(got))
		}
		disable(time.Time{})
		if got := w.receiver.all(); len(got) == 0 || !w.hook(hook.ID).Enabled {
			t.Errorf("enabled, there are %d attempts: %+v", len(got), w.hook(hook.ID))
		}
		w.receiver.set(status(200))
		time.Sleep(time.Hour)
		var told []string
		for _, r := range w.receiver.all() {
			for _, reason := range []string{"one", "two", "three"} {
				if strings.Contains(r.body, `"`+reason+`"`) {
					told = append(told, reason)
				}
			}
		}
		slices.Sort(told)
		if !slices.Equal(told, []string{"one", "three", "two"}) {
			t.Errorf("it was told %v", told)
		}
		w.tell("i1", cay.SandboxForked, "four")
		synctest.Wait()
		if got := w.receiver.all(); len(got) != 1 || !strings.Contains(got[0].body, "four") {
			t.Errorf("then it is told %v", got)
		}
	})
}

// The wait that an answer asks for is kept, up to a day.
func TestRetryAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		header      string
		least, most time.Duration
	}{
		"seconds":  {"3600", time.Hour, time.Hour + time.Minute},
		"too long": {"99999999", 24 * time.Hour, 24*time.Hour + time.Minute},
		"less":     {"1", 5 * time.Second, 7 * time.Second},
		"a date":   {"Sat, 01 Jan 2000 02:00:00 GMT", 90 * time.Minute, 2 * time.Hour},
		"nonsense": {"-1", 5 * time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldOfDays(t, time.Hour)
				w.receiver.set(status(503, "Retry-After", tt.header))
				w.run(w.hooks)
				w.add("https://a.example/", "*")
				w.tell("i1", cay.SandboxForked, "one")
				time.Sleep(tt.most)
				synctest.Wait()
				got := w.receiver.all()
				if len(got) < 2 {
					t.Fatalf("%d attempts", len(got))
				}
				if after := got[1].at.Sub(got[0].at); after < tt.least || after > tt.most {
					t.Errorf("the second came after %s", after)
				}
			})
		})
	}
}

// Of one sandbox's events no two are under way at once, and those of many are,
// up to the bound.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		busy, most := map[string]int{}, 0
		w.receiver.set(func(r request) (*http.Response, error) {
			key := r.body[strings.Index(r.body, "sandboxID"):][:16]
			mu.Lock()
			if busy[key]++; busy[key] > 1 {
				t.Errorf("two of %s at once", key)
			}
			sum := 0
			for _, n := range busy {
				sum += n
			}
			most = max(most, sum)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			busy[key]--
			mu.Unlock()
			return status(200)(r)
		})
		w.run(w.hooks)
		w.add("https://a.example/", "*")
		const each = 6
		for i := range each {
			for _, sandbox := range []string{"ia", "ib", "ic", "id", "ie", "if", "ig", "ih", "ii", "ij"} {
				w.tell(sandbox, cay.SandboxForked, fmt.Sprintf("step%d", i))
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		got := w.receiver.all()
		steps := map[string]string{}
		for _, r := range got {
			key := r.body[strings.Index(r.body, "sandboxID"):][:16]
			step := r.body[strings.Index(r.body, "step"):][:5]
			if step <= steps[key] {
				t.Errorf("%s of %s came after %s", step, key, steps[key])
			}
			steps[key] = step
		}
		if len(got) != 10*each || most != 8 {
			t.Errorf("%d requests, at most %d at once", len(got), most)
		}
	})
}

// A server that is killed with attempts under way: the next one repeats those
// and no others, and goes on.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		held := make(chan struct{})
		w.receiver.set(func(r request) (*http.Response, error) {
			if strings.Contains(r.body, "held") {
				<-held // for as long as the server that asks is there
			}
			return status(200)(r)
		})
		w.run(w.hooks)
		hook := w.add("https://a.example/", "*")
		for i, reason := range []string{"one", "held2", "three", "held4", "five"} {
			w.tell(fmt.Sprintf("i%d", i), cay.SandboxForked, reason)
		}
		synctest.Wait()
		if got := w.receiver.all(); len(got) != 5 {
			t.Fatalf("%d requests", len(got))
		}
		// The first server is as good as killed: it does nothing more until the end.
		again := storetest.Open(t, w.path)
		after := &receiver{}
		hooks, l := w.open(again, after)
		stop := w.run(hooks)
		synctest.Wait()
		reasons := func() (out []string) {
			for _, r := range after.all() {
				_, rest, _ := strings.Cut(r.body, `"reason":"`)
				reason, _, _ := strings.Cut(rest, `"`)
				out = append(out, reason)
			}
			slices.Sort(out)
			return out
		}
		if got := reasons(); !slices.Equal(got, []string{"held2", "held4"}) {
			t.Errorf("the next server sent %v", got)
		}
		w.ledger = l
		w.tell("i9", cay.SandboxForked, "six")
		synctest.Wait()
		if got := reasons(); !slices.Equal(got, []string{"six"}) {
			t.Errorf("it goes on with %v", got)
		}
		stop()
		// And one that ended in order repeats nothing.
		third, _ := w.open(again, after)
		w.run(third)
		synctest.Wait()
		if got := reasons(); len(got) > 0 {
			t.Errorf("the third server sent %v", got)
		}
		if n := len(w.deliveries(hook.ID)); n != 6 {
			t.Errorf("%d deliveries", n)
		}
		close(held)
	})
}

// A server that ends gives attempts a moment, and then records that it gave
// them up. The next one makes them again.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.receiver.set(hang)
		stop := w.run(w.hooks)
		hook := w.add("https://a.example/", "*")
		w.tell("i1", cay.SandboxForked, "one")
		synctest.Wait()
		from := time.Now()
		stop()
		if took := time.Since(from); took > 3*time.Second {
			t.Errorf("the end took %s", took)
		}
		list := w.deliveries(hook.ID)
		if len(list) != 1 || len(list[0].Attempts) != 1 || list[0].Attempts[0].Class != cay.FailedCanceled {
			t.Fatalf("deliveries %+v", list)
		}
		if now := w.hook(hook.ID); !now.FailingSince.IsZero() {
			t.Error("that it was given up counts as a failure")
		}
		w.receiver.all()
		w.receiver.set(nil)
		next, _ := w.open(w.store, w.receiver)
		w.run(next)
		synctest.Wait()
		if got := w.receiver.all(); len(got) != 1 || got[0].id() != list[0].Event {
			t.Errorf("the next server sent %v", got)
		}
	})
}

// Dead addresses, many of them, take nothing from one that answers.
func TestDeadAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.receiver.set(func(r request) (*http.Response, error) {
			if r.Host == "dead.example" {
				return hang(r)
			}
			return status(200)(r)
		})
		w.run(w.hooks)
		for range 40 {
			w.add("https://dead.example/", string(cay.SandboxForked))
		}
		w.add("https://alive.example/", string(cay.SandboxForked))
		for range 9 { // enough for each of them to have failed
			w.tell("i1", cay.SandboxForked, "before")
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		w.receiver.all()
		const events = 50
		from := time.Now()
		for i := range events {
			w.tell(fmt.Sprintf("i%d", i), cay.SandboxForked, "now")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		n := 0
		for _, r := range w.receiver.all() {
			if r.Host == "alive.example" && strings.Contains(r.body, `"now"`) {
				n++
				if late := r.at.Sub(from); late > time.Second {
					t.Errorf("one came %s late", late)
				}
			}
		}
		if n != events {
			t.Errorf("%d of %d came", n, events)
		}
	})
}

// Tests of a team's webhooks that hang keep no place from another team's.
func TestTestsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := cay.Team{ID: cay.NewTeamID(), Name: "b", CreatedAt: time.Now()}
		if err := w.store.AddTeam(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		w.receiver.set(hang)
		mine := w.add("https://dead.example/", "*")
		theirs, _, err := w.hooks.CreateWebhook(t.Context(), cay.ForTeam(other.ID), webhooks.WebhookChange{
			Name: pointer("b"), URL: pointer("https://dead.example/"), Events: []string{"*"}, Secret: pointer(secret),
		})
		if err != nil {
			t.Fatal(err)
		}
		var tests sync.WaitGroup
		var refused atomic.Int32
		for range 50 {
			tests.Go(func() {
				if _, err := w.hooks.TestWebhook(t.Context(), w.who(), mine.ID); cay.CodeOf(err) == cay.CodeRateLimit {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := refused.Load(); n != 48 {
			t.Errorf("%d of 50 tests at once are refused", n)
		}
		from := time.Now()
		if _, err := w.hooks.TestWebhook(t.Context(), cay.ForTeam(other.ID), theirs.ID); err != nil || time.Since(from) > 16*time.Second {
			t.Errorf("another team's test took %s: %v", time.Since(from), err)
		}
		tests.Wait()
		if _, err := w.hooks.TestWebhook(t.Context(), w.who(), mine.ID); err != nil {
			t.Errorf("after they were over: %v", err)
		}
	})
}
