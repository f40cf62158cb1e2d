package main

import (
	"errors"
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Say everything that is wrong with the settings, at once."`
	Print configPrintCmd `cmd:"" help:"Print the settings in force, and where each comes from."`
}

type configCheckCmd struct{}

// Help lists the settings.
func (configCheckCmd) Help() string { return settings() }

// problem is a setting that is wrong, for programs.
type problem struct {
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

func (configCheckCmd) Run(a *app) error {
	_, _, problems := config.Read(a.environ)
	list := []problem{}
	for _, err := range problems {
		p := problem{Problem: oneLine(err.Error())}
		var ours *cay.Error
		if errors.As(err, &ours) {
			p.Hint = ours.Hint
		}
		list = append(list, p)
	}
	if a.json {
		if err := a.printJSON(list); err != nil {
			return err
		}
	} else {
		for _, p := range list {
			fmt.Fprintf(a.out, "✗ %s\n", p.Problem)
			if p.Hint != "" {
				fmt.Fprintf(a.out, "  → %s\n", p.Hint)
			}
		}
	}
	if len(list) > 0 {
		return exitStatus(1)
	}
	fmt.Fprintln(a.err, "the settings are good")
	return nil
}

type configPrintCmd struct{}

// Run prints what is in force as far as it can be read; the exit status says
// whether a server would start with it.
func (configPrintCmd) Run(a *app) error {
	_, all, problems := config.Read(a.environ)
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	} else {
		t := table{header: []string{"SETTING", "VALUE", "FROM", "VARIABLE"}}
		for _, s := range all {
			t.add(s.Key, s.Value, s.From, s.Variable)
		}
		t.print(a.out, width(a.out))
	}
	if len(problems) > 0 {
		return cay.Errorf(cay.Invalid, "%d settings are wrong", len(problems)).WithHint("`cay config check` lists them")
	}
	return nil
}
