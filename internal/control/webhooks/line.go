package webhooks

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// window is how many attempts of one webhook are under way at once; one
	// that fails has a single one.
	window = 8
	// slowAfter is how long an attempt may take before its webhook is treated
	// like one that fails: slow addresses share the places of those.
	slowAfter = 5 * time.Second
	// batch is how many events or retries a line reads at once.
	batch = 64
	// skipMost is how many events that a webhook does not want are passed over
	// before its cursor is recorded.
	skipMost = 1000
)

// line sends one webhook's events, in their order. Of one sandbox's events no
// two are under way at once, so that the first attempts at them come in order;
// one that failed waits for its time while later ones go on.
type line struct {
	h  *Hooks
	id cay.WebhookID

	poked chan struct{} // the webhook or its team was changed, or an attempt is over

	mu      sync.Mutex
	hook    cay.Webhook
	again   bool           // the webhook or its team was changed since it was read
	held    bool           // the team is disabled: nothing begins
	looked  time.Time      // when it was read
	busy    map[string]int // attempts under way, by what must not overlap: sandboxes and events
	running int
	read    int64                // the last event that was looked at
	open    map[int64]struct{}   // events that were looked at and are not done with
	saved   int64                // the cursor as recorded
	failing time.Time            // as in cay.Webhook
	slow    bool                 // the last attempt was
	told    map[int64]struct{}   // tried by an earlier server, after the cursor
	queue   []cay.Event          // that were read and not looked at
	retries []cay.WebhookAttempt // that are to be repeated, the earliest first
	stale   bool                 // retries is not as the records are
}

func newLine(h *Hooks, team cay.TeamID, id cay.WebhookID) *line {
	return &line{
		h: h, id: id, hook: cay.Webhook{ID: id, Team: team}, again: true, poked: make(chan struct{}, 1), read: -1, stale: true,
		busy: make(map[string]int), open: make(map[int64]struct{}), told: make(map[int64]struct{}),
	}
}

func (l *line) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// run sends until the webhook is gone or turned off, or ctx ends. It
// waits for the attempts under way, which end soon: they have the context work.
func (l *line) run(ctx, work context.Context) {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	for {
		var news <-chan struct{}
		if l.h.ledger.Streaming() {
			news = l.h.ledger.NewEvents(l.hook.Team)
		}
		on, err := l.load(ctx)
		if err == nil && on {
			err = l.advance(ctx, func(a cay.WebhookAttempt, e cay.Event) {
				attempts.Go(func() { l.attempt(ctx, work, a, e) })
			})
		}
		if ctx.Err() != nil || !on && err == nil && l.h.leave(l) {
			return
		}
		wait := l.wait()
		if err != nil {
			l.h.log.Error("cannot read what a webhook is to be told", "webhook", l.id, "err", err)
			wait = failedWait
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-news:
		case <-l.poked:
		case <-timer.C:
		}
		timer.Stop()
	}
}

const failedWait = 10 * time.Second // after the records could not be read

// wait is the time until the next retry.
func (l *line) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return l.h.lookAgain // the end of that is told
	}
	for _, a := range l.retries {
		if l.free(a.Event, a.Sandbox) {
			return max(0, min(l.h.lookAgain, time.Until(a.Next)))
		}
	}
	return l.h.lookAgain // the end of an attempt is told
}

// load reads the webhook if it may have changed, and says whether there is
// anything to do for it. A cursor that moved on in the records did so because it
// was turned on again.
func (l *line) load(ctx context.Context) (on bool, err error) {
	l.mu.Lock()
	fresh := !l.again && time.Since(l.looked) < l.h.lookAgain
	on = l.hook.Enabled
	l.again = false
	l.mu.Unlock()
	if fresh {
		return on, nil
	}
	if on, err = l.reload(ctx); err != nil {
		l.mu.Lock()
		l.again = true
		l.mu.Unlock()
	}
	return on, err
}

func (l *line) reload(ctx context.Context) (on bool, err error) {
	w, err := l.h.store.Webhook(ctx, l.hook.Team, l.id)
	if cay.KindOf(err) == cay.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !w.Enabled || l.turnedOff(w) {
		l.mu.Lock()
		l.hook, l.looked = w, time.Now()
		l.hook.Enabled = false
		l.mu.Unlock()
		return false, nil
	}
	team, err := l.h.store.Team(ctx, l.hook.Team)
	removed := cay.KindOf(err) == cay.NotFound // its webhooks are about to go
	if err != nil && !removed {
		return false, err
	}
	var told []int64
	l.mu.Lock()
	first := l.read < w.Cursor
	l.mu.Unlock()
	if first {
		if told, err = l.h.store.Told(ctx, l.id, w.Cursor); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Version != l.hook.Version {
		l.failing = w.FailingSince
	}
	l.hook, l.looked = w, time.Now()
	l.hold(removed || !team.DisabledAt.IsZero())
	if !first {
		return true, nil
	}
	l.read, l.saved, l.queue = w.Cursor, w.Cursor, nil
	for _, seq := range told {
		l.told[seq] = struct{}{}
	}
	return true, nil
}

// hold has nothing begin until it is called with false. The time before counts
// for no failing webhook: it was not tried. The caller holds the lock.
func (l *line) hold(on bool) {
	if l.held && !on {
		l.failing = time.Time{}
	}
	l.held = on
}

// turnedOff reports whether the line has turned the webhook off, and the record
// that was read is of before that.
func (l *line) turnedOff(read cay.Webhook) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.hook.Enabled && l.hook.Version == read.Version
}

// advance starts the attempts that may start now.
func (l *line) advance(ctx context.Context, start func(cay.WebhookAttempt, cay.Event)) error {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held {
		return nil
	}
	if err := l.readRetries(ctx); err != nil {
		return err
	}
	l.startRetries(start)
	for {
		if err := l.readEvents(ctx); err != nil {
			return err
		}
		if !l.startEvents(start) {
			break
		}
	}
	return l.saveSkipped(ctx)
}

func (l *line) readRetries(ctx context.Context) error {
	l.mu.Lock()
	stale := l.stale
	l.stale = false
	l.mu.Unlock()
	if !stale {
		return nil
	}
	list, err := l.h.store.Retries(ctx, l.id, batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stale = true
		return err
	}
	l.retries = list
	return nil
}

// ailing reports whether the address fails, or takes long. The caller holds the
// lock.
func (l *line) ailing() bool { return l.slow || !l.failing.IsZero() }

// room reports whether another attempt may start.
func (l *line) room() bool {
	if l.ailing() {
		return l.running == 0
	}
	return l.running < window
}

// free reports whether an attempt of an event may start.
func (l *line) free(event string, id cay.SandboxID) bool {
	return l.room() && l.busy[event] == 0 && l.busy[sandboxKey(id)] == 0
}

// startRetries starts what is due.
func (l *line) startRetries(start func(cay.WebhookAttempt, cay.Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	left := l.retries[:0]
	for _, a := range l.retries {
		if a.Next.After(now) || !l.free(a.Event, a.Sandbox) {
			left = append(left, a)
			continue
		}
		l.begin(a.Event, a.Sandbox)
		start(cay.WebhookAttempt{
			Webhook: a.Webhook, Team: a.Team, Seq: a.Seq, Event: a.Event, Type: a.Type, Sandbox: a.Sandbox, Body: a.Body, Number: a.Number + 1,
		}, cay.Event{})
	}
	l.retries = left
}

func sandboxKey(id cay.SandboxID) string { return "sandbox " + string(id) }

// begin and end count an attempt under way. The caller holds the lock.
func (l *line) begin(event string, id cay.SandboxID) {
	l.running++
	l.busy[event]++
	l.busy[sandboxKey(id)]++
}

func (l *line) end(event string, id cay.SandboxID) {
	l.running--
	for _, key := range []string{event, sandboxKey(id)} {
		if l.busy[key]--; l.busy[key] == 0 {
			delete(l.busy, key)
		}
	}
}

// readEvents reads the next events when all that were read were looked at.
func (l *line) readEvents(ctx context.Context) error {
	l.mu.Lock()
	enough := len(l.queue) > 0 || !l.room()
	q := store.EventQuery{Team: l.hook.Team, After: l.read, Limit: batch}
	l.mu.Unlock()
	if enough {
		return nil
	}
	list, err := l.h.store.Events(ctx, q)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.queue = list
	l.mu.Unlock()
	return nil
}

// startEvents starts the first attempts at events, in order. It reports whether
// more can be read.
func (l *line) startEvents(start func(cay.WebhookAttempt, cay.Event)) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 {
		e := l.queue[0]
		kind := wanted(l.hook, e)
		if _, told := l.told[e.Seq]; told {
			delete(l.told, e.Seq)
			kind = ""
		}
		if kind != "" {
			if !l.free(e.ID(), e.Sandbox) {
				return false
			}
			l.open[e.Seq] = struct{}{}
			l.begin(e.ID(), e.Sandbox)
			start(cay.WebhookAttempt{
				Webhook: l.id, Team: e.Team, Seq: e.Seq, Event: e.ID(), Type: kind, Sandbox: e.Sandbox, Number: 1,
			}, e)
		}
		l.read, l.queue, more = e.Seq, l.queue[1:], true
	}
	return more
}

// cursor is the number up to which all is done. The caller holds the lock.
func (l *line) cursor() int64 {
	out := l.read
	for seq := range l.open {
		out = min(out, seq-1)
	}
	return out
}

// saveSkipped records the cursor when many events were passed over.
func (l *line) saveSkipped(ctx context.Context) error {
	l.mu.Lock()
	skipped := l.cursor()-l.saved >= skipMost
	l.mu.Unlock()
	if !skipped {
		return nil
	}
	return l.save(ctx)
}

// save records how far the webhook is.
func (l *line) save(ctx context.Context) error {
	l.mu.Lock()
	p := store.WebhookProgress{Webhook: l.id, Cursor: l.cursor(), FailingSince: l.failing}
	same := p.Cursor == l.saved
	l.saved = p.Cursor
	l.mu.Unlock()
	if same {
		return nil
	}
	return l.h.store.RecordAttempts(ctx, nil, []store.WebhookProgress{p})
}

// attempt makes one attempt and has it recorded. The event is that of a first
// one; a later one has the body of the first.
func (l *line) attempt(ctx, work context.Context, a cay.WebhookAttempt, e cay.Event) {
	l.mu.Lock()
	w, places := l.hook, l.h.places
	if l.ailing() {
		places = l.h.ailing
	}
	l.mu.Unlock()
	if take(ctx, places, w.Team) != nil { // the server ends before it began
		l.drop(a)
		return
	}
	if l.h.pace.wait(ctx) != nil {
		places.Give(w.Team, 1)
		l.drop(a)
		return
	}
	if a.Number == 1 {
		var err error
		if a.Body, err = l.h.body(work, e, a.Type); err != nil {
			places.Give(w.Team, 1)
			l.h.log.Error("cannot read what a webhook is to be told", "webhook", l.id, "err", err)
			l.giveBack(ctx, a)
			return
		}
	}
	l.h.try(work, w, &a)
	places.Give(w.Team, 1)
	l.h.outcomes <- outcome{l, a}
}

// drop leaves an attempt that was not made; the next server makes it.
func (l *line) drop(a cay.WebhookAttempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(a.Event, a.Sandbox)
}

// giveBack has the line read on from before an event that could not be read,
// after a while.
func (l *line) giveBack(ctx context.Context, a cay.WebhookAttempt) {
	timer := time.NewTimer(failedWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	l.drop(a)
	l.mu.Lock()
	delete(l.open, a.Seq)
	for seq := range l.open { // tried, or about to be
		l.told[seq] = struct{}{}
	}
	l.read, l.queue = min(l.read, a.Seq-1), nil
	l.mu.Unlock()
	l.poke()
}

// settle puts what came of an attempt into the line and returns how far that
// brings the webhook.
func (l *line) settle(a cay.WebhookAttempt) store.WebhookProgress {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Number == 1 {
		delete(l.open, a.Seq)
	}
	l.slow = a.Took > slowAfter
	p := store.WebhookProgress{Webhook: l.id, Cursor: l.cursor()}
	l.saved = p.Cursor
	switch {
	case !a.Failed():
		l.failing = time.Time{}
	case a.Class != cay.FailedCanceled && l.failing.IsZero():
		l.failing = a.At
	}
	p.FailingSince = l.failing
	switch {
	case a.Status == 410:
		p.Disabled = cay.ReasonGone
	case a.Failed() && a.Class != cay.FailedCanceled && a.At.Sub(l.failing) >= failingMost:
		p.Disabled = cay.ReasonFailing
	}
	if p.Disabled != "" {
		l.hook.Enabled = false
		p.Events = []cay.Event{ledger.NewEvent(cay.ForTeam(l.hook.Team), cay.Sandbox{Team: l.hook.Team}, cay.WebhookDisabled, p.Disabled,
			"webhook", string(l.id), "name", l.hook.Name)}
	}
	return p
}

// unsettle is called when an attempt could not be recorded and the server ends:
// the next one makes it again.
func (l *line) unsettle(a cay.WebhookAttempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Number == 1 {
		l.open[a.Seq] = struct{}{}
	}
}

// done is called when an attempt is recorded.
func (l *line) done(a cay.WebhookAttempt) {
	l.mu.Lock()
	l.end(a.Event, a.Sandbox)
	l.stale = l.stale || !a.Next.IsZero() || a.Number > 1
	l.mu.Unlock()
	l.poke()
}
