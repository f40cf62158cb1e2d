package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// inbox is a receiver of webhooks.
type inbox struct {
	*httptest.Server
	got    chan received
	status chan int // of answers to come; 200 when there is none
}

type received struct {
	header http.Header
	body   string
}

func openInbox(t *testing.T) *inbox {
	in := &inbox{got: make(chan received, 100), status: make(chan int, 100)}
	in.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case code := <-in.status:
			w.WriteHeader(code)
		default:
		}
		in.got <- received{r.Header, string(body)}
	}))
	t.Cleanup(in.Close)
	return in
}

func (in *inbox) next(t *testing.T) (r received, body map[string]any) {
	t.Helper()
	select {
	case r = <-in.got:
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
	}
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return r, body
}

// fetch asks for JSON.
func fetch(t *testing.T, w *servertest.World, path string, out any) {
	t.Helper()
	code, text := call(t, w, w.Key, http.MethodGet, path, "")
	if code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, code, text)
	}
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatalf("%s: %s", path, text)
	}
}

// recorded waits until a webhook has that many attempts on record.
func recorded(t *testing.T, w *servertest.World, id string, attempts int) (out struct {
	Data []struct {
		EventID, EventType, SandboxID string
		Attempts                      []map[string]any
	}
	NextCursor *string
}) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		fetch(t, w, "/events/webhooks/"+id+"/deliveries?orderAsc=true", &out)
		n := 0
		for _, d := range out.Data {
			n += len(d.Attempts)
		}
		if n >= attempts {
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts are recorded, not %d", n, attempts)
		}
	}
}

// keys are the names of an object's fields, sorted.
func keys(o map[string]any) string {
	var out []string
	for name := range o {
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// A sandbox's life as E2B's API tells it, and webhooks: with a server that ends
// in between.
func TestWebhooks(t *testing.T) {
	in := openInbox(t)
	w := servertest.New(t)
	w.Config.WebhookOpen = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	w.Start()
	code, text := call(t, w, w.Key, "POST", "/events/webhooks", fmt.Sprintf(
		`{"name":"mine","url":%q,"events":["sandbox.lifecycle.created","sandbox.lifecycle.killed"],"signatureSecret":"an old secret","enabled":true}`, in.URL))
	var hook map[string]any
	if err := json.Unmarshal([]byte(text), &hook); code != http.StatusCreated || err != nil ||
		keys(hook) != "createdAt enabled events id name teamId url" {
		t.Fatalf("created: %d %s", code, text)
	}
	id := hook["id"].(string)
	var one map[string]any
	fetch(t, w, "/events/webhooks/"+id, &one)
	if fmt.Sprint(one) != fmt.Sprint(hook) {
		t.Errorf("it is %v, was made as %v", one, hook)
	}

	first, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour, Metadata: map[string]string{"user": "ann"}})
	if err != nil {
		t.Fatal(err)
	}
	r, created := in.next(t)
	if created["type"] != "sandbox.lifecycle.created" || created["sandboxId"] != first.ID ||
		keys(created) != "eventData id sandboxBuildId sandboxExecutionId sandboxId sandboxTeamId sandboxTemplateId timestamp type version" {
		t.Errorf("told %s", r.body)
	}
	if r.header.Get("e2b-webhook-id") != id || r.header.Get("webhook-id") != created["id"] || r.header.Get("content-type") != "application/json" {
		t.Errorf("headers %v", r.header)
	}
	done := recorded(t, w, id, 1)
	if a := done.Data[0].Attempts[0]; a["id"] != r.header.Get("e2b-delivery-id") || a["status"] != "success" || a["requestBody"] != r.body ||
		keys(a) != "durationMs errorClass errorMessage eventId eventType id requestBody requestHeaders requestUrl responseBody responseHeaders responseHttpStatusCode sandboxId status teamId timestamp webhookId" {
		t.Errorf("recorded %v", a)
	}

	// The second one's attempt fails; the server ends and comes back before the retry.
	in.status <- 500
	if err := first.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, killed := in.next(t)
	done = recorded(t, w, id, 2)
	if a := done.Data[1].Attempts[0]; a["status"] != "failed" || a["errorClass"] != "http_error" || a["nextAttemptAt"] == nil {
		t.Errorf("recorded %v", a)
	}
	w.Stop()
	w.Start()
	_, again := in.next(t)
	if again["id"] != killed["id"] || again["type"] != "sandbox.lifecycle.killed" {
		t.Errorf("after %v came %v", killed, again)
	}
	if data := again["eventData"].(map[string]any); data["kill_reason"] != "request" || data["execution"] == nil {
		t.Errorf("killed with %v", data)
	}
	done = recorded(t, w, id, 3)
	if n := len(done.Data[1].Attempts); n != 2 {
		t.Errorf("%d attempts", n)
	}

	var list []map[string]any
	fetch(t, w, "/events/sandboxes?types=sandbox.lifecycle.created,sandbox.lifecycle.killed", &list)
	if len(list) != 2 || fmt.Sprint(list[0]) != fmt.Sprint(again) || fmt.Sprint(list[1]) != fmt.Sprint(created) {
		t.Errorf("listed %v", list)
	}
	fetch(t, w, "/events/sandboxes/"+first.ID+"?orderAsc=true&offset=1&limit=1", &list)
	if len(list) != 1 || list[0]["type"] != "sandbox.lifecycle.killed" {
		t.Errorf("the second is %v", list)
	}
	var page struct {
		Data       []struct{ EventID string }
		NextCursor *string
	}
	fetch(t, w, "/events/webhooks/"+id+"/deliveries?limit=1", &page)
	if len(page.Data) != 1 || page.Data[0].EventID != killed["id"] || page.NextCursor == nil {
		t.Fatalf("the first page is %+v", page)
	}
	fetch(t, w, "/events/webhooks/"+id+"/deliveries?limit=1&cursor="+*page.NextCursor, &page)
	if len(page.Data) != 1 || page.Data[0].EventID != created["id"] || page.NextCursor != nil {
		t.Errorf("the next page is %+v", page)
	}
	fetch(t, w, "/events/webhooks/"+id+"/deliveries?deliveryStatus=failed", &page)
	if len(page.Data) != 0 {
		t.Errorf("what failed is %+v", page)
	}
	var stats struct {
		Buckets       []map[string]any
		Total, Failed int
		DurationMs    map[string]any
	}
	fetch(t, w, "/events/webhooks/"+id+"/stats", &stats)
	if stats.Total != 3 || stats.Failed != 1 || len(stats.Buckets) == 0 || keys(stats.Buckets[0]) != "durationMs failed timestamp total" || keys(stats.DurationMs) != "average maximum minimum" {
		t.Errorf("stats %+v", stats)
	}

	c := w.Client()
	if err := c.RedeliverWebhook(t.Context(), id, created["id"].(string)); err != nil {
		t.Fatal(err)
	}
	if r2, body := in.next(t); body["id"] != created["id"] || r2.body != r.body || r2.header.Get("e2b-delivery-id") == r.header.Get("e2b-delivery-id") {
		t.Errorf("redelivered %s", r2.body)
	}
	tried, err := c.TestWebhook(t.Context(), id)
	if _, body := in.next(t); err != nil || !tried.Success || tried.StatusCode != 200 || body["type"] != "webhook.test" {
		t.Errorf("tested: %+v %v %v", tried, body, err)
	}
	secret, err := c.RotateWebhook(t.Context(), id, "")
	if err != nil || !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("rotated: %q %v", secret, err)
	}
	off := false
	if changed, err := c.UpdateWebhook(t.Context(), id, client.WebhookOptions{Enabled: &off, Events: []string{"*"}}); err != nil || changed.Enabled || changed.Events[0] != "*" {
		t.Errorf("changed: %+v %v", changed, err)
	}
	if code, text := call(t, w, w.Key, "DELETE", "/events/webhooks/"+id, ""); code != http.StatusOK {
		t.Errorf("removed: %d %s", code, text)
	}
	if code, _ := call(t, w, w.Key, "GET", "/events/webhooks/"+id, ""); code != http.StatusNotFound {
		t.Errorf("a removed one: %d", code)
	}
	for path, want := range map[string]int{
		"/events/sandboxes?limit=0": 400, "/events/sandboxes?limit=101": 400, "/events/sandboxes?offset=-1": 400, "/events/sandboxes?types=x": 400,
		"/events/webhooks/none": 400, "/events/sandboxes/inone": 404,
	} {
		if code, text := call(t, w, w.Key, "GET", path, ""); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}
