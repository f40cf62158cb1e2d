package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/fleet"
)

const (
	defaultEvents = 100
	maxEvents     = 1000
	// fromNow as a cursor stands for the newest event.
	fromNow = -1

	eventStream = "text/event-stream"
	// keepAlive keeps a quiet stream's connection open through what drops
	// idle ones.
	keepAlive = 15 * time.Second
	// streamWrite bounds how long a client may not read.
	streamWrite = 30 * time.Second
	// A stream costs a connection: one team must not have all.
	maxStreams, maxStreamsTeam = 5000, 500
)

// ListEvents lists or streams what happened to a team's sandboxes.
func (o own) ListEvents(ctx context.Context, r cayv1.ListEventsRequestObject) (cayv1.ListEventsResponseObject, error) {
	p := r.Params
	out, err := o.events(ctx, "", eventParams{p.After, p.Limit, p.Type, p.Accept, p.LastEventID})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ListSandboxEvents lists or streams what happened to a sandbox.
func (o own) ListSandboxEvents(ctx context.Context, r cayv1.ListSandboxEventsRequestObject) (cayv1.ListSandboxEventsResponseObject, error) {
	p := r.Params
	out, err := o.events(ctx, sandboxID(r.SandboxID), eventParams{p.After, p.Limit, p.Type, p.Accept, p.LastEventID})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// GetSandboxEnd says why a sandbox is over.
func (o own) GetSandboxEnd(ctx context.Context, r cayv1.GetSandboxEndRequestObject) (cayv1.GetSandboxEndResponseObject, error) {
	end, err := o.fleet.End(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	b := end.Sandbox
	out := cayv1.GetSandboxEnd200JSONResponse{
		SandboxID: string(b.ID), TemplateID: string(b.Template), Alias: pointer(b.Alias),
		Reason: string(b.Cause), Evidence: pointer(end.Evidence),
		By: pointer(string(end.By)), ByName: pointer(end.ByName), StartedAt: b.StartedAt, EndedAt: b.EndedAt,
	}
	if len(b.Metadata) > 0 {
		out.Metadata = &b.Metadata
	}
	if end.Snapshot != nil {
		teams, err := o.fleet.TeamNames(ctx)
		if err != nil {
			return nil, err
		}
		out.SnapshotID = pointer(wireSnapshot(*end.Snapshot, teams).SnapshotID)
	}
	return out, nil
}

type eventParams struct {
	after       *int64
	limit       *int32
	kind        *string
	accept      *string
	lastEventID *int64
}

// eventAnswer is a page or a stream.
type eventAnswer interface {
	cayv1.ListEventsResponseObject
	cayv1.ListSandboxEventsResponseObject
}

func (s *server) events(ctx context.Context, id cay.SandboxID, p eventParams) (eventAnswer, error) {
	q := fleet.EventQuery{
		Sandbox: id, Type: cay.EventType(value(p.kind, "")),
		After: value(p.lastEventID, value(p.after, 0)), Limit: int(value(p.limit, defaultEvents)),
	}
	if q.Limit < 1 || q.Limit > maxEvents {
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxEvents)
	}
	if q.After < fromNow {
		return nil, cay.Errorf(cay.Invalid, "after: must be the seq of an event, 0, or -1")
	}
	who := callerOf(ctx)
	if q.After == fromNow {
		var err error
		if q.After, err = s.fleet.LastEvent(ctx, who); err != nil {
			return nil, err
		}
	}
	if !wantsStream(value(p.accept, "")) {
		list, err := s.fleet.Events(ctx, who, q)
		if err != nil {
			return nil, err
		}
		return pageOf(list, q.After), nil
	}
	q.Limit = maxEvents
	out := &stream{server: s, ctx: ctx, who: who, query: q, resumed: p.lastEventID != nil}
	if id == "" {
		return out, nil
	}
	var err error
	out.over = s.sandboxes.Over(id)
	out.first, err = s.fleet.Events(ctx, who, q) // says whether there is such a sandbox
	return out, err
}

// wantsStream reports whether a client asks for a stream.
func wantsStream(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		if kind, _, err := mime.ParseMediaType(part); err == nil && kind == eventStream {
			return true
		}
	}
	return false
}

type page cayv1.EventPage

func pageOf(list []cay.Event, after int64) page {
	out := page{Events: make([]cayv1.Event, 0, len(list)), Next: after}
	for _, e := range list {
		out.Events = append(out.Events, wireEvent(e))
		out.Next = e.Seq
	}
	return out
}

// VisitListEventsResponse answers with the page.
func (p page) VisitListEventsResponse(w http.ResponseWriter) error {
	body, err := json.Marshal(cayv1.EventPage(p))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Add("Vary", "Accept")
	_, _ = w.Write(append(body, '\n')) // the client may be gone
	return nil
}

// VisitListSandboxEventsResponse answers with the page.
func (p page) VisitListSandboxEventsResponse(w http.ResponseWriter) error {
	return p.VisitListEventsResponse(w)
}

func wireEvent(e cay.Event) cayv1.Event {
	out := cayv1.Event{
		Seq: e.Seq, SandboxID: string(e.Sandbox), Type: string(e.Type), Reason: pointer(e.Reason), At: e.At,
	}
	if len(e.Data) > 0 {
		out.Data = &e.Data
	}
	return out
}

// stream answers with events as they come, until the client leaves, the server
// stops or the sandbox is over.
type stream struct {
	*server
	ctx     context.Context
	who     cay.Caller
	query   fleet.EventQuery
	first   []cay.Event // of a sandbox
	resumed bool        // the client had a stream already
	over    bool        // when first was listed, so was the sandbox
}

// VisitListSandboxEventsResponse streams.
func (s *stream) VisitListSandboxEventsResponse(w http.ResponseWriter) error {
	return s.VisitListEventsResponse(w)
}

// VisitListEventsResponse streams.
func (s *stream) VisitListEventsResponse(w http.ResponseWriter) error {
	if s.over && s.resumed && len(s.first) == 0 {
		w.WriteHeader(http.StatusNoContent) // this is how a browser is told not to come back
		return nil
	}
	if s.streams.take(s.who.Team) != nil {
		return cay.Errorf(cay.Exhausted, "your team has %d streams of events open, or the server has %d", maxStreamsTeam, maxStreams).WithCode(cay.CodeStreamLimit)
	}
	defer s.streams.give(s.who.Team)
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for a reverse proxy in front
	h.Add("Vary", "Accept")
	w.WriteHeader(http.StatusOK)
	if err := s.run(w); err != nil && s.ctx.Err() == nil {
		s.log.DebugContext(s.ctx, "a stream of events broke", "err", err)
		panic(http.ErrAbortHandler) // so that the client sees that it did not end
	}
	return nil
}

// run writes what there is and waits for more. The order matters: whether
// there may be more is known before the list is read that must have all.
func (s *stream) run(w http.ResponseWriter) error {
	out := http.NewResponseController(w)
	ctx, done := s.auth.While(s.ctx, s.who)
	defer done()
	s.ctx = ctx
	defer out.SetWriteDeadline(time.Time{}) // the connection may serve other requests
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	text := []byte(":\n\n") // a comment: the stream is there
	for {
		news := s.fleet.NewEvents(s.who.Team)
		last := !s.fleet.Streaming() || s.query.Sandbox != "" && s.sandboxes.Over(s.query.Sandbox)
		newest, err := s.fleet.LastEvent(s.ctx, s.who)
		if err != nil {
			return err
		}
		list, err := s.fleet.Events(s.ctx, s.who, s.query)
		if err != nil {
			return err
		}
		for _, e := range list {
			text = appendEvent(text, wireEvent(e))
			s.query.After = e.Seq
		}
		if err := send(w, out, text); err != nil {
			return err
		}
		text = nil
		if len(list) == s.query.Limit {
			continue
		}
		s.query.After = max(s.query.After, newest) // the events up to here are of other kinds or sandboxes
		if last {
			return nil
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-news:
		case <-tick.C:
			text = []byte(":\n\n")
		}
	}
}

func send(w http.ResponseWriter, out *http.ResponseController, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	_ = out.SetWriteDeadline(time.Now().Add(streamWrite)) // not every writer can; then TCP's own limit holds
	if _, err := w.Write(text); err != nil {
		return err
	}
	return out.Flush()
}

func appendEvent(text []byte, e cayv1.Event) []byte {
	body, err := json.Marshal(e)
	if err != nil { // strings, numbers and a time
		panic(err)
	}
	return fmt.Appendf(text, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, body)
}
