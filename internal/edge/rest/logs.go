package rest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/lifecycle"
)

const (
	maxLogLines  = 1000
	maxLogSearch = 256

	defaultFound = 200
)

// GetSandboxLogs reads a sandbox's log, oldest first, by E2B's older call.
func (s *server) GetSandboxLogs(ctx context.Context, r e2b.GetSandboxLogsRequestObject) (e2b.GetSandboxLogsResponseObject, error) {
	q := lifecycle.LogQuery{Sandbox: sandboxID(r.SandboxID), Newest: r.Params.Start == nil}
	var err error
	if q.From, err = logTime("start", r.Params.Start); err != nil {
		return nil, err
	}
	if q.Limit, err = logLimit(r.Params.Limit); err != nil {
		return nil, err
	}
	lines, err := s.sandboxes.Logs(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	if q.Newest {
		slices.Reverse(lines)
	}
	out := e2b.GetSandboxLogs200JSONResponse{Logs: make([]e2b.SandboxLog, 0, len(lines)), LogEntries: logEntries(lines)}
	for _, l := range lines {
		out.Logs = append(out.Logs, e2b.SandboxLog{Timestamp: l.At, Line: logLine(l)})
	}
	return out, nil
}

// GetSandboxLogsV2 reads a sandbox's log.
func (s *server) GetSandboxLogsV2(ctx context.Context, r e2b.GetSandboxLogsV2RequestObject) (e2b.GetSandboxLogsV2ResponseObject, error) {
	p := r.Params
	q := lifecycle.LogQuery{
		Sandbox: sandboxID(r.SandboxID),
		Level:   value(p.Level, ""), Search: value(p.Search, ""),
	}
	if len(q.Search) > maxLogSearch {
		return nil, cay.Errorf(cay.Invalid, "search: has more than %d bytes", maxLogSearch)
	}
	cursor, err := logTime("cursor", p.Cursor)
	if err != nil {
		return nil, err
	}
	switch value(p.Direction, "backward") {
	case "backward":
		q.To, q.Newest = cursor, true
	case "forward":
		q.From = cursor
	default:
		return nil, cay.Errorf(cay.Invalid, "direction: must be forward or backward")
	}
	if q.Limit, err = logLimit(p.Limit); err != nil {
		return nil, err
	}
	lines, err := s.sandboxes.Logs(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	return e2b.GetSandboxLogsV2200JSONResponse{Logs: logEntries(lines)}, nil
}

// SearchLogs finds lines in the logs of all of a team's sandboxes.
func (o own) SearchLogs(ctx context.Context, r cayv1.SearchLogsRequestObject) (cayv1.SearchLogsResponseObject, error) {
	p := r.Params
	q := lifecycle.LogSearch{
		Text: value(p.Search, ""), Level: value(p.Level, ""),
		From: value(p.From, time.Time{}), To: value(p.To, time.Time{}), Limit: int(value(p.Limit, defaultFound)),
	}
	switch {
	case len(q.Text) > maxLogSearch:
		return nil, cay.Errorf(cay.Invalid, "search: has more than %d bytes", maxLogSearch)
	case q.Limit < 1 || q.Limit > maxLogLines:
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxLogLines)
	case !q.To.IsZero() && !q.From.Before(q.To):
		return nil, cay.Errorf(cay.Invalid, "from: must be before to")
	}
	found, err := o.sandboxes.SearchLogs(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	out := cayv1.SearchLogs200JSONResponse{Lines: make([]cayv1.FoundLine, 0, len(found.Lines)), Complete: found.Complete, Sandboxes: found.Logs}
	for _, l := range found.Lines {
		out.Lines = append(out.Lines, cayv1.FoundLine{
			SandboxID: string(l.Sandbox), Timestamp: l.At, Level: l.Level, Message: l.Message, Fields: logFields(l.LogLine),
		})
	}
	return out, nil
}

// logTime reads Unix milliseconds; none is the zero time.
func logTime(name string, ms *int64) (time.Time, error) {
	switch {
	case ms == nil:
		return time.Time{}, nil
	case *ms < 0:
		return time.Time{}, cay.Errorf(cay.Invalid, "%s: must not be negative", name)
	}
	return time.UnixMilli(*ms), nil
}

func logLimit(p *int32) (int, error) {
	n := value(p, maxLogLines)
	if n < 1 || n > maxLogLines {
		return 0, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxLogLines)
	}
	return int(n), nil
}

func logFields(l lifecycle.LogLine) map[string]string {
	fields := make(map[string]string, len(l.Fields)+1)
	maps.Copy(fields, l.Fields)
	fields["logger"] = l.Logger
	return fields
}

func logEntries(lines []lifecycle.LogLine) []e2b.SandboxLogEntry {
	out := make([]e2b.SandboxLogEntry, 0, len(lines))
	for _, l := range lines {
		out = append(out, e2b.SandboxLogEntry{Timestamp: l.At, Message: l.Message, Level: l.Level, Fields: logFields(l)})
	}
	return out
}

// logLine is a line as JSON, for clients that take it apart.
func logLine(l lifecycle.LogLine) string {
	fields := logFields(l)
	fields["level"], fields["message"] = l.Level, l.Message
	text, err := json.Marshal(fields)
	if err != nil { // strings only
		panic(err)
	}
	return string(text)
}
