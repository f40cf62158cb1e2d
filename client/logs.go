package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// LogLine is a line of a sandbox's log: what became of it, and what its agent
// tells of the processes in it.
type LogLine struct {
	At      time.Time         `json:"timestamp"`
	Level   string            `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields"` // logger says whose line it is
}

// LogOptions say which lines. The zero value is the newest thousand.
type LogOptions struct {
	Level  string // this one or worse: debug, info, warn or error
	Search string // only lines with that text
	Lines  int    // the newest so many, at most 1000; 0 means that
	// Follow goes on with what is said from then on, until the sandbox is over.
	Follow bool
}

const (
	logPage = 1000
	// logLook is how often a follower asks, logLate how late a line may come: the
	// server reads a guest's lines some seconds after they were written.
	logLook = time.Second
	logLate = 15 * time.Second
)

// Logs yields lines of a sandbox's log, oldest first, for a week after its end
// too. After an error there is nothing more.
func (c *Client) Logs(ctx context.Context, id string, o LogOptions) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		lines, err := c.logs(ctx, id, o, "backward", time.Time{})
		if err != nil {
			yield(LogLine{}, err)
			return
		}
		slices.Reverse(lines)
		seen := map[string]time.Time{}
		var newest time.Time
		over := false
		for {
			for _, l := range lines {
				key := fmt.Sprint(l.At.UnixNano(), l.Level, l.Message, l.Fields)
				if _, told := seen[key]; told {
					continue
				}
				seen[key] = l.At
				if l.At.After(newest) && l.At.Before(time.Now().Add(logLate)) { // a guest's clock may say anything
					newest = l.At
				}
				over = over || l.Message == "sandbox killed" && l.Fields["logger"] == "cay"
				if !yield(l, nil) {
					return
				}
			}
			if !o.Follow || over {
				return
			}
			if err := sleep(ctx, logLook); err != nil {
				yield(LogLine{}, err)
				return
			}
			from := time.UnixMilli(0)
			if !newest.IsZero() {
				from = newest.Add(-logLate)
			}
			for key, at := range seen {
				if at.Before(from) {
					delete(seen, key)
				}
			}
			if lines, err = c.logsSince(ctx, id, o, from); err != nil {
				yield(LogLine{}, err)
				return
			}
		}
	}
}

// logsSince reads all lines since a time.
func (c *Client) logsSince(ctx context.Context, id string, o LogOptions, from time.Time) ([]LogLine, error) {
	o.Lines = 0
	var all []LogLine
	for {
		page, err := c.logs(ctx, id, o, "forward", from)
		all = append(all, page...)
		if err != nil || len(page) < logPage {
			return all, err
		}
		next := page[len(page)-1].At
		if !next.After(from) { // a page of one millisecond
			next = from
		}
		from = next.Truncate(time.Millisecond).Add(time.Millisecond)
	}
}

func (c *Client) logs(ctx context.Context, id string, o LogOptions, direction string, cursor time.Time) ([]LogLine, error) {
	query := url.Values{"direction": {direction}, "limit": {strconv.Itoa(logPage)}}
	if o.Lines > 0 {
		query.Set("limit", strconv.Itoa(o.Lines))
	}
	if o.Level != "" {
		query.Set("level", o.Level)
	}
	if o.Search != "" {
		query.Set("search", o.Search)
	}
	if !cursor.IsZero() {
		query.Set("cursor", strconv.FormatInt(cursor.UnixMilli(), 10))
	}
	var out struct {
		Logs []LogLine `json:"logs"`
	}
	_, err := c.call(ctx, http.MethodGet, "/v2/sandboxes/"+url.PathEscape(id)+"/logs?"+query.Encode(), nil, &out)
	return out.Logs, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
