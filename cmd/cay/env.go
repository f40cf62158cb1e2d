package main

import (
	"fmt"
	"net"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/operator"
)

type envCmd struct {
	NewKey       string `placeholder:"NAME" help:"Make an API key of that name and print it too. It is shown this once."`
	InstallTrust bool   `help:"First have this machine's programs and Chromium trust the server's certificates."`
	InstallNames bool   `help:"First have this machine resolve names below localhost (Debian, Ubuntu)."`
}

// Help says how to use it.
func (envCmd) Help() string {
	return `In a shell on the server's machine: eval "$(cay env --new-key me)"

E2B_DOMAIN is what SDKs, browsers and getHost() use. A server without a domain is cay.localhost on its own machine,
with certificates of its own, which the other lines have programs trust. Where names below localhost do not resolve,
E2B_API_URL, E2B_SANDBOX_URL and E2B_VOLUME_API_URL are printed too; --install-names cures that.`
}

func (c *envCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if c.InstallNames {
		if err := a.installNames(cfg); err != nil {
			return err
		}
	}
	if c.InstallTrust {
		if err := a.installTrust(cfg); err != nil {
			return err
		}
	}
	key := a.getenv("E2B_API_KEY")
	if c.NewKey != "" {
		if key, err = operator.Ask(cfg).NewKey(a.ctx, c.NewKey); err != nil {
			return err
		}
	}
	lines, note, err := a.variables(cfg)
	if err != nil {
		return err
	}
	if key != "" {
		lines = append([][2]string{{"E2B_API_KEY", clean(key)}}, lines...)
	}
	if a.json {
		out := map[string]string{}
		for _, l := range lines {
			out[l[0]] = l[1]
		}
		return a.printJSON(out)
	}
	if key == "" {
		fmt.Fprintln(a.out, "# for a key: cay env --new-key NAME")
	}
	if note != "" {
		fmt.Fprintln(a.out, "# "+note)
	}
	a.printExports(lines)
	return nil
}

func (a *app) printExports(lines [][2]string) {
	for _, l := range lines {
		fmt.Fprintf(a.out, "export %s=%s\n", l[0], l[1])
	}
}

// variables are what points an SDK at a server, and what there is to say about
// them. E2B_DOMAIN alone does where the server speaks TLS and its names
// resolve; elsewhere requests go to one address, and the domain is what
// getHost makes names from.
func (a *app) variables(cfg config.Config) (lines [][2]string, note string, err error) {
	mode, domain := cfg.TLSMode(), cfg.ClientDomain()
	if _, none := authorityOf(cfg); none != nil && cfg.TLS == "" && mode == config.TLSLocal {
		mode = config.TLSOff // it has not started yet
	}
	unnamed := cfg.Domain == "" && !resolves(a.ctx, "api."+config.LocalName)
	lines = [][2]string{{"E2B_DOMAIN", domain}}
	if mode == config.TLSOff || mode == config.TLSFiles && cfg.Domain == "" || unnamed {
		url := localURL(cfg.Listen)
		lines = append(lines, [2]string{"E2B_API_URL", url}, [2]string{"E2B_SANDBOX_URL", url}, [2]string{"E2B_VOLUME_API_URL", url})
	}
	if unnamed {
		note = "only browsers and curl resolve names below localhost here; for all programs: cay env --install-names"
	}
	if mode == config.TLSLocal {
		trust, err := a.trustIn(cfg)
		return append(lines, trust...), note, err
	}
	return lines, note, nil
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
