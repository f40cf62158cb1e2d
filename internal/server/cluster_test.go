package server_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// whereOf tells on how many nodes guests run, by the machines.
func whereOf(c *servertest.Cluster, id string) (on []int) {
	for i, w := range c.Nodes {
		if w.Machine.Guest(cay.SandboxID(id)) != nil {
			on = append(on, i)
		}
	}
	return on
}

// awaitNowhere waits until no guest of a sandbox lives: its end may be answered
// before.
func awaitNowhere(t *testing.T, c *servertest.Cluster, id string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if len(whereOf(c, id)) == 0 {
			return
		}
	}
	t.Fatalf("sandbox %s runs on %v", id, whereOf(c, id))
}

// A cluster is one server to its clients: any front makes, finds, changes and ends
// what any node has.
func TestCluster(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 1, servertest.Steady)
	c.AwaitReady(1)
	most := int64(18) // which each node reads when it starts
	if _, err := c.Nodes[0].Admin("").SetTeamLimits(ctx, "default", map[string]*int64{string(cay.LimitSandboxes): &most}); err != nil {
		t.Fatal(err)
	}
	c.Join()
	c.Join()
	c.AwaitReady(3)
	var made []string
	homes := map[int]bool{}
	for i := range 12 {
		box, err := c.Nodes[i%3].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour, AutoResume: true, Metadata: map[string]string{"n": fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		on := whereOf(c, box.ID)
		if len(on) != 1 {
			t.Fatalf("sandbox %s runs on nodes %v", box.ID, on)
		}
		homes[on[0]] = true
		made = append(made, box.ID)
	}
	if len(homes) < 2 {
		t.Errorf("12 sandboxes are all on nodes %v", homes)
	}
	t.Run("lists", func(t *testing.T) {
		for i, w := range c.Nodes {
			list, err := w.Client().List(ctx)
			if err != nil || len(list) != len(made) {
				t.Errorf("front %d lists %d sandboxes: %v", i, len(list), err)
			}
		}
	})
	t.Run("one node alone", func(t *testing.T) { toldAlone(t, c) })
	t.Run("every front, every sandbox", func(t *testing.T) {
		for i, id := range made {
			w := c.Nodes[(i+1)%3]
			info, err := w.Client().Info(ctx, id)
			if err != nil || info.State != "running" {
				t.Errorf("sandbox %s: %+v, %v", id, info, err)
			}
			if code, text := intoSandbox(t, w, id, "GET", "/", nil); code != http.StatusOK {
				t.Errorf("a request into sandbox %s: %d %s", id, code, text)
			}
		}
		if code, _ := intoSandbox(t, c.Nodes[1], "inone", "GET", "/", nil); code != http.StatusNotFound && code != http.StatusBadGateway {
			t.Errorf("a request into no sandbox: %d", code)
		}
		_, err := c.Nodes[2].Client().Info(ctx, "inone")
		if cay.KindOf(err) != cay.NotFound {
			t.Errorf("no sandbox: %v", err)
		}
	})
	t.Run("a ticket of one front opens a websocket at another", func(t *testing.T) {
		for i, id := range made[:6] {
			by := ticket(t, c.Nodes[i%3], c.Nodes[0].Key, fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, id, hosttest.AppPort))
			_, status := socket(t, c.Nodes[(i+1)%3], "", fmt.Sprintf("/cay/v1/sandboxes/%s/ports/%d", id, hosttest.AppPort), by)
			if status != http.StatusSwitchingProtocols {
				t.Errorf("a sandbox of node %v: %d", whereOf(c, id), status)
			}
		}
	})
	t.Run("pause, resume and end", func(t *testing.T) {
		id := made[0]
		if err := c.Nodes[1].Client().Pause(ctx, id); err != nil {
			t.Fatal(err)
		}
		awaitNowhere(t, c, id)
		if _, err := c.Nodes[2].Client().Connect(ctx, id, time.Hour); err != nil {
			t.Fatal(err)
		}
		if on := whereOf(c, id); len(on) != 1 {
			t.Errorf("a resumed sandbox runs on %v", on)
		}
		for _, w := range c.Nodes {
			_ = w.Client().Kill(ctx, id)
		}
		awaitNowhere(t, c, id)
	})
	t.Run("a key is one sandbox over all fronts", func(t *testing.T) {
		for round := range 3 {
			ids := make([]string, 9)
			var wg sync.WaitGroup
			for i := range ids {
				wg.Go(func() {
					box, err := c.Nodes[i%3].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour, IdempotencyKey: fmt.Sprint("once ", round)})
					if err != nil {
						t.Error(err)
						return
					}
					ids[i] = box.ID
				})
			}
			wg.Wait()
			slices.Sort(ids)
			if len(slices.Compact(ids)) != 1 {
				t.Errorf("one key made %v", ids)
			}
		}
	})
	t.Run("a snapshot starts on every node at once", func(t *testing.T) { everywhere(t, c, made[1], made[2:]) })
	t.Run("limits are exact over all nodes", func(t *testing.T) {
		list, err := c.Nodes[0].Client().List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		free := int(most) - len(list)
		var mu sync.Mutex
		var wg sync.WaitGroup
		ran, refused := 0, 0
		for i := range 12 {
			wg.Go(func() {
				_, err := c.Nodes[i%3].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					ran++
				case cay.KindOf(err) == cay.Exhausted:
					refused++
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if ran != free || refused != 12-free {
			t.Errorf("%d sandboxes run and %d were refused, of 12 for %d places", ran, refused, free)
		}
	})
	t.Run("a node that is drained takes none", func(t *testing.T) {
		admin := c.Nodes[0].Admin("")
		list, err := c.Nodes[0].Client().List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list[:8] { // the limit leaves room for others
			if err := c.Nodes[2].Client().Kill(ctx, one.ID); err != nil {
				t.Error(err)
			}
		}
		drained := nodeOf(t, c.Nodes[1])
		if err := admin.DrainNode(ctx, drained, false); err != nil {
			t.Fatal(err)
		}
		var first, second time.Time // of its renewals: it knows with the first
		awaitNode(t, c, drained, func(n client.ClusterNode) bool {
			if first.IsZero() {
				first = *n.SeenAt
			} else if second.IsZero() && n.SeenAt.After(first) {
				second = *n.SeenAt
			}
			return n.Draining && !second.IsZero() && n.SeenAt.After(second)
		})
		for i := range 8 {
			box, err := c.Nodes[i%3].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
			if err != nil {
				t.Error(err)
				continue
			}
			if on := whereOf(c, box.ID); slices.Contains(on, 1) {
				t.Errorf("a sandbox was placed on the node that is drained")
			}
		}
		if err := admin.UndrainNode(ctx, drained); err != nil {
			t.Error(err)
		}
		if err := admin.RemoveNode(ctx, drained); cay.KindOf(err) != cay.Conflict {
			t.Errorf("the removal of a node whose server runs: %v", err)
		}
	})
	t.Run("what is of all nodes", func(t *testing.T) { ofAll(t, c) })
	t.Run("joining", func(t *testing.T) { joining(t, c) })
}

// everywhere starts snapshots on another node than the one that has just made them, which copies
// them to the bucket meanwhile, with the memory that they have.
func everywhere(t *testing.T, c *servertest.Cluster, id string, others []string) {
	ctx := t.Context()
	home := whereOf(c, id)
	i := slices.IndexFunc(others, func(other string) bool { on := whereOf(c, other); return len(on) == 1 && !slices.Equal(on, home) })
	if i < 0 {
		t.Fatal("all sandboxes are on one node")
	}
	for round, w := range c.Nodes {
		says(t, w, id, fmt.Sprint("state ", round))
		snap, err := w.Client().Snapshot(ctx, id, "")
		if err != nil {
			t.Fatal(err)
		}
		box, err := w.Client().Create(ctx, client.CreateOptions{Template: snap.ID, Timeout: time.Hour, Near: others[i]})
		if err != nil {
			t.Fatalf("snapshot %s: %v", snap.ID, err)
		}
		if on := whereOf(c, box.ID); slices.Equal(on, home) {
			t.Errorf("it was started on %v", on)
		}
		if code, text := intoSandbox(t, w, box.ID, "GET", "/", nil); code != http.StatusOK || text != fmt.Sprint("state ", round) {
			t.Errorf("what is made of state %d answers %d %q", round, code, text)
		}
		if err := w.Client().Kill(ctx, box.ID); err != nil {
			t.Error(err)
		}
		awaitNowhere(t, c, box.ID)
	}
}

// nodeOf is the node that a machine is.
func nodeOf(t *testing.T, w *servertest.World) string {
	t.Helper()
	own, err := member.Open(w.Config.Data)
	if err != nil || own == nil {
		t.Fatal(own, err)
	}
	return string(own.Node)
}

// awaitNode waits until the records say something of a node.
func awaitNode(t *testing.T, c *servertest.Cluster, id string, is func(client.ClusterNode) bool) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		seen, err := c.Nodes[0].Admin("").Cluster(t.Context())
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(seen.Nodes, func(n client.ClusterNode) bool { return n.ID == id }); i >= 0 && is(seen.Nodes[i]) && c.Nodes[0].ReachesLead() {
			return
		}
	}
	t.Fatalf("node %s has not become so", id)
}

// awaitGone waits until a node is declared gone, as another one sees it. That one must have seen
// the records without a gap for as long, which a busy machine makes longer.
func awaitGone(t *testing.T, other *servertest.World, id string) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		seen, err := other.Admin("").Cluster(t.Context())
		if i := slices.IndexFunc(seen.Nodes, func(n client.ClusterNode) bool { return n.ID == id }); err == nil && i >= 0 && seen.Nodes[i].State == string(cay.NodeGone) && other.ReachesLead() {
			return
		}
		if time.Since(begun) > 3*time.Minute {
			t.Fatalf("node %s is not gone: %+v, %v", id, seen, err)
		}
	}
}

// intoSandbox sends a request to the guest's own server through a front.
func intoSandbox(t *testing.T, w *servertest.World, id, method, path string, body io.Reader, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("E2b-Sandbox-Id", id)
	r.Header.Set("E2b-Sandbox-Port", "8000")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
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

// Tokens open once and for a time; members take nothing from strangers.
func joining(t *testing.T, c *servertest.Cluster) {
	ctx := t.Context()
	token := c.Token()
	denied := func(what, token string, kind cay.Kind) {
		t.Helper()
		w := c.Machine()
		if _, err := operator.JoinCluster(ctx, w.Config, token); cay.KindOf(err) != kind {
			t.Errorf("%s: %v", what, err)
		}
		if s, err := w.Open(); cay.KindOf(err) != cay.Conflict {
			t.Errorf("a server of a machine that is no member: %v", err)
			if err == nil {
				s.Close()
			}
		}
	}
	w := c.Machine()
	if _, err := operator.JoinCluster(ctx, w.Config, token); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.JoinCluster(ctx, w.Config, c.Token()); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a member that joins: %v", err)
	}
	denied("a token that was used", token, cay.Denied)
	last := token[len(token)-1]
	denied("another token", token[:len(token)-1]+string("0123456789abcdef"[(strings.IndexByte("0123456789abcdef", last)+1)%16]), cay.Denied)
	denied("no token", "cay_join_1", cay.Invalid)
	// Four at once with one token: one machine is in.
	token = c.Token()
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 4 {
		w := c.Machine()
		wg.Go(func() {
			_, err := operator.JoinCluster(ctx, w.Config, token)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				in++
			case cay.KindOf(err) != cay.Denied:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in != 1 {
		t.Errorf("one token let %d machines in", in)
	}
	seen, err := c.Nodes[0].Admin("").Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	address := seen.Nodes[slices.IndexFunc(seen.Nodes, func(n client.ClusterNode) bool { return n.State == string(cay.NodeReady) })].Address
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a stranger does not care
	if err == nil {
		_, err = fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		conn.Close()
	}
	if err == nil {
		t.Error("a member answered a stranger without a certificate")
	}
	// A client cannot pose as a member.
	code, text := asked(t, c.Nodes[0], "none", "", "GET", "/sandboxes/inone", "")
	if code != http.StatusUnauthorized {
		t.Errorf("without a key: %d %s", code, text)
	}
	r, err := http.NewRequestWithContext(ctx, "GET", c.Nodes[0].URL()+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cay-Hop-For", "lead")
	r.Header.Set("Cay-Hop-From", "10.9.9.9:1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("a request that poses as a member's: %d", resp.StatusCode)
	}
}

// A node that is cut from the records stops to serve before another one has what it
// had: what ran there is over, and what was paused resumes elsewhere.
func TestLostNode(t *testing.T) {
	clusterCuts(t) // its leases are of seconds, which a machine that stalls lets pass
	c := servertest.StartCluster(t, 2, servertest.Quick)
	c.AwaitReady(2)
	ctx := t.Context()
	byNode := map[int][]string{}
	for i := 0; len(byNode[1]) < 2 || len(byNode[0]) < 1; i++ {
		if i > 60 {
			t.Fatalf("no sandbox was placed on a node: %v", byNode)
		}
		box, err := c.Nodes[i%2].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		on := whereOf(c, box.ID)
		byNode[on[0]] = append(byNode[on[0]], box.ID)
	}
	victim := c.Nodes[1]
	ran, slept := byNode[1][0], byNode[1][1]
	if err := c.Nodes[0].Client().Pause(ctx, slept); err != nil {
		t.Fatal(err)
	}
	awaitCopy(t, victim)
	c.Links[1].Cut()
	other := c.Nodes[0]
	awaitGone(t, other, nodeOf(t, victim))
	awaitKilled(t, other, ran)
	// The victim's own lease was over before: it serves nothing.
	if code, _ := intoSandbox(t, victim, ran, "GET", "/", nil); code != http.StatusServiceUnavailable {
		t.Errorf("a node without a lease answers for its sandbox: %d", code)
	}
	if code, _ := asked(t, victim, victim.Key, "", "GET", "/health", ""); code != http.StatusServiceUnavailable {
		t.Errorf("a node without a lease is healthy: %d", code)
	}
	if _, err := other.Client().Connect(ctx, slept, time.Hour); err != nil {
		t.Fatalf("what was paused on a node that is gone: %v", err)
	}
	if on := whereOf(c, slept); len(on) != 1 || on[0] == 1 {
		t.Errorf("it runs on %v", on)
	}
	if _, err := other.Client().Info(ctx, byNode[0][0]); err != nil {
		t.Errorf("another node's sandbox: %v", err)
	}
	// It comes back, and finds that its epoch is over.
	c.Links[1].Heal()
	select {
	case err := <-victim.Ended():
		if !errors.Is(err, store.ErrTakenOver) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a node that was declared gone goes on")
	}
	victim.Forget()
	victim.Start()
	if on := whereOf(c, ran); len(on) != 0 {
		t.Errorf("what was recorded as lost runs on %v", on)
	}
	if on := whereOf(c, slept); len(on) != 1 || on[0] == 1 {
		t.Errorf("after it came back, the other runs on %v", on)
	}
}

func awaitKilled(t *testing.T, w *servertest.World, id string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
		if _, err := w.Client().Info(t.Context(), id); cay.KindOf(err) == cay.NotFound {
			return
		}
	}
	t.Fatalf("sandbox %s is not over", id)
}

// awaitCopy waits until a node has copied a snapshot to the bucket.
func awaitCopy(t *testing.T, w *servertest.World) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
		if strings.Contains(w.Log(), "a snapshot is in the bucket") {
			return
		}
	}
	t.Fatal("no snapshot was copied")
}

// adminAsks asks the API as the operator for the first team.
func adminAsks(t *testing.T, w *servertest.World, method, path, body string) (status int, text []byte) {
	t.Helper()
	api := w.Admin("default")
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := api.HTTP().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text
}

// asAdmin asks so, and reads the answer.
func asAdmin(t *testing.T, w *servertest.World, method, path, body string, out any) {
	t.Helper()
	status, text := adminAsks(t, w, method, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// ofAll checks what is about the sandboxes of several nodes.
func ofAll(t *testing.T, c *servertest.Cluster) {
	ctx := t.Context()
	ask := func(w *servertest.World, method, path, body string, out any) {
		t.Helper()
		asAdmin(t, w, method, path, body, out)
	}
	list, err := c.Nodes[0].Client().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	for i, w := range c.Nodes {
		counts := map[string]int{}
		ask(w, "GET", "/admin/sandboxes/running-counts", "", &counts)
		sum := 0
		for _, n := range counts {
			sum += n
		}
		if sum != len(ids) {
			t.Errorf("front %d counts %d sandboxes of %d", i, sum, len(ids))
		}
	}
	nodes, uses := map[int]bool{}, [3]int64{}
	for i, id := range ids {
		if on := whereOf(c, id); i < 6 && len(on) == 1 {
			nodes[on[0]] = true
			hasSaid(t, c, id, fmt.Sprint("a line of ", i))
		}
	}
	for i, w := range c.Nodes {
		all, newest := search(t, w, "A+LINE"), search(t, w, "a+line&limit=4")
		if len(all.Lines) != min(len(ids), 6) || !all.Complete || all.Unanswered != nil {
			t.Errorf("front %d finds %+v of nodes %v", i, all, nodes)
		}
		if len(newest.Lines) != 4 || newest.Complete || !slices.Equal(newest.Lines, all.Lines[:4]) {
			t.Errorf("front %d finds as the newest %+v", i, newest)
		}
		if !slices.IsSortedFunc(all.Lines, func(a, b foundLine) int { return b.Timestamp.Compare(a.Timestamp) }) {
			t.Errorf("front %d finds %+v", i, all)
		}
		used, err := w.Client().DiskUse(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, n := range used {
			sum += n.Own + n.Shared
		}
		uses[i] = sum
	}
	for i, w := range c.Nodes {
		for _, of := range c.Nodes {
			var storage struct{ DataDirectory string }
			ask(w, "GET", "/cay/v1/admin/storage?nodeID="+nodeOf(t, of), "", &storage)
			if storage.DataDirectory != of.Config.Data {
				t.Errorf("front %d tells of the machine of %s instead of %s", i, storage.DataDirectory, of.Config.Data)
			}
		}
		if status, text := adminAsks(t, w, "GET", "/cay/v1/admin/storage?nodeID=none", ""); status != http.StatusNotFound {
			t.Errorf("front %d of the machine of no node: %d %s", i, status, text)
		}
	}
	if uses[0] == 0 || uses[0] != uses[1] || uses[0] != uses[2] {
		t.Errorf("by front, templates take %v", uses)
	}
	body, err := json.Marshal(map[string]any{"action": "pause", "sandboxIDs": append([]string{"inone"}, ids[:6]...)})
	if err != nil {
		t.Fatal(err)
	}
	var acted struct {
		Outcomes []struct {
			SandboxID string
			Error     *struct{ Code int }
		}
	}
	ask(c.Nodes[1], "POST", "/cay/v1/sandbox-actions", string(body), &acted)
	for i, o := range acted.Outcomes {
		if i == 0 && (o.SandboxID != "inone" || o.Error == nil || o.Error.Code != http.StatusNotFound) || i > 0 && (o.SandboxID != ids[i-1] || o.Error != nil) {
			t.Errorf("outcome %d: %+v", i, o)
		}
	}
	if len(acted.Outcomes) != 7 {
		t.Errorf("there are %d outcomes", len(acted.Outcomes))
	}
	var killed struct{ KilledCount, FailedCount int }
	ask(c.Nodes[2], "POST", "/admin/teams/default/sandboxes/kill", "", &killed)
	if killed.KilledCount != len(ids)-6 || killed.FailedCount != 0 {
		t.Errorf("of %d that run, %+v", len(ids)-6, killed)
	}
	for _, id := range ids {
		awaitNowhere(t, c, id)
	}
}

// clusterCuts is how often nodes are cut from the records.
func clusterCuts(t *testing.T) int {
	t.Helper()
	return longRun(t, "CLUSTER_CUTS")
}

// longRun is how long a test is to run, in the unit of its variable; without it the test is
// skipped.
func longRun(t *testing.T, variable string) int {
	t.Helper()
	n, _ := strconv.Atoi(os.Getenv(variable))
	if n == 0 {
		t.Skip("NOT TESTED HERE: it takes minutes; make test-cluster and make test-cluster-faults set " + variable)
	}
	return n
}

// Nodes are cut from the records, one after the other, while clients make, pause,
// resume and end sandboxes at the others. Nothing that was acknowledged is lost but
// what ran on a node that was declared gone, and nothing runs twice.
func TestNodesAreCut(t *testing.T) {
	cuts := clusterCuts(t)
	c := servertest.StartCluster(t, 3, servertest.Quick)
	c.AwaitReady(3)
	for round := range cuts {
		victim := round % 3
		cutUnderLoad(t, c, victim)
		t.Logf("cut %d of %d: node %d", round+1, cuts, victim)
	}
}

// acknowledged is what a client was told last of a sandbox.
type acknowledged struct {
	mu sync.Mutex
	of map[string]string // running, paused or killed; empty while a call's end is unknown
}

func (a *acknowledged) set(id, state string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[id] = state
}

func cutUnderLoad(t *testing.T, c *servertest.Cluster, victim int) {
	ctx := t.Context()
	said := &acknowledged{of: map[string]string{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for n := worker; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				api := c.Nodes[n%3].Client()
				box, err := api.Create(ctx, client.CreateOptions{Timeout: time.Hour})
				if err != nil {
					continue
				}
				said.set(box.ID, "running")
				for step := range n % 4 {
					api := c.Nodes[(n+step)%3].Client()
					said.set(box.ID, "")
					state := []string{"paused", "running", "killed"}[step]
					var err error
					switch step {
					case 0:
						err = api.Pause(ctx, box.ID)
					case 1:
						_, err = api.Connect(ctx, box.ID, time.Hour)
					case 2:
						err = api.Kill(ctx, box.ID)
					}
					if err != nil {
						break
					}
					said.set(box.ID, state)
				}
			}
		})
	}
	w := c.Nodes[victim]
	lost := nodeOf(t, w)
	time.Sleep(time.Second) // load for a while
	c.Links[victim].Cut()
	other := c.Nodes[(victim+1)%3]
	awaitGone(t, other, lost)
	close(stop)
	wg.Wait()
	c.Links[victim].Heal()
	if err := <-w.Ended(); !errors.Is(err, store.ErrTakenOver) {
		t.Errorf("the lost node ended with %v", err)
	}
	w.Forget()
	w.Start()
	c.AwaitReady(3)
	check(t, c, said)
}

// check compares what clients were told with what there is, and ends all.
func check(t *testing.T, c *servertest.Cluster, said *acknowledged) {
	ctx := t.Context()
	api := c.Nodes[0].Client()
	lost := map[string]int{}
	for id, state := range said.of {
		on := whereOf(c, id)
		info, err := api.Info(ctx, id)
		gone := cay.KindOf(err) == cay.NotFound
		switch {
		case len(on) > 1:
			t.Errorf("sandbox %s runs on %v", id, on)
		case err != nil && !gone:
			t.Errorf("sandbox %s: %v", id, err)
		case state == "killed" && (!gone || len(on) != 0):
			t.Errorf("sandbox %s was ended, and is %+v on %v", id, info, on)
		case state == "paused" && (gone || info.State != "paused"):
			t.Errorf("sandbox %s was paused, and is %+v", id, info)
		case state == "running" && gone && len(on) != 0:
			t.Errorf("sandbox %s is over, and runs on %v", id, on)
		case state == "running" && !gone && info.State == "running" && len(on) != 1:
			t.Errorf("sandbox %s runs, and is on %v", id, on)
		}
		if state == "running" && gone {
			lost["running"]++
		}
		if !gone {
			_ = api.Kill(ctx, id)
		}
	}
	t.Logf("%d sandboxes, %d of them ran on the node that was lost", len(said.of), lost["running"])
}

// BenchmarkFront has requests into a sandbox straight to its node and through
// another one, by turns.
func BenchmarkFront(b *testing.B) {
	c := servertest.StartCluster(b, 2, servertest.Steady)
	c.AwaitReady(2)
	box, err := c.Nodes[0].Client().Create(b.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	at := whereOf(c, box.ID)[0]
	var took [2]time.Duration // straight, through
	for b.Loop() {
		for i := range took {
			r, err := http.NewRequestWithContext(b.Context(), "GET", c.Nodes[(at+i)%2].URL()+"/", nil)
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("E2b-Sandbox-Id", box.ID)
			r.Header.Set("E2b-Sandbox-Port", "8000")
			begun := time.Now()
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				b.Fatal(err)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				b.Fatal(resp.Status, err)
			}
			took[i] += time.Since(begun)
		}
	}
	b.ReportMetric(float64(took[0].Microseconds())/float64(b.N), "µs-straight")
	b.ReportMetric(float64(took[1].Microseconds())/float64(b.N), "µs-through")
}
