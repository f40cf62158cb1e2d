package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type usageCmd struct {
	Show   usageShowCmd   `cmd:"" default:"withargs" help:"Say what the team used."`
	Labels usageLabelsCmd `cmd:"" help:"List the keys of sandboxes' metadata that are metered, or replace them."`
	Prices usagePricesCmd `cmd:"" help:"Say what meters cost, or replace the prices as the server's operator."`
}

type usageShowCmd struct {
	ofTeam
	All  bool     `xor:"team" help:"Of all teams, as the server's operator."`
	From string   `placeholder:"TIME" help:"Since when: 2026-11-01, 2026-11-01T12:00:00Z, or 7d ago as 7d [the beginning of this month]."`
	To   string   `placeholder:"TIME" help:"Until when [now]."`
	By   []string `placeholder:"WHAT" help:"Rows to tell apart: by key, template, day, hour, label:KEY of metadata, and with --all team."`
	CSV  bool     `name:"csv" help:"Print comma-separated values."`
}

func (c *usageShowCmd) Run(a *app) error {
	q := client.UsageQuery{Group: c.By, All: c.All}
	var err error
	if q.From, err = moment("--from", c.From, time.Now()); err != nil {
		return err
	}
	if q.To, err = moment("--to", c.To, time.Now()); err != nil {
		return err
	}
	api, err := a.inTeam(c.Team)
	if c.All {
		api, err = a.admin("")
	}
	if err != nil {
		return err
	}
	if c.CSV {
		return api.UsageCSV(a.ctx, q, a.out)
	}
	u, err := api.Usage(a.ctx, q)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(u)
	}
	usageTable(u, c.By).print(a.out, width(a.out))
	return nil
}

// moment reads a time of the past: a day, a time, or how long ago.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n < 100_000 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return time.Time{}, cay.Errorf(cay.Invalid, "%s: %.40q is no time", flag, text).WithHint("write it like 2026-11-01, 2026-11-01T12:00:00Z, 36h or 7d")
	}
	return now.Add(-d), nil
}

// usageTable has a row for each sum, and one for the total.
func usageTable(u client.Usage, by []string) *table {
	t := &table{}
	for _, one := range by {
		t.header = append(t.header, strings.ToUpper(strings.TrimPrefix(one, "label:")))
	}
	if len(by) == 0 {
		t.header = []string{""}
	}
	t.header = append(t.header, "VCPU-HOURS", "GIB-HOURS", "CPU USED", "STORED", "SENT", "CREATES", "BUILDS")
	if u.Currency != "" {
		t.header = append(t.header, clean(u.Currency))
	}
	row := func(cells []string, r client.UsageRow) {
		amount := func(meter string, per float64) string { return strconv.FormatFloat(r.Amounts[meter]/per, 'f', 2, 64) }
		cells = append(cells, amount("vcpu_seconds", 3600), amount("memory_gib_seconds", 3600), amount("cpu_used_seconds", 1)+"s",
			amount("storage_gib_hours", 1), volume(int64(r.Amounts["egress_bytes"])), strconv.FormatFloat(r.Amounts["creates"], 'f', 0, 64),
			amount("build_seconds", 1)+"s")
		if u.Currency != "" {
			cells = append(cells, clean(r.Money))
		}
		t.add(cells...)
	}
	for _, r := range u.Rows {
		var cells []string
		for _, one := range by {
			cells = append(cells, clean(usageCell(r, one)))
		}
		row(cells, r)
	}
	total := make([]string, max(1, len(by)))
	total[0] = "total"
	row(total, u.Total)
	return t
}

func usageCell(r client.UsageRow, by string) string {
	none := func(s *string) string {
		if s == nil || *s == "" {
			return "–"
		}
		return *s
	}
	switch by {
	case "team":
		return r.Team
	case "key":
		return none(r.Key)
	case "template":
		return none(r.Template)
	case "day":
		return r.At.Format(time.DateOnly)
	case "hour":
		return r.At.Format("2006-01-02 15:04")
	}
	return or(r.Labels[strings.TrimPrefix(by, "label:")], "–")
}

type usageLabelsCmd struct {
	ofTeam
	Keys []string `arg:"" optional:"" name:"key" help:"Keys of metadata, at most 8. Those of budgets stay."`
	None bool     `help:"Meter none, but for those of budgets."`
}

func (c *usageLabelsCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	var labels []string
	if len(c.Keys) > 0 || c.None {
		labels, err = api.SetUsageLabels(a.ctx, c.Keys)
	} else {
		labels, err = api.UsageLabels(a.ctx)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]string{}, labels...))
	}
	for _, label := range labels {
		fmt.Fprintln(a.out, clean(label))
	}
	return nil
}

type usagePricesCmd struct {
	Currency string            `placeholder:"EUR" help:"Three capital letters [that of the prices which there are]."`
	Prices   map[string]string `arg:"" optional:"" name:"meter=price" help:"All prices, as vcpu_seconds=0.000014 for a unit."`
}

func (c *usagePricesCmd) Run(a *app) error {
	if len(c.Prices) == 0 {
		api, err := a.client()
		if err != nil {
			return err
		}
		return a.showPrices(api.Prices(a.ctx))
	}
	api, err := a.admin("")
	if err != nil {
		return err
	}
	if c.Currency == "" {
		before, err := api.Prices(a.ctx)
		if err != nil {
			return err
		}
		c.Currency = before.Currency
	}
	return a.showPrices(api.SetPrices(a.ctx, client.Prices{Currency: c.Currency, Prices: c.Prices}))
}

func (a *app) showPrices(p client.Prices, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(p)
	}
	t := table{header: []string{"METER", clean(or(p.Currency, "PRICE"))}}
	for _, meter := range slices.Sorted(maps.Keys(p.Prices)) {
		t.add(clean(meter), clean(p.Prices[meter]))
	}
	t.print(a.out, width(a.out))
	return nil
}
