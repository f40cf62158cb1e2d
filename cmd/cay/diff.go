package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/cay-run/cay/client"
)

type diffCmd struct {
	ID   string `arg:"" help:"Sandbox's id."`
	From string `arg:"" optional:"" help:"Checkpoint's id or label; unless given, the newest that the sandbox comes from."`
	To   string `arg:"" optional:"" help:"Another one; unless given, the sandbox as it is now."`
	Stat bool   `help:"Only which files, not what is in them."`
}

// Help says what is compared.
func (diffCmd) Help() string {
	return "Files are compared, not memory: + was added, ~ changed, - removed, with a unified diff of text. A file whose time alone differs is the same."
}

func (c *diffCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var out client.Comparison
	err = a.wait("comparing", func() error {
		if c.From != "" {
			if c.From, err = checkpointID(a, api, c.ID, c.From); err != nil {
				return err
			}
		}
		if c.To == "" {
			out, err = api.Changes(a.ctx, c.ID, c.From)
			return err
		}
		if c.To, err = checkpointID(a, api, c.ID, c.To); err == nil {
			out, err = api.Compare(a.ctx, c.From, c.To)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(out)
	}
	text := func(s string) string { return s }
	if isTerminal(a.out) { // a sandbox's text must not steer it
		text = cleanLines
	}
	printComparison(a.out, out, !c.Stat, text)
	return nil
}

// marks are how a change is drawn.
var marks = map[string]string{"added": "+", "changed": "~", "removed": "-"}

func printComparison(w io.Writer, c client.Comparison, diffs bool, text func(string) string) {
	for _, x := range c.Changes {
		fmt.Fprintf(w, "%s %s%s\n", marks[x.Change], clean(x.Path), explain(x))
	}
	if left := c.Added + c.Changed + c.Removed - int64(len(c.Changes)); left > 0 {
		fmt.Fprintf(w, "… and %d more\n", left)
	}
	if !diffs {
		return
	}
	for _, x := range c.Changes {
		if x.Diff != "" {
			fmt.Fprintf(w, "\n%s", text(x.Diff))
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
			say("%s → %s", clean(was.Type), clean(is.Type))
		}
		if was.Mode != is.Mode {
			say("mode %s → %s", clean(was.Mode), clean(is.Mode))
		}
		if was.UID != is.UID || was.GID != is.GID {
			say("owner %d:%d → %d:%d", was.UID, was.GID, is.UID, is.GID)
		}
		if was.Target != is.Target && was.Type == is.Type {
			say("%s → %s", clean(was.Target), clean(is.Target))
		}
		if was.Size != is.Size {
			say("%s → %s", volume(was.Size), volume(is.Size))
		}
	} else if s := cmp.Or(was, is); s != nil {
		switch s.Type {
		case "file":
			say("%s", volume(s.Size))
		case "symlink":
			say("→ %s", clean(s.Target))
		default:
			say("%s", clean(s.Type))
		}
	}
	if x.NoDiff != "" {
		say("%s", clean(x.NoDiff))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  (" + strings.Join(parts, ", ") + ")"
}

// cleanLines is clean for text of several lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = clean(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}
