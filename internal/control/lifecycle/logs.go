package lifecycle

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/store"
)

// maxLifeLines is how many of a sandbox's newest events its log shows.
const maxLifeLines = 1000

// levels are those of log lines, least first.
var levels = []string{"debug", "info", "warn", "error"}

// LogLine is a line of a sandbox's log.
type LogLine = logbook.Line

// LogQuery says which lines of a log to read.
type LogQuery struct {
	Sandbox  cay.SandboxID
	From, To time.Time // inclusive; zero means any
	Level    string    // this one or worse; empty means all
	Search   string    // only lines with that text in the message
	Newest   bool      // of many the newest, and newest first
	Limit    int       // 0 means all
}

// Logs reads a sandbox's log: its life, and the processes in it as its agent tells
// them. The log of an ended sandbox is kept for a week.
func (c *Controller) Logs(ctx context.Context, who cay.Caller, q LogQuery) ([]LogLine, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	if q.Level != "" && !slices.Contains(levels, q.Level) {
		return nil, cay.Errorf(cay.Invalid, "level: must be one of %s", strings.Join(levels, ", "))
	}
	if _, err := c.store.Sandbox(ctx, who.Team, q.Sandbox); err != nil {
		return nil, ledger.Known(err, q.Sandbox)
	}
	if e := c.entry(q.Sandbox); e != nil && e.sandbox().State == cay.Running && e.diary.stale() {
		c.readDiary(ctx, e, diaryWithin)
	}
	said, err := c.logs.Read(q.Sandbox)
	if err != nil {
		return nil, err
	}
	life, err := c.store.Events(ctx, store.EventQuery{Team: who.Team, Sandbox: q.Sandbox, Newest: true, Limit: maxLifeLines})
	if err != nil {
		return nil, err
	}
	all := merge(life, said)
	if q.Newest {
		slices.Reverse(all)
	}
	return q.filter(all), nil
}

// merge puts events, newest first, and lines into the order of time. Of one
// millisecond, events come before the guest's lines, and the end of a life after
// them.
func merge(life []cay.Event, said []LogLine) []LogLine {
	var all, last []LogLine
	for _, e := range slices.Backward(life) {
		switch e.Type {
		case cay.ProcessKilled: // the agent's own line says more
		case cay.SandboxKilled:
			last = append(last, lifeLine(e))
		default:
			all = append(all, lifeLine(e))
		}
	}
	all = append(append(all, said...), last...)
	slices.SortStableFunc(all, func(a, b LogLine) int { return a.At.Compare(b.At) })
	return all
}

func (d *diary) stale() bool {
	if !d.mu.TryLock() {
		return false // it is being read
	}
	defer d.mu.Unlock()
	return time.Since(d.at) >= diaryFresh
}

func (q LogQuery) filter(all []LogLine) []LogLine {
	out := []LogLine{}
	for _, l := range all {
		switch {
		case !q.From.IsZero() && l.At.Before(q.From), !q.To.IsZero() && l.At.After(q.To):
		case slices.Index(levels, l.Level) < slices.Index(levels, q.Level):
		case !strings.Contains(l.Message, q.Search):
		default:
			out = append(out, l)
		}
		if q.Limit > 0 && len(out) == q.Limit {
			return out
		}
	}
	return out
}

// lifeLine is an event in the words of a log.
func lifeLine(e cay.Event) LogLine {
	out := LogLine{
		At: e.At, Level: "info", Logger: "cay", Fields: maps.Collect(maps.All(e.Data)),
		Message: strings.NewReplacer(".", " ", "_", " ").Replace(string(e.Type)),
	}
	if e.Reason != "" {
		out.Fields["reason"] = e.Reason
	}
	switch {
	case e.Reason == cay.ReasonFailed:
		out.Level = "warn"
	case e.Type == cay.SandboxKilled && e.Reason != cay.ReasonAsked && e.Reason != cay.ReasonTimeout:
		out.Level = "error"
	}
	return out
}
