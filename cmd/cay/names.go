package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/edge/certs"
	"github.com/cay-run/cay/internal/spawn"
)

// askedFor is how long the system may take to resolve a name that needs no
// name server.
const askedFor = 3 * time.Second

// resolves reports whether this system's programs find this machine by a name.
// It asks the C library, as Python, Node and curl do; Go has a resolver of its
// own.
func resolves(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, askedFor)
	defer cancel()
	out, err := spawn.Command(ctx, "getent", "ahosts", name).Output()
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(out)) {
		text, _, _ := strings.Cut(line, " ")
		if at, err := netip.ParseAddr(text); err != nil || !at.IsLoopback() {
			return false
		}
	}
	return len(out) > 0
}

// installNames has the C library resolve names below localhost.
func (a *app) installNames(cfg config.Config) error {
	if cfg.Domain != "" {
		return cay.Errorf(cay.Invalid, "the server has the domain %s, which is not below localhost", cfg.Domain).
			WithHint("have *.%s lead to it in your DNS", cfg.Domain)
	}
	if resolves(a.ctx, "api."+config.LocalName) {
		return nil
	}
	const by = "have `hosts: files myhostname dns` in /etc/nsswitch.conf, or run systemd-resolved"
	if _, err := exec.LookPath("apt-get"); err != nil {
		return cay.Errorf(cay.Unsupported, "Cay does not know how to make this system resolve names below localhost").WithHint(by)
	}
	err := a.wait("installing libnss-myhostname", func() error {
		out, err := spawn.Command(a.ctx, "sh", "-c",
			"apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends libnss-myhostname").CombinedOutput()
		if err != nil {
			return cay.Wrap(cay.Unavailable, fmt.Errorf("%w: %s", err, lastLine(out)), "libnss-myhostname cannot be installed").
				WithHint("run it as root; or " + by)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !resolves(a.ctx, "api."+config.LocalName) {
		return cay.Errorf(cay.Unavailable, "names below localhost still do not resolve").WithHint(by)
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// installTrust has this machine trust the server's authority, and the browser
// of the user that became root for it.
func (a *app) installTrust(cfg config.Config) error {
	if _, err := authorityOf(cfg); err != nil {
		return err
	}
	person := certs.Person{Home: a.getenv("HOME")}
	if name := a.getenv("SUDO_USER"); name != "" && name != "root" {
		u, err := user.Lookup(name)
		if err != nil {
			return cay.Wrap(cay.NotFound, err, "the user %s who runs this as root is not known", name)
		}
		person = certs.Person{Name: u.Username, Home: u.HomeDir}
	}
	lines, err := certs.Install(a.ctx, cfg.Data, person)
	for _, line := range lines {
		fmt.Fprintln(a.err, line)
	}
	return err
}
