package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Places of units, the first wins. Generators write into the middle of them.
var unitDirs = []string{
	adminDir, "/run/systemd/system", generatedDir, "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system", "/lib/systemd/system", generatedDir + ".late",
}

const (
	adminDir     = "/etc/systemd/system"
	generatedDir = "/run/systemd/generator"
	scriptDir    = "/etc/init.d"
)

// How a unit was found.
const (
	loaded   = "loaded"
	notFound = "not-found"
	masked   = "masked"
	badUnit  = "bad-setting"
)

// unit is what files say of one unit.
type unit struct {
	name   string // the file's own, where it was found by another
	kind   string
	load   string
	err    error  // why a bad one is bad
	path   string // its file; "" for none
	extra  []string
	script string // the script of /etc/init.d that stands for a file
	set    sections
	expand func(string) string
}

// library finds units below a root directory.
type library struct{ root string }

func (l library) at(path string) string { return filepath.Join("/", l.root, path) }

// load reads a unit. Its name is full and valid.
func (l library) load(name string) *unit {
	u := &unit{name: name, kind: kindOf(name), load: notFound, set: sections{}, expand: expander(name)}
	path, text, err := l.find(name)
	switch {
	case errors.Is(err, errMasked):
		u.load, u.path = masked, path
		return u
	case errors.Is(err, os.ErrNotExist):
		l.loadScript(u)
	case err != nil:
		u.load, u.err = badUnit, err
		return u
	default:
		u.load, u.path = loaded, path
		u.set.read(text)
		if own := filepath.Base(path); own != name && kindOf(own) == u.kind && !strings.Contains(own, "@.") {
			u.name, u.expand = own, expander(own) // an alias
		}
	}
	if u.load != notFound {
		l.addDropIns(u, name)
	}
	return u
}

var errMasked = errors.New("the unit is masked")

// find reads the file of a unit, or that of its template.
func (l library) find(name string) (path, text string, err error) {
	names := []string{name}
	if template, _ := instanceOf(name); template != "" {
		names = append(names, template)
	}
	for _, n := range names {
		for _, dir := range unitDirs {
			path, text, err = l.readUnit(filepath.Join(dir, n))
			if !errors.Is(err, os.ErrNotExist) {
				return path, text, err
			}
		}
	}
	return "", "", os.ErrNotExist
}

// readUnit follows links below the root and reads a file. One that is empty or
// the null device is a mask.
func (l library) readUnit(path string) (final, text string, err error) {
	final = path
	for range 16 {
		to, err := os.Readlink(l.at(final))
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(final), to)
		}
		if to == os.DevNull {
			return path, "", errMasked
		}
		final = to
	}
	f, err := os.OpenFile(l.at(final), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold PID 1
	if err != nil {
		return path, "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return path, "", err
	}
	if !st.Mode().IsRegular() {
		return path, "", fmt.Errorf("%s is no regular file", final)
	}
	if st.Size() == 0 {
		return path, "", errMasked
	}
	all, err := io.ReadAll(io.LimitReader(f, maxUnitFile))
	return final, string(all), err
}

// addDropIns reads NAME.d/*.conf of all places, by the order of their names; of
// two with one name the first place's counts.
func (l library) addDropIns(u *unit, asked string) {
	names := []string{u.kind, u.name, asked}
	if template, _ := instanceOf(asked); template != "" {
		names = append(names, template)
	}
	found := map[string]string{}
	for _, dir := range unitDirs {
		for _, name := range names {
			all, _ := filepath.Glob(l.at(filepath.Join(dir, name+".d", "*.conf")))
			for _, path := range all {
				if base := filepath.Base(path); found[base] == "" {
					found[base] = filepath.Join(dir, name+".d", base)
				}
			}
		}
	}
	for _, base := range slices.Sorted(mapKeys(found)) {
		if _, text, err := l.readUnit(found[base]); err == nil {
			u.set.read(text)
			u.extra = append(u.extra, found[base])
		}
	}
}

// loadScript makes a unit of a script of System V, as systemd's generator does.
func (l library) loadScript(u *unit) {
	stem, ok := strings.CutSuffix(u.name, ".service")
	if !ok {
		return
	}
	path := filepath.Join(scriptDir, stem)
	st, err := os.Stat(l.at(path))
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return
	}
	u.load, u.script = loaded, path
	for key, value := range map[string]string{
		"Type": "forking", "GuessMainPID": "no", "RemainAfterExit": "yes", "TimeoutSec": "300", "KillMode": "process",
		"ExecStart": path + " start", "ExecStop": path + " stop", "ExecReload": path + " reload",
	} {
		u.set.add("Service", key, value)
	}
	u.set.add("Unit", "Description", "LSB: "+stem)
}

// names are the units that settings of [Unit] name.
func (u *unit) names(keys ...string) []string {
	var out []string
	for _, key := range keys {
		for _, w := range u.set.words("Unit", key) {
			if name := fullName(u.expand(w)); validName(name) {
				out = append(out, name)
			}
		}
	}
	return out
}

func (u *unit) description() string {
	if d := u.set.last("Unit", "Description"); d != "" {
		return u.expand(d)
	}
	return u.name
}

// linked are the units that lie in the directories NAME.KIND of all places, as
// multi-user.target.wants.
func (l library) linked(name, kind string) []string {
	var out []string
	for _, dir := range unitDirs {
		entries, _ := os.ReadDir(l.at(filepath.Join(dir, name+"."+kind)))
		for _, e := range entries {
			if validName(e.Name()) && !slices.Contains(out, e.Name()) {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

// wants are the units that one brings with it, and of those the ones without
// which it must not run.
func (l library) wants(u *unit) (all, required []string) {
	required = append(u.names("Requires", "BindsTo", "Requisite"), l.linked(u.name, "requires")...)
	return append(append(u.names("Wants", "Upholds"), l.linked(u.name, "wants")...), required...), required
}

// isMachine reports whether a unit manages what is Cay's in a sandbox: hardware,
// network, kernel, terminals, and systemd's own daemons. Such a unit is never
// started, as one whose condition is not met.
func isMachine(name string) bool {
	stem := strings.TrimSuffix(name, "."+kindOf(name))
	stem, _, _ = strings.Cut(stem, "@")
	if strings.HasPrefix(stem, "systemd-") || strings.HasPrefix(stem, "plymouth") || strings.HasSuffix(stem, "getty") {
		return true
	}
	return slices.Contains(machineUnits, stem)
}

var machineUnits = strings.Fields(`
	NetworkManager apparmor connman console-setup dhcpcd e2scrub_reap getty-static hwclock ifup keyboard-setup kmod
	kmod-static-nodes networkd-dispatcher networking polkit-agent-helper procps quotarpc rc-local resolvconf
	setvtrgb sudo udev udev-finish user user-runtime-dir wpa_supplicant x11-common`)

// passive are kinds that have nothing to do in a sandbox and hold for it.
var passive = []string{"slice", "device", "mount", "automount", "swap", "scope"}

// unsupported says why a unit cannot be started, or nil.
func unsupported(name string) error {
	stem := strings.TrimSuffix(name, "."+kindOf(name))
	switch kindOf(name) {
	case "socket":
		return fmt.Errorf("%s is a socket, and Cay opens none for services; start the service itself: systemctl start %s.service", name, stem)
	case "timer":
		return fmt.Errorf("%s is a timer, and Cay runs none; start what it would: systemctl start %s.service", name, stem)
	case "path":
		return fmt.Errorf("%s watches a path, which Cay does not; start the service itself: systemctl start %s.service", name, stem)
	}
	return nil
}

// isEnabled is what `systemctl is-enabled` says of a unit.
func (l library) isEnabled(name string) string {
	u := l.load(name)
	switch {
	case u.load == notFound:
		return notFound
	case u.load == masked:
		return masked
	case u.load == badUnit:
		return "bad"
	case u.script != "":
		if l.scriptEnabled(filepath.Base(u.script)) {
			return "enabled"
		}
		return "disabled"
	case strings.HasPrefix(u.path, generatedDir):
		return "generated"
	}
	for _, in := range []struct{ dir, state string }{{adminDir, "enabled"}, {"/run/systemd/system", "enabled-runtime"}} {
		for _, kind := range []string{"wants", "requires"} {
			for _, n := range []string{name, u.name} {
				if all, _ := filepath.Glob(filepath.Join(l.at(in.dir), "*."+kind, globEscape(n))); len(all) > 0 {
					return in.state
				}
			}
		}
	}
	for _, alias := range u.set.words("Install", "Alias") {
		if to, err := os.Readlink(l.at(filepath.Join(adminDir, u.expand(alias)))); err == nil && filepath.Base(to) == filepath.Base(u.path) {
			return "enabled"
		}
	}
	switch {
	case u.name != name:
		return "alias"
	case len(u.set["Install"]) == 0:
		return "static"
	}
	return "disabled"
}

// globEscape keeps a name from being a pattern.
func globEscape(s string) string { return strings.ReplaceAll(s, `\`, `\\`) }

// scriptEnabled reports whether a runlevel of a usual start has a script.
func (l library) scriptEnabled(script string) bool {
	all, _ := filepath.Glob(filepath.Join(l.at("/etc"), "rc[2345].d", "S[0-9][0-9]"+globEscape(script)))
	return len(all) > 0
}

// atBoot are the units that a start of the sandbox starts.
func (l library) atBoot() []string {
	var out []string
	for _, target := range []string{"sysinit", "basic", "multi-user", "graphical", "default"} {
		for _, kind := range []string{"requires", "wants"} {
			out = append(out, l.linked(target+".target", kind)...)
		}
	}
	scripts, _ := filepath.Glob(filepath.Join(l.at("/etc"), "rc[2345].d", "S[0-9][0-9]*"))
	for _, path := range scripts {
		name := filepath.Base(path)[3:] + ".service"
		if validName(name) && l.load(name).script != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(name string) bool {
		return kindOf(name) != "service" || isMachine(name)
	})
}
