package rest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/edge/rest"
)

// limited gives a world a face with limits that the test changes, which is called
// without a network: its time may be a test's.
func (w *world) limited() cay.TeamLimits {
	limits := cay.TeamLimits{}
	w.direct = rest.New(rest.Config{
		Fleet: w.control.Catalogue, Sandboxes: w.control.Controller, Builds: w.control.Queue, Auth: auth.New(w.store),
		Rates: rates.New(func(team cay.TeamID) cay.TeamLimits {
			if team == w.team.ID {
				return limits
			}
			return nil
		}),
	})
	return limits
}

// TestEveryOperationHasAClass holds the classes to both contracts: those that
// start sandboxes are creates, those that only read are reads, and an exception
// is an operation that there is.
func TestEveryOperationHasAClass(t *testing.T) {
	creates := []string{"createSandbox", "createSandboxV2", "resumeSandbox", "forkSandbox", "forkCheckpoint"}
	seen := map[string]bool{}
	for _, name := range []string{"e2b.yaml", "cay.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../api/openapi", name))
		if err != nil {
			t.Fatal(err)
		}
		var spec struct {
			Paths map[string]map[string]yaml.Node
		}
		if err := yaml.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		for path, methods := range spec.Paths {
			for method, node := range methods {
				var op struct {
					ID string `yaml:"operationId"`
				}
				if method == "parameters" || node.Decode(&op) != nil {
					continue
				}
				method = strings.ToUpper(method)
				seen[method+" "+path] = true
				want := rates.Write
				switch {
				case op.ID == "getHealth":
					want = rates.Free
				case slices.Contains(creates, op.ID):
					want = rates.Create
				case method == http.MethodGet || method == http.MethodHead:
					want = rates.Read
				}
				if got := rest.ClassOf(method, path); got != want {
					t.Errorf("%s has the class %s, want %s", op.ID, got, want)
				}
			}
		}
	}
	if len(seen) < 80 {
		t.Errorf("only %d operations were found", len(seen))
	}
	for _, exception := range rest.Exceptions() {
		if !seen[exception] {
			t.Errorf("%s has a class, and is in no contract", exception)
		}
	}
}

// Each class has a bucket of its own, and says in headers what is in it.
func TestRates(t *testing.T) { synctest.Test(t, testRates) }

func testRates(t *testing.T) {
	w := unserved(t, "")
	limits := w.limited()
	none := w.call("GET", "/v2/sandboxes", "")
	for name := range none.header {
		if strings.HasPrefix(strings.ToLower(name), "ratelimit") {
			t.Errorf("without a limit there is %s", name)
		}
	}
	limits[cay.LimitReads], limits[cay.LimitReadBurst] = 1, 3
	limits[cay.LimitCreates] = 2
	for left := 2; left >= 0; left-- {
		r := w.call("GET", "/v2/sandboxes", "")
		want[[]object](t, r, 200)
		wantRate(t, r, 3, left)
	}
	r := w.call("GET", "/teams", "")
	wantRate(t, r, 3, 0)
	wantRetry(t, r, http.StatusTooManyRequests, cay.Retry{May: true, After: time.Second})
	if reset := r.header.Get("RateLimit-Reset"); reset != "3" {
		t.Errorf("the bucket is full after %s s", reset)
	}
	if body := want[object](t, r, 429); body["message"] != "Rate limit exceeded" || body["error_code"] != cay.CodeRateLimit || body["code"] != 429.0 {
		t.Errorf("refused with %s", r.text)
	}
	for range 5 { // no write has a limit
		if r := w.call("POST", "/sandboxes/inone/timeout", `{"timeout":5}`); r.status != 404 {
			t.Errorf("a write: %d %s", r.status, r.text)
		}
	}
	if r := w.callAs(w.other, "GET", "/v2/sandboxes", ""); r.status != 200 {
		t.Errorf("another team: %d %s", r.status, r.text)
	}
	if r := w.callAs("", "GET", "/health", ""); r.status != 204 {
		t.Errorf("health: %d %s", r.status, r.text)
	}
	if r := w.call("GET", "/none", ""); r.status != 404 {
		t.Errorf("no route: %d %s", r.status, r.text)
	}
	limits[cay.LimitReads] = 1000 // counts at once
	if r := w.call("GET", "/v2/sandboxes", ""); r.status != 200 {
		t.Errorf("after it was raised: %d %s", r.status, r.text)
	}
	box := want[object](t, w.call("POST", "/sandboxes", `{"templateID":"base"}`), 201)["sandboxID"].(string)
	wantRate(t, w.call("POST", "/v2/sandboxes", `{"templateID":"none"}`), 2, 0) // a refused one counts too
	wantRetry(t, w.call("POST", "/sandboxes/"+box+"/fork", `{}`), 429, cay.Retry{May: true, After: time.Second})
	if r := w.call("POST", "/sandboxes/"+box+"/connect", `{"timeout":60}`); r.status != 200 {
		t.Errorf("connect to one that runs: %d %s", r.status, r.text)
	}
	if r := w.call("POST", "/sandboxes/"+box+"/pause", ""); r.status != 204 {
		t.Fatalf("pause: %d %s", r.status, r.text)
	}
	for _, path := range []string{"/sandboxes/" + box + "/connect", "/v2/sandboxes/" + box + "/connect"} {
		wantRetry(t, w.call("POST", path, `{"timeout":60}`), 429, cay.Retry{May: true, After: time.Second})
	}
	delete(limits, cay.LimitCreates)
	if r := w.call("POST", "/sandboxes/"+box+"/connect", `{"timeout":60}`); r.status != 201 {
		t.Errorf("connect: %d %s", r.status, r.text)
	}
}

// A fork of many counts as many: the next create waits for them.
func TestForksCount(t *testing.T) { synctest.Test(t, testForksCount) }

func testForksCount(t *testing.T) {
	w := unserved(t, "")
	limits := w.limited()
	box := want[object](t, w.call("POST", "/sandboxes", `{"templateID":"base"}`), 201)["sandboxID"].(string)
	limits[cay.LimitCreates], limits[cay.LimitCreateBurst] = 1, 5
	if r := w.call("POST", "/sandboxes/"+box+"/fork", `{"count":8}`); r.status != 201 {
		t.Fatalf("fork: %d %s", r.status, r.text)
	}
	r := w.call("POST", "/sandboxes", `{"templateID":"base"}`)
	wantRetry(t, r, 429, cay.Retry{May: true, After: 2 * time.Second}) // the bucket is one short
	time.Sleep(2 * time.Second)
	if r := w.call("POST", "/sandboxes", `{"templateID":"base"}`); r.status != 201 {
		t.Errorf("after the wait: %d %s", r.status, r.text)
	}
}

func wantRate(t *testing.T, r reply, burst, left int) {
	t.Helper()
	h := r.header
	reset, err := strconv.Atoi(h.Get("RateLimit-Reset"))
	if h.Get("RateLimit-Limit") != fmt.Sprint(burst) || h.Get("RateLimit-Remaining") != fmt.Sprint(left) || err != nil || reset < 1 || reset > burst {
		t.Errorf("%d: limit %q, remaining %q, reset %q, want %d, %d", r.status,
			h.Get("RateLimit-Limit"), h.Get("RateLimit-Remaining"), h.Get("RateLimit-Reset"), burst, left)
	}
}

// BenchmarkRead is a request that only reads, without a limit and with one.
func BenchmarkRead(b *testing.B) {
	for _, limit := range []int64{0, 1e9} {
		b.Run(fmt.Sprint("limit ", limit), func(b *testing.B) {
			w := newWorld(b, "")
			handler := rest.New(rest.Config{
				Fleet: w.control.Catalogue, Sandboxes: w.control.Controller, Builds: w.control.Queue, Auth: auth.New(w.store),
				Rates: rates.New(func(cay.TeamID) cay.TeamLimits { return cay.TeamLimits{cay.LimitReads: limit} }),
			})
			for b.Loop() {
				r := httptest.NewRequest("GET", "/sandboxes/inone", nil)
				r.Header.Set("X-API-Key", w.key)
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
