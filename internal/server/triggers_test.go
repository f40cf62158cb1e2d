package server_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// hooked is a world whose sandboxes have the real agent.
func hooked(t *testing.T) (w *servertest.World, home string) {
	t.Helper()
	w = servertest.New(t)
	home = t.TempDir()
	w.Machine.Agent = servertest.RealAgent(t, home)
	w.Start()
	t.Cleanup(func() { // the machine and its agent end with the test: no run may be under way then
		for _, state := range []string{"waiting", "running"} {
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				left, err := w.Client().TriggerRuns(context.WithoutCancel(t.Context()), client.TriggerRunOptions{State: state})
				if err == nil && len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("runs are still %s: %+v, %v", state, left, err)
				}
			}
		}
	})
	return w, home
}

func ptr[T any](v T) *T { return &v }

func hook(t *testing.T, w *servertest.World, o client.TriggerOptions) client.Trigger {
	t.Helper()
	o.Kind, o.Template = "hook", ptr("base")
	if o.Proof == nil {
		o.Proof = ptr("bearer")
	}
	x, err := w.Client().CreateTrigger(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// deliver posts to a hook, whose address may be another server's by now.
func deliver(t *testing.T, w *servertest.World, x client.Trigger, header http.Header, body string) (status int, answer map[string]any, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL()+"/cay/v1/hooks/"+x.ID, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(all, &answer) // a challenge is no JSON
	return resp.StatusCode, answer, string(all)
}

func bearer(x client.Trigger) http.Header {
	return http.Header{"Authorization": {"Bearer " + x.Secret}}
}

// ended waits for the end of a run.
func ended(t *testing.T, w *servertest.World, id any) client.TriggerRun {
	t.Helper()
	return until(t, w, id, client.TriggerRun.Over)
}

func until(t *testing.T, w *servertest.World, id any, is func(client.TriggerRun) bool) client.TriggerRun {
	t.Helper()
	name, ok := id.(string)
	if !ok {
		t.Fatalf("%v is no run", id)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		run, err := w.Client().TriggerRun(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if is(run) {
			return run
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: %+v\n%s", run, w.Log())
		}
	}
}

func sign(secret string, parts ...string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, part := range parts {
		io.WriteString(mac, part)
	}
	return mac.Sum(nil)
}

func TestHookProofs(t *testing.T) {
	w, _ := hooked(t)
	secret := "a secret of ours"
	makes := func(proof string) client.Trigger {
		return hook(t, w, client.TriggerOptions{Name: ptr(proof), Proof: &proof, Secret: &secret, Command: ptr("true"), MaxWaiting: ptr(1000), MaxRunning: ptr(8)})
	}
	body := `{"type":"it happened","challenge":"say this"}`
	now := strconv.FormatInt(time.Now().Unix(), 10)
	early := strconv.FormatInt(time.Now().Add(-6*time.Minute).Unix(), 10)
	late := strconv.FormatInt(time.Now().Add(6*time.Minute).Unix(), 10)
	github := func(secret, body string) string {
		return "sha256=" + hex.EncodeToString(sign(secret, body))
	}
	slack := func(secret, stamp, body string) http.Header {
		return http.Header{"X-Slack-Request-Timestamp": {stamp}, "X-Slack-Signature": {"v0=" + hex.EncodeToString(sign(secret, "v0:", stamp, ":", body))}}
	}
	standard := func(secret, id, stamp, body string) http.Header {
		return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {"v1a,xyz v1," + base64.StdEncoding.EncodeToString(sign(secret, id, ".", stamp, ".", body))}}
	}
	for proof, tries := range map[string][]struct {
		name   string
		header http.Header
		body   string
		want   int
	}{
		"github": {
			{"right", http.Header{"X-Hub-Signature-256": {github(secret, body)}}, body, 202},
			{"an event and a delivery", http.Header{"X-Hub-Signature-256": {github(secret, body)}, "X-GitHub-Event": {"push"}, "X-GitHub-Delivery": {"1"}}, body, 202},
			{"the same delivery", http.Header{"X-Hub-Signature-256": {github(secret, body)}, "X-GitHub-Event": {"push"}, "X-GitHub-Delivery": {"1"}}, body, 200},
			{"a ping", http.Header{"X-Hub-Signature-256": {github(secret, body)}, "X-GitHub-Event": {"ping"}}, body, 200},
			{"another body", http.Header{"X-Hub-Signature-256": {github(secret, body)}}, body + " ", 401},
			{"another secret", http.Header{"X-Hub-Signature-256": {github("another", body)}}, body, 401},
			{"an empty secret", http.Header{"X-Hub-Signature-256": {github("", body)}}, body, 401},
			{"none", nil, body, 401},
			{"a short one", http.Header{"X-Hub-Signature-256": {"sha256=00"}}, body, 401},
			{"an empty one", http.Header{"X-Hub-Signature-256": {"sha256="}}, body, 401},
			{"no form", http.Header{"X-Hub-Signature-256": {hex.EncodeToString(sign(secret, body))}}, body, 401},
			{"twice", http.Header{"X-Hub-Signature-256": {github(secret, body), github(secret, body)}}, body, 401},
			{"that of sha1", http.Header{"X-Hub-Signature": {github(secret, body)}}, body, 401},
			{"another kind's", bearer(client.Trigger{Secret: secret}), body, 401},
			{"an empty body", http.Header{"X-Hub-Signature-256": {github(secret, "")}}, "", 202},
			{"no JSON", http.Header{"X-Hub-Signature-256": {github(secret, "\x00\xff{")}}, "\x00\xff{", 202},
		},
		"slack": {
			{"right", slack(secret, now, body), body, 202},
			{"too early", slack(secret, early, body), body, 401},
			{"too late", slack(secret, late, body), body, 401},
			{"another time", http.Header{"X-Slack-Request-Timestamp": {early}, "X-Slack-Signature": slack(secret, now, body)["X-Slack-Signature"]}, body, 401},
			{"no time", http.Header{"X-Slack-Signature": slack(secret, "", body)["X-Slack-Signature"]}, body, 401},
			{"a challenge", slack(secret, now, `{"type":"url_verification","challenge":"say this"}`), `{"type":"url_verification","challenge":"say this"}`, 200},
			{"a forged challenge", slack("another", now, `{"type":"url_verification","challenge":"x"}`), `{"type":"url_verification","challenge":"x"}`, 401},
		},
		"standard": {
			{"right", standard(secret, "m1", now, body), body, 202},
			{"the same", standard(secret, "m1", now, body), body, 200},
			{"another id under the signature", http.Header{"Webhook-Id": {"m2"}, "Webhook-Timestamp": {now}, "Webhook-Signature": standard(secret, "m1", now, body)["Webhook-Signature"]}, body, 401},
			{"too early", standard(secret, "m3", early, body), body, 401},
			{"no id", standard(secret, "", now, body), body, 401},
			{"another secret", standard("another", "m4", now, body), body, 401},
		},
		"bearer": {
			{"right", bearer(client.Trigger{Secret: secret}), body, 202},
			{"lower case", http.Header{"Authorization": {"bearer " + secret}}, body, 202},
			{"a part", http.Header{"Authorization": {"Bearer " + secret[:5]}}, body, 401},
			{"none", http.Header{"Authorization": {"Bearer "}}, body, 401},
			{"another scheme", http.Header{"Authorization": {"Basic " + secret}}, body, 401},
			{"an API key", http.Header{"X-API-Key": {w.Key}}, body, 401},
			{"a body that is too large", bearer(client.Trigger{Secret: secret}), strings.Repeat("x", cay.MaxHookBody+1), 400},
		},
	} {
		x := makes(proof)
		for _, try := range tries {
			t.Run(proof+"/"+try.name, func(t *testing.T) {
				status, _, text := deliver(t, w, x, try.header, try.body)
				if status != try.want {
					t.Errorf("%d %s, want %d", status, text, try.want)
				}
				if try.name == "a challenge" && text != "say this" {
					t.Errorf("the challenge was answered with %q", text)
				}
				if strings.Contains(text, secret) {
					t.Error("the secret is in the answer")
				}
			})
		}
	}
	t.Run("no such hook", func(t *testing.T) {
		schedule, err := w.Client().CreateTrigger(t.Context(), client.TriggerOptions{Kind: "schedule", Name: ptr("nightly"), Template: ptr("base"), Command: ptr("true"), Cron: ptr("0 0 1 1 *")})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"x", string(cay.NewTriggerID()), schedule.ID, "nightly", "%2e%2e"} {
			if status, _, text := deliver(t, w, client.Trigger{ID: id}, bearer(client.Trigger{Secret: secret}), "{}"); status != 404 {
				t.Errorf("%s: %d %s", id, status, text)
			}
		}
	})
	t.Run("a rotated secret", func(t *testing.T) {
		x := hook(t, w, client.TriggerOptions{Name: ptr("rotated"), Command: ptr("true")})
		after, err := w.Client().RotateTrigger(t.Context(), "rotated", "")
		if err != nil {
			t.Fatal(err)
		}
		third, err := w.Client().RotateTrigger(t.Context(), x.ID, "the third of them")
		if err != nil || third != "" {
			t.Fatal(third, err)
		}
		for secret, want := range map[string]int{"the third of them": 202, after: 202, x.Secret: 401} {
			if status, _, text := deliver(t, w, x, bearer(client.Trigger{Secret: secret}), "{}"); status != want {
				t.Errorf("%d %s, want %d", status, text, want)
			}
		}
	})
	t.Run("turned off", func(t *testing.T) {
		x := hook(t, w, client.TriggerOptions{Name: ptr("off"), Command: ptr("true"), Enabled: ptr(false)})
		if status, _, text := deliver(t, w, x, bearer(x), "{}"); status != 409 || !strings.Contains(text, cay.CodeTriggerOff) {
			t.Errorf("%d %s", status, text)
		}
		if status, _, text := deliver(t, w, x, nil, "{}"); status != 401 { // a stranger is not told
			t.Errorf("%d %s", status, text)
		}
	})
	t.Run("a disabled team", func(t *testing.T) {
		team, err := w.Admin("").CreateTeam(t.Context(), "theirs")
		if err != nil {
			t.Fatal(err)
		}
		api := w.Admin(team.ID)
		x, err := api.CreateTrigger(t.Context(), client.TriggerOptions{Kind: "hook", Name: ptr("a"), Proof: ptr("bearer"), Template: ptr("base"), Command: ptr("true")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Admin("").DisableTeam(t.Context(), team.ID, false); err != nil {
			t.Fatal(err)
		}
		if status, _, text := deliver(t, w, x, bearer(x), "{}"); status != 403 {
			t.Errorf("%d %s", status, text)
		}
		if err := w.Admin("").RemoveTeam(t.Context(), team.ID, true); err != nil {
			t.Fatal(err)
		}
		if status, _, text := deliver(t, w, x, bearer(x), "{}"); status != 404 {
			t.Errorf("of a removed team: %d %s", status, text)
		}
	})
	if strings.Contains(w.Log(), secret) {
		t.Error("the secret is in the log")
	}
}

func TestHookRuns(t *testing.T) {
	w, home := hooked(t)
	x := hook(t, w, client.TriggerOptions{
		Name: ptr("runs"), Env: map[string]string{"OURS": "a value"}, Metadata: map[string]string{"a": "b"},
		Command: ptr(`cp "$CAY_PAYLOAD" "` + home + `/payload"; echo "$CAY_EVENT|$CAY_DELIVERY|$CAY_TRIGGER|$CAY_ATTEMPT|$CAY_PAYLOAD_TYPE|$OURS|$PWD"; echo bad >&2; exit 3`),
	})
	payload := "{\"type\":\"ü\",\"n\":12345678901234567890, \"x\":1.0}\x00\xff"
	header := bearer(x)
	header.Set("Idempotency-Key", "once")
	header.Set("Content-Type", "application/json; charset=utf-8")
	status, answer, text := deliver(t, w, x, header, payload)
	if status != http.StatusAccepted {
		t.Fatal(status, text)
	}
	run := ended(t, w, answer["runID"])
	if run.State != "failed" || run.ExitCode == nil || *run.ExitCode != 3 || run.Error != "" || run.Attempt != 1 || run.Delivery != "once" {
		t.Errorf("%+v", run)
	}
	if want := "|once|runs|1|application/json; charset=utf-8|a value|" + home + "\n"; strings.Replace(run.Output, "bad\n", "", 1) != want || !strings.Contains(run.Output, "bad\n") {
		t.Errorf("it wrote %q, want %q and bad", run.Output, want)
	}
	if got, err := os.ReadFile(filepath.Join(home, "payload")); err != nil || string(got) != payload {
		t.Errorf("the payload is %q, %v", got, err)
	}
	if _, again, _ := deliver(t, w, x, header, payload); again["runID"] != run.ID || again["repeated"] != true {
		t.Errorf("the second request: %v", again)
	}
	end, err := w.Client().End(t.Context(), run.SandboxID)
	if err != nil || end.Reason != string(cay.CauseAsked) {
		t.Errorf("its sandbox: %+v, %v", end, err)
	}
	list, err := w.Client().TriggerRuns(t.Context(), client.TriggerRunOptions{Trigger: "runs", State: "failed"})
	if err != nil || len(list) != 1 || list[0].ID != run.ID || list[0].Output != "" {
		t.Errorf("%+v, %v", list, err)
	}
	shown, err := w.Client().Trigger(t.Context(), "runs")
	if err != nil || shown.Secret != "" || len(shown.Env) != 1 || shown.Env[0] != "OURS" || shown.URL == "" {
		t.Errorf("%+v, %v", shown, err)
	}
}

func TestHookFilters(t *testing.T) {
	w, _ := hooked(t)
	x := hook(t, w, client.TriggerOptions{
		Name: ptr("filtered"), Command: ptr("true"), Events: &[]string{"push", "pull_request"},
		Filters: &[]client.HookFilter{{Path: "repository.full_name", Values: []string{"a/b", "c/*"}}, {Path: "labels.*.name", Values: []string{"go"}}, {Path: "n", Values: []string{"12345678901234567890"}}},
	})
	right := `{"type":"push","repository":{"full_name":"c/anything"},"labels":[{"name":"no"},{"name":"go"}],"n":12345678901234567890}`
	form := bearer(x)
	form.Set("Content-Type", "application/x-www-form-urlencoded")
	for body, want := range map[string]int{right: 202, "payload=" + url.QueryEscape(right): 202, "type=push": 200} {
		if status, _, text := deliver(t, w, x, form, body); status != want {
			t.Errorf("%s as a form: %d %s", body, status, text)
		}
	}
	for name, try := range map[string]struct {
		body string
		want int
	}{
		"all pass":      {right, 202},
		"another event": {strings.Replace(right, "push", "fork", 1), 200},
		"another name":  {strings.Replace(right, "c/anything", "d/anything", 1), 200},
		"no label":      {strings.Replace(right, `{"name":"go"}`, `"go"`, 1), 200},
		"number":        {strings.Replace(right, "67890}", "67891}", 1), 200},
		"no JSON":       {"push", 200},
		"two values":    {right + right, 200},
	} {
		if status, answer, text := deliver(t, w, x, bearer(x), try.body); status != try.want || (answer["ignored"] != nil) != (try.want == 200) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}

// A sandbox that slept is woken for a run, and sleeps again after the last one.
func TestHookWakesASandbox(t *testing.T) {
	w, home := hooked(t)
	api := w.Client()
	box, err := api.Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	x, err := api.CreateTrigger(t.Context(), client.TriggerOptions{
		Kind: "hook", Name: ptr("wakes"), Proof: ptr("bearer"), SandboxID: &box.ID, Command: ptr("echo $$ >> " + home + "/ran; ls /tmp/cay-run-* | wc -l"),
	})
	if err != nil || x.After != "pause" || x.MaxRunning != 1 {
		t.Fatal(x, err)
	}
	stateAfter := func(want string) {
		t.Helper()
		_, answer, text := deliver(t, w, x, bearer(x), "{}")
		run := ended(t, w, answer["runID"])
		if run.State != "succeeded" || run.SandboxID != box.ID {
			t.Fatalf("%s: %+v", text, run)
		}
		if left, _ := filepath.Glob("/tmp/cay-run-" + run.ID); len(left) > 0 {
			t.Errorf("the payload is left: %v", left)
		}
		// The run's end is recorded before its sandbox is left.
		var info client.Info
		for deadline := time.Now().Add(time.Minute); info.State != want && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if info, err = api.Info(t.Context(), box.ID); err != nil {
				t.Fatal(err)
			}
		}
		if info.State != want {
			t.Errorf("after the run it is %s, want %s", info.State, want)
		}
	}
	stateAfter("running") // a client had it running
	if err := api.Pause(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	stateAfter("paused")
	if err := api.Kill(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	_, answer, _ := deliver(t, w, x, bearer(x), "{}")
	if run := ended(t, w, answer["runID"]); run.State != "failed" || !strings.Contains(run.Error, "not found") {
		t.Errorf("of a sandbox that is over: %+v", run)
	}
}

func TestRunsAreBounded(t *testing.T) {
	w, home := hooked(t)
	fifo := filepath.Join(home, "go")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	x := hook(t, w, client.TriggerOptions{Name: ptr("bounded"), Command: ptr("cat " + fifo), MaxRunning: ptr(1), MaxWaiting: ptr(2)})
	var ids []any
	for range 3 {
		status, answer, text := deliver(t, w, x, bearer(x), "{}")
		if status != 202 {
			t.Fatal(status, text)
		}
		ids = append(ids, answer["runID"])
		if len(ids) == 1 { // it leaves the queue
			until(t, w, ids[0], func(r client.TriggerRun) bool { return r.State == "running" })
		}
	}
	status, _, text := deliver(t, w, x, bearer(x), "{}")
	if status != 429 || !strings.Contains(text, cay.CodeTriggerFull) {
		t.Errorf("a fourth: %d %s", status, text)
	}
	if run, err := w.Client().TriggerRun(t.Context(), ids[1].(string)); err != nil || run.State != "waiting" {
		t.Errorf("the second: %+v, %v", run, err)
	}
	if err := w.Client().CancelRun(t.Context(), ids[2].(string)); err != nil {
		t.Error(err)
	}
	if run := ended(t, w, ids[2]); run.State != "cancelled" || run.Attempt != 0 {
		t.Errorf("a run that waited: %+v", run)
	}
	if err := w.Client().CancelRun(t.Context(), ids[0].(string)); err != nil {
		t.Error(err)
	}
	if run := ended(t, w, ids[0]); run.State != "cancelled" || run.Attempt != 1 {
		t.Errorf("a run that ran: %+v", run)
	}
	until(t, w, ids[1], func(r client.TriggerRun) bool { return r.State == "running" })
	if err := os.WriteFile(fifo, []byte("on\n"), 0); err != nil {
		t.Fatal(err)
	}
	if run := ended(t, w, ids[1]); run.State != "succeeded" || run.Output != "on\n" {
		t.Errorf("%+v", run)
	}
	if err := w.Client().CancelRun(t.Context(), ids[1].(string)); err == nil {
		t.Error("a run that is over was cancelled")
	}
}

func TestRunsThatTakeTooLong(t *testing.T) {
	w, _ := hooked(t)
	x := hook(t, w, client.TriggerOptions{Name: ptr("slow"), Command: ptr("echo begun; sleep 600"), Timeout: ptr(1), Retries: ptr(0)})
	_, answer, _ := deliver(t, w, x, bearer(x), "{}")
	if run := ended(t, w, answer["runID"]); run.State != "failed" || !strings.Contains(run.Error, "longer than 1 second") || run.Output != "begun\n" {
		t.Errorf("%+v", run)
	}
}

// A command goes on without the server, and the next one follows it to its end.
func TestRunsOutliveTheServer(t *testing.T) {
	w, home := hooked(t)
	fifo := filepath.Join(home, "go")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	x := hook(t, w, client.TriggerOptions{Name: ptr("outlives"), Command: ptr("echo once >> " + home + "/count; cat " + fifo + "; exit 7"), MaxRunning: ptr(1)})
	_, first, _ := deliver(t, w, x, bearer(x), "{}")
	_, second, _ := deliver(t, w, x, bearer(x), "{}")
	begun := func(times string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if text, _ := os.ReadFile(home + "/count"); string(text) == times {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("no command began")
			}
		}
	}
	begun("once\n")
	w.Stop()
	w.Start()
	if run := until(t, w, first["runID"], func(client.TriggerRun) bool { return true }); run.State != "running" {
		t.Errorf("after the restart: %+v", run)
	}
	go os.WriteFile(fifo, []byte("on\n"), 0)
	if run := ended(t, w, first["runID"]); run.State != "failed" || run.ExitCode == nil || *run.ExitCode != 7 {
		t.Errorf("the run that was followed: %+v", run)
	}
	begun("once\nonce\n")
	w.Stop()
	os.WriteFile(fifo, []byte("on\n"), 0) // it ends while there is no server
	w.Start()
	if run := ended(t, w, second["runID"]); run.State != "failed" || run.ExitCode == nil || *run.ExitCode != 7 {
		t.Errorf("the run that ended without a server: %+v", run)
	}
	if text, _ := os.ReadFile(home + "/count"); string(text) != "once\nonce\n" {
		t.Errorf("the commands ran %q", text)
	}
}

// A command that waits for a decision waits on through a pause and a restart, and a
// yes that comes meanwhile is for its next start.
func TestHookThatIsAskedAbout(t *testing.T) {
	w, home := hooked(t)
	api := w.Client()
	key := operatorsKey(t, w, "approvals:decide", "sandboxes:read").Key
	decider := w.ClientOf(key)
	box, err := api.Create(t.Context(), client.CreateOptions{Timeout: time.Hour, AskCommands: []string{"*ran*"}})
	if err != nil {
		t.Fatal(err)
	}
	x, err := api.CreateTrigger(t.Context(), client.TriggerOptions{
		Kind: "hook", Name: ptr("asks"), Proof: ptr("bearer"), SandboxID: &box.ID, Command: ptr("echo once >> " + home + "/ran"),
	})
	if err != nil {
		t.Fatal(err)
	}
	asked := func() client.Approval {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			list, err := decider.Approvals(t.Context(), client.ApprovalOptions{SandboxID: box.ID, State: "pending"})
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 1 {
				return list[0]
			}
		}
		t.Fatal("no question is asked")
		panic("unreachable")
	}
	want := ""
	for what, cut := range map[string]func() error{
		"a pause":          func() error { return api.Pause(t.Context(), box.ID) },
		"the server's end": func() error { w.Stop(); w.Start(); return nil },
	} {
		_, answer, _ := deliver(t, w, x, bearer(x), "{}")
		question := asked()
		if err := cut(); err != nil {
			t.Fatal(err)
		}
		api, decider = w.Client(), w.ClientOf(key)
		run := until(t, w, answer["runID"], func(run client.TriggerRun) bool { // the next server may be at it already
			return run.State == "waiting" || what != "a pause" && run.State == "running"
		})
		if err := api.CancelRun(t.Context(), run.ID); err != nil {
			t.Fatal(err)
		}
		if run = ended(t, w, run.ID); run.State != "cancelled" {
			t.Errorf("after %s: %+v", what, run)
		}
		if text, _ := os.ReadFile(home + "/ran"); string(text) != want {
			t.Errorf("without a yes it ran: %q", text)
		}
		if again := asked(); again.ID != question.ID {
			t.Errorf("after %s another question waits: %+v", what, again)
		}
		if _, err := decider.DecideApproval(t.Context(), question.ID, true, "", ""); err != nil {
			t.Fatal(err)
		}
		_, answer, _ = deliver(t, w, x, bearer(x), "{}")
		if run := ended(t, w, answer["runID"]); run.State != "succeeded" {
			t.Errorf("with the yes: %+v", run)
		}
		want += "once\n"
		if text, _ := os.ReadFile(home + "/ran"); string(text) != want {
			t.Errorf("after %s it ran %q", what, text)
		}
	}
}

// A key that is bounded makes no trigger: its runs would not be.
func TestTriggersOfBoundedKeys(t *testing.T) {
	w := servertest.Start(t)
	bounded, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "bounded", Metadata: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	metered, err := w.Client().CreateAPIKey(t.Context(), client.NewAPIKey{Name: "metered"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client().AddBudget(t.Context(), client.NewBudget{Key: metered.ID, Meter: "creates", Limit: "10", Period: "day", Action: "refuse"}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{bounded.Key, metered.Key} {
		_, err := w.ClientOf(key).CreateTrigger(t.Context(), client.TriggerOptions{Kind: "hook", Name: ptr("a"), Proof: ptr("bearer"), Template: ptr("base"), Command: ptr("true")})
		if cay.CodeOf(err) != cay.CodeBounds {
			t.Errorf("got %v", err)
		}
	}
}

func TestBadTriggers(t *testing.T) {
	w := servertest.Start(t)
	for name, try := range map[string]struct {
		body string
		want string
	}{
		"no name":              {`{"kind":"hook","command":"a","template":"base","proof":"bearer"}`, "name"},
		"a bad name":           {`{"kind":"hook","name":"A b","command":"a","template":"base","proof":"bearer"}`, "name"},
		"a kind":               {`{"kind":"x","name":"a","command":"a","template":"base"}`, "kind"},
		"no command":           {`{"kind":"hook","name":"a","command":" ","template":"base","proof":"bearer"}`, "command"},
		"nowhere":              {`{"kind":"hook","name":"a","command":"a","proof":"bearer"}`, "template, sandboxID"},
		"two places":           {`{"kind":"hook","name":"a","command":"a","template":"base","sandboxID":"iabc","proof":"bearer"}`, "template, sandboxID"},
		"another's sandbox":    {`{"kind":"hook","name":"a","command":"a","sandboxID":"iabc","proof":"bearer"}`, "not found"},
		"no template":          {`{"kind":"hook","name":"a","command":"a","template":"nope","proof":"bearer"}`, "nope"},
		"no proof":             {`{"kind":"hook","name":"a","command":"a","template":"base"}`, "proof"},
		"a short secret":       {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","secret":"short"}`, "secret"},
		"a cron of a hook":     {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","cron":"* * * * *"}`, "cron"},
		"no cron":              {`{"kind":"schedule","name":"a","command":"a","template":"base"}`, "cron"},
		"six fields":           {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"* * * * * *"}`, "cron"},
		"a word":               {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"@every 1s"}`, "cron"},
		"a zone in the cron":   {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"TZ=0 * * * *"}`, "cron"},
		"never":                {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"0 0 30 2 *"}`, "never"},
		"no zone":              {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"0 0 * * *","zone":"../etc/passwd"}`, "zone"},
		"a secret of a clock":  {`{"kind":"schedule","name":"a","command":"a","template":"base","cron":"0 0 * * *","secret":"12345678"}`, "secret"},
		"a timeout":            {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","timeout":0}`, "timeout"},
		"a timeout beyond all": {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","timeout":9223372036854775807}`, "timeout"},
		"runs at once":         {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","maxRunning":65}`, "maxRunning"},
		"retries":              {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","retries":-1}`, "retries"},
		"our variable":         {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","env":{"CAY_RUN":"x"}}`, "env"},
		"a variable":           {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","env":{"A=B":"x"}}`, "env"},
		"a path":               {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","filters":[{"path":"a..b","values":["x"]}]}`, "filters[0]"},
		"no values":            {`{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer","filters":[{"path":"a","values":[]}]}`, "filters[0]"},
		"kill what is woken":   {`{"kind":"hook","name":"a","command":"a","sandboxID":"iabc","after":"kill","proof":"bearer"}`, "after"},
	} {
		if status, text := call(t, w, w.Key, http.MethodPost, "/cay/v1/triggers", try.body); status != 400 && status != 404 || !strings.Contains(text, try.want) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	x := hook(t, w, client.TriggerOptions{Name: ptr("a"), Command: ptr("true")})
	if status, text := call(t, w, w.Key, http.MethodPost, "/cay/v1/triggers", `{"kind":"hook","name":"a","command":"a","template":"base","proof":"bearer"}`); status != 409 || !strings.Contains(text, cay.CodeNameTaken) {
		t.Errorf("a name twice: %d %s", status, text)
	}
	hook(t, w, client.TriggerOptions{Name: ptr("b"), Command: ptr("true")})
	if _, err := w.Client().UpdateTrigger(t.Context(), "b", client.TriggerOptions{Name: ptr("a")}); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("a name twice, by a change: %v", err)
	}
	if _, err := w.Client().UpdateTrigger(t.Context(), x.ID, client.TriggerOptions{Cron: ptr("* * * * *")}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("a cron of a hook, by a change: %v", err)
	}
}

// A stranger who knows a hook's id takes nothing of its team's rate.
func TestStrangersTakeNoRateOfAHook(t *testing.T) {
	w := servertest.Start(t)
	x := hook(t, w, client.TriggerOptions{Name: ptr("off"), Command: ptr("true"), Enabled: ptr(false)})
	limited(t, w, map[string]*int64{string(cay.LimitWrites): ptr(int64(1)), string(cay.LimitWriteBurst): ptr(int64(2))})
	for range 20 {
		if status, _, text := deliver(t, w, x, http.Header{"Authorization": {"Bearer wrong"}}, "{}"); status != http.StatusUnauthorized {
			t.Fatalf("a stranger: %d %s", status, text)
		}
	}
	if status, _, text := deliver(t, w, x, bearer(x), "{}"); status != http.StatusConflict { // it is off
		t.Errorf("the sender: %d %s", status, text)
	}
	refused := false
	for range 20 {
		status, _, _ := deliver(t, w, x, bearer(x), "{}")
		refused = refused || status == http.StatusTooManyRequests
	}
	if !refused {
		t.Error("the sender has no rate")
	}
}
