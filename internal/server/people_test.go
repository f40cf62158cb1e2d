package server_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// held opens a stream of events, which goes on until its credential ends, and
// returns its end.
func held(t *testing.T, w *servertest.World, header map[string]string) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", w.URL()+"/cay/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a stream: %v, %v", resp, err)
	}
	ended := make(chan error, 1)
	go func() {
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		ended <- ctx.Err() // set when the stream outlived the test's patience
	}()
	return ended
}

// A disabled person's tokens open nothing, nor do the keys that the person made
// and those that were made with these; what they hold open ends. Keys of others
// go on. Enabled, all of them open what they did.
func TestADisabledPerson(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	ann, err := w.Admin("default").AddMember(ctx, "ann@example.com", "", "admin")
	if err != nil {
		t.Fatal(err)
	}
	token, err := w.Admin("").CreateTokenFor(ctx, ann.ID, "laptop")
	if err != nil {
		t.Fatal(err)
	}
	as := map[string]string{"Authorization": "Bearer " + token.Token, "X-Team-ID": "default"}
	code, text := send(t, w, as, "POST", "/cay/v1/api-keys", `{"name":"anns"}`)
	_, rest, _ := strings.Cut(text, `"key":"`)
	anns, _, _ := strings.Cut(rest, `"`)
	if code != http.StatusCreated || anns == "" {
		t.Fatalf("her key: %d %s", code, text)
	}
	second, err := w.ClientOf(anns).CreateAPIKey(ctx, client.NewAPIKey{Name: "made with hers"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "another's"})
	if err != nil {
		t.Fatal(err)
	}
	opens := func(want int) {
		t.Helper()
		for what, header := range map[string]map[string]string{
			"the token": as, "the key": {"X-API-Key": anns}, "the key of the key": {"X-API-Key": second.Key},
		} {
			code, text := send(t, w, header, "GET", "/v2/sandboxes", "")
			if code != want || want == http.StatusForbidden && !strings.Contains(text, cay.CodeDisabled) {
				t.Errorf("%s: %d %s", what, code, text)
			}
		}
		if code, text := call(t, w, other.Key, "GET", "/v2/sandboxes", ""); code != http.StatusOK {
			t.Errorf("another's key: %d %s", code, text)
		}
	}
	opens(http.StatusOK)
	streams := []<-chan error{held(t, w, as), held(t, w, map[string]string{"X-API-Key": anns}), held(t, w, map[string]string{"X-API-Key": second.Key})}
	theirs := held(t, w, map[string]string{"X-API-Key": other.Key})
	p, err := w.Admin("").DisablePerson(ctx, ann.ID, false)
	if err != nil || !p.Disabled {
		t.Fatalf("%+v, %v", p, err)
	}
	for i, ended := range streams {
		if err := <-ended; err != nil {
			t.Errorf("stream %d goes on: %v", i, err)
		}
	}
	select {
	case <-theirs:
		t.Error("another's stream ended")
	default:
	}
	opens(http.StatusForbidden)
	w.Stop()
	w.Start()
	opens(http.StatusForbidden)
	if p, err = w.Admin("").DisablePerson(ctx, ann.ID, true); err != nil || p.Disabled {
		t.Fatalf("%+v, %v", p, err)
	}
	opens(http.StatusOK)
	if code, text := call(t, w, w.Key, "PATCH", "/cay/v1/admin/people/"+ann.ID, `{"disabled":true}`); code != http.StatusForbidden {
		t.Errorf("by a team's key: %d %s", code, text)
	}
	token2, err := w.Operator().AdminToken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, text = send(t, w, map[string]string{"X-Admin-Token": token2}, "GET", "/cay/v1/admin/audit", "")
	for _, action := range []string{"person.disabled", "person.enabled", "access_token.created"} {
		if n := strings.Count(text, `"action":"`+action+`"`); n != 1 {
			t.Errorf("the audit log has %d rows of %s: %s", n, action, text)
		}
	}
}

// A key with a budget makes no key that would escape it.
func TestAKeyWithABudgetMakesNoKeys(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	kept, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().AddBudget(ctx, client.NewBudget{Key: kept.ID, Meter: "creates", Limit: "5", Period: "day"}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api-keys", "/cay/v1/api-keys"} {
		if code, text := call(t, w, kept.Key, "POST", path, `{"name":"free"}`); code != http.StatusForbidden || !strings.Contains(text, cay.CodeBounds) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if _, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "another"}); err != nil {
		t.Errorf("a key without a budget: %v", err)
	}
}

// An Idempotency-Key does not lead a key around its bounds, to the sandbox that
// another key made with it.
func TestIdempotencyKeysStayInBounds(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	key := func(template, app string) string {
		k, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: template + app, Templates: []string{template}, Metadata: map[string]string{"app": app}})
		if err != nil {
			t.Fatal(err)
		}
		return k.Key
	}
	create := func(key string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, "POST", w.URL()+"/sandboxes", strings.NewReader(`{"templateID":"base"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", key)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "once")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	first, text := create(w.Key)
	if first != http.StatusCreated {
		t.Fatalf("%d %s", first, text)
	}
	for what, k := range map[string]string{"kept to another template": key("code-interpreter-python", "x"), "with metadata of its own": key("base", "y")} {
		if code, text := create(k); code != http.StatusUnprocessableEntity || !strings.Contains(text, cay.CodeKeyMismatch) {
			t.Errorf("a key %s: %d %s", what, code, text)
		}
	}
	again, same := create(w.Key)
	if field := func(s string) string {
		_, s, _ = strings.Cut(s, `"sandboxID":"`)
		s, _, _ = strings.Cut(s, `"`)
		return s
	}; again != http.StatusCreated || field(same) != field(text) {
		t.Errorf("the key that made it: %d %s, before %s", again, same, text)
	}
}
