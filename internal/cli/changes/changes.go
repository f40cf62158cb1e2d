// Package changes draws what differs between two states of a sandbox.
package changes

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/text"
)

// marks are how a change is drawn.
var marks = map[string]string{"added": "+", "changed": "~", "removed": "-"}

// Print writes a comparison, a line a change, and its diffs where they are
// wanted. Diffs are as the sandbox wrote them; a terminal gets them clean.
func Print(w io.Writer, c client.Comparison, diffs, terminal bool) {
	for _, x := range c.Changes {
		fmt.Fprintf(w, "%s %s%s\n", marks[x.Change], text.Clean(x.Path), explain(x))
	}
	if left := c.Added + c.Changed + c.Removed - int64(len(c.Changes)); left > 0 {
		fmt.Fprintf(w, "… and %d more\n", left)
	}
	if !diffs {
		return
	}
	for _, x := range c.Changes {
		if x.Diff != "" {
			diff := x.Diff
			if terminal { // a sandbox's text must not steer it
				diff = text.CleanLines(diff)
			}
			fmt.Fprintf(w, "\n%s", diff)
		}
	}
}

// explain says in brackets what else is to know of a change.
func explain(x client.FileChange) string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	was, is := x.Before, x.After
	if was != nil && is != nil {
		if was.Type != is.Type {
			say("%s → %s", text.Clean(was.Type), text.Clean(is.Type))
		}
		if was.Mode != is.Mode {
			say("mode %s → %s", text.Clean(was.Mode), text.Clean(is.Mode))
		}
		if was.UID != is.UID || was.GID != is.GID {
			say("owner %d:%d → %d:%d", was.UID, was.GID, is.UID, is.GID)
		}
		if was.Target != is.Target && was.Type == is.Type {
			say("%s → %s", text.Clean(was.Target), text.Clean(is.Target))
		}
		if was.Size != is.Size {
			say("%s → %s", text.Bytes(was.Size), text.Bytes(is.Size))
		}
	} else if s := cmp.Or(was, is); s != nil {
		switch s.Type {
		case "file":
			say("%s", text.Bytes(s.Size))
		case "symlink":
			say("→ %s", text.Clean(s.Target))
		default:
			say("%s", text.Clean(s.Type))
		}
	}
	if x.NoDiff != "" {
		say("%s", text.Clean(x.NoDiff))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  (" + strings.Join(parts, ", ") + ")"
}
