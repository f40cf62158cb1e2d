package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// `cay env --install-names` installs what resolves names below localhost where
// they do not resolve, once, and says what is wrong where that cures nothing.
// getent and apt-get are stand-ins.
func TestInstallNames(t *testing.T) {
	const (
		ours   = "echo '127.0.0.1 STREAM api.cay.localhost'; echo '::1 STREAM'"
		theirs = "echo '192.0.2.1 STREAM api.cay.localhost'"
		none   = "exit 2"
		once   = "[ -e installed ] || exit 2\n" + ours
		works  = "echo \"$@\" >>asked; case $1 in install) : >installed;; esac"
	)
	for name, c := range map[string]struct {
		getent, apt string // programs; no apt-get when empty
		domain      string
		installs    bool
		says        string // empty where it succeeds
	}{
		"they resolve":                {getent: ours, apt: works},
		"they do not":                 {getent: once, apt: works, installs: true},
		"they lead elsewhere":         {getent: theirs, apt: works, installs: true, says: "still do not resolve"},
		"installed, and still not":    {getent: none, apt: works, installs: true, says: "still do not resolve"},
		"no package can be installed": {getent: none, apt: "echo first; echo 'E: no network' >&2; exit 100", says: "cannot be installed: exit status 100: E: no network"},
		"another system":              {getent: none, says: "myhostname dns"},
		"a domain":                    {getent: none, apt: works, domain: "box.example.com", says: "*.box.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := func(name, script string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\ncd "+dir+"\n"+script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			program("getent", c.getent)
			if c.apt != "" {
				program("apt-get", c.apt)
			}
			if err := os.Symlink("/bin/sh", filepath.Join(dir, "sh")); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			env := []string{"CAY_DATA_DIR=" + t.TempDir(), "CAY_RUN_DIR=" + t.TempDir(), "CAY_DOMAIN=" + c.domain}
			code, _, errs := invoke(t, env, "env", "--install-names")
			if (code == 0) != (c.says == "") || !strings.Contains(errs, c.says) {
				t.Errorf("%d %q, want %q in it", code, errs, c.says)
			}
			asked, _ := os.ReadFile(filepath.Join(dir, "asked"))
			if got := strings.Contains(string(asked), "install -q -y --no-install-recommends libnss-myhostname"); got != c.installs {
				t.Errorf("apt-get was asked %q; want that it installs: %v", asked, c.installs)
			}
		})
	}
}
