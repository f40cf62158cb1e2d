package ledger

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	// KeepEvents outlives the records of sandboxes that ended: their last
	// event says why.
	KeepEvents = KeepKilled + 24*time.Hour

	// MaxData, MaxKey and MaxValue bound what an event carries.
	MaxData  = 16
	MaxKey   = 64
	MaxValue = 512
)

// NewEvent returns an event of a sandbox; it names the caller's key or person.
// Data are keys and values by turns; empty values are left out. Any text is fit
// to be shown.
func NewEvent(who cay.Caller, s cay.Sandbox, what cay.EventType, reason string, data ...string) cay.Event {
	out := cay.Event{Team: s.Team, Sandbox: s.ID, Type: what, Reason: reason, At: Now(), Data: make(map[string]string), Instance: s.Instance, Actor: who.Actor(), From: who.From}
	if what == cay.SandboxNetworkChanged {
		out.Outwards = &cay.Outwards{Allow: s.Network.AllowOut, Deny: s.Network.DenyOut}
	}
	for i := 0; i+1 < len(data) && len(out.Data) < MaxData; i += 2 {
		if data[i+1] != "" {
			out.Data[cay.Fit(data[i], MaxKey)] = cay.Fit(data[i+1], MaxValue)
		}
	}
	switch {
	case who.Key != "":
		out.Data["by"] = string(who.Key)
	case who.Person != "":
		out.Data["by"] = string(who.Person)
	}
	return out
}

// Announce records an event of the machine for every team.
func (l *Ledger) Announce(ctx context.Context, what cay.EventType, reason string, data ...string) error {
	teams, err := l.store.Teams(ctx)
	if err != nil {
		return err
	}
	for _, team := range teams {
		err = errors.Join(err, l.Add(ctx, NewEvent(cay.ForTeam(team.ID), cay.Sandbox{Team: team.ID}, what, reason, data...)))
	}
	return err
}

// Add records an event that goes with no change of a record.
func (l *Ledger) Add(ctx context.Context, e cay.Event) error {
	if err := l.store.AddEvents(ctx, e); err != nil {
		return err
	}
	l.streams.wake(e.Team)
	return nil
}

// Tell records an event of what is done already: a failure cannot undo it.
func (l *Ledger) Tell(ctx context.Context, e cay.Event) {
	if err := l.Add(context.WithoutCancel(ctx), e); err != nil {
		l.log.ErrorContext(ctx, "cannot record an event", "sandbox", e.Sandbox, "type", e.Type, "err", err)
	}
}

// Wake tells the streams of a team that events were recorded with a change.
func (l *Ledger) Wake(team cay.TeamID) { l.streams.wake(team) }

// NewEvents returns a channel that is closed once a team has events that were
// recorded after this call, or streams must end: a stream asks for it first
// and lists then.
func (l *Ledger) NewEvents(team cay.TeamID) <-chan struct{} { return l.streams.next(team) }

// Awaited reports whether something may wait for events.
func (l *Ledger) Awaited() bool { return l.streams.awaited() }

// EndStreams ends all waiting for events, for good: Streaming is false from
// now on.
func (l *Ledger) EndStreams() { l.streams.close() }

// Ended returns a channel that is closed by EndStreams, for what waits for one thing
// among all events.
func (l *Ledger) Ended() <-chan struct{} { return l.streams.end() }

// Streaming reports whether it makes sense to wait for events.
func (l *Ledger) Streaming() bool { return !l.streams.isClosed() }

// hub wakes the streams that wait for events of a team.
type hub struct {
	mu      sync.Mutex
	closed  bool
	waiting map[cay.TeamID]chan struct{}
	ended   chan struct{} // closed with the hub; nil before anything asked for it
}

func (h *hub) end() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == nil {
		h.ended = make(chan struct{})
		if h.closed {
			close(h.ended)
		}
	}
	return h.ended
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

func (h *hub) awaited() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
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
	if h.ended != nil && !h.closed {
		close(h.ended)
	}
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

// Visible is what callers may be told of an error.
func Visible(err error) string {
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Msg != "" {
		return ours.Msg
	}
	return string(cay.KindOf(err))
}

// Stamp is a time in an event's data.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
