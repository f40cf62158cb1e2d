package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// Answers that clients got of a sandbox must be those of a sandbox on one machine that
// fails: each call took effect at one moment between its begin and its answer, or, of
// those without a clear answer, at one moment later or never.

// act is what a client asked of a sandbox.
type act struct {
	what  string // write, read, pause, connect, kill, info, checkpoint; and lose, which a fault may do
	value string // of write
}

// said is the answer.
type said struct {
	clear bool // else it may have happened, or may yet
	gone  bool // there is no such sandbox
	busy  bool // it is in another state than the call is for
	value string
}

// life is a sandbox as the model has it.
type life struct {
	state string // running, paused, moving (it goes on by itself), over
	value string // of its memory
	saved string // the values that it may go on from, each behind a newline
	loss  bool   // it goes on when its machine is lost
	woken bool   // it answers again, and its node may say for a moment that it is paused
}

func (l life) with(state string) life { l.state, l.woken = state, false; return l }

// wakes is one that runs from now on. Requests get in as soon as its record says so, and
// what its node answers of it may be a moment older.
func (l life) wakes() life {
	woken := l.woken || l.state != "running"
	l = l.with("running")
	l.woken = woken
	return l
}

func (l life) keeping() life {
	if !strings.Contains(l.saved+"\n", "\n"+l.value+"\n") {
		l.saved += "\n" + l.value
	}
	return l
}

// after lists what a sandbox may be after a call with that answer; nothing where it is
// none that it could have.
func (l life) after(c act, s said) []any {
	if l.state == "moving" { // it goes on at any moment
		return append(l.settled(c, s), l.wakes().settled(c, s)...)
	}
	return l.settled(c, s)
}

func (l life) settled(c act, s said) []any {
	if s.clear && s.gone {
		if l.state == "over" {
			return []any{l}
		}
		return nil
	}
	next, can := l.happened(c)
	switch {
	case !s.clear && c.what == "lose":
		return append([]any{l}, l.lost()...)
	case !s.clear && can:
		return []any{l, next}
	case !s.clear:
		return []any{l}
	case s.busy:
		return l.onlyIf(!can || l.state == "moving" || l.state == "paused" && c.what == "pause")
	case c.what == "read":
		return l.onlyIf(l.state == "running" && l.value == s.value)
	case c.what == "info":
		return l.onlyIf(l.state == s.value || (l.state == "moving" || l.woken) && s.value == "paused")
	case !can:
		return nil
	}
	return []any{next}
}

func (l life) onlyIf(is bool) []any {
	if is {
		return []any{l}
	}
	return nil
}

// happened is what a call does, where it can.
func (l life) happened(c act) (life, bool) {
	switch runs := l.state == "running"; c.what {
	case "write":
		l.value = c.value
		return l, runs
	case "pause":
		if l.state == "paused" { // of several callers at once all get what they asked for
			return l, true
		}
		return l.keeping().with("paused"), runs
	case "checkpoint":
		return l.keeping(), runs
	case "connect":
		return l.wakes(), l.state != "over"
	case "kill":
		return l.with("over"), l.state != "over"
	}
	return l, false
}

// lost is what a sandbox may be whose machine is lost while it runs.
func (l life) lost() (out []any) {
	if l.state != "running" {
		return nil
	}
	out = append(out, l.with("over"))
	if l.loss {
		for _, value := range strings.Split(l.saved, "\n")[1:] {
			back := l.with("moving")
			back.value = value
			out = append(out, back)
		}
	}
	return out
}

// histories are what clients saw, by the sandbox.
type histories struct {
	begun time.Time
	mu    sync.Mutex
	of    map[string][]porcupine.Operation
	loss  map[string]bool
}

func newHistories() *histories {
	return &histories{begun: time.Now(), of: map[string][]porcupine.Operation{}, loss: map[string]bool{}}
}

func (h *histories) now() int64 { return int64(time.Since(h.begun)) }

// add notes a call. One that changes nothing and has no clear answer tells nothing.
func (h *histories) add(id string, worker int, c act, begun int64, s said) {
	if !s.clear && (c.what == "read" || c.what == "info") {
		return
	}
	ended := h.now()
	if !s.clear {
		ended = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of[id] = append(h.of[id], porcupine.Operation{ClientId: worker, Input: c, Call: begun, Output: s, Return: ended})
}

// some is a sandbox that is known, but none that has many calls already: what one history
// may have been grows with its length, and doubles with each call without a clear answer.
func (h *histories) some() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, calls := range h.of { // any one: a map has no order
		if len(calls) < 24 && unclear(calls) < 8 {
			return id
		}
	}
	return ""
}

func unclear(calls []porcupine.Operation) (n int) {
	for _, call := range calls {
		if !call.Output.(said).clear {
			n++
		}
	}
	return n
}

// lose notes that a fault may take along what runs.
func (h *histories) lose(from int64) {
	h.mu.Lock()
	ids := make([]string, 0, len(h.of))
	for id := range h.of {
		ids = append(ids, id)
	}
	h.mu.Unlock()
	for _, id := range ids {
		h.add(id, 99, act{what: "lose"}, from, said{})
	}
}

// check reports the histories that nothing explains.
func (h *histories) check(t *testing.T) {
	t.Helper()
	calls, open := 0, 0
	for id, history := range h.of {
		model := porcupine.NondeterministicModel{
			Init: func() []any { return []any{life{state: "running", loss: h.loss[id]}} },
			Step: func(state, input, output any) []any { return state.(life).after(input.(act), output.(said)) },
		}
		one := model.ToModel()
		slices.SortStableFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		calls, open = calls+len(history), open+unclear(history)
		if got := porcupine.CheckOperationsTimeout(one, history, time.Minute); got != porcupine.Ok {
			var lines []string
			for _, op := range history {
				lines = append(lines, fmt.Sprintf("%6d..%-6d %+v: %+v", op.Call/1e6, op.Return/1e6, op.Input, op.Output))
			}
			t.Errorf("sandbox %s (goes on: %t): %s, nothing explains\n%s", id, h.loss[id], got, strings.Join(lines, "\n"))
		}
	}
	t.Logf("%d sandboxes, %d calls, %d of them without a clear answer", len(h.of), calls, open)
}

// fronts are the nodes that clients talk to; a server that starts anew has another address.
type fronts struct {
	mu  sync.RWMutex
	all []front
}

type front struct {
	api *client.Client
	url string
}

func (f *fronts) set(i int, w *servertest.World) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[i] = front{w.Client(), w.URL()}
}

func (f *fronts) any() front {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.all[rand.IntN(len(f.all))]
}

// said is what an error of the API says.
func saidBy(err error) said {
	switch cay.KindOf(err) {
	case cay.NotFound:
		return said{clear: true, gone: true}
	case cay.Conflict:
		return said{clear: true, busy: true}
	}
	return said{clear: err == nil}
}

// do makes one call of a client.
func (f front) do(ctx context.Context, id string, c act) said {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	switch c.what {
	case "pause":
		return saidBy(f.api.PauseDurably(ctx, id, false))
	case "checkpoint":
		_, err := f.api.Checkpoint(ctx, id, "", "")
		return saidBy(err)
	case "connect":
		_, err := f.api.Connect(ctx, id, time.Hour)
		return saidBy(err)
	case "kill":
		return saidBy(f.api.Kill(ctx, id))
	case "info":
		info, err := f.api.Info(ctx, id)
		s := saidBy(err)
		s.value = info.State
		return s
	}
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if c.what == "write" {
		method, body = http.MethodPut, strings.NewReader(c.value)
	}
	r, err := http.NewRequestWithContext(ctx, method, f.url+"/", body)
	if err != nil {
		return said{}
	}
	r.Header.Set("E2b-Sandbox-Id", id)
	r.Header.Set("E2b-Sandbox-Port", "8000")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return said{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return said{clear: err == nil && resp.StatusCode == http.StatusOK, value: string(text)}
}

// work is a client that does what it likes until stop.
func (h *histories) work(ctx context.Context, worker int, f *fronts, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		id := h.some()
		if id == "" || rand.IntN(6) == 0 {
			loss := rand.IntN(2) == 0
			if box, err := f.any().api.Create(ctx, client.CreateOptions{Timeout: time.Hour, ResumeOnHostLoss: loss}); err == nil {
				h.mu.Lock()
				h.of[box.ID], h.loss[box.ID] = nil, loss
				h.mu.Unlock()
			}
			continue
		}
		whats := []string{"write", "write", "read", "read", "pause", "connect", "connect", "info", "checkpoint", "kill"}
		c := act{what: whats[rand.IntN(len(whats))]}
		if c.what == "kill" && rand.IntN(3) > 0 {
			c.what = "info"
		}
		if c.what == "write" {
			c.value = fmt.Sprint(worker, ".", n)
		}
		begun := h.now()
		answer := f.any().do(ctx, id, c)
		if c.what == "pause" && answer.gone { // or it was ended while the pause, which was made, waited for its copy
			h.add(id, worker, c, begun, said{})
			c.what = "info"
		}
		h.add(id, worker, c, begun, answer)
	}
}

// Nodes fail in four ways, CLUSTER_CUTS times, while clients do all that they can: what
// they saw of each sandbox is explained by one that is on one machine, nothing acts on two
// nodes, and what is over was ended, or ran on a node that was lost.
func TestHistories(t *testing.T) {
	rounds := clusterCuts(t)
	c := servertest.StartCluster(t, 3, servertest.Quick)
	c.AwaitReady(3)
	at := &fronts{all: make([]front, 3)}
	for i, w := range c.Nodes {
		at.set(i, w)
	}
	for round := range rounds {
		victim := round % 3
		fault := []string{"cut", "restart", "power", "short cut"}[round%4]
		h := newHistories()
		stop, watched := make(chan struct{}), make(chan struct{})
		var workers sync.WaitGroup
		for worker := range 6 {
			workers.Go(func() { h.work(t.Context(), worker, at, stop) })
		}
		go func() {
			defer close(watched)
			h.watch(t, c, stop)
		}()
		time.Sleep(time.Second) // load for a while
		from := h.now()
		h.fail(t, c, at, victim, fault)
		close(stop)
		workers.Wait()
		<-watched
		if fault == "cut" || fault == "power" {
			h.lose(from)
		}
		c.AwaitReady(3)
		h.end(t, c, at)
		h.check(t)
		t.Logf("round %d of %d: %s of node %d", round+1, rounds, fault, victim)
	}
}

// fail has a node fail, and be a member again.
func (h *histories) fail(t *testing.T, c *servertest.Cluster, at *fronts, victim int, fault string) {
	t.Helper()
	w, other := c.Nodes[victim], c.Nodes[(victim+1)%3]
	id := nodeOf(t, w)
	switch fault {
	case "cut":
		c.Links[victim].Cut()
		awaitGone(t, other, id)
		time.Sleep(2 * time.Second) // what goes on elsewhere does, while this one is cut off still
		c.Links[victim].Heal()
		if err := <-w.Ended(); !errors.Is(err, store.ErrTakenOver) {
			t.Errorf("the lost node ended with %v", err)
		}
		w.Forget()
	case "power":
		w.Stop()
		w.Machine.Reboot()
		awaitGone(t, other, id)
	case "restart":
		w.Stop()
	case "short cut":
		c.Links[victim].Cut()
		time.Sleep(2 * time.Second)
		c.Links[victim].Heal()
		time.Sleep(time.Second)
		return
	}
	w.Start()
	at.set(victim, w)
}

// watch fails where a sandbox acts on two nodes at once. A look at one machine after the
// other can see a sandbox that has just moved twice: two looks at the first one tell.
func (h *histories) watch(t *testing.T, c *servertest.Cluster, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		h.mu.Lock()
		ids := make([]cay.SandboxID, 0, len(h.loss))
		for id := range h.loss {
			ids = append(ids, cay.SandboxID(id))
		}
		h.mu.Unlock()
		for _, id := range ids {
			for i, w := range c.Nodes {
				if !w.Machine.Acts(id) {
					continue
				}
				for j, other := range c.Nodes {
					if j != i && other.Machine.Acts(id) && w.Machine.Acts(id) {
						t.Errorf("sandbox %s acts on nodes %d and %d", id, i, j)
					}
				}
			}
		}
	}
}

// end asks for all that there is once more, and ends it.
func (h *histories) end(t *testing.T, c *servertest.Cluster, at *fronts) {
	t.Helper()
	for id := range h.loss {
		for _, what := range []string{"info", "connect", "read", "kill"} {
			begun := h.now()
			answer := at.any().do(t.Context(), id, act{what: what})
			h.add(id, 0, act{what: what}, begun, answer)
			if !answer.clear {
				t.Errorf("after the faults sandbox %s gives no answer to %s", id, what)
			}
			if answer.gone {
				break
			}
		}
		end, err := c.Nodes[0].Client().End(t.Context(), id)
		if err != nil || end.Reason != string(cay.CauseAsked) && end.Reason != string(cay.CauseHostLost) {
			t.Errorf("the end of sandbox %s: %+v, %v", id, end, err)
		}
		awaitNowhere(t, c, id)
	}
}
