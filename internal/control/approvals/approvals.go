// Package approvals has questions of sandboxes and programs decided by a party
// that did not ask. A question is a row that waits; the first decision counts, and
// no decision in time is a no. Decisions about a subject answer later questions
// about it for as long as they say.
package approvals

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	// Keep is how long approvals are kept that are over, and keepMost how many of a
	// team.
	Keep     = 30 * 24 * time.Hour
	keepMost = 10000

	lapsesAtOnce = 100
	lookAgain    = 10 * time.Second // for sandboxes that are over
	failedWait   = 5 * time.Second
	pruneEvery   = 10 * time.Minute
)

// Links signs texts.
type Links interface {
	Sign(text string) string
	CheckSign(text, signature string) bool
}

// Config is what Approvals need. Links may be nil for none, Log for no log.
type Config struct {
	Ledger *ledger.Ledger
	Store  store.Store
	Links  Links
	URL    string // where clients find this server, for links
	Member bool   // other nodes record approvals as well, and tell nothing
	Log    *slog.Logger
}

// Approvals are the use cases of approvals.
type Approvals struct {
	ledger *ledger.Ledger
	store  store.Store
	links  Links
	url    string
	rest   time.Duration // between two looks while none waits
	log    *slog.Logger

	poke chan struct{} // the next end may be another

	mu      sync.Mutex
	waiting map[cay.ApprovalID]*waiters
}

// waiters wait for one decision.
type waiters struct {
	n    int
	over chan struct{}
}

// New returns approvals whose time does not end before Work.
func New(cfg Config) *Approvals {
	a := &Approvals{
		ledger: cfg.Ledger, store: cfg.Store, links: cfg.Links, url: cfg.URL, log: cfg.Log,
		rest: pruneEvery, poke: make(chan struct{}, 1), waiting: make(map[cay.ApprovalID]*waiters),
	}
	if cfg.Member {
		a.rest = lookAgain
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	return a
}

// Question is what a party asks.
type Question struct {
	Sandbox     cay.SandboxID // that it is about; empty for none
	Kind        cay.ApprovalKind
	Subject     string // see cay.Approval
	Title, Body string
	Risk        cay.Risk // empty means medium
	// Each has a yes to one time let one pass of those that wait for it together.
	Each   bool
	Within time.Duration // until it expires; 0 means the usual time
	// Askers are the requesting parties, besides the maker of the sandbox.
	Askers []cay.Origins
}

func (q Question) approval(team cay.TeamID, asked cay.Actor) (cay.Approval, error) {
	now := ledger.Now()
	if q.Risk == "" {
		q.Risk = cay.MediumRisk
	}
	if q.Within == 0 {
		q.Within = cay.UsualApprovalTime
	}
	x := cay.Approval{
		ID: cay.NewApprovalID(), Team: team, Sandbox: q.Sandbox, Kind: q.Kind, Subject: q.Subject, Title: q.Title, Body: q.Body, Risk: q.Risk,
		Asked: asked, Askers: q.Askers, CreatedAt: now, ExpiresAt: now.Add(q.Within).Truncate(time.Millisecond), State: cay.ApprovalPending,
	}
	return x, x.Check()
}

// Request asks in the name of a caller.
func (a *Approvals) Request(ctx context.Context, who cay.Caller, q Question) (cay.Approval, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.Approval{}, err
	}
	if by := who.Origins(); by != (cay.Origins{}) {
		q.Askers = []cay.Origins{by}
	}
	x, err := q.approval(who.Team, who.Actor())
	if err == nil && q.Sandbox != "" {
		_, err = a.living(ctx, who.Team, q.Sandbox)
	}
	if err != nil {
		return x, err
	}
	x, _, err = a.add(ctx, who, x)
	return x, err
}

// living finds a sandbox that is not over.
func (a *Approvals) living(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	s, err := a.store.Sandbox(ctx, team, id)
	if err != nil {
		return s, ledger.Known(err, id)
	}
	if s.State == cay.Killed {
		return s, ledger.NoSandbox(id)
	}
	return s, nil
}

// add records a question, unless the same one waits.
func (a *Approvals) add(ctx context.Context, who cay.Caller, x cay.Approval) (out cay.Approval, joined bool, err error) {
	err = a.store.Tx(ctx, func(tx store.Store) error {
		out, joined, err = tx.AddApproval(ctx, x, cay.MaxPendingOfAsker, cay.MaxPending)
		if err != nil || joined {
			return err
		}
		return tx.AddEvents(ctx, requested(who, x))
	})
	switch {
	case cay.KindOf(err) == cay.Exhausted:
		err = cay.Wrap(cay.Exhausted, err, "%s", ledger.Visible(err)).WithCode(cay.CodeApprovalLimit).WithHint("have some decided, or wait until they expire")
	case err == nil && !joined:
		a.ledger.Wake(x.Team)
		a.look()
	}
	return out, joined, err
}

// requested tells of a question, in the name of the party that asks.
func requested(who cay.Caller, x cay.Approval) cay.Event {
	e := ledger.NewEvent(who, cay.Sandbox{ID: x.Sandbox, Team: x.Team}, cay.ApprovalRequested, cay.ReasonAsked,
		"approval", string(x.ID), "kind", string(x.Kind), "title", x.Title, "subject", x.Subject, "risk", string(x.Risk), "expiresAt", ledger.Stamp(x.ExpiresAt))
	e.Actor = x.Asked
	return e
}

// Query says which approvals to list.
type Query = store.ApprovalQuery

// Cursor is a place in a list of approvals.
type Cursor = store.ApprovalCursor

// List lists a team's approvals, the newest first.
func (a *Approvals) List(ctx context.Context, who cay.Caller, q Query) ([]cay.Approval, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	q.Team = who.Team
	list, err := a.store.Approvals(ctx, q)
	for i := range list {
		list[i] = seen(list[i])
	}
	return list, err
}

// Get finds a team's approval.
func (a *Approvals) Get(ctx context.Context, who cay.Caller, id cay.ApprovalID) (cay.Approval, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Approval{}, err
	}
	x, err := a.store.Approval(ctx, who.Team, id)
	return seen(x), known(err, id)
}

func known(err error, id cay.ApprovalID) error {
	if cay.KindOf(err) == cay.NotFound {
		return cay.Wrap(cay.NotFound, err, "approval %.60q not found: those that are over are kept for 30 days", string(id))
	}
	return err
}

// seen is an approval as it counts: one whose time is over is expired, before the
// record says so.
func seen(x cay.Approval) cay.Approval {
	if x.State == cay.ApprovalPending && !x.ExpiresAt.IsZero() && !ledger.Now().Before(x.ExpiresAt) {
		x.State = cay.ApprovalExpired
	}
	return x
}

// Wait waits for the end of a team's approval, for so long at most, and returns it
// as it is then.
func (a *Approvals) Wait(ctx context.Context, who cay.Caller, id cay.ApprovalID, within time.Duration) (cay.Approval, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Approval{}, err
	}
	return a.await(ctx, who.Team, id, within)
}

func (a *Approvals) await(ctx context.Context, team cay.TeamID, id cay.ApprovalID, within time.Duration) (cay.Approval, error) {
	for begun := time.Now(); ; {
		x, again, err := a.awaitOnce(ctx, team, id, within-time.Since(begun))
		if !again {
			return x, err
		}
	}
}

// awaitOnce is await until the record may have changed: again says to look once more.
func (a *Approvals) awaitOnce(ctx context.Context, team cay.TeamID, id cay.ApprovalID, within time.Duration) (x cay.Approval, again bool, err error) {
	over, leave := a.enter(id)
	defer leave()
	if x, err = a.store.Approval(ctx, team, id); err != nil {
		return x, false, known(err, id)
	}
	if x = seen(x); x.State != cay.ApprovalPending || within <= 0 {
		return x, false, nil
	}
	timer := time.NewTimer(min(within, time.Until(x.ExpiresAt)))
	defer timer.Stop()
	select {
	case <-over:
		return x, true, nil
	case <-timer.C:
	case <-a.ledger.Ended(): // the server stops
	case <-ctx.Done():
		return x, false, ctx.Err()
	}
	x, err = a.store.Approval(ctx, team, id)
	return seen(x), false, known(err, id)
}

// Follow has all that wait look at the records each second, until ctx ends: another
// server may have recorded a decision.
func (a *Approvals) Follow(ctx context.Context) {
	for range ticks.Every(ctx, followEvery) {
		a.mu.Lock()
		ids := slices.Collect(maps.Keys(a.waiting))
		a.mu.Unlock()
		for _, id := range ids {
			a.wake(id)
		}
	}
}

const followEvery = time.Second

// enter notes one that waits for the end of an approval.
func (a *Approvals) enter(id cay.ApprovalID) (over <-chan struct{}, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.waiting[id]
	if w == nil {
		w = &waiters{over: make(chan struct{})}
		a.waiting[id] = w
	}
	w.n++
	return w.over, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if w.n--; w.n == 0 && a.waiting[id] == w {
			delete(a.waiting, id)
		}
	}
}

// wake tells all that wait for an approval that it is over.
func (a *Approvals) wake(id cay.ApprovalID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.waiting[id]; w != nil {
		close(w.over)
		delete(a.waiting, id)
	}
}

// Hold has a question of a sandbox answered: by a decision that counts, else by
// the one that comes within a while. It returns the approval as it is then. A yes
// to one time is used by that, once for all that wait for it together, or for one
// of them.
func (a *Approvals) Hold(ctx context.Context, team cay.TeamID, q Question, within time.Duration) (cay.Approval, error) {
	for begun := time.Now(); ; {
		x, err := a.holdOnce(ctx, team, q, within-time.Since(begun))
		if !errors.Is(err, errTaken) {
			return x, err
		}
	}
}

// errTaken says that another one that waited has used the yes.
var errTaken = errors.New("the yes was to one time, and is used")

func (a *Approvals) holdOnce(ctx context.Context, team cay.TeamID, q Question, within time.Duration) (cay.Approval, error) {
	x, err := a.counting(ctx, team, q)
	if err != nil || x.State != "" {
		return x, err
	}
	s, err := a.living(ctx, team, q.Sandbox)
	if err != nil {
		return x, err
	}
	x, err = q.approval(team, cay.Actor{Kind: cay.ActorSandbox, ID: string(s.ID), Name: s.Alias})
	if err != nil {
		return x, err
	}
	if x, _, err = a.add(ctx, cay.ForTeam(team), x); err != nil {
		return x, err
	}
	if x, err = a.await(ctx, team, x.ID, within); err != nil || x.State != cay.ApprovalApproved {
		return x, err
	}
	if own, err := a.decidedBy(ctx, x, q.Askers); own || err != nil { // decided before its own request
		return x, cmp.Or(err, errTaken)
	}
	if x.Remember != cay.RememberOnce {
		return x, nil
	}
	err = a.store.UseApproval(ctx, x.ID, ledger.Now())
	if cay.KindOf(err) == cay.Conflict { // one that waited too was first
		if err = nil; q.Each {
			err = errTaken
		}
	}
	return x, err
}

// counting returns the decision that answers a question now; one without a state
// where none does.
func (a *Approvals) counting(ctx context.Context, team cay.TeamID, q Question) (cay.Approval, error) {
	if q.Subject == "" {
		return cay.Approval{}, nil
	}
	x, err := a.store.LastDecision(ctx, cay.Approval{Team: team, Sandbox: q.Sandbox, Kind: q.Kind, Subject: q.Subject, Body: q.Body})
	if cay.KindOf(err) == cay.NotFound {
		return cay.Approval{}, nil
	}
	if err != nil || !x.Counts(ledger.Now()) {
		return cay.Approval{}, err
	}
	if own, err := a.decidedBy(ctx, x, q.Askers); own || err != nil {
		return cay.Approval{}, err
	}
	if x.State == cay.ApprovalApproved && x.Remember == cay.RememberOnce {
		err = a.store.UseApproval(ctx, x.ID, ledger.Now())
		if cay.KindOf(err) == cay.Conflict {
			return cay.Approval{}, nil
		}
	}
	return x, err
}
