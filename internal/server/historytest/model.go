// Package historytest has clients use the sandboxes of several nodes, and judges what
// they were answered: it must be what a sandbox on one machine that fails would have
// answered. The nodes may be a test's own, or real ones (test/cluster).
package historytest

import (
	"strings"

	"github.com/anishathalye/porcupine"
)

// Each call took effect at one moment between its begin and its answer, or, of those
// without a clear answer, at one moment later or never.

// Act is what a client asks of a sandbox.
type Act struct {
	What  string // write, read, pause, connect, kill, info, checkpoint; and lose, which a fault may do
	Value string // of write
}

// Said is the answer.
type Said struct {
	Clear bool // else it may have happened, or may yet
	Gone  bool // there is no such sandbox
	Busy  bool // it is in another state than the call is for
	Value string

	again bool  // the client may ask once more
	none  bool  // nothing got the request
	err   error // of an answer that is not clear
}

// life is a sandbox as the model has it.
type life struct {
	state string // running, paused, moving (it goes on by itself), over
	value string // of its memory
	saved string // the values that it may go on from, each behind a newline
	loss  bool   // it goes on when its machine is lost
	woken bool   // it answers, and its node may say for a moment that it is paused
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
func (l life) after(c Act, s Said) []any {
	if l.state == "moving" { // it goes on at any moment
		return append(l.settled(c, s), l.wakes().settled(c, s)...)
	}
	return l.settled(c, s)
}

func (l life) settled(c Act, s Said) []any {
	if s.Clear && s.Gone {
		return l.onlyIf(l.state == "over")
	}
	next, can := l.happened(c)
	switch {
	case !s.Clear && c.What == "lose":
		return append([]any{l}, l.lost()...)
	case !s.Clear && can && c.What == "pause": // or it is undone after a moment
		torn := l
		torn.woken = true
		return []any{l, next, torn}
	case !s.Clear && can:
		return []any{l, next}
	case !s.Clear:
		return []any{l}
	case s.Busy && can && c.What == "write": // a pause takes along the answers to what the guest has done
		return append(l.onlyIf(l.woken), next)
	case s.Busy:
		return l.onlyIf(!can || l.woken || l.state == "moving" || l.state == "paused" && c.What == "pause")
	case c.What == "read":
		return l.onlyIf(can && l.value == s.Value)
	case c.What == "info":
		return l.onlyIf(l.state == s.Value || (l.state == "moving" || l.woken) && s.Value == "paused")
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
func (l life) happened(c Act) (life, bool) {
	switch runs := l.state == "running"; c.What {
	case "write":
		l.value = c.Value
		return l, runs
	case "read":
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

// model is a sandbox from its create on.
func model(loss bool) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{life{state: "running", loss: loss}} },
		Step: func(state, input, output any) []any { return state.(life).after(input.(Act), output.(Said)) },
	}
	return m.ToModel()
}
