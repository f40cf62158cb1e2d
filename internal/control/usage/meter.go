package usage

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// teamBudgets is a team's budgets as this server knows them: the use when it
// last looked, and the amounts set aside for sandboxes since.
type teamBudgets struct {
	refreshing sync.Mutex // held by the one that looks

	// The rest is guarded by the Meter's lock.
	loaded bool
	at     time.Time // when what was used was looked at
	prices cay.Prices
	slots  []*slot
	aside  map[*aside]bool
}

// slot is one budget.
type slot struct {
	budget      cay.Budget
	used        int64
	set         int64 // set aside
	from, until time.Time
}

// aside is the first minute of a sandbox.
type aside struct {
	sandbox cay.Sandbox
	creates int64
	since   time.Time
	settled bool // its start is recorded
}

// worth is what is set aside for a sandbox that counts from a moment on.
func (a *aside) worth(p cay.Prices, from time.Time) cay.Amounts {
	left := min(max(0, a.since.Add(tickEvery).Sub(from)), tickEvery)
	out := cay.Ran(a.sandbox.Limits, left)
	out.Creates = a.creates
	out.Money = p.CostOf(out)
	return out
}

func (s *slot) percent() int {
	if s.used >= s.budget.Limit {
		return 100
	}
	return int(float64(s.used) / float64(s.budget.Limit) * 100)
}

func (m *Meter) of(team cay.TeamID) *teamBudgets {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.teams[team]
	if p == nil {
		p = &teamBudgets{aside: make(map[*aside]bool)}
		m.teams[team] = p
	}
	return p
}

// Reserve sets the first minute of a sandbox aside, in each budget that it
// counts to. All have room for it, or none is touched.
func (m *Meter) Reserve(ctx context.Context, s cay.Sandbox, first bool) (settle func(cay.SandboxID), err error) {
	p := m.of(s.Team)
	if err := m.load(ctx, s.Team, p); err != nil {
		return nil, err
	}
	a := &aside{sandbox: s, since: time.Now()}
	if first {
		a.creates = 1
	}
	if err := m.put(p, a); err != nil {
		// By what is used now, another may have ended meanwhile.
		if !m.stale(p) {
			return nil, err
		}
		if _, err := m.refresh(ctx, s.Team); err != nil {
			return nil, err
		}
		if err := m.put(p, a); err != nil {
			return nil, err
		}
	}
	return func(id cay.SandboxID) { m.settle(p, a, id) }, nil
}

// put sets something aside, if all budgets have room for it.
func (m *Meter) put(p *teamBudgets, a *aside) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(p.slots) == 0 {
		return nil
	}
	worth := a.worth(p.prices, a.since)
	for _, s := range p.slots {
		if !s.budget.Covers(a.sandbox) {
			continue
		}
		n := worth.Of(s.budget.Meter)
		switch {
		case s.used >= s.budget.Limit:
			return errExhausted(s, "is used up")
		case n > s.budget.Limit-s.used-s.set:
			return errExhausted(s, "has no minute left for this sandbox")
		}
	}
	p.aside[a] = true
	for _, s := range p.slots {
		if s.budget.Covers(a.sandbox) {
			s.set += worth.Of(s.budget.Meter)
		}
	}
	return nil
}

// settle says what came of a sandbox that something is set aside for.
func (m *Meter) settle(p *teamBudgets, a *aside, id cay.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !p.aside[a] {
		return
	}
	if id != "" {
		a.sandbox.ID, a.settled = id, true
		return
	}
	delete(p.aside, a)
	p.setAside()
}

// setAside sums up what is set aside. The caller holds the lock.
func (p *teamBudgets) setAside() {
	for _, s := range p.slots {
		s.set = 0
	}
	for a := range p.aside {
		from := p.at
		if a.since.After(from) {
			from = a.since
		}
		worth := a.worth(p.prices, from)
		for _, s := range p.slots {
			if s.budget.Covers(a.sandbox) {
				s.set += worth.Of(s.budget.Meter)
			}
		}
	}
}

// Allows refuses to have a sandbox run for longer when a budget is used up.
func (m *Meter) Allows(ctx context.Context, s cay.Sandbox) error {
	p := m.of(s.Team)
	if err := m.load(ctx, s.Team, p); err != nil {
		return err
	}
	if err := m.exhausted(p, s); err == nil || !m.stale(p) {
		return err
	}
	if _, err := m.refresh(ctx, s.Team); err != nil {
		return err
	}
	return m.exhausted(p, s)
}

func (m *Meter) exhausted(p *teamBudgets, s cay.Sandbox) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range p.slots {
		if slot.used >= slot.budget.Limit && slot.budget.Covers(s) {
			return errExhausted(slot, "is used up")
		}
	}
	return nil
}

// Spend counts tokens that a sandbox exchanged with models, in its budgets at once:
// the next request is refused by them.
func (m *Meter) Spend(ctx context.Context, s cay.Sandbox, input, output int64) error {
	if err := m.store.CountModel(ctx, s, time.Now(), input, output); err != nil {
		return err
	}
	p := m.of(s.Team)
	m.mu.Lock()
	defer m.mu.Unlock()
	spent := cay.Amounts{Input: input, Output: output}
	spent.Money = p.prices.CostOf(spent)
	for _, slot := range p.slots {
		if n := spent.Of(slot.budget.Meter); n > 0 && slot.budget.Covers(s) {
			if slot.used += n; slot.used >= slot.budget.Limit {
				m.wakeUp() // what runs may have to be halted
			}
		}
	}
	return nil
}

// load looks at a team's budgets for the first time, or in a new period.
func (m *Meter) load(ctx context.Context, team cay.TeamID, p *teamBudgets) error {
	m.mu.Lock()
	now := time.Now()
	ready := p.loaded && !slices.ContainsFunc(p.slots, func(s *slot) bool { return !s.until.IsZero() && !now.Before(s.until) })
	m.mu.Unlock()
	if ready {
		return nil
	}
	_, err := m.refresh(ctx, team)
	return err
}

// stale reports whether what a team used may be looked at again.
func (m *Meter) stale(p *teamBudgets) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(p.at).Abs() >= freshFor
}

// fresh returns a team's budgets as they are now.
func (m *Meter) fresh(ctx context.Context, team cay.TeamID) (*teamBudgets, error) {
	p := m.of(team)
	m.mu.Lock()
	known := p.loaded
	m.mu.Unlock()
	if known && !m.stale(p) {
		return p, m.load(ctx, team, p)
	}
	return m.refresh(ctx, team)
}

// count counts what a team's sandboxes used until now, at most once a second.
func (m *Meter) count(ctx context.Context, team cay.TeamID) error {
	_, err := m.fresh(ctx, team)
	return err
}

// refresh counts what a team's sandboxes used until now, and looks at its
// budgets.
func (m *Meter) refresh(ctx context.Context, team cay.TeamID) (*teamBudgets, error) {
	p := m.of(team)
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	m.mu.Lock()
	recorded := map[*aside]bool{} // before what is used was counted
	for a := range p.aside {
		recorded[a] = a.settled
	}
	m.mu.Unlock()
	now := time.Now()
	running := m.metered(team)
	if err := m.store.CountUsage(ctx, running); err != nil {
		return nil, err
	}
	slots, err := m.look(ctx, team, now)
	if err != nil {
		return nil, err
	}
	prices, err := m.store.Prices(ctx)
	if err != nil {
		return nil, err
	}
	alive := map[cay.SandboxID]bool{}
	for _, s := range running {
		alive[s.ID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range p.aside {
		if !recorded[a] {
			continue
		}
		a.creates = 0 // it is counted
		if !alive[a.sandbox.ID] || !a.since.Add(tickEvery).After(now) {
			delete(p.aside, a)
		}
	}
	p.loaded, p.at, p.slots, p.prices = true, now, slots, prices
	p.setAside()
	return p, nil
}

// look reads a team's budgets and what is used of each.
func (m *Meter) look(ctx context.Context, team cay.TeamID, now time.Time) ([]*slot, error) {
	budgets, err := m.store.Budgets(ctx, team)
	if err != nil {
		return nil, err
	}
	known := map[time.Time][]store.UsageRow{}
	var out []*slot
	for _, b := range budgets {
		s := &slot{budget: b}
		s.from, s.until = b.Since(now)
		rows, ok := known[s.from]
		if !ok {
			rows, err = m.store.Usage(ctx, store.UsageQuery{Team: team, From: s.from, To: later(now, s.until), Accounts: true})
			if err != nil {
				return nil, err
			}
			known[s.from] = rows
		}
		s.used = max(0, sumOf(b, rows)-b.Before)
		out = append(out, s)
	}
	return out, nil
}

// later is the end of a period, or an hour from now for one that has none: what
// is counted now belongs to the hour that begins.
func later(now, until time.Time) time.Time {
	if until.IsZero() {
		return now.Add(time.Hour)
	}
	return until
}

// used is what counts to a budget at a moment.
func (m *Meter) used(ctx context.Context, b cay.Budget, now time.Time) (int64, error) {
	from, until := b.Since(now)
	rows, err := m.store.Usage(ctx, store.UsageQuery{Team: b.Team, From: from, To: later(now, until), Accounts: true})
	return sumOf(b, rows), err
}

func sumOf(b cay.Budget, rows []store.UsageRow) int64 {
	var sum int64
	for _, row := range rows {
		of := cay.Sandbox{Team: row.Account.Team, Key: row.Account.Key, Metadata: row.Account.Labels}
		if b.Covers(of) {
			sum += row.Amounts.Of(b.Meter)
		}
	}
	return sum
}

// tick counts what runs, looks at all budgets, tells of thresholds and has
// sandboxes halted. It returns when to do so next: in a minute, or when the
// first budget is used up if nothing changes.
func (m *Meter) tick(ctx context.Context, halts *sync.WaitGroup) time.Duration {
	running := m.metered("")
	if !m.member || time.Since(m.counted) >= countEvery {
		m.counted = time.Now()
		m.warn(ctx, "cannot count what runs", m.store.CountUsage(ctx, running))
	}
	all, err := m.store.Budgets(ctx, "")
	m.warn(ctx, "cannot read budgets", err)
	teams := map[cay.TeamID]bool{}
	for _, b := range all {
		teams[b.Team] = true
	}
	m.mu.Lock()
	for team, p := range m.teams { // those that had budgets, and lost them elsewhere
		if len(p.slots) > 0 || len(p.aside) > 0 {
			teams[team] = true
		}
	}
	m.mu.Unlock()
	next := tickEvery
	for team := range teams {
		p, err := m.refresh(ctx, team)
		if err != nil {
			m.warn(ctx, "cannot look at the budgets of a team", err)
			continue
		}
		m.mu.Lock()
		slots, prices := slices.Clone(p.slots), p.prices
		m.mu.Unlock()
		for _, s := range slots {
			m.tell(ctx, s)
			next = min(next, m.enforce(ctx, halts, s, prices, running))
		}
	}
	return next
}

// tell tells each threshold that is reached and was not told in this period.
func (m *Meter) tell(ctx context.Context, s *slot) {
	b := s.budget
	of := s.from
	if b.ToldOf.Before(of) {
		b.Told = 0
	}
	for _, percent := range cay.Thresholds() {
		if percent <= b.Told || s.percent() < percent {
			continue
		}
		b.Told, b.ToldOf = percent, of
		told, err := m.store.TellBudget(ctx, b, thresholdEvent(s, percent))
		m.warn(ctx, "cannot tell of a budget", err)
		if told {
			m.ledger.Wake(b.Team)
		}
	}
}

func thresholdEvent(s *slot, percent int) cay.Event {
	b := s.budget
	info, _ := b.Meter.Info()
	resets := ""
	if !s.until.IsZero() {
		resets = ledger.Stamp(s.until)
	}
	return ledger.NewEvent(cay.ForTeam(b.Team), cay.Sandbox{Team: b.Team}, cay.BudgetThreshold, "", "budget", string(b.ID), "name", b.Name,
		"percent", fmt.Sprint(percent), "meter", string(b.Meter), "limit", info.Format(b.Limit), "used", info.Format(s.used),
		"resets", resets, "action", string(b.Action))
}

// soonest is the least time between two looks at budgets.
const soonest = time.Second

// enforce halts what runs on a budget that is used up, and says when to look
// again.
func (m *Meter) enforce(ctx context.Context, halts *sync.WaitGroup, s *slot, prices cay.Prices, running []cay.Sandbox) time.Duration {
	if s.budget.Action == cay.RefuseAtLimit {
		return tickEvery
	}
	var aMinute cay.Amounts
	for _, box := range running {
		if !s.budget.Covers(box) {
			continue
		}
		if s.used >= s.budget.Limit {
			m.halt(ctx, halts, box.ID, s.budget)
		}
		aMinute.Add(cay.Ran(box.Limits, tickEvery))
	}
	aMinute.Money = prices.CostOf(aMinute)
	rate, left := aMinute.Of(s.budget.Meter), s.budget.Limit-s.used
	if rate <= 0 || left <= 0 || left >= rate {
		return tickEvery
	}
	return max(soonest, time.Duration(math.Ceil(float64(left)/float64(rate)*float64(tickEvery))))
}

// haltWithin bounds one halt: a large memory on a slow disk.
const haltWithin = 10 * time.Minute

// halt has a sandbox halted beside the other work. One that could not be is
// tried again in a minute.
func (m *Meter) halt(ctx context.Context, halts *sync.WaitGroup, id cay.SandboxID, b cay.Budget) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.halting[id] {
		return
	}
	m.halting[id] = true
	halts.Go(func() {
		within, cancel := context.WithTimeout(ctx, haltWithin)
		defer cancel()
		err := m.sandboxes.Halt(within, id, b.Action == cay.KillAtLimit, "budget "+title(b)+" is used up")
		m.warn(ctx, "cannot halt a sandbox whose budget is used up", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.halting, id)
	})
}
