package lifecycle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// maxSearched bounds the bytes of logs that one search reads.
const maxSearched = 32 << 20

// LogSearch says which lines of a team's logs to find.
type LogSearch struct {
	Text     string    // in the message; capitals and small letters are alike
	Level    string    // this one or worse; empty means all
	From, To time.Time // From inclusive, To not; zero means any
	Limit    int
}

// FoundLine is a line and the sandbox that said it.
type FoundLine struct {
	Sandbox cay.SandboxID
	LogLine
}

// FoundLines are the newest lines that a search finds, newest first.
type FoundLines struct {
	Lines    []FoundLine
	Complete bool // nothing else is like that
	Logs     int  // how many logs were read
}

// SearchLogs finds lines in what the sandboxes of a team said, of those that ended
// in the last week too. It reads the logs that changed last first, up to a bound.
func (c *Controller) SearchLogs(ctx context.Context, who cay.Caller, q LogSearch) (FoundLines, error) {
	var out FoundLines
	if err := who.May(cay.ReadSandboxes); err != nil {
		return out, err
	}
	if q.Level != "" && !slices.Contains(levels, q.Level) {
		return out, cay.Errorf(cay.Invalid, "level: must be one of %s", strings.Join(levels, ", "))
	}
	done, err := c.searching.take(ctx, who.Team, "search of logs")
	if err != nil {
		return out, err
	}
	defer done()
	theirs, err := c.store.Sandboxes(ctx, store.SandboxQuery{
		Team: who.Team, States: []cay.State{cay.Running, cay.Pausing, cay.Paused, cay.Resuming, cay.Killed},
	})
	if err != nil {
		return out, err
	}
	team := make(map[cay.SandboxID]bool, len(theirs))
	for _, s := range theirs {
		team[s.ID] = true
	}
	logs, err := c.logs.Logs()
	if err != nil {
		return out, err
	}
	out.Complete = true
	text, read := strings.ToLower(q.Text), int64(0)
	for _, l := range logs {
		switch {
		case !team[l.Sandbox]:
			continue
		case !q.From.IsZero() && l.Changed.Before(q.From): // as are all that follow
			return out.cut(q.Limit), nil
		case read > 0 && read+l.Size > maxSearched, len(out.Lines) >= q.Limit && out.Lines[q.Limit-1].At.After(l.Changed):
			out.Complete = false
			return out.cut(q.Limit), nil
		}
		if err := ctx.Err(); err != nil {
			return out, err
		}
		lines, err := c.logs.Read(l.Sandbox)
		if err != nil {
			return out, err
		}
		read += l.Size
		out.Logs++
		for _, line := range lines {
			if q.finds(line, text) {
				out.Lines = append(out.Lines, FoundLine{l.Sandbox, line})
			}
		}
		out = out.cut(q.Limit)
	}
	return out, nil
}

func (q LogSearch) finds(l LogLine, text string) bool {
	return (q.From.IsZero() || !l.At.Before(q.From)) && (q.To.IsZero() || l.At.Before(q.To)) &&
		slices.Index(levels, l.Level) >= slices.Index(levels, q.Level) && strings.Contains(strings.ToLower(l.Message), text)
}

// cut keeps the newest lines, newest first.
func (f FoundLines) cut(limit int) FoundLines {
	slices.SortStableFunc(f.Lines, func(a, b FoundLine) int { return b.At.Compare(a.At) })
	if len(f.Lines) > limit {
		f.Lines, f.Complete = f.Lines[:limit], false
	}
	return f
}
