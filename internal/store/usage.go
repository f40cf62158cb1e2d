package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// mostAccounts is how many accounts a team has before values of its metadata
// are counted together: a year is answered from a row a day of each.
const mostAccounts = 1000

const usageColumns = `vcpu, memory, cpu, storage, sent, creates, build, money, volume, model_input, model_output`

// The spans of usage_rows.
const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// openUsage is a sandbox that runs, and what is not counted of it.
type openUsage struct {
	account, since, cpus, memoryMB, creates int64
	instance                                cay.InstanceID
	cpu, sent                               int64
}

// metered reports whether a sandbox is counted: one that is being saved runs
// until it is.
func metered(s cay.State) bool { return s == cay.Running || s == cay.Pausing }

// meterNew counts a new sandbox from now on, if it runs.
func (s *DB) meterNew(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	if !metered(b.State) {
		return nil
	}
	return s.openUse(ctx, tx, b, 1)
}

// meter follows a change of a sandbox's record: what ran until now is counted,
// and what runs from now on is open.
func (s *DB) meter(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	if metered(b.State) {
		var n int
		err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM usage_open WHERE sandbox = $1`, b.ID).Scan(&n)
		if err != nil || n > 0 {
			return err
		}
		return s.openUse(ctx, tx, b, 0)
	}
	open, err := scanOpen(tx.QueryRowContext(ctx, `DELETE FROM usage_open WHERE sandbox = $1 RETURNING `+openColumns, b.ID))
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	until := now
	if !b.EndedAt.IsZero() && b.EndedAt.Before(now) {
		until = b.EndedAt
	}
	sum := tally{}
	open.count(sum, b, until)
	if err := s.addRows(ctx, tx, sum); err != nil {
		return err
	}
	return countRunning(ctx, tx, b.Team, now, -1)
}

func (s *DB) openUse(ctx context.Context, tx *sql.Tx, b cay.Sandbox, creates int64) error {
	account, err := s.accountOf(ctx, tx, accountFor(b))
	if err != nil {
		return err
	}
	now := time.Now()
	_, err = tx.ExecContext(ctx,
		`INSERT INTO usage_open (sandbox, account, since, cpus, memory_mb, creates) VALUES ($1, $2, $3, $4, $5, $6)`,
		b.ID, account, millis(now), b.Limits.CPUs, b.Limits.MemoryMB, creates)
	if err != nil {
		return err
	}
	return countRunning(ctx, tx, b.Team, now, 1)
}

const openColumns = `account, since, cpus, memory_mb, creates, instance, cpu, sent`

func scanOpen(row scanner) (o openUsage, err error) {
	err = row.Scan(&o.account, &o.since, &o.cpus, &o.memoryMB, &o.creates, &o.instance, &o.cpu, &o.sent)
	return o, err
}

// count adds what a sandbox used until a moment, and notes that it is counted.
// A moment before the last one counts nothing: the clock was set.
func (o *openUsage) count(sum tally, b cay.Sandbox, until time.Time) {
	end := max(millis(until), o.since)
	if o.since == 0 {
		o.since = end
	}
	limits := cay.Limits{CPUs: int(o.cpus), MemoryMB: int(o.memoryMB)}
	for at := o.since; at < end; {
		next := min(end, floor(at, hour)+hour.Milliseconds())
		sum.add(b.Team, o.account, at, cay.Ran(limits, time.Duration(next-at)*time.Millisecond))
		at = next
	}
	taken := cay.Amounts{Creates: o.creates}
	o.since, o.creates = end, 0
	if r := b.Reading; r.Instance != "" {
		if o.instance != r.Instance {
			o.instance, o.cpu, o.sent = r.Instance, r.First.CPU.Microseconds(), r.First.Sent
		}
		taken.CPU = max(0, r.Last.CPU.Microseconds()-o.cpu)
		taken.Sent = max(0, r.Last.Sent-o.sent)
		o.cpu, o.sent = max(o.cpu, r.Last.CPU.Microseconds()), max(o.sent, r.Last.Sent)
	}
	sum.add(b.Team, o.account, end, taken)
}

// floor is the beginning of the hour or day of a time in milliseconds.
func floor(ms int64, span time.Duration) int64 { return ms - ms%span.Milliseconds() }

// tally collects amounts by the rows that they belong to.
type tally map[tallyKey]cay.Amounts

type tallyKey struct {
	team        cay.TeamID
	account, at int64 // the beginning of an hour
}

func compareKeys(a, b tallyKey) int {
	return cmp.Or(cmp.Compare(a.team, b.team), cmp.Compare(a.account, b.account), cmp.Compare(a.at, b.at))
}

func (t tally) add(team cay.TeamID, account, at int64, a cay.Amounts) {
	if a == (cay.Amounts{}) {
		return
	}
	key := tallyKey{team, account, floor(at, hour)}
	sum := t[key]
	sum.Add(a)
	t[key] = sum
}

// usageRow is the place of amounts: the row of an hour, a day or a month.
type usageRow struct {
	span string
	tallyKey
}

// addRows adds amounts to the rows of their hours, days and months, with what
// they cost.
func (s *DB) addRows(ctx context.Context, tx *sql.Tx, t tally) error {
	prices, err := s.pricesNow(ctx, tx)
	if err != nil {
		return err
	}
	sums := map[usageRow]cay.Amounts{}
	for k, a := range t {
		a.Money = prices.CostOf(a)
		for span, at := range map[string]int64{"h": k.at, "d": floor(k.at, day), "m": monthOf(k.at)} {
			row := usageRow{span, tallyKey{k.team, k.account, at}}
			sum := sums[row]
			sum.Add(a)
			sums[row] = sum
		}
	}
	var rows [][]any
	// Servers that change the same rows wait in one order.
	for _, r := range slices.SortedFunc(maps.Keys(sums), func(a, b usageRow) int {
		return cmp.Or(cmp.Compare(a.span, b.span), compareKeys(a.tallyKey, b.tallyKey))
	}) {
		a := sums[r]
		rows = append(rows, []any{r.span, r.team, r.at, r.account, a.VCPU, a.Memory, a.CPU, a.Storage, a.Sent, a.Creates, a.Build, a.Money, a.Volume, a.Input, a.Output})
	}
	const columns = `span, team, at, account, ` + usageColumns
	return inRows(ctx, tx, columns, "TEXT, TEXT"+strings.Repeat(", BIGINT", 13), rows, `INSERT INTO usage_rows (`+columns+`)
SELECT `+columns+` FROM given WHERE span <> '' ON CONFLICT (span, team, at, account) DO UPDATE SET `+additions)
}

// additions adds what is inserted to the columns of a row that is there.
var additions = func() string {
	names := strings.Split(usageColumns, ", ")
	for i, name := range names {
		names[i] = name + " = usage_rows." + name + " + excluded." + name
	}
	return strings.Join(names, ", ")
}()

// monthOf is the beginning of the month of a time in milliseconds.
func monthOf(ms int64) int64 {
	y, m, _ := time.UnixMilli(ms).UTC().Date()
	return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
}

// countRunning notes that a team has one more or one less running. A clock that
// went back notes it in the last minute that there is.
func countRunning(ctx context.Context, tx *sql.Tx, team cay.TeamID, now time.Time, by int64) error {
	_, err := tx.ExecContext(ctx, `
INSERT INTO team_minutes (team, at, running, most, starts)
SELECT $1, CASE WHEN l.at > $2 THEN l.at ELSE $2 END, CASE WHEN l.running + $3 < 0 THEN 0 ELSE l.running + $3 END,
    CASE WHEN $3 > 0 THEN l.running + $3 ELSE l.running END, CASE WHEN $3 > 0 THEN 1 ELSE 0 END
FROM (SELECT COALESCE(MAX(at), 0) AS at,
    COALESCE((SELECT running FROM team_minutes WHERE team = $1 ORDER BY at DESC LIMIT 1), 0) AS running
    FROM team_minutes WHERE team = $1) l WHERE true
ON CONFLICT (team, at) DO UPDATE SET running = excluded.running, starts = team_minutes.starts + excluded.starts,
    most = CASE WHEN team_minutes.most > excluded.most THEN team_minutes.most ELSE excluded.most END`,
		team, floor(millis(now), time.Minute), by)
	return err
}

// accountFor is the account of a sandbox, with all of its metadata.
func accountFor(b cay.Sandbox) cay.Account {
	return cay.Account{Team: b.Team, Key: b.Key, Template: b.Template, Labels: b.Metadata}
}

// accountOf finds or makes an account. Of its labels those count that its team
// has metered.
func (s *DB) accountOf(ctx context.Context, tx *sql.Tx, a cay.Account) (id int64, err error) {
	var keys []string
	if len(a.Labels) > 0 {
		if keys, err = labelsOf(ctx, tx, a.Team); err != nil {
			return 0, err
		}
	}
	labels := meteredOf(a.Labels, keys)
	if id, err = s.findAccount(ctx, tx, a, labels); !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	// Another server may make one at the same time, and the same one.
	if err := s.hold(ctx, tx, `LOCK TABLE usage_accounts IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return 0, err
	}
	if s.engine.many() {
		if id, err = s.findAccount(ctx, tx, a, labels); !errors.Is(err, sql.ErrNoRows) {
			return id, err
		}
	}
	var n, last int64
	err = tx.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM usage_accounts WHERE team = $1), COALESCE(MAX(id), 0) FROM usage_accounts`, a.Team).Scan(&n, &last)
	if err != nil {
		return 0, err
	}
	if n >= mostAccounts && len(labels) > 0 {
		if labels, err = fewerLabels(ctx, tx, a.Team, labels); err != nil {
			return 0, err
		}
		if id, err = s.findAccount(ctx, tx, a, labels); !errors.Is(err, sql.ErrNoRows) {
			return id, err
		}
	}
	text, err := json.Marshal(labels)
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO usage_accounts (id, team, api_key, template, labels) VALUES ($1, $2, $3, $4, $5)`,
		last+1, a.Team, a.Key, a.Template, string(text))
	return last + 1, err
}

// meteredOf are the labels of metadata that count, of those keys.
func meteredOf(metadata map[string]string, keys []string) map[string]string {
	labels := map[string]string{}
	for _, key := range keys {
		if value, ok := metadata[key]; ok {
			labels[key] = fitLabel(value)
		}
	}
	return labels
}

func (s *DB) findAccount(ctx context.Context, tx *sql.Tx, a cay.Account, labels map[string]string) (id int64, err error) {
	text, err := json.Marshal(labels)
	if err != nil {
		return 0, err
	}
	query := `SELECT id FROM usage_accounts WHERE team = $1 AND api_key = $2 AND template = $3 AND labels = $4`
	if s.engine.many() {
		query += ` FOR KEY SHARE` // no server forgets it before this transaction is over
	}
	err = tx.QueryRowContext(ctx, query,
		a.Team, a.Key, a.Template, string(text)).Scan(&id)
	return id, err
}

// fitLabel is a value of metadata as accounts have it.
func fitLabel(value string) string {
	if len(value) <= cay.MaxLabelValue {
		return value
	}
	return strings.ToValidUTF8(value[:cay.MaxLabelValue], "")
}

// fewerLabels replaces the values that no budget names.
func fewerLabels(ctx context.Context, tx *sql.Tx, team cay.TeamID, labels map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for key, value := range labels {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM budgets WHERE team = $1 AND label = $2 AND value = $3`, team, key, value).Scan(&n); err != nil {
			return nil, err
		}
		if out[key] = cay.OtherLabel; n > 0 {
			out[key] = value
		}
	}
	return out, nil
}

// SkipUsage leaves out the time since a sandbox was last counted.
func (s *DB) SkipUsage(ctx context.Context, id cay.SandboxID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE usage_open SET since = $2 WHERE sandbox = $1 AND since < $2`, id, millis(time.Now()))
		return err
	})
}

// ShiftUsage moves the moments since which sandboxes are not counted: the clock
// was set by that much.
func (s *DB) ShiftUsage(ctx context.Context, ids []cay.SandboxID, by time.Duration) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `UPDATE usage_open SET since = since + $2 WHERE sandbox = $1 AND since > 0`, id, by.Milliseconds()); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddUsage counts an amount at a moment.
func (s *DB) AddUsage(ctx context.Context, a cay.Account, at time.Time, amounts cay.Amounts) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		id, err := s.accountOf(ctx, tx, a)
		if err != nil {
			return err
		}
		sum := tally{}
		sum.add(a.Team, id, millis(at), amounts)
		return s.addRows(ctx, tx, sum)
	})
}

// CountKept counts what a node has kept since it last said what it keeps, and
// notes what it keeps now.
func (s *DB) CountKept(ctx context.Context, node cay.NodeID, kept []Kept) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		sum, now := tally{}, millis(time.Now())
		if err := s.countKept(ctx, tx, sum, node, now); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM usage_kept WHERE node = $1`, node); err != nil {
			return err
		}
		for _, k := range kept {
			id, err := s.accountOf(ctx, tx, k.Account)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO usage_kept (node, account, team, bytes, since, volume_bytes) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (node, account) DO UPDATE SET bytes = usage_kept.bytes + $4, volume_bytes = usage_kept.volume_bytes + $6`,
				node, id, k.Account.Team, k.Bytes, now, k.Volumes)
			if err != nil {
				return err
			}
		}
		return s.addRows(ctx, tx, sum)
	})
}

func (s *DB) countKept(ctx context.Context, tx *sql.Tx, sum tally, node cay.NodeID, now int64) error {
	rows, err := tx.QueryContext(ctx, `SELECT account, team, bytes, since, volume_bytes FROM usage_kept WHERE node = $1`+s.forUpdate(), node)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var account, bytes, since, volumes int64
		var team cay.TeamID
		if err := rows.Scan(&account, &team, &bytes, &since, &volumes); err != nil {
			return err
		}
		for at := since; at < now; {
			next := min(now, floor(at, hour)+hour.Milliseconds())
			took := time.Duration(next-at) * time.Millisecond
			used := cay.Stored(bytes, took)
			used.Add(cay.StoredInVolumes(volumes, took))
			sum.add(team, account, at, used)
			at = next
		}
	}
	return rows.Err()
}

// Usage sums amounts up. Whole months and days are read as such where they are
// not asked for one by one, so that a year is few rows.
func (s *DB) Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error) {
	type place struct {
		at, account int64
		team        cay.TeamID
	}
	places := map[place]int{}
	var out []UsageRow
	for _, part := range q.parts() {
		rows, err := s.usagePart(ctx, q, part)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			key := place{millis(row.At), row.account, row.team}
			if at, known := places[key]; known {
				out[at].Amounts.Add(row.Amounts)
				continue
			}
			places[key] = len(out)
			out = append(out, row)
		}
	}
	slices.SortFunc(out, func(a, b UsageRow) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.team, b.team), cmp.Compare(a.account, b.account))
	})
	var accounts map[int64]cay.Account
	var err error
	if q.Accounts {
		accounts, err = s.accounts(ctx, q.Team)
	}
	for i := range out {
		row := &out[i]
		if row.Account = accounts[row.account]; row.Account.Team == "" {
			row.Account.Team = row.team
		}
		row.account, row.team = 0, ""
	}
	return out, err
}

// usagePart is rows of one span, from a time to another in milliseconds.
type usagePart struct {
	span     string
	from, to int64
}

// parts divides a time into months, days and hours.
func (q UsageQuery) parts() (out []usagePart) {
	add := func(span string, from, to int64) {
		if from < to {
			out = append(out, usagePart{span, from, to})
		}
	}
	from, to := floor(millis(q.From), hour), floor(millis(q.To.Add(hour-time.Millisecond)), hour)
	first, last := floor(from+day.Milliseconds()-1, day), floor(to, day)
	if q.By == hour || first >= last {
		add("h", from, to)
		return out
	}
	add("h", from, first)
	month := monthOf(first)
	if month < first {
		month = time.UnixMilli(month).UTC().AddDate(0, 1, 0).UnixMilli()
	}
	if end := monthOf(last); q.By == 0 && month < end {
		add("d", first, month)
		add("m", month, end)
		add("d", end, last)
	} else {
		add("d", first, last)
	}
	add("h", last, to)
	return out
}

func (s *DB) usagePart(ctx context.Context, q UsageQuery, p usagePart) ([]UsageRow, error) {
	c := &conditions{}
	c.where = append(c.where, "span = '"+p.span+"'")
	team, at, account := "''", "0", "0"
	groups := []string{}
	if q.Team != "" {
		c.where = append(c.where, "team = "+c.arg(q.Team))
	} else {
		team, groups = "team", append(groups, "team")
	}
	c.where = append(c.where, "at >= "+c.arg(p.from), "at < "+c.arg(p.to))
	switch {
	case q.By == hour, q.By == day && p.span == "d":
		at, groups = "at", append(groups, "at")
	case q.By == day:
		at = fmt.Sprintf("at - at %% %d", day.Milliseconds())
		groups = append(groups, at)
	}
	if q.Accounts {
		account, groups = "account", append(groups, "account")
	}
	text := `SELECT ` + team + `, ` + at + `, ` + account + `, ` + sums() + ` FROM usage_rows WHERE ` + strings.Join(c.where, " AND ")
	if len(groups) > 0 {
		text += ` GROUP BY ` + strings.Join(groups, ", ")
	} else {
		text += ` HAVING COUNT(*) > 0`
	}
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	out, err := collect(rows, err, scanUsage)
	for i := range out {
		out[i].team = cmp.Or(out[i].team, q.Team)
	}
	return out, err
}

func sums() string {
	names := strings.Split(usageColumns, ", ")
	for i, name := range names {
		names[i] = "CAST(SUM(" + name + ") AS BIGINT)"
	}
	return strings.Join(names, ", ")
}

func scanUsage(row scanner) (r UsageRow, err error) {
	var at int64
	a := &r.Amounts
	err = row.Scan(&r.team, &at, &r.account, &a.VCPU, &a.Memory, &a.CPU, &a.Storage, &a.Sent, &a.Creates, &a.Build, &a.Money, &a.Volume, &a.Input, &a.Output)
	r.At = fromMillis(at)
	return r, err
}

// accounts reads the accounts of a team, or of all.
func (s *DB) accounts(ctx context.Context, team cay.TeamID) (map[int64]cay.Account, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT id, team, api_key, template, labels FROM usage_accounts WHERE team = $1 OR $1 = ''`, team)
	if err != nil {
		return nil, dbError(err)
	}
	defer rows.Close()
	out := map[int64]cay.Account{}
	for rows.Next() {
		var id int64
		var a cay.Account
		var labels string
		if err := rows.Scan(&id, &a.Team, &a.Key, &a.Template, &labels); err != nil {
			return nil, dbError(err)
		}
		if err := json.Unmarshal([]byte(labels), &a.Labels); err != nil {
			return nil, cay.Wrap(cay.Internal, err, "the record of an account of team %s is damaged", a.Team)
		}
		out[id] = a
	}
	return out, dbError(rows.Err())
}

// TeamMinutes lists the minutes in which a team's sandboxes began or ceased to
// run, oldest first, and before them the last one before from.
func (s *DB) TeamMinutes(ctx context.Context, team cay.TeamID, from, to time.Time) ([]TeamMinute, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT at, running, most, starts FROM team_minutes WHERE team = $1 AND at <= $3 AND at >=
COALESCE((SELECT MAX(at) FROM team_minutes WHERE team = $1 AND at < $2), 0) ORDER BY at`, team, floor(millis(from), time.Minute), millis(to))
	return collect(rows, err, func(row scanner) (m TeamMinute, err error) {
		var at int64
		err = row.Scan(&at, &m.Running, &m.Most, &m.Starts)
		m.At = fromMillis(at)
		return m, err
	})
}

// PruneUsage forgets the rows of hours and days before a time, the accounts
// that have none then, and the minutes of teams before another.
func (s *DB) PruneUsage(ctx context.Context, before, minutes time.Time) (int, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT DISTINCT team FROM usage_accounts UNION SELECT DISTINCT team FROM team_minutes`)
	teams, err := collect(rows, err, func(row scanner) (id cay.TeamID, err error) { return id, row.Scan(&id) })
	sum := 0
	for _, team := range teams {
		for span, until := range map[string]int64{"h": floor(millis(before), day), "d": floor(millis(before), day), "m": monthOf(millis(before))} {
			n, gone := s.inBatches(ctx, `DELETE FROM usage_rows WHERE (span, team, at, account) IN
(SELECT span, team, at, account FROM usage_rows WHERE span = $1 AND team = $2 AND at < $3 LIMIT $4)`, span, team, until)
			sum, err = sum+n, errors.Join(err, gone)
		}
		_, gone := s.inBatches(ctx, `DELETE FROM team_minutes WHERE team = $1 AND at IN
(SELECT at FROM team_minutes WHERE team = $1 AND at < $2 AND at < (SELECT MAX(at) FROM team_minutes WHERE team = $1) LIMIT $3)`, team, millis(minutes))
		err = errors.Join(err, gone, s.pruneAccounts(ctx, team))
	}
	return sum, err
}

func (s *DB) pruneAccounts(ctx context.Context, team cay.TeamID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		// Transactions that count to one of them come first, and are seen then.
		if err := s.hold(ctx, tx, `SELECT id FROM usage_accounts WHERE team = $1 ORDER BY id FOR UPDATE`, team); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM usage_accounts WHERE team = $1
AND id NOT IN (SELECT account FROM usage_rows WHERE span = 'm' AND team = $1)
AND id NOT IN (SELECT account FROM usage_open) AND id NOT IN (SELECT account FROM usage_kept)`, team)
		return err
	})
}

// Prices returns what meters cost.
func (s *DB) Prices(ctx context.Context) (cay.Prices, error) { return s.pricesNow(ctx, s.r) }

// pricesNow reads the prices, or remembers them: every count needs them.
func (s *DB) pricesNow(ctx context.Context, q reader) (cay.Prices, error) {
	if p := s.priced.Load(); p != nil && !s.engine.many() { // else another server may have set others
		return *p, nil
	}
	rows, err := q.QueryContext(ctx, `SELECT meter, price, currency FROM usage_prices`)
	if err != nil {
		return cay.Prices{}, dbError(err)
	}
	defer rows.Close()
	p := cay.Prices{Units: map[cay.Meter]int64{}}
	for rows.Next() {
		var meter cay.Meter
		var price int64
		if err := rows.Scan(&meter, &price, &p.Currency); err != nil {
			return p, dbError(err)
		}
		p.Units[meter] = price
	}
	if err := rows.Err(); err != nil {
		return p, dbError(err)
	}
	s.priced.Store(&p)
	return p, nil
}

// SetPrices replaces all prices. Counts so far keep their cost, so a currency
// cannot be changed once something has one.
func (s *DB) SetPrices(ctx context.Context, p cay.Prices) error {
	if s.joined != nil { // the prices are remembered when they count
		return cay.Errorf(cay.Internal, "prices are not set together with other changes")
	}
	defer s.priced.Store(nil)
	return s.tx(ctx, func(tx *sql.Tx) error {
		// A count that has read the old prices comes first.
		if err := s.hold(ctx, tx, `LOCK TABLE usage_prices IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		var other bool
		err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM usage_prices WHERE currency <> $1)
AND (EXISTS (SELECT 1 FROM usage_rows WHERE span = 'd' AND money <> 0) OR EXISTS (SELECT 1 FROM budgets WHERE meter = 'money'))`, p.Currency).Scan(&other)
		if err == nil && other {
			err = cay.Errorf(cay.Conflict, "currency: use is counted or bounded in another currency already")
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM usage_prices`)
		}
		for _, meter := range slices.Sorted(maps.Keys(p.Units)) {
			if err == nil {
				_, err = tx.ExecContext(ctx, `INSERT INTO usage_prices (meter, price, currency) VALUES ($1, $2, $3)`, meter, p.Units[meter], p.Currency)
			}
		}
		return err
	})
}

// UsageLabels lists the keys of metadata that a team has metered.
func (s *DB) UsageLabels(ctx context.Context, team cay.TeamID) ([]string, error) {
	return labelsOf(ctx, s.r, team)
}

func labelsOf(ctx context.Context, q reader, team cay.TeamID) ([]string, error) {
	rows, err := q.QueryContext(ctx, `SELECT label FROM usage_labels WHERE team = $1 ORDER BY label`, team)
	return collect(rows, err, func(row scanner) (label string, err error) { return label, row.Scan(&label) })
}

// SetUsageLabels replaces the keys of metadata that a team has metered.
func (s *DB) SetUsageLabels(ctx context.Context, team cay.TeamID, labels []string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, team); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM usage_labels WHERE team = $1`, team); err != nil {
			return err
		}
		for _, label := range labels {
			if _, err := tx.ExecContext(ctx, `INSERT INTO usage_labels (team, label) VALUES ($1, $2)`, team, label); err != nil {
				return err
			}
		}
		return nil
	})
}

const budgetColumns = `id, team, name, api_key, label, value, meter, amount, period, action, created_at, created_by, before, told, told_of`

// AddBudget records a budget, with events.
func (s *DB) AddBudget(ctx context.Context, b cay.Budget, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO budgets (`+budgetColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
			b.ID, b.Team, b.Name, b.Key, b.Label, b.Value, b.Meter, b.Limit, b.Period, b.Action, millis(b.CreatedAt), b.CreatedBy, b.Before, b.Told, millis(b.ToldOf))
		return cmp.Or(err, s.addEvents(ctx, tx, events))
	})
}

// ChangeBudget replaces the name, the limit, the action and what was told of a
// budget, with events.
func (s *DB) ChangeBudget(ctx context.Context, b cay.Budget, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE budgets SET name = $3, amount = $4, action = $5, told = $6, told_of = $7 WHERE team = $1 AND id = $2`,
			b.Team, b.ID, b.Name, b.Limit, b.Action, b.Told, millis(b.ToldOf))
		return cmp.Or(oneBudget(b.ID, res, err), s.addEvents(ctx, tx, events))
	})
}

// RemoveBudget removes a team's budget, with events.
func (s *DB) RemoveBudget(ctx context.Context, team cay.TeamID, id cay.BudgetID, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM budgets WHERE team = $1 AND id = $2`, team, id)
		return cmp.Or(oneBudget(id, res, err), s.addEvents(ctx, tx, events))
	})
}

func oneBudget(id cay.BudgetID, res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 0 {
		return err
	}
	return notFound("budget", id)
}

// TellBudget notes that a threshold was told in a period, with the events that
// tell it. A threshold that another server has told is told no more.
func (s *DB) TellBudget(ctx context.Context, b cay.Budget, events ...cay.Event) (told bool, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE budgets SET told = $2, told_of = $3 WHERE id = $1 AND amount = $4 AND (told < $2 OR told_of < $3)`,
			b.ID, b.Told, millis(b.ToldOf), b.Limit)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if told = n > 0; err != nil || !told {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
	return told && err == nil, err
}

// Budgets lists a team's budgets, or those of all, oldest first.
func (s *DB) Budgets(ctx context.Context, team cay.TeamID) ([]cay.Budget, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+budgetColumns+` FROM budgets WHERE team = $1 OR $1 = '' ORDER BY created_at, id`, team)
	return collect(rows, err, func(row scanner) (b cay.Budget, err error) {
		var created, told int64
		err = row.Scan(&b.ID, &b.Team, &b.Name, &b.Key, &b.Label, &b.Value, &b.Meter, &b.Limit, &b.Period, &b.Action, &created, &b.CreatedBy, &b.Before, &b.Told, &told)
		b.CreatedAt, b.ToldOf = fromMillis(created), fromMillis(told)
		return b, err
	})
}
