package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/operator/doctor"
)

type doctorCmd struct{}

func (doctorCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	checks := doctor.Run(a.ctx, cfg, operator.Ask(cfg).Loading)
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
