package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/operator/doctor"
)

type doctorCmd struct {
	ofNode
}

func (c *doctorCmd) Run(a *app) error {
	checks, err := c.checks(a)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(checks); err != nil {
			return err
		}
	} else {
		a.printChecks(checks)
	}
	for _, c := range checks {
		if c.Status == doctor.Fail {
			return exitStatus(1)
		}
	}
	return nil
}

// checks looks over this machine, or has a node look over its own.
func (c *doctorCmd) checks(a *app) (out []doctor.Check, err error) {
	if c.Node == "" {
		cfg, err := a.config()
		if err != nil {
			return nil, err
		}
		return doctor.Run(a.ctx, cfg, running(cfg)), nil
	}
	api, node, err := c.at(a)
	if err != nil {
		return nil, err
	}
	found, err := api.Checks(a.ctx, node)
	for _, f := range found {
		out = append(out, doctor.Check{Name: f.Name, Status: doctor.Status(f.Status), Detail: f.Detail, Hint: f.Hint})
	}
	return out, err
}

func (a *app) printChecks(checks []doctor.Check) {
	mark := map[doctor.Status]string{doctor.OK: "✓", doctor.Warn: "!", doctor.Fail: "✗"}
	for _, c := range checks {
		fmt.Fprintf(a.out, "%s %-15s %s\n", mark[c.Status], c.Name, c.Detail)
		if c.Hint != "" {
			fmt.Fprintf(a.out, "  %-15s → %s\n", "", c.Hint)
		}
	}
}

type versionCmd struct{}

func (versionCmd) Run(a *app) error {
	v := version()
	if a.json {
		return a.printJSON(map[string]string{"version": v, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	}
	_, err := fmt.Fprintf(a.out, "cay %s (%s, %s/%s)\n", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version is the release, and the commit where the build knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cay.Version
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = "+" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ".changed"
		}
	}
	if commit == "" {
		return cay.Version
	}
	return cay.Version + commit + dirty
}

// settings describes the environment variables of the server.
func settings() string {
	text := "It is set by environment variables:\n\n"
	for _, v := range config.Variables {
		text += fmt.Sprintf("    %-18s  %s\n", v.Name, v.Use)
	}
	return text
}
