package client

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// Event is something that happened to a sandbox. Seq counts a team's events.
type Event struct {
	Seq       int64             `json:"seq"`
	SandboxID string            `json:"sandboxID"`
	Type      string            `json:"type"`
	Reason    string            `json:"reason,omitempty"`
	At        time.Time         `json:"at"`
	Data      map[string]string `json:"data,omitempty"`
}

// EventOptions say which events to read. The zero value means all of the team
// that are kept.
type EventOptions struct {
	Sandbox string // only of this one, which may be over
	Type    string // only of this type
	After   int64  // only greater numbers; -1 only what is yet to come
	// Follow waits for what happens from then on, until the sandbox, if one
	// is named, is over. Connections that break are made again.
	Follow bool
}

// Events yields events, oldest first. An error is the last that it yields;
// the end of ctx is one.
func (c *Client) Events(ctx context.Context, o EventOptions) iter.Seq2[Event, error] {
	path := "/cay/v1/events"
	if o.Sandbox != "" {
		path = "/cay/v1/sandboxes/" + url.PathEscape(o.Sandbox) + "/events"
	}
	query := url.Values{}
	if o.Type != "" {
		query.Set("type", o.Type)
	}
	if o.Follow {
		return func(yield func(Event, error) bool) { c.followEvents(ctx, path, query, o, yield) }
	}
	return func(yield func(Event, error) bool) { c.pageEvents(ctx, path, query, o.After, yield) }
}

func (c *Client) pageEvents(ctx context.Context, path string, query url.Values, after int64, yield func(Event, error) bool) {
	const limit = 1000
	query.Set("limit", strconv.Itoa(limit))
	for {
		query.Set("after", strconv.FormatInt(after, 10))
		var page struct {
			Events []Event `json:"events"`
			Next   int64   `json:"next"`
		}
		if _, err := c.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			yield(Event{}, err)
			return
		}
		for _, e := range page.Events {
			if !yield(e, nil) {
				return
			}
		}
		if len(page.Events) < limit {
			return
		}
		after = page.Next
	}
}

// reconnectPause is how long to wait before a broken stream is opened again.
const reconnectPause = 500 * time.Millisecond

// followEvents reads one stream after another. -1 is turned into a number
// first, so that a stream that breaks before its first event misses nothing.
func (c *Client) followEvents(ctx context.Context, path string, query url.Values, o EventOptions, yield func(Event, error) bool) {
	after := o.After
	if after < 0 {
		var page struct {
			Next int64 `json:"next"`
		}
		if _, err := c.call(ctx, http.MethodGet, path+"?after=-1", nil, &page); err != nil {
			yield(Event{}, err)
			return
		}
		after = page.Next
	}
	for {
		going, err := c.stream(ctx, path+"?"+query.Encode(), &after, func(e Event) bool { return yield(e, nil) })
		if !going {
			return
		}
		if err != nil && (ctx.Err() != nil || cay.KindOf(err) != cay.Unavailable) {
			yield(Event{}, err)
			return
		}
		select {
		case <-ctx.Done():
			yield(Event{}, ctx.Err())
			return
		case <-time.After(reconnectPause):
		}
	}
}

// stream reads one stream and moves after on. It reports whether to go on with
// another: not when yield has enough, nor when the server says that no more
// will come. A broken stream is Unavailable.
func (c *Client) stream(ctx context.Context, path string, after *int64, yield func(Event) bool) (going bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.APIURL+path, nil)
	if err != nil {
		return true, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	c.present(r.Header)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return true, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return false, nil
	case resp.StatusCode != http.StatusOK:
		return true, failure(resp)
	}
	for e, err := range serverSent(resp.Body) {
		if err != nil {
			return true, c.unreachable(ctx, err)
		}
		*after = e.Seq
		if !yield(e) {
			return false, nil
		}
	}
	return true, nil
}

// maxEvent bounds one line of a stream.
const maxEvent = 1 << 20

// serverSent reads server-sent events. One that is cut off at the end is none.
func serverSent(r io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxEvent)
		var data strings.Builder
		for lines.Scan() {
			line := lines.Text()
			if text, ok := strings.CutPrefix(line, "data:"); ok {
				data.WriteString(strings.TrimPrefix(text, " "))
				continue
			}
			if line != "" || data.Len() == 0 {
				continue
			}
			var e Event
			if err := json.Unmarshal([]byte(data.String()), &e); err != nil {
				yield(e, err)
				return
			}
			data.Reset()
			if !yield(e, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Event{}, err)
		}
	}
}

// WaitFor waits until a sandbox has an event of one of the types, later than
// the one numbered after; 0 finds one of its past as well. It returns NotFound
// when the sandbox ends without it.
func (c *Client) WaitFor(ctx context.Context, sandbox string, after int64, types ...string) (Event, error) {
	for e, err := range c.Events(ctx, EventOptions{Sandbox: sandbox, After: after, Follow: true}) {
		if err != nil || slices.Contains(types, e.Type) {
			return e, err
		}
	}
	return Event{}, cay.Errorf(cay.NotFound, "sandbox %s ended without %s", sandbox, strings.Join(types, " or ")).
		WithHint("`cay sandbox why %s` says why it ended", sandbox)
}

// End says why a sandbox ended.
type End struct {
	SandboxID  string            `json:"sandboxID"`
	TemplateID string            `json:"templateID"`
	Alias      string            `json:"alias,omitempty"`
	Reason     string            `json:"reason"`
	Evidence   string            `json:"evidence,omitempty"`
	By         string            `json:"by,omitempty"`     // id of the API key that asked
	ByName     string            `json:"byName,omitempty"` // and its name, if it is still there
	StartedAt  time.Time         `json:"startedAt"`
	EndedAt    time.Time         `json:"endedAt"`
	SnapshotID string            `json:"snapshotID,omitempty"` // the newest that was taken of it and is still there
	Metadata   map[string]string `json:"metadata,omitempty"`
}

// End says why a sandbox ended: for a week, then it is NotFound. Conflict when
// it has not.
func (c *Client) End(ctx context.Context, id string) (End, error) {
	var out End
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/sandboxes/"+url.PathEscape(id)+"/end", nil, &out)
	return out, err
}
