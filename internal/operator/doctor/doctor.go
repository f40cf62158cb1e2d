// Package doctor examines a host: the needs of a server, possible improvements,
// and the cure for each finding.
package doctor

import (
	"context"
	"io/fs"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/node"
)

// Status is the outcome of a check.
type Status string

// The outcomes. A server starts with warnings, not with failures.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // what to do; empty when all is well
}

// examination looks at one thing.
type examination struct {
	name  string
	start bool // a server looks at it before it starts
	look  func(context.Context, host) Check
}

// host is what is examined. Files of the kernel are read through sys, so that
// tests can show other kernels.
type host struct {
	cfg config.Config
	sys fs.FS // the root directory
}

var examinations = []examination{
	{"root", true, root},
	{"kernel", true, kernel},
	{"cgroups", true, cgroups},
	{"packet filter", true, packetFilter},
	{"system calls", true, systemCalls},
	{"data directory", true, dataDirectory},
	{"way to the data directory", true, passage},
	{"run directory", true, runDirectory},
	{"port", false, port}, // Port asks for it
	{"database", false, database},
	{"cluster certificate", false, certificate},
	{"bucket", false, bucket},
	{"cache", false, cached},
	{"sharing", false, sharing},
	{"volumes", false, volumes},
	{"memory", false, memory},
	{"loading", false, loading},
	{"tasks", false, tasks},
	{"neighbours", false, neighbours},
	{"pool", false, pool},
	{"package cache", false, packageCache},
	{"forwarding", false, forwarding},
	{"build tools", false, buildTools},
}

// Running asks a server what it alone knows. Its functions fail where none runs.
type Running struct {
	Loading func(context.Context) (node.Loading, error)
	Cached  func(context.Context) (cache.State, error)
}

// Run makes every check. A server of Cay that has the port is no fault.
func Run(ctx context.Context, cfg config.Config, of Running) []Check {
	checks := examine(ctx, host{cfg, os.DirFS("/")}, examinations)
	for i, c := range checks {
		if c.Name == "loading" {
			if l, err := of.Loading(ctx); err == nil {
				checks[i] = loaded(c, l)
			}
		}
		if c.Name == "cache" {
			if state, err := of.Cached(ctx); err == nil && state.On {
				checks[i] = holds(c.Name, state)
			}
		}
		if c.Name == "port" && c.Status == Fail && Serving(ctx, cfg.Listen) {
			checks[i] = Check{Name: c.Name, Status: OK, Detail: "a server answers on " + cfg.Listen}
		}
	}
	return checks
}

func examine(ctx context.Context, h host, list []examination) []Check {
	var out []Check
	for _, e := range list {
		c := e.look(ctx, h)
		c.Name = e.name
		out = append(out, c)
	}
	return out
}

// Required is what a server asks of the machine before it starts: nil, or the
// first thing that must be put right, with a hint.
func Required(ctx context.Context, cfg config.Config) error {
	return required(ctx, host{cfg, os.DirFS("/")}, examinations)
}

func required(ctx context.Context, h host, list []examination) error {
	for _, e := range list {
		if !e.start {
			continue
		}
		if c := e.look(ctx, h); c.Status == Fail {
			kind := cay.Unsupported
			if e.name == "data directory" {
				kind = cay.NoSpace
			}
			return cay.Errorf(kind, "%s", c.Detail).WithHint("%s", c.Hint)
		}
	}
	return nil
}

// Port refuses to start a server whose port is taken.
func Port(ctx context.Context, cfg config.Config) error {
	if c := port(ctx, host{cfg: cfg}); c.Status == Fail {
		return cay.Errorf(cay.Conflict, "%s", c.Detail).WithHint("%s", c.Hint)
	}
	return nil
}

func ok(detail string) Check         { return Check{Status: OK, Detail: detail} }
func warn(detail, hint string) Check { return Check{Status: Warn, Detail: detail, Hint: hint} }
func fail(detail, hint string) Check { return Check{Status: Fail, Detail: detail, Hint: hint} }
