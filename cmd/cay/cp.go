package main

import (
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/cp"
)

type cpCmd struct {
	From      string `arg:"" help:"Local path, ID:path, or - for standard input."`
	To        string `arg:"" help:"Local path, ID:path, or - for standard output."`
	User      string `short:"u" help:"The user that owns the files inside."`
	Recursive bool   `short:"r" help:"Copy directories with all in them."`
}

func (c *cpCmd) Run(a *app) error {
	fromID, from := cp.Place(c.From)
	toID, to := cp.Place(c.To)
	if (fromID == "") == (toID == "") {
		return cay.Errorf(cay.Invalid, "one of the two must be in a sandbox, the other here").
			WithHint("e.g. cay sandbox cp data.csv ID:data.csv")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	box, err := api.Connect(a.ctx, fromID+toID, enough)
	if err != nil {
		return err
	}
	files := cp.Copy{Box: box, User: c.User, Recursive: c.Recursive, In: a.in, Out: a.out}
	progress := func() string {
		if n := files.Moved(); n > 0 {
			return "copying, " + volume(n)
		}
		return "copying"
	}
	var done client.Copied
	err = a.watch(progress, func() (err error) {
		if toID != "" {
			done, err = files.Upload(a.ctx, from, to)
		} else {
			done, err = files.Download(a.ctx, from, to)
		}
		return err
	})
	switch {
	case err != nil || to == "-":
		return err
	case a.json:
		return a.printJSON(done)
	case isTerminal(a.err):
		fmt.Fprintf(a.err, "copied %d entries, %s\n", done.Entries, volume(done.Bytes))
	}
	return nil
}
