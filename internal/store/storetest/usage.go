package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// noon is a moment in the middle of a day.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// usageOf sums everything that a team used.
func usageOf(t *testing.T, s store.Store, team cay.TeamID) cay.Amounts {
	t.Helper()
	rows, err := s.Usage(t.Context(), store.UsageQuery{Team: team, From: time.UnixMilli(0), To: time.Now().Add(time.Hour)})
	noError(t, err)
	if len(rows) == 0 {
		return cay.Amounts{}
	}
	return rows[0].Amounts
}

func testUsage(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	add := func(team cay.TeamID, key cay.KeyID, at time.Time, n int64) {
		t.Helper()
		noError(t, s.AddUsage(ctx, cay.Account{Team: team, Key: key, Template: "tmpl"}, at, cay.Amounts{Creates: n}))
	}
	add(team.ID, "k", noon.Add(-25*time.Hour), 1)
	add(team.ID, "k", noon, 10)
	add(team.ID, "l", noon.Add(59*time.Minute), 20)
	add(team.ID, "l", noon.Add(60*time.Minute), 100)
	add(team.ID, "l", noon.Add(48*time.Hour), 1000)
	add(other.ID, "m", noon, 10000)
	sum := func(from, to time.Duration) int64 {
		t.Helper()
		rows, err := s.Usage(ctx, store.UsageQuery{Team: team.ID, From: noon.Add(from), To: noon.Add(to)})
		noError(t, err)
		if len(rows) == 0 {
			return 0
		}
		same(t, "its account", rows[0].Account, cay.Account{Team: team.ID})
		return rows[0].Amounts.Creates
	}
	for _, want := range []struct {
		from, to time.Duration
		n        int64
	}{
		{0, time.Hour, 30}, {time.Minute, time.Second + time.Minute, 30}, {0, time.Hour + time.Millisecond, 130}, {time.Hour, 2 * time.Hour, 100},
		{-36 * time.Hour, 12 * time.Hour, 131}, {-25 * time.Hour, 49 * time.Hour, 1131}, {-24 * time.Hour, 48 * time.Hour, 130}, {100 * time.Hour, 101 * time.Hour, 0},
	} {
		same(t, fmt.Sprintf("the sum from %v to %v", want.from, want.to), sum(want.from, want.to), want.n)
	}
	add(team.ID, "k", noon.AddDate(0, 1, 20), 1<<20)
	add(team.ID, "k", noon.AddDate(0, 2, 20), 1<<21)
	same(t, "months, days and hours", sum(-36*time.Hour, noon.AddDate(0, 2, 21).Sub(noon)), 1131+int64(1<<20)+int64(1<<21))
	same(t, "a month without its beginning and what follows", sum(24*time.Hour, noon.AddDate(0, 2, 0).Sub(noon)), 1000+int64(1<<20))
	type row struct {
		Key cay.KeyID
		At  time.Duration
		N   int64
	}
	list := func(q store.UsageQuery) (out []row) {
		t.Helper()
		q.Team, q.From, q.To = team.ID, noon.Add(-36*time.Hour), noon.Add(72*time.Hour)
		rows, err := s.Usage(ctx, q)
		noError(t, err)
		for _, r := range rows {
			one := row{Key: r.Account.Key, N: r.Amounts.Creates}
			if q.By != 0 {
				one.At = r.At.Sub(noon)
			}
			out = append(out, one)
		}
		return out
	}
	same(t, "the days", list(store.UsageQuery{By: 24 * time.Hour}), []row{{"", -36 * time.Hour, 1}, {"", -12 * time.Hour, 130}, {"", 36 * time.Hour, 1000}})
	same(t, "the hours", list(store.UsageQuery{By: time.Hour}), []row{{"", -25 * time.Hour, 1}, {"", 0, 30}, {"", time.Hour, 100}, {"", 48 * time.Hour, 1000}})
	same(t, "the keys", list(store.UsageQuery{Accounts: true}), []row{{"k", 0, 11}, {"l", 0, 1120}})
	all, err := s.Usage(ctx, store.UsageQuery{From: noon, To: noon.Add(time.Hour)})
	noError(t, err)
	same(t, "the number of teams", len(all), 2)

	n, err := s.PruneUsage(ctx, noon.Add(36*time.Hour), noon)
	noError(t, err)
	same(t, "the rows that were pruned", n, 4+3+2) // hours and days of two accounts, and of another team
	same(t, "what is left", []int64{sum(-36*time.Hour, 12*time.Hour), sum(-36*time.Hour, 72*time.Hour)}, []int64{0, 1000})
	same(t, "all months", usageOf(t, s, team.ID).Creates, 1131+int64(1<<20)+int64(1<<21))
	n, err = s.PruneUsage(ctx, noon.AddDate(0, 1, 0), noon)
	noError(t, err)
	same(t, "the rows that were pruned in the next month", n, 2+3) // a day and an hour, and months
	same(t, "what is left then", usageOf(t, s, team.ID).Creates, int64(1<<20)+int64(1<<21))
	same(t, "what is left of another team", usageOf(t, s, other.ID), cay.Amounts{})
}

// A sandbox is counted with the changes of its record.
func testUsageAccounts(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	noError(t, s.SetUsageLabels(ctx, team.ID, []string{"user", "none"}))
	labels, err := s.UsageLabels(ctx, team.ID)
	noError(t, err)
	same(t, "the labels", labels, []string{"none", "user"})
	b := sandbox(team.ID, 0)
	b.Key = "k"
	noError(t, s.AddSandbox(ctx, b))
	same(t, "its start before it is counted", usageOf(t, s, team.ID).Creates, int64(0))
	b.Reading = cay.Reading{Instance: b.Instance, First: cay.Taken{CPU: time.Second, Sent: 100}, Last: cay.Taken{CPU: 3 * time.Second, Sent: 150}}
	noError(t, s.CountUsage(ctx, []cay.Sandbox{b, sandbox(team.ID, 1)})) // the other one is not recorded
	b.Reading.Last.CPU = 4 * time.Second
	noError(t, s.CountUsage(ctx, []cay.Sandbox{b}))
	b.State = cay.Pausing
	noError(t, s.UpdateSandbox(ctx, b))
	b.Version++
	b.State, b.EndedAt = cay.Paused, time.Now()
	b.Reading.Last.Sent = 1
	noError(t, s.UpdateSandbox(ctx, b))
	b.Version++
	got := usageOf(t, s, team.ID)
	same(t, "its start, processor time and bytes", []int64{got.Creates, got.CPU, got.Sent}, []int64{1, 3_000_000, 50})
	rows, err := s.Usage(ctx, store.UsageQuery{Team: team.ID, From: time.UnixMilli(0), To: time.Now().Add(time.Hour), Accounts: true})
	noError(t, err)
	same(t, "the number of accounts", len(rows), 1)
	same(t, "its account", rows[0].Account, cay.Account{Team: team.ID, Key: "k", Template: "tmpl", Labels: map[string]string{"user": "ann"}})

	// It runs again, in another instance, and dies with the host.
	b.State, b.Instance, b.EndedAt = cay.Running, cay.NewInstanceID(), time.Time{}
	b.Reading = cay.Reading{}
	begun, skipped := time.Now(), time.Time{}
	noError(t, s.UpdateSandbox(ctx, b))
	b.Version++
	for skipped.IsZero() || time.Since(begun) < 20*time.Millisecond {
		skipped = time.Now()
		noError(t, s.SkipUsage(ctx, b.ID))
	}
	b.State, b.EndedAt = cay.Killed, time.Now().Add(time.Hour)
	noError(t, s.UpdateSandbox(ctx, b))
	ran := time.Since(skipped).Milliseconds() + 1
	after := usageOf(t, s, team.ID)
	same(t, "its starts", after.Creates, int64(1))
	if after.VCPU-got.VCPU > 2*ran { // of two processors
		t.Errorf("a sandbox that was lost is counted for %d ms of a processor, after %d ms of two", after.VCPU-got.VCPU, ran)
	}
	noError(t, s.CountUsage(ctx, []cay.Sandbox{b}))
	same(t, "what is counted of one that is over", usageOf(t, s, team.ID), after)

	// A sandbox that could not be started is none.
	failed := sandbox(team.ID, 0)
	failed.State = cay.Killed
	noError(t, s.AddSandbox(ctx, failed))
	same(t, "what is counted of a failed start", usageOf(t, s, team.ID), after)

	// Too many values of metadata are counted together, but for those of budgets.
	noError(t, s.AddBudget(ctx, cay.Budget{ID: cay.NewBudgetID(), Team: team.ID, Label: "user", Value: "vip", CreatedAt: noon}))
	for i := range 1003 {
		noError(t, s.AddUsage(ctx, cay.Account{Team: team.ID, Labels: map[string]string{"user": fmt.Sprint(i), "other": "x"}}, noon, cay.Amounts{Creates: 1}))
	}
	noError(t, s.AddUsage(ctx, cay.Account{Team: team.ID, Labels: map[string]string{"user": "vip"}}, noon, cay.Amounts{Creates: 1}))
	rows, err = s.Usage(ctx, store.UsageQuery{Team: team.ID, From: noon, To: noon.Add(time.Hour), Accounts: true})
	noError(t, err)
	counts := map[string]int64{}
	for _, r := range rows {
		counts[r.Account.Labels["user"]] = r.Amounts.Creates
	}
	same(t, "some values", []int64{counts["0"], counts["998"], counts[cay.OtherLabel], counts["vip"]}, []int64{1, 1, 4, 1})
}

func testUsageKept(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	kept := []store.Kept{{Account: cay.Account{Team: team.ID}, Bytes: 1 << 40}, {Account: cay.Account{Team: team.ID}, Bytes: 1 << 40}}
	noError(t, s.CountKept(ctx, "n1", kept))
	same(t, "what was kept for no time", usageOf(t, s, team.ID).Storage, int64(0))
	begun := time.Now()
	for time.Since(begun) < 2*time.Millisecond {
		noError(t, s.CountKept(ctx, "n2", kept)) // another node's is another's
	}
	noError(t, s.CountKept(ctx, "n1", nil))
	got := usageOf(t, s, team.ID).Storage
	if got < 2<<20 {
		t.Errorf("2 TiB for 2 ms are %d", got)
	}
	noError(t, s.CountKept(ctx, "n2", nil))
	got = usageOf(t, s, team.ID).Storage
	noError(t, s.CountKept(ctx, "n1", nil))
	noError(t, s.CountKept(ctx, "n2", nil))
	same(t, "what is kept no more", usageOf(t, s, team.ID).Storage, got)
}

func testTeamMinutes(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	one, two := sandbox(team.ID, 0), sandbox(team.ID, 0)
	noError(t, s.AddSandbox(ctx, one))
	noError(t, s.AddSandbox(ctx, two))
	one.State = cay.Killed
	noError(t, s.UpdateSandbox(ctx, one))
	list, err := s.TeamMinutes(ctx, team.ID, time.Now().Add(-time.Hour), time.Now())
	noError(t, err)
	starts, most := 0, 0
	for _, m := range list {
		starts, most = starts+m.Starts, max(most, m.Most)
	}
	same(t, "the starts, the most and the last", []int{starts, most, list[len(list)-1].Running}, []int{2, 2, 1})
	_, err = s.PruneUsage(ctx, noon, time.Now().Add(time.Hour))
	noError(t, err)
	list, err = s.TeamMinutes(ctx, team.ID, time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))
	noError(t, err)
	same(t, "the number of minutes that are left", len(list), 1)
	same(t, "what runs", list[0].Running, 1)
}

func testPrices(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	account := cay.Account{Team: team.ID}
	noError(t, s.AddUsage(ctx, account, noon, cay.Amounts{VCPU: 1000}))
	euro := cay.Prices{Currency: "EUR", Units: map[cay.Meter]int64{cay.VCPUSeconds: 14_000_000, cay.Creates: 1_000_000_000_000}}
	noError(t, s.SetPrices(ctx, cay.Prices{Currency: "USD", Units: map[cay.Meter]int64{cay.Creates: 1}}))
	noError(t, s.SetPrices(ctx, euro)) // nothing has a cost yet
	got, err := s.Prices(ctx)
	noError(t, err)
	same(t, "the prices", got, euro)
	noError(t, s.AddUsage(ctx, account, noon, cay.Amounts{VCPU: 1_000_000, Creates: 2}))
	same(t, "the cost", usageOf(t, s, team.ID).Money, int64(14_000_000+2_000_000_000))
	wantKind(t, s.SetPrices(ctx, cay.Prices{Currency: "USD", Units: euro.Units}), cay.Conflict)
	noError(t, s.SetPrices(ctx, cay.Prices{Currency: "EUR", Units: map[cay.Meter]int64{}}))
	noError(t, s.AddUsage(ctx, account, noon, cay.Amounts{VCPU: 1_000_000, Creates: 2}))
	same(t, "the cost after the prices are gone", usageOf(t, s, team.ID).Money, int64(2_014_000_000))
}

func testBudgets(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	b := cay.Budget{
		ID: cay.NewBudgetID(), Team: team.ID, Name: "n", Key: "k", Label: "user", Value: "ann", Meter: cay.Creates, Limit: 7, Period: cay.Weekly,
		Action: cay.KillAtLimit, CreatedAt: noon, CreatedBy: "l", Before: 3, Told: 50, ToldOf: noon.Add(time.Hour),
	}
	noError(t, s.AddBudget(ctx, b, eventOf(cay.Sandbox{Team: team.ID}, 1, cay.BudgetChanged)))
	got, err := s.Budgets(ctx, team.ID)
	noError(t, err)
	same(t, "the budget", got, []cay.Budget{b})
	last, err := s.LastEvent(ctx, team.ID)
	noError(t, err)
	same(t, "the number of events", last, int64(1))

	tell := func(percent int, of time.Time, limit int64) bool {
		t.Helper()
		c := b
		c.Told, c.ToldOf, c.Limit = percent, of, limit
		told, err := s.TellBudget(ctx, c, eventOf(cay.Sandbox{Team: team.ID}, 1, cay.BudgetThreshold))
		noError(t, err)
		return told
	}
	same(t, "what is told", []bool{
		tell(50, b.ToldOf, 7), tell(80, b.ToldOf, 8), tell(80, b.ToldOf, 7), tell(80, b.ToldOf, 7), tell(50, b.ToldOf.Add(time.Hour), 7),
	}, []bool{false, false, true, false, true})
	last, err = s.LastEvent(ctx, team.ID)
	noError(t, err)
	same(t, "the number of events then", last, int64(3))

	b.Name, b.Limit, b.Action, b.Told, b.ToldOf = "m", 8, cay.PauseAtLimit, 0, time.Time{}
	noError(t, s.ChangeBudget(ctx, b))
	got, err = s.Budgets(ctx, "")
	noError(t, err)
	same(t, "the budget after a change", got, []cay.Budget{b})
	theirs := b
	theirs.Team = other.ID
	wantKind(t, s.ChangeBudget(ctx, theirs), cay.NotFound)
	wantKind(t, s.RemoveBudget(ctx, other.ID, b.ID), cay.NotFound)
	noError(t, s.RemoveBudget(ctx, team.ID, b.ID))
	wantKind(t, s.RemoveBudget(ctx, team.ID, b.ID), cay.NotFound)
}
