package usage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	maxName    = 128 // bytes
	mostBudget = 100 // of a team
)

// Spec is what a caller asks of a new budget.
type Spec struct {
	Name         string
	Key          cay.KeyID
	Label, Value string
	Meter        cay.Meter
	Limit        string // decimal, in the meter's unit
	Period       cay.Period
	Action       cay.BudgetAction // empty means to pause
}

// State is a budget and how much of it is used.
type State struct {
	Budget              cay.Budget
	LimitText, UsedText string    // decimals in the meter's unit
	Percent             int       // 100 when it is used up
	Resets              time.Time // zero for never
	Exhausted           bool
}

// AddBudget makes a budget. One that is used up already acts at once.
func (m *Meter) AddBudget(ctx context.Context, who cay.Caller, spec Spec) (State, error) {
	if err := who.May(cay.WriteBilling); err != nil {
		return State{}, err
	}
	b, err := m.budgetOf(ctx, who, spec)
	if err != nil {
		return State{}, err
	}
	if err := m.count(ctx, who.Team); err != nil {
		return State{}, err
	}
	if b.Period == cay.OneTime { // its first hour is not whole
		if b.Before, err = m.used(ctx, b, b.CreatedAt); err != nil {
			return State{}, err
		}
	}
	if err := m.record(ctx, who, b); err != nil {
		return State{}, err
	}
	return m.changed(ctx, who, b.ID)
}

// budgetOf checks what is asked of a budget.
func (m *Meter) budgetOf(ctx context.Context, who cay.Caller, spec Spec) (b cay.Budget, err error) {
	b = cay.Budget{
		ID: cay.NewBudgetID(), Team: who.Team, Name: strings.TrimSpace(spec.Name), Key: spec.Key, Label: spec.Label, Value: spec.Value,
		Meter: spec.Meter, Period: spec.Period, Action: spec.Action, CreatedAt: ledger.Now(), CreatedBy: who.Key,
	}
	if b.Action == "" {
		b.Action = cay.PauseAtLimit
	}
	if b.Limit, err = limitOf(b.Meter, spec.Limit); err != nil {
		return b, err
	}
	if !slices.Contains([]cay.Period{cay.Daily, cay.Weekly, cay.Monthly, cay.OneTime}, b.Period) {
		return b, cay.Errorf(cay.Invalid, "period: %.40q is none of day, week, month and once", string(b.Period))
	}
	if err := checkNamed(b); err != nil {
		return b, err
	}
	if err := m.checkKey(ctx, b); err != nil {
		return b, err
	}
	if b.Meter == cay.Money {
		if p, err := m.store.Prices(ctx); err != nil || len(p.Units) == 0 {
			return b, firstOf(err, cay.Errorf(cay.Invalid, "meter: this installation has no prices, so a budget cannot be of money").
				WithHint("have its operator set them, or bound a meter"))
		}
	}
	if err := hasRoom(ctx, m.store, b.Team); err != nil { // before a label is metered for it
		return b, err
	}
	if b.Label != "" {
		err = m.addLabel(ctx, b.Team, b.Label)
	}
	return b, err
}

// hasRoom refuses a budget of a team that has as many as it may.
func hasRoom(ctx context.Context, s store.Store, team cay.TeamID) error {
	all, err := s.Budgets(ctx, team)
	if err == nil && len(all) >= mostBudget {
		err = cay.Errorf(cay.Exhausted, "your team has the %d budgets that it may have", mostBudget).WithCode(cay.CodeTeamLimit)
	}
	return err
}

// record adds a budget, if there is room for it still.
func (m *Meter) record(ctx context.Context, who cay.Caller, b cay.Budget) error {
	return m.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.AddEvents(ctx, changedEvent(who, b, "added")); err != nil { // first: it keeps others away
			return err
		}
		if err := hasRoom(ctx, tx, b.Team); err != nil {
			return err
		}
		return tx.AddBudget(ctx, b)
	})
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func limitOf(meter cay.Meter, text string) (int64, error) {
	info, ok := meter.Info()
	if !ok {
		return 0, unknownMeter("meter", meter)
	}
	n, err := info.ParseAmount(text)
	if err != nil {
		return 0, cay.Wrap(cay.Invalid, err, "limit: %s", ledger.Visible(err)).WithHint("write it in the meter's unit, like 12.5")
	}
	if n == 0 {
		return 0, cay.Errorf(cay.Invalid, "limit: must be more than 0").WithHint("remove the key, or pause what runs, to stop all use")
	}
	return n, nil
}

// checkNamed checks what a budget is called, what it is of, and what it does.
func checkNamed(b cay.Budget) error {
	switch {
	case len(b.Name) > maxName || cay.Fit(b.Name, maxName) != b.Name:
		return cay.Errorf(cay.Invalid, "name: must be at most %d printable characters", maxName)
	case !slices.Contains([]cay.BudgetAction{cay.RefuseAtLimit, cay.PauseAtLimit, cay.KillAtLimit}, b.Action):
		return cay.Errorf(cay.Invalid, "action: %.40q is none of refuse, pause and kill", string(b.Action))
	case b.Label == "" && b.Value != "":
		return cay.Errorf(cay.Invalid, "metadata: the key of %.40q is missing", b.Value)
	case b.Label != "" && (len(b.Value) > cay.MaxLabelValue || b.Value == cay.OtherLabel):
		return cay.Errorf(cay.Invalid, "metadata: the value must have at most %d bytes, and not be %s", cay.MaxLabelValue, cay.OtherLabel)
	case b.Label != "" && b.Meter == cay.BuildSeconds:
		return cay.Errorf(cay.Invalid, "metadata: builds have none")
	}
	return nil
}

// checkKey looks whether a budget's key is the team's.
func (m *Meter) checkKey(ctx context.Context, b cay.Budget) error {
	if b.Key == "" {
		return nil
	}
	keys, err := m.store.Keys(ctx, b.Team)
	if err == nil && !slices.ContainsFunc(keys, func(k cay.APIKey) bool { return k.ID == b.Key }) {
		err = cay.Errorf(cay.NotFound, "key: %.40q not found", string(b.Key))
	}
	return err
}

// addLabel has a key of metadata metered that a budget is to name.
func (m *Meter) addLabel(ctx context.Context, team cay.TeamID, label string) error {
	labels, err := m.store.UsageLabels(ctx, team)
	if err != nil || slices.Contains(labels, label) {
		return err
	}
	labels = append(labels, label)
	if err := checkLabels(labels); err != nil {
		return err
	}
	return m.store.SetUsageLabels(ctx, team, labels)
}

// Change is what is changed of a budget; nil leaves it.
type Change struct {
	Name, Limit *string
	Action      *cay.BudgetAction
}

// ChangeBudget changes a budget's name, limit or action. Its thresholds are
// told anew after a new limit.
func (m *Meter) ChangeBudget(ctx context.Context, who cay.Caller, id cay.BudgetID, c Change) (State, error) {
	if err := who.May(cay.WriteBilling); err != nil {
		return State{}, err
	}
	b, err := m.ownBudget(ctx, who, id)
	if err != nil {
		return State{}, err
	}
	if c.Name != nil {
		b.Name = strings.TrimSpace(*c.Name)
	}
	if c.Action != nil {
		b.Action = *c.Action
	}
	if c.Limit != nil {
		if b.Limit, err = limitOf(b.Meter, *c.Limit); err != nil {
			return State{}, err
		}
		b.Told, b.ToldOf = 0, time.Time{}
	}
	if err := checkNamed(b); err != nil {
		return State{}, err
	}
	if err := m.store.ChangeBudget(ctx, b, changedEvent(who, b, "changed")); err != nil {
		return State{}, err
	}
	return m.changed(ctx, who, id)
}

// RemoveBudget removes a budget.
func (m *Meter) RemoveBudget(ctx context.Context, who cay.Caller, id cay.BudgetID) error {
	if err := who.May(cay.WriteBilling); err != nil {
		return err
	}
	b, err := m.ownBudget(ctx, who, id)
	if err != nil {
		return err
	}
	if err := m.store.RemoveBudget(ctx, who.Team, id, changedEvent(who, b, "removed")); err != nil {
		return err
	}
	m.ledger.Wake(who.Team)
	_, err = m.refresh(ctx, who.Team)
	return err
}

// ownBudget finds a budget that a caller may change: a key may not change one
// that bounds itself.
func (m *Meter) ownBudget(ctx context.Context, who cay.Caller, id cay.BudgetID) (cay.Budget, error) {
	all, err := m.store.Budgets(ctx, who.Team)
	if err != nil {
		return cay.Budget{}, err
	}
	at := slices.IndexFunc(all, func(b cay.Budget) bool { return b.ID == id })
	if at < 0 {
		return cay.Budget{}, noBudget(id)
	}
	if b := all[at]; b.Key != "" && b.Key == who.Key {
		return b, cay.Errorf(cay.Denied, "this key's own budget cannot be changed with it").WithHint("use another key of the team")
	}
	return all[at], nil
}

func noBudget(id cay.BudgetID) error {
	return cay.Errorf(cay.NotFound, "budget %.40q not found", string(id))
}

// changed brings a change into force, and returns the budget as it is.
func (m *Meter) changed(ctx context.Context, who cay.Caller, id cay.BudgetID) (State, error) {
	m.ledger.Wake(who.Team)
	if _, err := m.refresh(ctx, who.Team); err != nil {
		return State{}, err
	}
	m.wakeUp()
	who.Scopes |= cay.ReadBilling // of what the caller has written
	return m.Budget(ctx, who, id)
}

// wakeUp has the budgets looked at now, instead of in the next minute.
func (m *Meter) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Budget returns a team's budget.
func (m *Meter) Budget(ctx context.Context, who cay.Caller, id cay.BudgetID) (State, error) {
	all, err := m.Budgets(ctx, who)
	if err != nil {
		return State{}, err
	}
	at := slices.IndexFunc(all, func(s State) bool { return s.Budget.ID == id })
	if at < 0 {
		return State{}, noBudget(id)
	}
	return all[at], nil
}

// Budgets lists a team's budgets, oldest first.
func (m *Meter) Budgets(ctx context.Context, who cay.Caller) ([]State, error) {
	if err := who.May(cay.ReadBilling); err != nil {
		return nil, err
	}
	p, err := m.fresh(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []State{}
	for _, s := range p.slots {
		out = append(out, s.state())
	}
	return out, nil
}

// state is what callers see of a budget.
func (s *slot) state() State {
	info, _ := s.budget.Meter.Info()
	return State{
		Budget: s.budget, LimitText: info.Format(s.budget.Limit), UsedText: info.Format(s.used),
		Percent: s.percent(), Resets: s.until, Exhausted: s.used >= s.budget.Limit,
	}
}

func changedEvent(who cay.Caller, b cay.Budget, reason string) cay.Event {
	info, _ := b.Meter.Info()
	return ledger.NewEvent(who, cay.Sandbox{Team: b.Team}, cay.BudgetChanged, reason, "budget", string(b.ID), "name", b.Name,
		"meter", string(b.Meter), "limit", info.Format(b.Limit), "period", string(b.Period), "action", string(b.Action))
}

// errExhausted refuses what a budget does not allow.
func errExhausted(s *slot, what string) error {
	info, _ := s.budget.Meter.Info()
	text := fmt.Sprintf("budget %s of %s %s a %s", title(s.budget), info.Format(s.budget.Limit), s.budget.Meter, s.budget.Period)
	resets := "it does not begin anew by itself"
	if s.budget.Period == cay.OneTime {
		text = fmt.Sprintf("budget %s of %s %s", title(s.budget), info.Format(s.budget.Limit), s.budget.Meter)
	} else {
		resets = "it begins anew at " + s.until.Format(time.RFC3339)
	}
	return cay.Errorf(cay.Exhausted, "%s %s (%s used); %s", text, what, info.Format(s.used), resets).
		WithCode(cay.CodeBudget).WithHint("have the budget raised, or wait until then")
}

// title is how people call a budget.
func title(b cay.Budget) string {
	if b.Name != "" {
		return fmt.Sprintf("%q", b.Name)
	}
	return string(b.ID)
}
