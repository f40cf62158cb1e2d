package rest

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"
	"time"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/guest"
)

const (
	maxPage    = 100
	maxFilters = 32
	maxIDs     = 100
)

// ListRunningSandboxes lists what runs, by E2B's older call.
func (s *server) ListRunningSandboxes(ctx context.Context, r e2b.ListRunningSandboxesRequestObject) (e2b.ListRunningSandboxesResponseObject, error) {
	filter, err := parseMetadata(value(r.Params.Metadata, ""))
	if err != nil {
		return nil, err
	}
	page, err := s.fleet.List(ctx, callerOf(ctx), fleet.Query{
		States: []cay.State{cay.Running}, Metadata: filter,
	})
	if err != nil {
		return nil, err
	}
	return e2b.ListRunningSandboxes200JSONResponse(listed(page.Sandboxes)), nil
}

// ListSandboxes lists a page of sandboxes.
func (s *server) ListSandboxes(ctx context.Context, r e2b.ListSandboxesRequestObject) (e2b.ListSandboxesResponseObject, error) {
	q, err := listQuery(r.Params)
	if err != nil {
		return nil, err
	}
	page, err := s.fleet.List(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	out := e2b.ListSandboxes200JSONResponse{Body: listed(page.Sandboxes)}
	if page.Next != nil {
		token := encodeToken(*page.Next, q.Ascending)
		out.Headers.XNextToken = &token
	}
	for _, state := range q.States {
		if state == cay.Running {
			n := page.Total[cay.Running]
			out.Headers.XTotalRunning = &n
		}
	}
	return out, nil
}

func listQuery(p e2b.ListSandboxesParams) (fleet.Query, error) {
	q := fleet.Query{Template: value(p.Template, ""), StartedAfter: value(p.StartedAfter, time.Time{})}
	var err error
	if q.States, err = parseStates(value(p.State, nil)); err != nil {
		return q, err
	}
	if q.Metadata, err = parseMetadata(value(p.Metadata, "")); err != nil {
		return q, err
	}
	if strings.Contains(q.Template, ":") {
		return q, cay.Errorf(cay.Invalid, "template: cannot carry a tag here")
	}
	switch value(p.Order, "desc") {
	case "desc":
	case "asc":
		q.Ascending = true
	default:
		return q, cay.Errorf(cay.Invalid, "order: must be asc or desc")
	}
	if q.Limit, err = pageSize("limit", p.Limit, maxPage); err != nil {
		return q, err
	}
	if token := value(p.NextToken, ""); token != "" {
		if q.After, err = decodeToken(token, q.Ascending); err != nil {
			return q, err
		}
	}
	return q, nil
}

// parseStates turns E2B's two states into ours. None means both. One that is
// pausing is listed as paused.
func parseStates(names []string) ([]cay.State, error) {
	if len(names) == 0 {
		names = []string{"running", "paused"}
	}
	running, paused := false, false
	for _, name := range names {
		switch name {
		case "running":
			running = true
		case "paused":
			paused = true
		default:
			return nil, cay.Errorf(cay.Invalid, "state: %.80q is neither running nor paused", name)
		}
	}
	var out []cay.State
	if running {
		out = append(out, cay.Running)
	}
	if paused {
		out = append(out, cay.Pausing, cay.Paused, cay.Resuming)
	}
	return out, nil
}

// parseMetadata reads a filter: a query string whose keys and values are
// escaped once more, as SDKs send it. Text that is not escaped stays as it is.
func parseMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "metadata: is no query string")
	}
	if len(values) > maxFilters {
		return nil, cay.Errorf(cay.Invalid, "metadata: has more than %d keys", maxFilters)
	}
	out := make(map[string]string, len(values))
	for k, v := range values {
		out[unescape(k)] = unescape(v[len(v)-1])
	}
	return out, nil
}

func unescape(s string) string {
	if t, err := url.PathUnescape(s); err == nil {
		return t
	}
	return s
}

const (
	tokenSeparator = "__"
	tokenAscending = "asc"
	tokenTime      = "2006-01-02T15:04:05.000Z"
)

// encodeToken names the place after which the next page starts.
func encodeToken(c fleet.Cursor, ascending bool) string {
	text := c.StartedAt.UTC().Format(tokenTime) + tokenSeparator + string(c.ID)
	if ascending {
		text += tokenSeparator + tokenAscending
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func decodeToken(token string, ascending bool) (*fleet.Cursor, error) {
	wrong := cay.Errorf(cay.Invalid, "nextToken: is not from an earlier page")
	if len(token) > 256 {
		return nil, wrong
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token, "="))
	if err != nil {
		return nil, wrong
	}
	parts := strings.Split(string(text), tokenSeparator)
	isAscending := len(parts) == 3 && parts[2] == tokenAscending
	if len(parts) != 2 && !isAscending {
		return nil, wrong
	}
	at, err := time.Parse(tokenTime, parts[0])
	if err != nil || !cay.ValidID(parts[1]) {
		return nil, wrong
	}
	if isAscending != ascending {
		return nil, cay.Errorf(cay.Invalid, "nextToken: is from a page in the other order")
	}
	return &fleet.Cursor{StartedAt: at, ID: cay.SandboxID(parts[1])}, nil
}

func listed(list []cay.Sandbox) []e2b.ListedSandbox {
	out := make([]e2b.ListedSandbox, 0, len(list)) // never null
	for _, b := range list {
		end := b.EndAt
		if b.State == cay.Paused {
			end = b.EndedAt
		}
		out = append(out, e2b.ListedSandbox{
			SandboxID: string(b.ID), TemplateID: string(b.Template), ClientID: clientID,
			EnvdVersion: guest.EnvdVersion, Alias: pointer(b.Alias),
			StartedAt: b.StartedAt, EndAt: end, State: wireState(b.State),
			CPUCount: b.Limits.CPUs, MemoryMB: b.Limits.MemoryMB, DiskSizeMB: b.Limits.DiskMB,
			Metadata: wireMap(b.Metadata), EnvdUnresponsiveAtPause: unresponsive(b),
			VolumeMounts: wireMounts(b.Volumes),
		})
	}
	return out
}

// GetSandboxMetrics returns the samples of a sandbox.
func (s *server) GetSandboxMetrics(ctx context.Context, r e2b.GetSandboxMetricsRequestObject) (e2b.GetSandboxMetricsResponseObject, error) {
	start, end := value(r.Params.Start, 0), value(r.Params.End, 0)
	if start < 0 {
		return nil, cay.Errorf(cay.Invalid, "start: must not be negative")
	}
	if end < 0 {
		return nil, cay.Errorf(cay.Invalid, "end: must not be negative")
	}
	var until time.Time
	if r.Params.End != nil {
		until = time.Unix(end, 999_999_999) // the whole second
	}
	list, err := s.sandboxes.Metrics(ctx, callerOf(ctx), sandboxID(r.SandboxID), time.Unix(start, 0), until)
	if err != nil {
		return nil, err
	}
	out := make(e2b.GetSandboxMetrics200JSONResponse, 0, len(list))
	for _, m := range list {
		out = append(out, wireMetric(m))
	}
	return out, nil
}

// GetSandboxesMetrics returns the newest sample of each sandbox.
func (s *server) GetSandboxesMetrics(ctx context.Context, r e2b.GetSandboxesMetricsRequestObject) (e2b.GetSandboxesMetricsResponseObject, error) {
	if len(r.Params.SandboxIds) > maxIDs {
		return nil, cay.Errorf(cay.Invalid, "sandbox_ids: has more than %d ids", maxIDs)
	}
	var ids []cay.SandboxID
	for _, id := range r.Params.SandboxIds {
		ids = append(ids, sandboxID(id))
	}
	out := e2b.GetSandboxesMetrics200JSONResponse{Sandboxes: make(map[string]e2b.SandboxMetric)}
	latest, err := s.sandboxes.LatestMetrics(ctx, callerOf(ctx), ids)
	if err != nil {
		return nil, err
	}
	for id, m := range latest {
		out.Sandboxes[string(id)] = wireMetric(m)
	}
	return out, nil
}

func wireMetric(m lifecycle.Metric) e2b.SandboxMetric {
	return e2b.SandboxMetric{
		Timestamp: m.At, TimestampUnix: m.At.Unix(), CPUCount: int32(m.CPUs), CPUUsedPct: m.CPUPercent,
		MemUsed: m.MemoryUsed, MemTotal: m.MemoryMax, DiskUsed: m.DiskUsed, DiskTotal: m.DiskMax,
	}
}
