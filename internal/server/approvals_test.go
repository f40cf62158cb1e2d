package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

func question(t *testing.T, c *client.Client, q client.NewApproval) client.Approval {
	t.Helper()
	if q.Title == "" {
		q.Title = "May I?"
	}
	x, err := c.AskApproval(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// operatorsKey is a key that goes back to the operator alone.
func operatorsKey(t *testing.T, w *servertest.World, scopes ...string) client.APIKey {
	t.Helper()
	k, err := w.Admin("default").CreateAPIKey(t.Context(), client.NewAPIKey{Name: "decider", Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if cay.CodeOf(err) != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// The patterns of commands are a sandbox's for life, whatever becomes of it, and its forks'.
func TestAskedCommandsStay(t *testing.T) {
	w := servertest.New(t)
	w.Machine.Agent = servertest.RealAgent(t, t.TempDir())
	w.Start()
	ctx := t.Context()
	box, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour, AskCommands: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	// A command that is too long to be shown is refused at once where it is asked about.
	long := client.Command{Path: "echo", Args: []string{strings.Repeat("x", cay.MaxStartShown)}}
	asks := func(what string, box *client.Sandbox) {
		t.Helper()
		_, err := box.Run(ctx, long)
		wantCode(t, what, err, cay.CodeCommandDenied)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	asks("a new sandbox", box)
	node, err := w.Client().Checkpoint(ctx, box.ID, "", "")
	must(err)
	forks, err := w.Client().Fork(ctx, box.ID, 1, time.Hour)
	must(err)
	asks("its fork", forks[0])
	for what, change := range map[string]func() error{
		"a pause":                func() error { return w.Client().Pause(ctx, box.ID) },
		"a pause without memory": func() error { return w.Client().PauseFiles(ctx, box.ID) },
		"a rollback":             func() error { _, err := w.Client().Rollback(ctx, box.ID, node.ID); return err },
		"a restart":              func() error { w.Stop(); w.Start(); return nil },
		"cay down while it is paused": func() error {
			err := w.Client().Pause(ctx, box.ID)
			w.Stop()
			err = errors.Join(err, w.Down())
			w.Start()
			return err
		},
	} {
		must(change())
		box, err = w.Client().Connect(ctx, box.ID, time.Hour)
		must(err)
		asks("after "+what, box)
	}
	forks, err = w.Client().ForkCheckpoint(ctx, node.ID, 1, time.Hour)
	must(err)
	asks("a fork of its checkpoint", forks[0])
	other, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	must(err)
	if _, err := other.Run(ctx, long); err != nil {
		t.Errorf("a sandbox without patterns: %v", err)
	}
}

// The first decision counts, is told to the party that waits, and stays over a
// restart.
func TestApprovals(t *testing.T) {
	w := servertest.Start(t)
	agent := w.Client()
	decider := w.ClientOf(operatorsKey(t, w, "approvals:decide", "sandboxes:read").Key)
	box, err := agent.Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	x := question(t, agent, client.NewApproval{Title: "Deploy to production?", Body: "git push\tproduction\nmain ü", Risk: "high", SandboxID: box.ID, Timeout: time.Hour})
	if x.State != "pending" || x.Kind != "custom" || x.AskedBy.Kind != "key" || x.SandboxID != box.ID || x.Body != "git push\tproduction\nmain ü" {
		t.Errorf("asked: %+v", x)
	}
	list, err := decider.Approvals(t.Context(), client.ApprovalOptions{State: "pending"})
	if err != nil || len(list) != 1 || list[0].ID != x.ID {
		t.Fatalf("what waits: %+v, %v", list, err)
	}
	w.Stop()
	w.Start()
	agent, decider = w.Client(), w.Admin("default")
	told := make(chan client.Approval, 1)
	go func() {
		got, err := agent.Approval(t.Context(), x.ID, time.Minute)
		if err != nil {
			t.Error(err)
		}
		told <- got
	}()
	got, err := decider.DecideApproval(t.Context(), x.ID, true, "", "after lunch")
	if err != nil || got.State != "approved" || got.DecidedBy == nil || got.DecidedBy.Kind != "admin" || got.Remember != "once" {
		t.Fatalf("decided: %+v, %v", got, err)
	}
	if got := <-told; got.State != "approved" || got.Note != "after lunch" {
		t.Errorf("the agent is told %+v", got)
	}
	_, err = decider.DecideApproval(t.Context(), x.ID, false, "", "")
	wantCode(t, "a second decision", err, cay.CodeApprovalOver)
	if !strings.Contains(fmt.Sprint(err), "approved") {
		t.Errorf("the second decision is not told of the first: %v", err)
	}
	// The end of its sandbox is the end of a question.
	gone := question(t, agent, client.NewApproval{SandboxID: box.ID})
	if err := agent.Kill(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	_, err = decider.DecideApproval(t.Context(), gone.ID, true, "", "")
	wantCode(t, "a decision about a sandbox that is over", err, cay.CodeApprovalOver)
	if _, err := agent.AskApproval(t.Context(), client.NewApproval{Title: "x", SandboxID: box.ID}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a question about a sandbox that is over: %v", err)
	}
	types := map[string]int{}
	for e, err := range agent.Events(t.Context(), client.EventOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(e.Type, "approval.") {
			types[e.Type+" "+e.Data["state"]]++
		}
	}
	for what, n := range map[string]int{"approval.requested ": 2, "approval.decided approved": 1} {
		if types[what] != n {
			t.Errorf("%d events of %s, not %d: %v", types[what], what, n, types)
		}
	}
	w.Stop()
	var rows []string
	for _, r := range auditRows(t, w) {
		if r.Action == "approval.decided" && r.Details["approval"] == x.ID {
			rows = append(rows, string(r.Actor.Kind)+" "+r.Details["state"]+" "+r.Target)
		}
	}
	if want := []string{"admin approved " + box.ID}; !slices.Equal(rows, want) {
		t.Errorf("the audit log has %q", rows)
	}
}

// The party that asks decides by none of its credentials.
func TestApprovalsOfOnesOwn(t *testing.T) {
	w := servertest.Start(t)
	key := func(by *client.Client, scopes ...string) client.APIKey {
		t.Helper()
		k, err := by.CreateAPIKey(t.Context(), client.NewAPIKey{Name: "k", Scopes: scopes})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	operator := w.Admin("default")
	agent := key(operator)
	of := w.ClientOf(agent.Key)
	child := key(of)
	grandchild := key(w.ClientOf(child.Key))
	orphan := key(w.ClientOf(child.Key))
	other, narrow := key(operator), key(operator, "sandboxes:read", "sandboxes:write")
	w.Stop()
	people, team := map[string]string{}, agentTeam(t, w)
	w.Records(func(db *store.DB) {
		for _, name := range []string{"ann", "bob"} {
			if err := db.AddPerson(t.Context(), cay.Person{ID: cay.PersonID(name), Email: name + "@example.com", CreatedAt: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}
	})
	for _, name := range []string{"ann", "ann too", "bob"} {
		person, _, _ := strings.Cut(name, " ")
		people[name] = w.AddKey(cay.APIKey{Team: team, Name: name, CreatedBy: person, Person: cay.PersonID(person)})
	}
	w.Start()
	operator, of = w.Admin("default"), w.ClientOf(agent.Key)
	if err := operator.RemoveAPIKey(t.Context(), child.ID); err != nil { // the way from orphan to agent is cut
		t.Fatal(err)
	}
	box, err := of.Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ofPerson, err := w.ClientOf(people["ann"]).Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	const own, scope, ok = cay.CodeApprovalOwn, cay.CodeScope, ""
	for _, tt := range []struct {
		what, asks, about, decides, want string
	}{
		{"itself", agent.Key, "", agent.Key, own},
		{"a key that it made", agent.Key, "", grandchild.Key, own},
		{"a key whose maker is gone", agent.Key, "", orphan.Key, own},
		{"its child asks, it decides", grandchild.Key, "", agent.Key, ok},
		{"another key", agent.Key, "", other.Key, ok},
		{"another agent's key with all scopes, about this one's sandbox", agent.Key, box.ID, other.Key, ok}, // a team is one trust
		{"without the scope", agent.Key, "", narrow.Key, scope},
		{"the key that made the sandbox", other.Key, box.ID, agent.Key, own},
		{"one that this made", other.Key, box.ID, grandchild.Key, own},
		{"the one that asks about another's sandbox", other.Key, box.ID, other.Key, own},
		{"a third", other.Key, box.ID, people["bob"], ok},
		{"another key of the person", people["ann"], "", people["ann too"], own},
		{"another person's key", people["ann"], "", people["bob"], ok},
		{"a key of the person whose sandbox it is", other.Key, ofPerson.ID, people["ann too"], own},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := question(t, w.ClientOf(tt.asks), client.NewApproval{SandboxID: tt.about})
			_, err := w.ClientOf(tt.decides).DecideApproval(t.Context(), x.ID, true, "", "")
			wantCode(t, tt.what, err, tt.want)
			if tt.want == ok && err != nil || tt.want != ok && err == nil {
				t.Errorf("%v", err)
			}
			if tt.want != ok {
				if now, err := operator.Approval(t.Context(), x.ID, 0); err != nil || !now.Pending() {
					t.Errorf("it is %s now, %v", now.State, err)
				}
				if _, err := operator.DecideApproval(t.Context(), x.ID, false, "", ""); err != nil {
					t.Errorf("the operator: %v", err)
				}
			}
		})
	}
	// A sandbox's own token opens nothing of it.
	x := question(t, of, client.NewApproval{SandboxID: box.ID})
	for _, h := range []http.Header{{"X-Access-Token": {box.AccessToken}}, {"Authorization": {"Bearer " + box.AccessToken}}, {"X-API-Key": {box.AccessToken}}} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", w.URL()+"/cay/v1/approvals/"+x.ID+"/decide", strings.NewReader(`{"approve":true}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the sandbox's token as %v: %d", h, resp.StatusCode)
		}
	}
}

// agentTeam is the id of the first team.
func agentTeam(t *testing.T, w *servertest.World) cay.TeamID {
	t.Helper()
	w.Start()
	defer w.Stop()
	code, text := call(t, w, w.Key, "GET", "/teams", "")
	var teams []struct{ TeamID string }
	if err := json.Unmarshal([]byte(text), &teams); code != 200 || err != nil || len(teams) != 1 {
		t.Fatalf("teams: %d %s", code, text)
	}
	return cay.TeamID(teams[0].TeamID)
}

// Questions that cannot be are refused, and a party has ten that wait.
func TestApprovalsAreBounded(t *testing.T) {
	w := servertest.Start(t)
	for what, body := range map[string]string{
		"no title": `{}`, "an empty one": `{"title":" "}`, "two lines": `{"title":"a\nb"}`, "a hidden order": `{"title":"a\u202eb"}`, "a long title": `{"title":"` + strings.Repeat("x", 201) + `"}`,
		"a long body": `{"title":"a","body":"` + strings.Repeat("x", 16<<10+1) + `"}`, "a body with an escape": `{"title":"a","body":"\u001b[2J"}`,
		"a risk": `{"title":"a","risk":"none"}`, "no time": `{"title":"a","timeout":0}`, "a short time": `{"title":"a","timeout":9}`, "a long time": `{"title":"a","timeout":604801}`,
		"a longer time": `{"title":"a","timeout":9223372036854775807}`, "time before": `{"title":"a","timeout":-5}`, "a long wait": `{"title":"a","wait":61}`, "a wait before": `{"title":"a","wait":-1}`,
	} {
		if code, text := call(t, w, w.Key, "POST", "/cay/v1/approvals", body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	var ids []string
	for range cay.MaxPendingOfAsker {
		ids = append(ids, question(t, w.Client(), client.NewApproval{}).ID)
	}
	_, err := w.Client().AskApproval(t.Context(), client.NewApproval{Title: "one more"})
	wantCode(t, "one more", err, cay.CodeApprovalLimit)
	other := operatorsKey(t, w)
	question(t, w.ClientOf(other.Key), client.NewApproval{}) // others may
	for what, body := range map[string]string{
		"nothing": `{}`, "a slip": `{"aprove":true}`, "no answer": `{"approve":"yes"}`, "a memory": `{"approve":true,"remember":"always"}`, "a memory of no subject": `{"approve":true,"remember":"hour"}`,
		"a long note": `{"approve":true,"note":"` + strings.Repeat("x", 1001) + `"}`, "a note with an escape": `{"approve":true,"note":"\u001b"}`,
	} {
		code, text := call(t, w, other.Key, "POST", "/cay/v1/approvals/"+ids[0]+"/decide", body)
		if code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	for _, id := range []string{"x", string(cay.NewApprovalID()), "%2e%2e"} {
		if code, text := call(t, w, w.Key, "GET", "/cay/v1/approvals/"+id, ""); code != http.StatusNotFound {
			t.Errorf("%s: %d %s", id, code, text)
		}
	}
	// Of decisions at once one counts.
	var won, lost int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, err := w.ClientOf(other.Key).DecideApproval(context.WithoutCancel(t.Context()), ids[1], i%2 == 0, "", "")
			mu.Lock()
			defer mu.Unlock()
			switch cay.CodeOf(err) {
			case "":
				won++
			case cay.CodeApprovalOver:
				lost++
			}
		})
	}
	all.Wait()
	if won != 1 || lost != 7 {
		t.Errorf("%d decisions count, %d are told of another", won, lost)
	}
	page, err := w.Client().Approvals(t.Context(), client.ApprovalOptions{Limit: 100})
	if err != nil || len(page) != cay.MaxPendingOfAsker+1 {
		t.Errorf("%d are listed, %v", len(page), err)
	}
	var first struct {
		Approvals []client.Approval
		Next      string
	}
	fetch(t, w, "/cay/v1/approvals?limit=4", &first)
	var second struct{ Approvals []client.Approval }
	fetch(t, w, "/cay/v1/approvals?limit=100&cursor="+first.Next, &second)
	if len(first.Approvals) != 4 || len(second.Approvals) != len(page)-4 || second.Approvals[0].ID != page[4].ID {
		t.Errorf("pages of %d and %d", len(first.Approvals), len(second.Approvals))
	}
}

// A webhook that names the event is sent a link, which decides once, by a POST
// alone, and never what the party that chose the webhook's address asks.
func TestApprovalLinks(t *testing.T) {
	in := openInbox(t)
	w := servertest.New(t)
	w.Config.WebhookOpen = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	w.Start()
	agent, decider := operatorsKey(t, w), operatorsKey(t, w, "webhooks:read", "webhooks:write", "approvals:decide", "sandboxes:read")
	hook := func(key, name, events string) (int, string) {
		return call(t, w, key, "POST", "/events/webhooks", fmt.Sprintf(`{"name":%q,"url":%q,"events":[%q],"signatureSecret":"a secret of ours","enabled":true}`, name, in.URL+"/"+name, events))
	}
	id := func(code int, text string) string {
		t.Helper()
		var out struct{ ID string }
		if err := json.Unmarshal([]byte(text), &out); code != http.StatusCreated || err != nil {
			t.Fatalf("%d %s", code, text)
		}
		return out.ID
	}
	narrow := operatorsKey(t, w, "webhooks:write", "webhooks:read")
	if code, text := hook(narrow.Key, "narrow", "approval.requested"); code != http.StatusForbidden || !strings.Contains(text, "approvals:decide") {
		t.Fatalf("a key that may not decide has links sent: %d %s", code, text)
	}
	ours := id(hook(decider.Key, "ours", "approval.requested"))
	if code, text := call(t, w, narrow.Key, "PATCH", "/events/webhooks/"+ours, fmt.Sprintf(`{"url":%q}`, in.URL+"/stolen")); code != http.StatusForbidden {
		t.Fatalf("a key that may not decide has links sent elsewhere: %d %s", code, text)
	}
	id(hook(agent.Key, "agent", "approval.requested"))
	id(hook(narrow.Key, "all", "*"))
	x := question(t, w.ClientOf(agent.Key), client.NewApproval{Title: `<script>alert(1)</script> "&`, Body: "<b>\n'"})
	link := ""
	for range 3 {
		_, body := in.next(t)
		data, _ := body["data"].(map[string]any)
		got, _ := data["decideURL"].(string)
		if got != "" {
			if link != "" {
				t.Errorf("two webhooks have a link")
			}
			link = got
		}
	}
	if link == "" || !strings.Contains(link, x.ID) || !strings.Contains(link, ours) {
		t.Fatalf("the link is %q", link)
	}
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	path := w.URL() + u.Path
	visit := func(method, at string, form url.Values, h http.Header) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for name, values := range h {
			req.Header[name] = values
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusForbidden { // which net/http says, to a page elsewhere
			saysRetry(t, method+" "+at, resp)
		}
		if !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") && resp.StatusCode == 200 {
			t.Errorf("the page may be framed: %v", resp.Header)
		}
		return resp.StatusCode, string(text)
	}
	recorded(t, w, ours, 1)
	_, text := call(t, w, w.Key, "GET", "/events/webhooks/"+ours+"/deliveries", "")
	if !strings.Contains(text, x.ID) || strings.Contains(text, "/decide/") {
		t.Errorf("the record of the delivery: %s", text)
	}
	code, page := visit("GET", path, nil, nil)
	if code != http.StatusOK || !strings.Contains(page, html.EscapeString(`<script>alert(1)</script>`)) || strings.Contains(page, "<script>") || strings.Contains(page, "<b>\n") {
		t.Errorf("the page: %d %s", code, page)
	}
	for what, at := range map[string]string{
		"a changed signature": path[:len(path)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(path, "0")], "none": strings.TrimRight(path[:strings.LastIndex(path, "/")+1], " ") + "x",
		"of another approval": strings.Replace(path, x.ID, string(cay.NewApprovalID()), 1), "of another webhook": strings.Replace(path, ours, string(cay.NewWebhookID()), 1),
	} {
		for _, method := range []string{"GET", "POST"} {
			if code, text := visit(method, at, url.Values{"answer": {"approve"}}, nil); code != http.StatusNotFound {
				t.Errorf("%s %s: %d %s", method, what, code, text)
			}
		}
	}
	if code, _ := visit("POST", path, url.Values{}, nil); code != http.StatusBadRequest {
		t.Errorf("no answer: %d", code)
	}
	if code, _ := visit("POST", path, url.Values{"answer": {"approve"}}, http.Header{"Sec-Fetch-Site": {"cross-site"}, "Origin": {"https://elsewhere.example"}}); code != http.StatusForbidden {
		t.Errorf("a page elsewhere decides: %d", code)
	}
	if now, err := w.Client().Approval(t.Context(), x.ID, 0); err != nil || !now.Pending() {
		t.Fatalf("it is %s by now, %v", now.State, err)
	}
	if code, page := visit("POST", path, url.Values{"answer": {"approve"}, "note": {"a\r\nb"}}, nil); code != http.StatusOK || !strings.Contains(page, "approved") {
		t.Errorf("the answer: %d %s", code, page)
	}
	if code, page := visit("POST", path, url.Values{"answer": {"deny"}}, nil); code != http.StatusConflict || !strings.Contains(page, "approved") {
		t.Errorf("a second answer: %d %s", code, page)
	}
	now, err := w.Client().Approval(t.Context(), x.ID, 0)
	if err != nil || now.State != "approved" || now.DecidedBy == nil || now.DecidedBy.Kind != "link" || now.DecidedBy.ID != ours || now.Note != "a\nb" {
		t.Errorf("decided: %+v, %v", now, err)
	}
	// The links of a webhook that is gone open nothing.
	y := question(t, w.ClientOf(agent.Key), client.NewApproval{})
	second := ""
	for second == "" { // the others are told of it too, and of the first decision
		_, body := in.next(t)
		if data, _ := body["data"].(map[string]any); data["decideURL"] != nil {
			second, _ = data["decideURL"].(string)
		}
	}
	if u, err = url.Parse(second); err != nil || second == "" {
		t.Fatalf("the second link is %q, %v", second, err)
	}
	if code, text := call(t, w, decider.Key, "DELETE", "/events/webhooks/"+ours, ""); code/100 != 2 {
		t.Fatalf("%d %s", code, text)
	}
	if code, _ := visit("POST", w.URL()+u.Path, url.Values{"answer": {"approve"}}, nil); code != http.StatusNotFound {
		t.Errorf("the link of a webhook that is gone: %d", code)
	}
	if now, err := w.Client().Approval(t.Context(), y.ID, 0); err != nil || !now.Pending() {
		t.Errorf("it is %s by now, %v", now.State, err)
	}
	w.Stop()
	for _, r := range auditRows(t, w) {
		if r.Action == "approval.decided" && (r.Actor.Kind != cay.ActorLink || r.Actor.ID != ours || r.Actor.Name != "ours" || r.Address == "") {
			t.Errorf("the audit log has %+v", r)
		}
		if strings.Contains(fmt.Sprint(r), "/decide/") {
			t.Errorf("the audit log has a link: %+v", r)
		}
	}
}
