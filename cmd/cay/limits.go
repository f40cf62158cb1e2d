package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
)

type limitsCmd struct{}

func (limitsCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	all, err := api.Limits(a.ctx)
	if err != nil {
		return err
	}
	return a.printLimits(all)
}

type teamLimitsCmd struct {
	Show teamLimitsShowCmd `cmd:"" default:"withargs" help:"Show a team's limits, and its use of them."`
	Set  teamLimitsSetCmd  `cmd:"" help:"Change some of a team's limits; they hold at once."`
}

type teamLimitsShowCmd struct {
	Team string `arg:"" help:"Its id or name."`
}

func (c *teamLimitsShowCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	all, err := api.TeamLimits(a.ctx, c.Team)
	if err != nil {
		return err
	}
	return a.printLimits(all)
}

type teamLimitsSetCmd struct {
	Team    string   `arg:"" help:"Its id or name."`
	Changes []string `arg:"" name:"limit" help:"LIMIT=NUMBER, LIMIT=none for no bound, LIMIT=default for the server's. snapshotBytes takes sizes such as 100GiB."`
}

// Help lists the limits.
func (teamLimitsSetCmd) Help() string {
	var out strings.Builder
	out.WriteString("A limit below what is used ends nothing: new work is refused until less is used. The limits:\n")
	for _, one := range cay.AllLimits() {
		fmt.Fprintf(&out, "\n    %-16s %s", one.Limit, one.Meaning)
	}
	return out.String()
}

func (c *teamLimitsSetCmd) Run(a *app) error {
	changes := map[string]*int64{}
	for _, text := range c.Changes {
		name, value, _ := strings.Cut(text, "=")
		n, err := limitValue(value)
		if err != nil {
			return cay.Errorf(cay.Invalid, "%.80q is no change of a limit", text).
				WithHint("say LIMIT=NUMBER, LIMIT=none or LIMIT=default")
		}
		changes[name] = n
	}
	api, err := a.admin("")
	if err != nil {
		return err
	}
	all, err := api.SetTeamLimits(a.ctx, c.Team, changes)
	if err != nil {
		return err
	}
	return a.printLimits(all)
}

// limitValue reads the value of a limit; nil is the server's default.
func limitValue(text string) (*int64, error) {
	switch text {
	case "default":
		return nil, nil
	case "none":
		return new(int64(0)), nil
	}
	if n, ok := config.Size(text); ok {
		return &n, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return &n, err
}

// printLimits shows limits in the order of their list, with what is used.
func (a *app) printLimits(all client.Limits) error {
	if a.json {
		return a.printJSON(all)
	}
	t := table{header: []string{"LIMIT", "USED", "MOST", "SET", "WHAT"}}
	for _, one := range cay.AllLimits() {
		l, ok := all[string(one.Limit)]
		if !ok { // an older server
			continue
		}
		used, most, set := "–", "no limit", "default"
		if l.Used != nil {
			used = strconv.FormatInt(*l.Used, 10)
		}
		switch {
		case l.Limit > 0:
			most = strconv.FormatInt(l.Limit, 10)
		case one.Burst():
			most = "–"
		}
		if l.Own {
			set = "team"
		}
		t.add(string(one.Limit), used, most, set, one.Meaning)
	}
	t.print(a.out, width(a.out))
	return nil
}
