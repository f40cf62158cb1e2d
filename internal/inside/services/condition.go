package services

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unmet returns the first condition that does not hold, or "". Those of which a
// sandbox knows nothing hold.
func (m *Manager) unmet(u *unit, prefix string) string {
	any, anyMet, firstOr := false, false, ""
	for key, values := range u.set["Unit"] {
		what, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		for _, value := range values {
			text := key + "=" + value
			value, or := strings.CutPrefix(value, "|")
			value, not := strings.CutPrefix(value, "!")
			holds, known := m.condition(what, u.expand(value))
			met := !known || holds != not
			switch {
			case or:
				any, anyMet, firstOr = true, anyMet || met, text
			case !met:
				return text
			}
		}
	}
	if any && !anyMet {
		return firstOr
	}
	return ""
}

func (m *Manager) condition(what, value string) (holds, known bool) {
	st, err := os.Stat(m.lib.at(value))
	switch what {
	case "PathExists":
		return err == nil, true
	case "PathIsDirectory":
		return err == nil && st.IsDir(), true
	case "PathIsSymbolicLink":
		l, err := os.Lstat(m.lib.at(value))
		return err == nil && l.Mode()&os.ModeSymlink != 0, true
	case "PathExistsGlob":
		all, _ := filepath.Glob(m.lib.at(value))
		return len(all) > 0, true
	case "FileNotEmpty":
		return err == nil && st.Mode().IsRegular() && st.Size() > 0, true
	case "FileIsExecutable":
		return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0, true
	case "DirectoryNotEmpty":
		entries, err := os.ReadDir(m.lib.at(value))
		return err == nil && len(entries) > 0, true
	case "Virtualization":
		return slices.Contains([]string{"yes", "true", "1", "container"}, value), true
	case "ACPower":
		return isYes(value), true
	}
	return false, false
}
