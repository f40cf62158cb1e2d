package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type checkpointCmd struct {
	ID    string `arg:"" help:"Sandbox's id."`
	Label string `short:"l" help:"Name for people; one with a name outlives the sandbox."`
	Kind  string `placeholder:"KIND" help:"memory (the default) or files."`
}

// Help says what a checkpoint is for.
func (checkpointCmd) Help() string {
	return "Memory, processes and files are kept; the sandbox runs on. The id that is printed can be given to: cay sandbox rollback, fork --from, diff"
}

func (c *checkpointCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var n client.Checkpoint
	err = a.wait("saving "+clean(c.ID), func() error {
		n, err = api.Checkpoint(a.ctx, c.ID, c.Label, c.Kind)
		return err
	})
	return a.printOne(err, n, n.ID)
}

// printOne prints a thing as JSON, or its id.
func (a *app) printOne(err error, thing any, id string) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(thing)
	}
	fmt.Fprintln(a.out, clean(id))
	return nil
}

// checkpointID finds a checkpoint of a sandbox's tree by id or by label, of
// which the newest counts.
func checkpointID(a *app, api *client.Client, sandbox, ref string) (string, error) {
	tree, err := api.Tree(a.ctx, sandbox)
	if err != nil {
		return "", err
	}
	found := ""
	for _, n := range tree.Checkpoints {
		if n.ID == ref {
			return ref, nil
		}
		if n.Label == ref {
			found = n.ID
		}
	}
	if found == "" {
		return ref, nil // the server says what is wrong with it
	}
	return found, nil
}

type rollbackCmd struct {
	ID         string `arg:"" help:"Sandbox's id."`
	Checkpoint string `arg:"" help:"Checkpoint's id or label."`
}

// Help says what a rollback keeps.
func (rollbackCmd) Help() string {
	return "Memory, processes and files become what they were. Id, tokens, URLs and time limit stay; connections break. All that happened since is lost, unless there is a checkpoint of it."
}

func (c *rollbackCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var m client.Moved
	err = a.wait("going back", func() error {
		id, err := checkpointID(a, api, c.ID, c.Checkpoint)
		if err == nil {
			m, err = api.Rollback(a.ctx, c.ID, id)
		}
		return err
	})
	return a.printMoved(m, err)
}

func (a *app) printMoved(m client.Moved, err error) error {
	if err == nil && !a.json && isTerminal(a.err) {
		fmt.Fprintf(a.err, "  %s is as it was %s\n", clean(m.Sandbox), ago(m.Checkpoint.CreatedAt, time.Now()))
	}
	if err == nil && m.Notice != "" {
		fmt.Fprintf(a.err, "%s: %s\n", clean(m.Sandbox), clean(m.Notice))
	}
	return a.printOne(err, m, m.Checkpoint.ID)
}

type undoCmd struct {
	ID string `arg:"" optional:"" help:"Sandbox's id; not needed when there is only one."`
}

func (c *undoCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	if c.ID == "" {
		list, err := api.List(a.ctx)
		if err != nil {
			return err
		}
		if len(list) != 1 {
			return cay.Errorf(cay.Invalid, "which sandbox? there are %d", len(list)).WithHint("cay sandbox list shows them")
		}
		c.ID = list[0].ID
	}
	var m client.Moved
	err = a.wait("going back", func() error {
		m, err = api.Undo(a.ctx, c.ID)
		return err
	})
	return a.printMoved(m, err)
}

type promoteCmd struct {
	Branch string `arg:"" help:"The fork's id."`
	Into   string `placeholder:"ID" help:"The sandbox that goes on as it [the one that the tree began with]."`
}

// Help says what becomes of both.
func (promoteCmd) Help() string {
	return "The sandbox goes on from the fork's present state, under its own id, tokens and URLs. The fork's id is over then."
}

func (c *promoteCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var m client.Moved
	err = a.wait("promoting "+clean(c.Branch), func() error {
		if c.Into == "" {
			tree, err := api.Tree(a.ctx, c.Branch)
			if err != nil {
				return err
			}
			c.Into = tree.Root
		}
		m, err = api.Promote(a.ctx, c.Into, c.Branch)
		return err
	})
	return a.printOne(err, m, m.Sandbox)
}

type labelCmd struct {
	Checkpoint string `arg:"" help:"Checkpoint's id."`
	Label      string `arg:"" optional:"" help:"Its name; none takes it away."`
}

func (c *labelCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	n, err := api.Label(a.ctx, c.Checkpoint, c.Label)
	return a.printOne(err, n, n.ID)
}

type rmCheckpointCmd struct {
	IDs []string `arg:"" name:"checkpoint" help:"Checkpoints' ids."`
}

func (c *rmCheckpointCmd) Run(a *app) error {
	return a.each(c.IDs, "deleting", func(api *client.Client, id string) error { return api.RemoveCheckpoint(a.ctx, id) })
}

type autoCheckpointCmd struct {
	ID             string        `arg:"" help:"Sandbox's id."`
	Every          time.Duration `placeholder:"TIME" help:"Take one every so often, e.g. 30s."`
	BeforeCommands bool          `help:"Take one before each command and each run of code."`
	Keep           int64         `placeholder:"N" help:"Keep the newest N of them [10]."`
	Kind           string        `placeholder:"KIND" help:"memory (the default) or files."`
	Off            bool          `help:"Take no more."`
}

// Help says what is done without options.
func (autoCheckpointCmd) Help() string {
	return "Without options it prints what is set. To go back: cay undo"
}

func (c *autoCheckpointCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	on := c.Every > 0 || c.BeforeCommands
	if c.Off && on || (c.Keep != 0 || c.Kind != "") && !on {
		return cay.Errorf(cay.Invalid, "when?").WithHint("--every TIME, --before-commands, or --off alone")
	}
	var auto client.AutoCheckpoints
	if c.Off || on {
		auto, err = api.SetAutoCheckpoints(a.ctx, c.ID, client.AutoCheckpoints{
			EverySeconds: wholeSeconds(c.Every), BeforeCommands: c.BeforeCommands,
			Keep: c.Keep, Kind: c.Kind,
		})
	} else {
		auto, err = api.AutoCheckpoints(a.ctx, c.ID)
	}
	return a.printOne(err, auto, describeAuto(auto))
}

// wholeSeconds rounds up, so that some time stays some time.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func describeAuto(auto client.AutoCheckpoints) string {
	var when []string
	if auto.EverySeconds > 0 {
		when = append(when, fmt.Sprintf("every %d s", auto.EverySeconds))
	}
	if auto.BeforeCommands {
		when = append(when, "before each command")
	}
	if len(when) == 0 {
		return "never"
	}
	return fmt.Sprintf("%s; the newest %d are kept", strings.Join(when, " and "), auto.Keep)
}

type treeCmd struct {
	ID string `arg:"" help:"Sandbox's id."`
}

func (c *treeCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	tree, err := api.Tree(a.ctx, c.ID)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(tree)
	}
	drawTree(a.out, tree, time.Now())
	return nil
}

// drawTree draws checkpoints as a tree, with each living sandbox below the one
// that it comes from.
func drawTree(w io.Writer, tree client.Tree, now time.Time) {
	known := make(map[string]bool)
	for _, n := range tree.Checkpoints {
		known[n.ID] = true
	}
	below := make(map[string][]func(lead, rest string))
	place := func(parent string, draw func(lead, rest string)) {
		if !known[parent] {
			parent = ""
		}
		below[parent] = append(below[parent], draw)
	}
	children := func(id, rest string) {
		for i, draw := range below[id] {
			lead, more := "├─ ", "│  "
			if i == len(below[id])-1 {
				lead, more = "└─ ", "   "
			}
			draw(rest+lead, rest+more)
		}
	}
	for _, n := range tree.Checkpoints {
		place(n.Parent, func(lead, rest string) {
			fmt.Fprintln(w, lead+describe(n, tree.Root, now))
			children(n.ID, rest)
		})
	}
	for _, b := range tree.Branches {
		place(b.Checkpoint, func(lead, _ string) {
			mark := "fork "
			if b.Sandbox == tree.Root {
				mark = "main "
			}
			fmt.Fprintf(w, "%s● %s%s (%s)\n", lead, mark, clean(b.Sandbox), clean(b.State))
		})
	}
	fmt.Fprintln(w, clean(tree.Root))
	children("", "")
}

func describe(n client.Checkpoint, root string, now time.Time) string {
	parts := []string{"○ " + clean(n.ID)}
	if n.Label != "" {
		parts = append(parts, fmt.Sprintf("%q", n.Label))
	}
	parts = append(parts, ago(n.CreatedAt, now), volume(n.Size))
	if n.Kind != string(cay.MemorySnapshot) {
		parts = append(parts, clean(n.Kind))
	}
	if n.Auto {
		parts = append(parts, "auto")
	}
	if n.Sandbox != root {
		parts = append(parts, "of "+clean(n.Sandbox))
	}
	return strings.Join(parts, "  ")
}
