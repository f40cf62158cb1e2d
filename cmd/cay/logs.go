package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/cay-run/cay/client"
)

type logsCmd struct {
	ID     string `arg:"" help:"Sandbox's id; it may be over."`
	Follow bool   `short:"f" help:"Go on with what is said, until the sandbox is over."`
	Lines  int    `short:"n" placeholder:"N" help:"Only the newest N lines [1000]."`
	Level  string `help:"Only lines of this level or worse: debug, info, warn, error."`
	Search string `placeholder:"TEXT" help:"Only lines with this text."`
}

// Help says what is in a log.
func (logsCmd) Help() string {
	return "The life of the sandbox, and the processes in it as its agent tells them. Logs are kept for a week after its end. With --json each line is an object of its own."
}

func (c *logsCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	o := client.LogOptions{Level: c.Level, Search: c.Search, Lines: c.Lines, Follow: c.Follow}
	for l, err := range api.Logs(a.ctx, c.ID, o) {
		if err != nil {
			return err
		}
		if err := a.printLog(l); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printLog(l client.LogLine) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(l)
	}
	fields := maps.Clone(l.Fields)
	delete(fields, "logger")
	text := fmt.Sprintf("%s  %-5s  %s", l.At.Local().Format(time.DateTime+".000"), clean(l.Level), clean(l.Message))
	if data := pairs(fields); data != "" {
		text += "  " + data
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}
