package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/spawn"
)

// phases are what mmdebstrap says it does, and how far along that is.
var phases = []struct {
	text    string
	percent int
}{
	{"running apt-get update", 2},
	{"downloading packages", 5},
	{"extracting archives", 25},
	{"installing essential", 35},
	{"installing remaining", 45},
	{"cleaning package lists", 95},
}

// debian makes a tree of Debian packages, from the mirrors that the host uses
// when it has that release itself, else from mmdebstrap's own choice.
func debian(ctx context.Context, r Recipe, tree, work string, p Progress) error {
	if err := need("mmdebstrap", "unshare"); err != nil {
		return err
	}
	sources, err := hostSources("/etc/apt", r.Suite)
	if err != nil {
		return disk.Error(err, "read the host's package sources")
	}
	args := append(slices.Clone(isolate), "--", "mmdebstrap",
		"--mode=root", "--variant=minbase", "--format=directory",
		"--include="+strings.Join(r.Packages, ","),
		`--aptopt=APT::Install-Recommends "false"`,
		`--aptopt=Acquire::Languages "none"`,
		`--aptopt=Acquire::Retries "5"`, // the host's own comes later and wins
		"--dpkgopt=force-unsafe-io")
	for _, opt := range hostAptOptions(ctx) {
		args = append(args, "--aptopt="+opt)
	}
	for _, path := range []string{
		"/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*",
		"/usr/share/doc/*", "/usr/lib/python3*/EXTERNALLY-MANAGED",
	} {
		args = append(args, "--dpkgopt=path-exclude="+path)
	}
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright", r.Suite, tree)
	for name, text := range sources {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return disk.Error(err, "write %s", path)
		}
		args = append(args, path)
	}
	p("Debian: asking the mirror", 0)
	onLine := func(line string) {
		for _, ph := range phases {
			if strings.Contains(line, ph.text) {
				p("Debian: "+ph.text, ph.percent)
			}
		}
	}
	if err := run(ctx, onLine, work, spawn.Env("DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"), "unshare", args...); err != nil {
		return err
	}
	return emptyDir(filepath.Join(tree, "dev"))
}

// packages adds Debian packages to a tree that has others already, from the
// sources and with the settings that it was made with.
func packages(ctx context.Context, r Recipe, tree string, p Progress) error {
	// The scripts of some packages link manuals, which are left out here.
	script := "mkdir -p /usr/share/man/man1\napt-get update -q\napt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io"
	for _, name := range r.Packages {
		script += " '" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	percent := 0
	p("Debian: asking the mirror", percent)
	return inTree(ctx, tree, script, func(line string) {
		if name, ok := strings.CutPrefix(line, "Setting up "); ok {
			percent = min(percent+1, 95)
			name, _, _ = strings.Cut(name, " ")
			p("Debian: setting up "+name, percent)
		}
	})
}

// emptyDir removes what a directory holds, and keeps it.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return disk.Error(err, "list %s", dir)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return disk.Error(err, "empty %s", dir)
		}
	}
	return nil
}

// hostSources collects the host's package sources of one release, in a file
// for each of apt's two notations. Sources of other things stay out.
func hostSources(etcApt, suite string) (map[string][]byte, error) {
	oneLine, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.list"))
	stanzas, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.sources"))
	var list, deb822 bytes.Buffer
	for _, path := range append([]string{filepath.Join(etcApt, "sources.list")}, oneLine...) {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if sourceLine(line, suite) {
				fmt.Fprintln(&list, strings.TrimSpace(line))
			}
		}
	}
	for _, path := range stanzas {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for stanza := range strings.SplitSeq(string(text), "\n\n") {
			if sourceStanza(stanza, suite) {
				fmt.Fprintf(&deb822, "%s\n\n", strings.TrimSpace(stanza))
			}
		}
	}
	out := map[string][]byte{}
	if list.Len() > 0 {
		out["debian.list"] = list.Bytes()
	}
	if deb822.Len() > 0 {
		out["debian.sources"] = deb822.Bytes()
	}
	return out, nil
}

// sourceLine reports whether a line in the one-line notation is about binary
// packages of the release.
func sourceLine(line, suite string) bool {
	line = strings.TrimSpace(line)
	rest, ok := strings.CutPrefix(line, "deb ")
	if !ok {
		return false
	}
	rest = strings.TrimSpace(rest)
	if strings.HasPrefix(rest, "[") {
		_, rest, _ = strings.Cut(rest, "]")
	}
	fields := strings.Fields(rest)
	return len(fields) >= 3 && ofRelease(fields[1], suite)
}

// sourceStanza reports whether a stanza of deb822 is an enabled one about
// binary packages of the release alone.
func sourceStanza(stanza, suite string) bool {
	fields := map[string][]string{}
	for line := range strings.Lines(stanza) {
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, " ") {
			fields[strings.ToLower(key)] = strings.Fields(value)
		}
	}
	if slices.Contains([]string{"no", "false", "off", "0"}, strings.ToLower(strings.Join(fields["enabled"], ""))) {
		return false
	}
	return slices.Contains(fields["types"], "deb") && len(fields["suites"]) > 0 &&
		!slices.ContainsFunc(fields["suites"], func(s string) bool { return !ofRelease(s, suite) })
}

// ofRelease reports whether a suite is a release or a part of it, such as
// its updates.
func ofRelease(name, suite string) bool {
	return name == suite || strings.HasPrefix(name, suite+"-")
}

// hostAptOptions are the settings without which the host's mirrors might not
// answer, or would be refused. They go into the guest's configuration too, so
// a proxy with a password stays out.
func hostAptOptions(ctx context.Context) []string {
	const wanted = `Acquire::Check-Valid-Until Acquire::Check-Date Acquire::http::Proxy Acquire::https::Proxy Acquire::Retries`
	text, err := spawn.Command(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil // no apt here: its defaults are then right
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, " ")
		if slices.Contains(strings.Fields(wanted), key) && !strings.Contains(value, "@") {
			out = append(out, strings.TrimSuffix(line, ";"))
		}
	}
	return out
}

// nodePlatform is the name of this machine in npm's packages of node.
func nodePlatform() string {
	if runtime.GOARCH == "amd64" {
		return "linux-x64"
	}
	return "linux-" + runtime.GOARCH
}
