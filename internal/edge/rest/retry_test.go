package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rest"
)

// TestRefusalsSayWhetherToRetry answers with an error of each kind and each
// code, and compares the headers with the catalogue.
func TestRefusalsSayWhetherToRetry(t *testing.T) {
	check := func(err *cay.Error, status int, retry cay.Retry) {
		t.Helper()
		handler := rest.New(rest.Config{Explain: func(error) error { return fmt.Errorf("around: %w", err) }})
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/no/such/route", nil))
		wantRetry(t, reply{w.Code, w.Header(), w.Body.String()}, status, retry)
		if got := want[object](t, reply{w.Code, w.Header(), w.Body.String()}, status)["error_code"]; err.Code != "" && got != err.Code {
			t.Errorf("error_code %v, want %s", got, err.Code)
		}
	}
	statuses := map[cay.Kind]int{}
	for _, k := range cay.Kinds() {
		statuses[k.Kind] = k.Status
		check(cay.Errorf(k.Kind, "no"), k.Status, k.Retry)
	}
	for _, c := range cay.Codes() {
		status := statuses[c.Kind]
		if c.Status != 0 {
			status = c.Status
		}
		check(cay.Errorf(c.Kind, "no").WithCode(c.Code), status, c.Retry)
	}
}

func wantRetry(t testing.TB, r reply, status int, retry cay.Retry) {
	t.Helper()
	wantError(t, r, status, "")
	after := ""
	if retry.May {
		after = strconv.Itoa(int(retry.After / time.Second))
	}
	if got := r.header.Get("Should-Retry"); got != strconv.FormatBool(retry.May) || r.header.Get("Retry-After") != after {
		t.Errorf("%d %s: Should-Retry %q, Retry-After %q, want %+v", r.status, r.text, got, r.header.Get("Retry-After"), retry)
	}
}

// TestEveryRefusalSaysIt has refusals that no part behind the REST face makes.
func TestEveryRefusalSaysIt(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	for _, tt := range []struct {
		name   string
		r      reply
		status int
	}{
		{"no route", w.call("GET", "/none", ""), 404},
		{"no method", w.call("DELETE", "/v2/sandboxes", ""), 405},
		{"no key", w.callAs("", "GET", "/v2/sandboxes", ""), 401},
		{"no JSON", w.call("POST", "/v2/sandboxes", "{"), 400},
		{"a body too large", w.call("POST", "/v2/sandboxes", `{"templateID":"`+strings.Repeat("x", 2<<20)+`"}`), 413},
		{"no number", w.call("GET", "/v2/sandboxes?limit=x", ""), 400},
		{"a missing parameter", w.call("GET", "/sandboxes/metrics", ""), 400},
		{"of Cay's own, no number", w.call("GET", "/cay/v1/events?limit=x", ""), 400},
		{"no sandbox", w.call("GET", "/sandboxes/inone", ""), 404},
		{"the wrong state", w.call("POST", "/sandboxes/"+id+"/resume", ""), 409},
		{"not offered", w.call("GET", "/volumes", ""), 501},
	} {
		t.Run(tt.name, func(t *testing.T) { wantRetry(t, tt.r, tt.status, cay.Retry{}) })
	}
}

func TestPanicSaysIt(t *testing.T) {
	w := newWorld(t, "")
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { panic("a bug") }
	r := w.call("POST", "/v2/sandboxes", `{"templateID":"base"}`)
	wantRetry(t, r, http.StatusInternalServerError, cay.Retry{})
	if want[object](t, r, 500)["error_code"] != cay.CodeInternal {
		t.Errorf("a panic answers %s", r.text)
	}
}
