// Package usage holds the use cases of what teams use: what was counted, what
// it costs, and the budgets that bound it. The store counts with each change of
// a sandbox's record; each minute this package has it count what runs on, and
// has sandboxes halted whose budget is used up.
package usage

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// tickEvery is how often what runs is counted, and budgets are looked at.
	tickEvery = time.Minute
	// countEvery is how often a node of a cluster counts what runs of teams without budgets:
	// of a thousand nodes it is most of what they write while nothing happens.
	countEvery = 5 * time.Minute
	// keptEvery is how often what snapshots take on the disk is looked at: each
	// look reads all their records.
	keptEvery  = 10 * time.Minute
	pruneEvery = time.Hour
	// Keep is how long hours and days are kept, keepMinutes the minutes of
	// teams' metrics.
	Keep        = 400 * 24 * time.Hour
	keepMinutes = 32 * 24 * time.Hour
	// leapLeast is by how much a clock must have been set to be noticed.
	leapLeast = 30 * time.Second
	// freshFor is how old a team's sums may be when something is refused by
	// them, or when they are read.
	freshFor = time.Second
)

// Sandboxes are those that run here.
type Sandboxes interface {
	// Metered lists them, with what their instances took.
	Metered() []cay.Sandbox
	// Halt pauses one with its memory, or ends it, for a budget. One that runs
	// no more is no error.
	Halt(ctx context.Context, id cay.SandboxID, kill bool, why string) error
}

// Snapshots are what is kept of sandboxes and templates here.
type Snapshots interface {
	// Stored lists them, with removed ones whose files sandboxes still read.
	Stored(ctx context.Context) ([]cay.Snapshot, error)
}

// Volumes tell how many bytes volumes take here, by team.
type Volumes interface {
	Kept(ctx context.Context) (map[cay.TeamID]int64, error)
}

// Config is what a Meter needs. Log may be nil.
type Config struct {
	Ledger    *ledger.Ledger
	Store     store.Store
	Snapshots Snapshots
	Volumes   Volumes // nil has none
	Node      cay.NodeID
	Member    bool        // of a cluster
	Leads     func() bool // whether this server does what one does for all
	Log       *slog.Logger
}

// Meter carries out the use cases of what teams use.
type Meter struct {
	ledger    *ledger.Ledger
	store     store.Store
	snapshots Snapshots
	volumes   Volumes
	node      cay.NodeID
	member    bool
	leads     func() bool
	log       *slog.Logger
	wake      chan struct{} // a budget changed, or is nearly used up

	counted time.Time // what runs, of all teams; of the goroutine that runs

	mu        sync.Mutex
	sandboxes Sandboxes // nil until Attach
	teams     map[cay.TeamID]*teamBudgets
	halting   map[cay.SandboxID]bool
}

// New returns a meter. Attach must follow before Run.
func New(cfg Config) *Meter {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Meter{
		ledger: cfg.Ledger, store: cfg.Store, snapshots: cfg.Snapshots, volumes: cfg.Volumes, node: cfg.Node, member: cfg.Member, leads: cfg.Leads, log: cfg.Log,
		wake: make(chan struct{}, 1), teams: make(map[cay.TeamID]*teamBudgets), halting: make(map[cay.SandboxID]bool),
	}
}

// Attach says whose sandboxes are counted.
func (m *Meter) Attach(s Sandboxes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sandboxes = s
}

// metered lists the sandboxes that run, of one team or of all.
func (m *Meter) metered(team cay.TeamID) []cay.Sandbox {
	m.mu.Lock()
	from := m.sandboxes
	m.mu.Unlock()
	if from == nil {
		return nil
	}
	all := from.Metered()
	if team == "" {
		return all
	}
	return slices.DeleteFunc(all, func(s cay.Sandbox) bool { return s.Team != team })
}

// Run counts what runs each minute, until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	var halts sync.WaitGroup
	defer halts.Wait()
	clock := newClock()
	var kept, pruned time.Time
	for {
		m.follow(ctx, clock.leap())
		next := m.tick(ctx, &halts)
		if time.Since(kept) >= keptEvery {
			kept = time.Now()
			m.warn(ctx, "cannot count what snapshots take", m.countKept(ctx))
		}
		if time.Since(pruned) >= pruneEvery && m.leads() {
			pruned = time.Now()
			_, err := m.store.PruneUsage(ctx, pruned.Add(-Keep), pruned.Add(-keepMinutes))
			m.warn(ctx, "cannot forget old usage", err)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			// A server that stops counts up to here.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
			defer cancel()
			m.warn(last, "cannot count what ran", m.store.CountUsage(last, m.metered("")))
			return
		case <-m.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (m *Meter) warn(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		m.log.Error(what, "err", err)
	}
}

// clock notices when the machine's clock is set.
type clock struct{ begun, wall time.Time }

func newClock() *clock {
	now := time.Now()
	return &clock{now, now.Round(0)}
}

// leap is by how much the clock was set since the last call: by how much its
// time went on otherwise than the machine's.
func (c *clock) leap() time.Duration {
	now := time.Now()
	by := now.Round(0).Sub(c.wall) - now.Sub(c.begun)
	c.begun, c.wall = now, now.Round(0)
	if by.Abs() < leapLeast {
		return 0
	}
	return by
}

// follow has the time that a clock leapt over count for nothing, and the time
// after it went back count once.
func (m *Meter) follow(ctx context.Context, by time.Duration) {
	if by == 0 {
		return
	}
	var ids []cay.SandboxID
	for _, s := range m.metered("") {
		ids = append(ids, s.ID)
	}
	m.log.Warn("the clock was set", "by", by)
	m.warn(ctx, "cannot follow the clock", m.store.ShiftUsage(ctx, ids, by))
}

// countKept counts what snapshots and volumes take.
func (m *Meter) countKept(ctx context.Context) error {
	all, err := m.snapshots.Stored(ctx)
	if err != nil {
		return err
	}
	live, err := m.store.SandboxesOf(ctx, m.node)
	if err != nil {
		return err
	}
	of := make(map[cay.SandboxID]cay.Sandbox, len(live))
	for _, s := range live {
		of[s.ID] = s
	}
	var kept []store.Kept
	for _, s := range all {
		if s.Team == "" {
			continue
		}
		k := store.Kept{Account: cay.Account{Team: s.Team}, Bytes: s.Size()}
		if b, ok := of[s.Sandbox]; ok && b.Team == s.Team {
			k.Account = cay.Account{Team: b.Team, Key: b.Key, Template: b.Template, Labels: b.Metadata}
		}
		kept = append(kept, k)
	}
	if m.volumes != nil {
		taken, err := m.volumes.Kept(ctx)
		if err != nil {
			return err
		}
		for team, bytes := range taken {
			kept = append(kept, store.Kept{Account: cay.Account{Team: team}, Volumes: bytes})
		}
	}
	return m.store.CountKept(ctx, m.node, kept)
}

// The things that sums can be told apart by. A label is "label:" and its key.
const (
	ByTeam     = "team"
	ByKey      = "key"
	ByTemplate = "template"
	ByDay      = "day"
	ByHour     = "hour"
	byLabel    = "label:"
)

// Query says what to sum up. Hours are whole.
type Query struct {
	From, To time.Time // zero means the beginning of this month, and now
	By       []string
}

// Sum is what was used, of what Query.By tells apart; the others are empty.
type Sum struct {
	Team     cay.TeamID
	At       time.Time
	Key      cay.KeyID
	Template cay.TemplateID
	Labels   map[string]string
	Amounts  cay.Amounts
}

// Report is what was used from one time to another.
type Report struct {
	From, To time.Time
	Currency string // empty without prices
	Sums     []Sum
	Total    cay.Amounts
}

// mostHours and mostDays bound a list by hour or day.
const mostHours = 62 * 24

// Usage sums up what a team used. Running sandboxes are counted first, so that
// the sums are of this moment.
func (m *Meter) Usage(ctx context.Context, who cay.Caller, q Query) (Report, error) {
	if err := who.May(cay.ReadBilling); err != nil {
		return Report{}, err
	}
	if err := q.check(); err != nil {
		return Report{}, err
	}
	if slices.Contains(q.By, ByTeam) {
		return Report{}, cay.Errorf(cay.Invalid, "group: %q is for the administrators of all teams", ByTeam)
	}
	if err := m.count(ctx, who.Team); err != nil {
		return Report{}, err
	}
	return m.report(ctx, who.Team, q)
}

// AllUsage sums up what all teams used.
func (m *Meter) AllUsage(ctx context.Context, who cay.Caller, q Query) (Report, error) {
	if err := who.May(cay.Admin | cay.ReadBilling); err != nil {
		return Report{}, err
	}
	if err := q.check(); err != nil {
		return Report{}, err
	}
	return m.report(ctx, "", q)
}

func (q *Query) check() error {
	now := time.Now().UTC()
	if q.From.IsZero() {
		q.From, _ = cay.Monthly.Bounds(now)
	}
	if q.To.IsZero() {
		q.To = now
	}
	q.From, q.To = q.From.UTC().Truncate(time.Hour), q.To.UTC()
	if oldest := now.Add(-Keep).Truncate(time.Hour); q.From.Before(oldest) {
		q.From = oldest
	}
	if !q.From.Before(q.To) {
		return cay.Errorf(cay.Invalid, "from: must be before to")
	}
	for _, by := range q.By {
		label, isLabel := strings.CutPrefix(by, byLabel)
		if !slices.Contains([]string{ByTeam, ByKey, ByTemplate, ByDay, ByHour}, by) && (!isLabel || label == "") {
			return cay.Errorf(cay.Invalid, "group: %.80q is nothing to group by", by).
				WithHint("group by key, template, day, hour, or label: and a key of metadata that is metered")
		}
	}
	if slices.Contains(q.By, ByHour) && q.To.Sub(q.From) > mostHours*time.Hour {
		return cay.Errorf(cay.Invalid, "from: hours are listed for at most %d days at once", mostHours/24)
	}
	return nil
}

func (m *Meter) report(ctx context.Context, team cay.TeamID, q Query) (Report, error) {
	ask := store.UsageQuery{Team: team, From: q.From, To: q.To}
	if slices.Contains(q.By, ByDay) {
		ask.By = 24 * time.Hour
	}
	if slices.Contains(q.By, ByHour) {
		ask.By = time.Hour
	}
	ask.Accounts = slices.ContainsFunc(q.By, func(by string) bool { return by != ByDay && by != ByHour && by != ByTeam })
	rows, err := m.store.Usage(ctx, ask)
	if err != nil {
		return Report{}, err
	}
	prices, err := m.store.Prices(ctx)
	if err != nil {
		return Report{}, err
	}
	out := Report{From: q.From, To: q.To, Currency: prices.Currency, Sums: []Sum{}}
	places := map[string]int{}
	for _, row := range rows {
		out.Total.Add(row.Amounts)
		if len(q.By) == 0 {
			continue
		}
		sum, name := q.sumOf(row)
		at, ok := places[name]
		if !ok {
			at = len(out.Sums)
			places[name] = at
			out.Sums = append(out.Sums, sum)
		}
		out.Sums[at].Amounts.Add(row.Amounts)
	}
	return out, nil
}

// sumOf is the sum that a row belongs to, still empty, and a text that tells it
// from others.
func (q *Query) sumOf(row store.UsageRow) (s Sum, name string) {
	var parts []string
	for _, by := range q.By {
		part := ""
		switch by {
		case ByTeam:
			s.Team, part = row.Account.Team, string(row.Account.Team)
		case ByKey:
			s.Key, part = row.Account.Key, string(row.Account.Key)
		case ByTemplate:
			s.Template, part = row.Account.Template, string(row.Account.Template)
		case ByDay, ByHour:
			s.At, part = row.At, row.At.Format(time.RFC3339)
		default:
			label := strings.TrimPrefix(by, byLabel)
			if s.Labels == nil {
				s.Labels = map[string]string{}
			}
			part = row.Account.Labels[label]
			s.Labels[label] = part
		}
		parts = append(parts, part)
	}
	return s, strings.Join(parts, "\x00")
}

// Labels lists the keys of metadata that a team has metered.
func (m *Meter) Labels(ctx context.Context, who cay.Caller) ([]string, error) {
	if err := who.May(cay.ReadBilling); err != nil {
		return nil, err
	}
	return m.store.UsageLabels(ctx, who.Team)
}

// SetLabels replaces the keys of metadata that a team has metered. Counts
// so far stay as they are; the keys that budgets name stay metered.
func (m *Meter) SetLabels(ctx context.Context, who cay.Caller, labels []string) ([]string, error) {
	if err := who.May(cay.WriteBilling); err != nil {
		return nil, err
	}
	budgets, err := m.store.Budgets(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	for _, b := range budgets {
		if b.Label != "" {
			labels = append(labels, b.Label)
		}
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	if err := checkLabels(labels); err != nil {
		return nil, err
	}
	if err := m.store.SetUsageLabels(ctx, who.Team, labels); err != nil {
		return nil, err
	}
	return labels, m.store.CountUsage(ctx, m.metered(who.Team))
}

func checkLabels(labels []string) error {
	if len(labels) > cay.MaxLabels {
		return cay.Errorf(cay.Invalid, "labels: a team has at most %d keys of metadata metered, those of its budgets included", cay.MaxLabels)
	}
	for _, label := range labels {
		if label == "" || len(label) > maxName || cay.Fit(label, maxName) != label {
			return cay.Errorf(cay.Invalid, "labels: %.80q is no key of metadata that can be metered", label).
				WithHint("a key has 1 to %d printable characters", maxName)
		}
	}
	return nil
}

// Prices returns what the meters cost.
func (m *Meter) Prices(ctx context.Context, who cay.Caller) (cay.Prices, error) {
	if err := who.May(cay.ReadBilling); err != nil {
		return cay.Prices{}, err
	}
	return m.store.Prices(ctx)
}

// SetPrices replaces the prices of this installation. Counts so far keep their
// cost.
func (m *Meter) SetPrices(ctx context.Context, who cay.Caller, p cay.Prices) error {
	if err := who.May(cay.Admin | cay.WriteBilling); err != nil {
		return err
	}
	for meter := range p.Units {
		if _, ok := meter.Info(); !ok || meter == cay.Money {
			return unknownMeter("prices", meter)
		}
	}
	if len(p.Currency) != 3 || strings.Trim(p.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return cay.Errorf(cay.Invalid, "currency: %.20q is no currency", p.Currency).WithHint("write three capital letters, like EUR")
	}
	// The time until now costs what it did.
	if err := m.store.CountUsage(ctx, m.metered("")); err != nil {
		return err
	}
	return m.store.SetPrices(ctx, p)
}

func unknownMeter(field string, meter cay.Meter) error {
	var names []string
	for _, info := range cay.Meters() {
		names = append(names, string(info.Meter))
	}
	return cay.Errorf(cay.Invalid, "%s: there is no meter %.40q", field, string(meter)).WithHint("the meters are %s", strings.Join(names, ", "))
}
