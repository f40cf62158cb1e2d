package control

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

const (
	// keepEvents outlives the records of sandboxes that ended: their last
	// event says why.
	keepEvents = keepKilled + 24*time.Hour

	// maxData, maxKey and maxValue bound what an event carries.
	maxData  = 16
	maxKey   = 64
	maxValue = 512

	// A guest may cause reportBurst events at once, and then one each
	// reportEvery.
	reportBurst = 20
	reportEvery = 5 * time.Second
)

// event is an event of a sandbox, for save and add; it names the caller's key.
// Data are keys and values by turns; empty values are left out. Any text is fit
// to be shown.
func event(who cay.Caller, s cay.Sandbox, what cay.EventType, reason string, data ...string) cay.Event {
	out := cay.Event{Team: s.Team, Sandbox: s.ID, Type: what, Reason: reason, At: now(), Data: make(map[string]string)}
	for i := 0; i+1 < len(data) && len(out.Data) < maxData; i += 2 {
		if data[i+1] != "" {
			out.Data[fit(data[i], maxKey)] = fit(data[i+1], maxValue)
		}
	}
	if who.Key != "" {
		out.Data["by"] = string(who.Key)
	}
	return out
}

// fit makes text from anywhere one short line.
func fit(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, ""))
}

// Emit records an event of a sandbox that is not over, for parts whose work
// changes none of its record: what goes with a change is given to save. Data
// are keys and values by turns.
func (c *Control) Emit(ctx context.Context, id cay.SandboxID, what cay.EventType, reason string, data ...string) error {
	e := c.entry(id)
	if e == nil {
		return errNoSandbox(id)
	}
	s := e.sandbox()
	return c.emit(ctx, event(cay.ForTeam(s.Team), s, what, reason, data...))
}

// Report is Emit for what a guest can cause as often as it likes. What is too
// much is dropped; the next event says how many were.
func (c *Control) Report(ctx context.Context, id cay.SandboxID, what cay.EventType, reason string, data ...string) error {
	e := c.entry(id)
	if e == nil {
		return errNoSandbox(id)
	}
	dropped, ok := e.reports.take(time.Now())
	if !ok {
		return nil
	}
	if dropped != "" {
		data = append([]string{"dropped", dropped}, data...)
	}
	s := e.sandbox()
	return c.emit(ctx, event(cay.ForTeam(s.Team), s, what, reason, data...))
}

// Announce records an event of the machine for every team.
func (c *Control) Announce(ctx context.Context, what cay.EventType, reason string, data ...string) error {
	teams, err := c.store.Teams(ctx)
	if err != nil {
		return err
	}
	for _, team := range teams {
		err = errors.Join(err, c.emit(ctx, event(cay.ForTeam(team.ID), cay.Sandbox{Team: team.ID}, what, reason, data...)))
	}
	return err
}

func (c *Control) emit(ctx context.Context, e cay.Event) error {
	if err := c.store.AddEvents(ctx, e); err != nil {
		return err
	}
	c.told.wake(e.Team)
	return nil
}

// tell records an event of what is done already: a failure cannot undo it.
func (c *Control) tell(ctx context.Context, e cay.Event) {
	if err := c.emit(context.WithoutCancel(ctx), e); err != nil {
		c.log.Error("cannot record an event", "sandbox", e.Sandbox, "type", e.Type, "err", err)
	}
}

func (c *Control) entry(id cay.SandboxID) *entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.live[id]
}

// EventQuery says which of a team's events to list.
type EventQuery = store.EventQuery

// Events lists a team's events, oldest first, of a sandbox that is over too.
// NotFound when the team never had that sandbox, or long ago.
func (c *Control) Events(ctx context.Context, who cay.Caller, q EventQuery) ([]cay.Event, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	q.Team = who.Team
	if q.Sandbox != "" {
		if _, err := c.store.Sandbox(ctx, q.Team, q.Sandbox); err != nil {
			return nil, known(err, q.Sandbox)
		}
	}
	return c.store.Events(ctx, q)
}

// known gives a sandbox that the store does not know the usual words.
func known(err error, id cay.SandboxID) error {
	if cay.KindOf(err) == cay.NotFound {
		return errNoSandbox(id)
	}
	return err
}

// Over reports whether a sandbox has ended. All its events but those of its
// past are then recorded.
func (c *Control) Over(id cay.SandboxID) bool {
	e := c.entry(id)
	return e == nil || e.sandbox().State == cay.Killed
}

// LastEvent is the number of a team's newest event.
func (c *Control) LastEvent(ctx context.Context, who cay.Caller) (int64, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return 0, err
	}
	return c.store.LastEvent(ctx, who.Team)
}

// NewEvents returns a channel that is closed once a team has events that were
// recorded after this call, or streams must end: who waits asks for it first
// and lists then.
func (c *Control) NewEvents(team cay.TeamID) <-chan struct{} { return c.told.next(team) }

// EndStreams ends all waiting for events, for good: Streaming is false from
// now on. The server calls it when it stops.
func (c *Control) EndStreams() { c.told.close() }

// Streaming reports whether it makes sense to wait for events.
func (c *Control) Streaming() bool { return !c.told.isClosed() }

// hub wakes those who wait for events of a team.
type hub struct {
	mu      sync.Mutex
	closed  bool
	waiting map[cay.TeamID]chan struct{}
}

func (h *hub) next(team cay.TeamID) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.waiting[team]
	if ch == nil {
		ch = make(chan struct{})
		if h.closed {
			close(ch)
			return ch
		}
		if h.waiting == nil {
			h.waiting = make(map[cay.TeamID]chan struct{})
		}
		h.waiting[team] = ch
	}
	return ch
}

func (h *hub) wake(team cay.TeamID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.waiting[team]; ch != nil {
		close(ch)
		delete(h.waiting, team)
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for team, ch := range h.waiting {
		close(ch)
		delete(h.waiting, team)
	}
}

func (h *hub) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// visible is what callers may be told of an error.
func visible(err error) string {
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Msg != "" {
		return ours.Msg
	}
	return string(cay.KindOf(err))
}

// stamp is a time in an event's data.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// foundEvent tells of a state that a starting server found a sandbox in.
func foundEvent(s cay.Sandbox) cay.Event {
	who := cay.ForTeam(s.Team)
	switch s.State {
	case cay.Killed:
		return event(who, s, cay.SandboxKilled, string(s.Cause), "evidence", "found when the server started")
	case cay.Paused:
		return event(who, s, cay.SandboxPaused, cay.ReasonRestart, "snapshot", string(s.Snapshot))
	}
	return event(who, s, cay.SandboxRunning, cay.ReasonRestart)
}

// timeoutStep is by how much a sandbox's end moves on before it is told again:
// clients that keep one alive move it every few seconds.
const timeoutStep = time.Minute

// timeoutEvents tells of a new end, if that is news. The caller holds the
// sandbox's lock.
func (e *entry) timeoutEvents(who cay.Caller, s cay.Sandbox) []cay.Event {
	later := s.EndAt.Sub(e.toldEnd)
	if later > 0 && later < timeoutStep {
		return nil
	}
	e.toldEnd = s.EndAt
	return []cay.Event{event(who, s, cay.SandboxTimeoutChanged, cay.ReasonAsked, "endAt", stamp(s.EndAt))}
}
