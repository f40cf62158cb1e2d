package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// enable makes the links that have units be started with the sandbox, and says
// which.
func (l library) enable(out io.Writer, names ...string) error {
	seen := map[string]bool{}
	var one func(name string) error
	one = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		u := l.load(name)
		switch {
		case u.load == notFound:
			return fmt.Errorf("Failed to enable unit: Unit file %s does not exist.", name) //nolint:staticcheck // the words of systemctl
		case u.load == masked:
			return fmt.Errorf("Failed to enable unit: Unit file %s is masked.", name) //nolint:staticcheck // the words of systemctl
		case u.load == badUnit:
			return fmt.Errorf("Failed to enable unit: %w", u.err)
		case u.script != "":
			return l.enableScript(filepath.Base(u.script), "defaults", "enable")
		}
		if len(u.set["Install"]) == 0 {
			fmt.Fprintf(out, "The unit files have no installation config (WantedBy=, RequiredBy=, Also=,\nAlias= settings in the [Install] section): %s is static.\n", name)
			return nil
		}
		name = withInstance(u, name)
		for _, kind := range []struct{ key, dir string }{{"WantedBy", "wants"}, {"UpheldBy", "wants"}, {"RequiredBy", "requires"}} {
			for _, target := range u.set.words("Install", kind.key) {
				if target = u.expand(target); validName(target) {
					if err := l.link(out, filepath.Join(adminDir, target+"."+kind.dir, name), u.path); err != nil {
						return err
					}
				}
			}
		}
		for _, alias := range u.set.words("Install", "Alias") {
			if alias = u.expand(alias); validName(alias) && alias != filepath.Base(u.path) {
				if err := l.link(out, filepath.Join(adminDir, alias), u.path); err != nil {
					return err
				}
			}
		}
		for _, also := range u.set.words("Install", "Also") {
			if also = u.expand(also); validName(also) && l.load(also).load == loaded {
				if err := one(also); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, name := range names {
		if err := one(fullName(name)); err != nil {
			return err
		}
	}
	return nil
}

// withInstance is a template's name with its default instance.
func withInstance(u *unit, name string) string {
	if stem, ok := strings.CutSuffix(name, "@."+u.kind); ok {
		if instance := u.set.last("Install", "DefaultInstance"); instance != "" {
			return stem + "@" + instance + "." + u.kind
		}
	}
	return name
}

func (l library) link(out io.Writer, at, to string) error {
	if old, err := os.Readlink(l.at(at)); err == nil && old == to {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.at(at)), 0o755); err != nil {
		return err
	}
	if err := os.Remove(l.at(at)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, l.at(at)); err != nil {
		return err
	}
	fmt.Fprintf(out, "Created symlink %s → %s.\n", at, to)
	return nil
}

// enableScript has Debian's own program make or remove the links of a script.
func (l library) enableScript(script string, verbs ...string) error {
	for _, verb := range verbs {
		if text, err := exec.Command("update-rc.d", script, verb).CombinedOutput(); err != nil {
			return fmt.Errorf("update-rc.d %s %s: %w: %s", script, verb, err, text)
		}
	}
	return nil
}

// disable removes the links by which units are started.
func (l library) disable(out io.Writer, names ...string) error {
	for _, name := range names {
		name = fullName(name)
		u := l.load(name)
		if u.load == notFound {
			return fmt.Errorf("Failed to disable unit: Unit file %s does not exist.", name) //nolint:staticcheck // the words of systemctl
		}
		if u.script != "" {
			if err := l.enableScript(filepath.Base(u.script), "disable"); err != nil {
				return err
			}
			continue
		}
		if err := l.unlink(out, func(path, to string) bool {
			base := filepath.Base(path)
			inDir := strings.HasSuffix(filepath.Dir(path), ".wants") || strings.HasSuffix(filepath.Dir(path), ".requires")
			return to != os.DevNull && (inDir && (base == name || base == u.name) || !inDir && u.path != "" && to == u.path && path != u.path)
		}); err != nil {
			return err
		}
	}
	return nil
}

// unlink removes links of the administrator's directory.
func (l library) unlink(out io.Writer, which func(path, to string) bool) error {
	var all []string
	for _, pattern := range []string{"*", "*.wants/*", "*.requires/*"} {
		found, _ := filepath.Glob(filepath.Join(l.at(adminDir), pattern))
		all = append(all, found...)
	}
	slices.Sort(all)
	for _, full := range all {
		to, err := os.Readlink(full)
		path := filepath.Join(adminDir, strings.TrimPrefix(full, l.at(adminDir)))
		if err != nil || !which(path, to) {
			continue
		}
		if err := os.Remove(full); err != nil {
			return err
		}
		fmt.Fprintf(out, "Removed %q.\n", path)
	}
	return nil
}

// mask has units never be started.
func (l library) mask(out io.Writer, names ...string) error {
	for _, name := range names {
		path := filepath.Join(adminDir, fullName(name))
		if st, err := os.Lstat(l.at(path)); err == nil && st.Mode().IsRegular() {
			return fmt.Errorf("Failed to mask unit: File %q already exists.", path) //nolint:staticcheck // the words of systemctl
		}
		if err := l.link(out, path, os.DevNull); err != nil {
			return err
		}
	}
	return nil
}

func (l library) unmask(out io.Writer, names ...string) error {
	for _, name := range names {
		name = fullName(name)
		if err := l.unlink(out, func(path, to string) bool { return path == filepath.Join(adminDir, name) && to == os.DevNull }); err != nil {
			return err
		}
	}
	return nil
}

// all are the units of which there are files or scripts.
func (l library) all() []string {
	names := map[string]bool{}
	for _, dir := range unitDirs {
		entries, _ := os.ReadDir(l.at(dir))
		for _, e := range entries {
			if !e.IsDir() && validName(e.Name()) {
				names[e.Name()] = true
			}
		}
	}
	entries, _ := os.ReadDir(l.at(scriptDir))
	for _, e := range entries {
		if name := e.Name() + ".service"; validName(name) && l.load(name).script != "" {
			names[name] = true
		}
	}
	return slices.Sorted(mapKeys(names))
}
