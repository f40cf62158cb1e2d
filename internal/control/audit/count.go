package audit

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// A source, such as a sandbox, may have seenBurst different things of one
// action in the log at once, and then seenEach each minute. All others
// are one row a minute, with how many there were.
const (
	seenBurst = 120
	seenEach  = 10
	// flushBatch is how many rows one transaction writes: others wait for it.
	flushBatch = 200
	// mostWaiting is how many rows wait while the records cannot be written.
	mostWaiting = 10_000
)

// Actions that are seen of the inside of sandboxes, besides cay.EgressDenied.
const (
	Allowed        = "egress.allowed"  // a connection by name; the target is the host
	SecretUsed     = "secret.used"     // a request that left with it; the target is its name
	ProcessStarted = "process.started" // by a client or a template; the target is the program
	ProcessEnded   = "process.ended"
	SSHOpened      = "ssh.opened" // the actor is the key that let the client in
	SSHClosed      = "ssh.closed"
)

// RateRefused is the action of a request beyond a rate; its target is the class.
const RateRefused = "rate.refused"

// Seen is something that may happen often. Equal ones of a minute are one row
// with their number.
type Seen struct {
	Who     cay.Caller // whose request the first one was; or of the team, for a sandbox
	Sandbox cay.SandboxID
	Action  string
	Target  string
	Outcome cay.Outcome // ok, when empty
	Details []string    // keys and values by turns
}

// Count counts something until the minute is over. A nil log counts nothing.
func (l *Log) Count(x Seen) {
	if l != nil {
		l.count.add(x, time.Now())
	}
}

// counter counts what was seen since it was last taken.
type counter struct {
	mu     sync.Mutex
	seen   map[string]*counted
	more   map[source]*counted // of what there is no room for
	spent  map[source]int      // of seenBurst
	filled time.Time           // when spent was last brought up to date
}

// source is what an allowance is for.
type source struct{ actor, action string }

type counted struct {
	row   cay.AuditRow
	times int
}

func (c *counter) add(x Seen, now time.Time) {
	r := x.row(now)
	key := strings.Join(append([]string{string(r.Team), r.Actor.ID, r.Action, r.Target, string(r.Outcome)}, x.Details...), "\x00")
	from := source{r.Actor.ID, r.Action}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen, c.more, c.spent = map[string]*counted{}, map[source]*counted{}, map[source]int{}
		c.filled = now
	}
	if known := c.seen[key]; known != nil {
		known.times++
		return
	}
	if c.spent[from] < seenBurst {
		c.spent[from]++
		c.seen[key] = &counted{r, 1}
		return
	}
	if c.more[from] == nil {
		r.Target, r.Details = "", nil
		c.more[from] = &counted{row: r}
	}
	c.more[from].times++
}

func (x Seen) row(now time.Time) cay.AuditRow {
	outcome := x.Outcome
	if outcome == "" {
		outcome = cay.OutcomeOK
	}
	r := Row(x.Who, x.Action, x.Target, outcome, x.Details...)
	r.At = now
	if x.Sandbox != "" {
		r.Actor = cay.Actor{Kind: cay.ActorSandbox, ID: string(x.Sandbox)}
	}
	return r
}

// take returns the rows of what was counted, oldest first.
func (c *counter) take(now time.Time) []cay.AuditRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []cay.AuditRow
	for _, x := range c.seen {
		if x.times > 1 {
			x.row.Details["times"] = strconv.Itoa(x.times)
		}
		out = append(out, x.row)
	}
	for _, x := range c.more {
		x.row.Details = map[string]string{"more": strconv.Itoa(x.times)}
		out = append(out, x.row)
	}
	clear(c.seen)
	clear(c.more)
	if back := int(now.Sub(c.filled)/time.Minute) * seenEach; back > 0 {
		for from := range c.spent {
			if c.spent[from] -= back; c.spent[from] <= 0 {
				delete(c.spent, from)
			}
		}
		c.filled = now
	}
	slices.SortStableFunc(out, func(a, b cay.AuditRow) int { return a.At.Compare(b.At) })
	return out
}

// flush writes what was counted. A count that cannot be written waits for the
// next time.
func (l *Log) flush(ctx context.Context) error {
	l.waiting = append(l.waiting, l.count.take(time.Now())...)
	for len(l.waiting) > 0 {
		n := min(len(l.waiting), flushBatch)
		if err := l.cfg.Store.AddAudit(ctx, l.waiting[:n]...); err != nil {
			if lost := len(l.waiting) - mostWaiting; lost > 0 {
				l.waiting = l.waiting[:mostWaiting]
				err = cay.Wrap(cay.KindOf(err), err, "%d counted rows of the audit log are lost", lost)
			}
			return err
		}
		l.waiting = l.waiting[n:]
	}
	l.waiting = nil
	return nil
}
