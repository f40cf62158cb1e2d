package historytest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Longest is for how many calls of several clients histories are judged in moments. The
// states that one may have had grow with its length, and double with each call without a clear answer.
const Longest = 24

// judgeWithin bounds the search for what explains one history; a machine that does much else
// needs minutes for some.
const judgeWithin = 5 * time.Minute

// Histories are what clients saw, by the sandbox.
type Histories struct {
	begun time.Time
	mu    sync.Mutex
	of    map[string]*history
}

type history struct {
	calls  []porcupine.Operation
	loss   bool // it goes on when its machine is lost
	worker int  // the client that made it
	full   bool // no further call is noted but those of its end
}

// New begins.
func New() *Histories { return &Histories{begun: time.Now(), of: map[string]*history{}} }

// Now is the time as histories have it.
func (h *Histories) Now() int64 { return int64(time.Since(h.begun)) }

// IDs lists the sandboxes.
func (h *Histories) IDs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.of))
}

func (h *Histories) made(id string, worker int, loss bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of[id] = &history{loss: loss, worker: worker}
}

// add notes a call. One that changes nothing and has no clear answer tells nothing.
func (h *Histories) add(id string, worker int, c Act, begun int64, s Said) {
	if !s.Clear && (s.none || c.What == "read" || c.What == "info") {
		return
	}
	ended := h.Now()
	if !s.Clear {
		ended = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.of[id]
	of.calls = append(of.calls, porcupine.Operation{ClientId: worker, Input: c, Call: begun, Output: s, Return: ended})
}

// open are the sandboxes whose histories may grow, a client's own or all.
func (h *Histories) open(worker int, own bool) (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, of := range h.of { // in any order: a map has none
		if !of.full && (!own || of.worker == worker) {
			ids = append(ids, id)
		}
	}
	return ids
}

// fill has one caller know that a history has become too long to grow.
func (h *Histories) fill(id string, longest int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.of[id]
	if of.full || len(of.calls) < longest && unclear(of.calls) < longest/3 {
		return false
	}
	of.full = true
	return true
}

func unclear(calls []porcupine.Operation) (n int) {
	for _, call := range calls {
		if !call.Output.(Said).Clear {
			n++
		}
	}
	return n
}

// Lose notes that a fault that began then may take along what runs.
func (h *Histories) Lose(from int64) {
	for _, id := range h.IDs() {
		h.add(id, -1, Act{What: "lose"}, from, Said{})
	}
}

// unkept reports whether a sandbox may be paused in what its lost machine alone had: a fault
// took machines along, and no pause was the last that its clients had a clear answer to.
func (h *Histories) unkept(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	lost, paused := false, false
	for _, call := range h.of[id].calls {
		switch c, s := call.Input.(Act), call.Output.(Said); {
		case c.What == "lose":
			lost = true
		case s.Clear && !s.Busy && c.What != "info":
			paused = c.What == "pause"
		}
	}
	return lost && !paused
}

// Report is what became of histories.
type Report struct {
	Sandboxes, Calls, Unclear int
	Wrong                     []string // each a history that nothing explains
}

// Check judges all histories.
func (h *Histories) Check() Report {
	r := Report{Sandboxes: len(h.of)}
	for id, of := range h.of {
		slices.SortStableFunc(of.calls, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		r.Calls, r.Unclear = r.Calls+len(of.calls), r.Unclear+unclear(of.calls)
		if got := porcupine.CheckOperationsTimeout(model(of.loss), of.calls, judgeWithin); got != porcupine.Ok {
			r.Wrong = append(r.Wrong, fmt.Sprintf("sandbox %s (goes on: %t): %s, nothing explains\n%s", id, of.loss, got, strings.Join(lines(of.calls), "\n")))
		}
	}
	return r
}

func lines(calls []porcupine.Operation) (out []string) {
	for _, op := range calls {
		said := op.Output.(Said)
		text := fmt.Sprintf("%6d..%-6d %d %+v: clear=%t gone=%t busy=%t %q", op.Call/1e6, op.Return/1e6, op.ClientId, op.Input, said.Clear, said.Gone, said.Busy, said.Value)
		if said.err != nil {
			text += " " + said.err.Error()
		}
		out = append(out, text)
	}
	return out
}
