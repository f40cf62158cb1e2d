package server_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Providers of models are a team's, are kept over a restart, and name secrets that
// there are.
func TestModelProviders(t *testing.T) {
	w := servertest.Start(t)
	api := w.Client()
	if err := api.PutSecret(t.Context(), "main-key", "sk-MARKED"); err != nil {
		t.Fatal(err)
	}
	if err := api.PutSecret(t.Context(), "main-key", "sk-MARKED-too"); err != nil {
		t.Fatal(err)
	}
	set := func(name string, p client.ModelProvider) client.ModelProvider {
		t.Helper()
		out, err := api.SetModelProvider(t.Context(), name, p)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	last := set("last", client.ModelProvider{Wire: "openai", URL: "https://b.example/v1", Order: 7})
	first := set("first", client.ModelProvider{Wire: "openai", URL: "https://a.example"})
	if first.Enabled == nil || !*first.Enabled || first.Secret != "" || first.CreatedAt.IsZero() {
		t.Errorf("made %+v", first)
	}
	off := false
	first = set("first", client.ModelProvider{
		Wire: "anthropic", URL: "https://a.example", Secret: "MAIN-key", Models: map[string]string{"m": "", "*": "n"}, Order: 2, Timeout: 30, Enabled: &off,
	})
	want := client.ModelProvider{
		Name: "first", Wire: "anthropic", URL: "https://a.example", Secret: "main-key", Models: map[string]string{"m": "", "*": "n"}, Order: 2, Timeout: 30, Enabled: &off,
	}
	if d := cmp.Diff(want, first, cmpopts.IgnoreFields(client.ModelProvider{}, "CreatedAt", "UpdatedAt")); d != "" {
		t.Errorf("replaced (-want +got):\n%s", d)
	}
	w.Stop()
	_, stranger := w.AddTeam("stranger")
	w.Start()
	api = w.Client()
	list, err := api.ModelProviders(t.Context())
	if d := cmp.Diff([]client.ModelProvider{first, last}, list); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	got, err := api.ModelProvider(t.Context(), "first")
	if d := cmp.Diff(first, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for name, p := range map[string]client.ModelProvider{
		"secret: there is no secret": {Wire: "openai", URL: "https://a.example", Secret: "none"},
		"url: 127.0.0.1 is on":       {Wire: "openai", URL: "http://127.0.0.1:11434/v1"},
		"url: ::1 is on":             {Wire: "openai", URL: "http://[::1]/v1"},
		"wire:":                      {Wire: "gemini", URL: "https://a.example"},
		"timeout:":                   {Wire: "openai", URL: "https://a.example", Timeout: -1},
	} {
		_, err := api.SetModelProvider(t.Context(), "bad", p)
		if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want %s", p, err, name)
		}
	}
	if _, err := w.ClientOf(stranger).ModelProvider(t.Context(), "first"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("another team: %v", err)
	}
	if err := api.RemoveModelProvider(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if err := api.RemoveModelProvider(t.Context(), "first"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("removed twice: %v", err)
	}
	w.Stop()
	changes := 0
	for _, r := range auditRows(t, w) {
		if r.Action == "model_provider.set" && r.Outcome == cay.OutcomeOK {
			changes++
			if r.Details["url"] == "" {
				t.Errorf("a row without its address: %+v", r)
			}
		}
		for _, v := range r.Details {
			if strings.Contains(v, "MARKED") {
				t.Errorf("a row has a secret: %+v", r)
			}
		}
	}
	if changes != 3 {
		t.Errorf("%d rows of changes", changes)
	}
}
