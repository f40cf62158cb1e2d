package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/storage"
	"github.com/cay-run/cay/internal/store"
)

type envCmd struct {
	NewKey string `placeholder:"NAME" help:"Make an API key of that name and print it too. It is shown this once."`
}

// Help says how to use it.
func (envCmd) Help() string {
	return `In a shell on the server's machine: eval "$(cay env --new-key me)"`
}

func (c *envCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	key := a.getenv("E2B_API_KEY")
	if c.NewKey != "" {
		if key, err = newKey(a, cfg, c.NewKey); err != nil {
			return err
		}
	}
	lines, err := a.variables(cfg)
	if err != nil {
		return err
	}
	if a.json {
		out := map[string]string{}
		for _, l := range lines {
			out[l[0]] = l[1]
		}
		if key != "" {
			out["E2B_API_KEY"] = key
		}
		return a.printJSON(out)
	}
	if key == "" {
		fmt.Fprintln(a.out, "# for a key: cay env --new-key NAME")
	} else {
		fmt.Fprintf(a.out, "export E2B_API_KEY=%s\n", clean(key))
	}
	for _, l := range lines {
		fmt.Fprintf(a.out, "export %s=%s\n", l[0], l[1])
	}
	return nil
}

// variables are what points an SDK at a server: its domain, where its hosts
// have certificates, else one address for everything.
func (a *app) variables(cfg config.Config) ([][2]string, error) {
	if cfg.Domain == "" || cfg.TLSMode() == config.TLSOff {
		url := localURL(cfg.Listen)
		return [][2]string{{"E2B_API_URL", url}, {"E2B_SANDBOX_URL", url}}, nil
	}
	lines := [][2]string{{"E2B_DOMAIN", cfg.Domain}}
	if cfg.TLSMode() != config.TLSLocal {
		return lines, nil
	}
	trust, err := trustIn(cfg)
	return append(lines, trust...), err
}

// newKey makes a key of the default team, in the records of this machine's
// server, which may be running.
func newKey(a *app, cfg config.Config, name string) (string, error) {
	if err := storage.Down(cfg.Data); err != nil {
		return "", err
	}
	path := filepath.Join(cfg.Data, "cay.db")
	if _, err := os.Stat(path); err != nil {
		hint := "start one with `cay up`, or set CAY_DATA_DIR to the server's"
		if errors.Is(err, os.ErrPermission) {
			hint = "run it as root, on the server's machine"
		}
		return "", cay.Wrap(cay.NotFound, err, "there are no records of a server in %s", cfg.Data).WithHint("%s", hint)
	}
	records, err := store.Open(a.ctx, path)
	if err != nil {
		return "", err
	}
	defer records.Close()
	teams, err := records.Teams(a.ctx)
	if err != nil {
		return "", err
	}
	if len(teams) == 0 {
		return "", cay.Errorf(cay.NotFound, "the server in %s has not finished its first start", cfg.Data).
			WithHint("wait for it, or start it with `cay up`")
	}
	key, _, err := auth.Issue(a.ctx, records, teams[0].ID, name)
	return key, err
}

// localURL is where this machine reaches a server that listens there.
func localURL(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "http://" + listen
	}
	ip := net.ParseIP(host)
	if host == "" || ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}
