package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/triggers"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/trail"
)

const (
	hookRoute   = "/cay/v1/hooks/{triggerID}"
	defaultRuns = 25
	maxRuns     = 100
)

// receive takes a request to a hook, which carries a proof of its own in place of a
// key.
func (s *server) receive(w http.ResponseWriter, r *http.Request) {
	id := cay.TriggerID(chi.URLParam(r, "triggerID"))
	team, err := s.triggers.Team(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if followed := trail.Of(r.Context()); followed != nil {
		followed.Team = team
	}
	body, err := s.hookBody(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	got, err := s.triggers.Receive(r.Context(), id, r.Header, body, trail.OriginOf(r.Context()), func() error {
		if s.rates == nil {
			return nil
		}
		state := s.rates.Take(team, rates.Write)
		if state.Allowed {
			return nil
		}
		state.Tell(w.Header())
		return state.Refusal()
	})
	if err != nil {
		if cay.KindOf(err) == cay.Unauthenticated {
			s.audit.Count(audit.Seen{Who: cay.Caller{Team: team, From: trail.OriginOf(r.Context())}, Action: "trigger.refused", Target: string(id), Outcome: cay.OutcomeDenied})
		}
		s.fail(w, r, err)
		return
	}
	answerHook(w, got)
}

const (
	// maxHookBodies bounds the bodies that requests to hooks hold before their proof is
	// checked. Any stranger sends some: the bound is shared by networks.
	maxHookBodies = 256 << 20
	hookWithin    = 30 * time.Second
)

// hookBody reads the body of a request whose sender may be a stranger.
func (s *server) hookBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	large := cay.Errorf(cay.Invalid, "the body has more than %d bytes", cay.MaxHookBody)
	n := r.ContentLength
	if n > cay.MaxHookBody {
		return nil, large
	}
	if n < 0 {
		n = cay.MaxHookBody
	}
	network := ""
	if from := trail.OriginOf(r.Context()); from != nil {
		network = shares.Network(from.Address, networkBits)
	}
	if !s.hookBodies.Take(network, n) {
		return nil, cay.Errorf(cay.Exhausted, "too many requests to hooks are under way").WithCode(cay.CodeRateLimit)
	}
	defer s.hookBodies.Give(network, n)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(hookWithin)) // where a connection has one
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, cay.MaxHookBody))
	_ = control.SetReadDeadline(time.Time{})
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, large
	case err != nil:
		return nil, cay.Wrap(cay.Invalid, err, "the body cannot be read")
	}
	return body, nil
}

// answerHook says what becomes of a request to a hook.
func answerHook(w http.ResponseWriter, got triggers.Received) {
	if got.Challenge != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, got.Challenge) // the client may be gone
		return
	}
	status, out := http.StatusAccepted, map[string]any{}
	switch {
	case got.Ignored != "":
		status, out["ignored"] = http.StatusOK, got.Ignored
	default:
		out["runID"], out["state"] = string(got.Run.ID), string(got.Run.State)
		if got.Repeated {
			status, out["repeated"] = http.StatusOK, true
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

// ListTriggers lists a team's triggers.
func (o own) ListTriggers(ctx context.Context, _ cayv1.ListTriggersRequestObject) (cayv1.ListTriggersResponseObject, error) {
	list, err := o.triggers.Triggers(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListTriggers200JSONResponse, 0, len(list))
	for _, x := range list {
		one, err := o.wireTrigger(x, "")
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// CreateTrigger makes a trigger.
func (o own) CreateTrigger(ctx context.Context, r cayv1.CreateTriggerRequestObject) (cayv1.CreateTriggerResponseObject, error) {
	b := *r.Body
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	var c cayv1.TriggerChange
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	x, secret, err := o.triggers.Create(ctx, callerOf(ctx), cay.TriggerKind(b.Kind), triggerChange(c))
	if err != nil {
		return nil, err
	}
	out, err := o.wireTrigger(x, secret)
	return cayv1.CreateTrigger201JSONResponse(out), err
}

// GetTrigger finds a trigger.
func (o own) GetTrigger(ctx context.Context, r cayv1.GetTriggerRequestObject) (cayv1.GetTriggerResponseObject, error) {
	x, err := o.triggers.Trigger(ctx, callerOf(ctx), r.TriggerID)
	if err != nil {
		return nil, err
	}
	out, err := o.wireTrigger(x, "")
	return cayv1.GetTrigger200JSONResponse(out), err
}

// UpdateTrigger changes a trigger.
func (o own) UpdateTrigger(ctx context.Context, r cayv1.UpdateTriggerRequestObject) (cayv1.UpdateTriggerResponseObject, error) {
	x, err := o.triggers.Update(ctx, callerOf(ctx), r.TriggerID, triggerChange(*r.Body))
	if err != nil {
		return nil, err
	}
	out, err := o.wireTrigger(x, "")
	return cayv1.UpdateTrigger200JSONResponse(out), err
}

// RemoveTrigger forgets a trigger.
func (o own) RemoveTrigger(ctx context.Context, r cayv1.RemoveTriggerRequestObject) (cayv1.RemoveTriggerResponseObject, error) {
	if err := o.triggers.Remove(ctx, callerOf(ctx), r.TriggerID); err != nil {
		return nil, err
	}
	return cayv1.RemoveTrigger204Response{}, nil
}

// RotateTrigger gives a hook another secret.
func (o own) RotateTrigger(ctx context.Context, r cayv1.RotateTriggerRequestObject) (cayv1.RotateTriggerResponseObject, error) {
	asked := ""
	if r.Body != nil {
		asked = value(r.Body.Secret, "")
	}
	secret, err := o.triggers.Rotate(ctx, callerOf(ctx), r.TriggerID, asked)
	if err != nil {
		return nil, err
	}
	return cayv1.RotateTrigger200JSONResponse{Secret: pointer(secret)}, nil
}

// StartRun runs a trigger now.
func (o own) StartRun(ctx context.Context, r cayv1.StartRunRequestObject) (cayv1.StartRunResponseObject, error) {
	var payload bytes.Buffer
	if r.Body != nil {
		if _, err := io.Copy(&payload, r.Body); err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the body cannot be read, or has more than %d bytes", maxBody)
		}
	}
	run, err := o.triggers.Start(ctx, callerOf(ctx), r.TriggerID, triggers.Body{Type: r.ContentType, Bytes: payload.Bytes()})
	if err != nil {
		return nil, err
	}
	return cayv1.StartRun202JSONResponse(wireRun(run, true)), nil
}

// ListRuns lists runs.
func (o own) ListRuns(ctx context.Context, r cayv1.ListRunsRequestObject) (cayv1.ListRunsResponseObject, error) {
	q := triggers.RunQuery{State: cay.RunState(value(r.Params.State, "")), Limit: value(r.Params.Limit, defaultRuns)}
	if q.Limit < 1 || q.Limit > maxRuns {
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxRuns)
	}
	if ref := value(r.Params.Trigger, ""); ref != "" {
		x, err := o.triggers.Trigger(ctx, callerOf(ctx), ref)
		if err != nil {
			return nil, err
		}
		q.Trigger = x.ID
	}
	if r.Params.Cursor != nil {
		after, err := readRunCursor(*r.Params.Cursor)
		if err != nil {
			return nil, err
		}
		q.After = after
	}
	limit := q.Limit
	q.Limit++ // says whether there are more
	list, err := o.triggers.Runs(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	out := cayv1.ListRuns200JSONResponse{Runs: []cayv1.Run{}}
	if len(list) > limit {
		list = list[:limit]
		last := list[limit-1]
		out.Next = pointer(cursorOf(last.QueuedAt, string(last.ID)))
	}
	for _, run := range list {
		out.Runs = append(out.Runs, wireRun(run, false))
	}
	return out, nil
}

func readRunCursor(text string) (*triggers.RunCursor, error) {
	at, id, err := readCursor(text)
	if err != nil {
		return nil, err
	}
	return &triggers.RunCursor{At: at, ID: cay.RunID(id)}, nil
}

// GetRun finds a run.
func (o own) GetRun(ctx context.Context, r cayv1.GetRunRequestObject) (cayv1.GetRunResponseObject, error) {
	run, err := o.triggers.Run(ctx, callerOf(ctx), cay.RunID(r.RunID))
	if err != nil {
		return nil, err
	}
	return cayv1.GetRun200JSONResponse(wireRun(run, true)), nil
}

// CancelRun ends a run.
func (o own) CancelRun(ctx context.Context, r cayv1.CancelRunRequestObject) (cayv1.CancelRunResponseObject, error) {
	if err := o.triggers.Cancel(ctx, callerOf(ctx), cay.RunID(r.RunID)); err != nil {
		return nil, err
	}
	return cayv1.CancelRun202Response{}, nil
}

func triggerChange(b cayv1.TriggerChange) triggers.Change {
	out := triggers.Change{
		Name: b.Name, Enabled: b.Enabled, Template: b.Template, Sandbox: (*cay.SandboxID)(b.SandboxID), Command: b.Command, User: b.User, Dir: b.Dir,
		Secret: b.Secret, Cron: b.Cron, Zone: b.Zone, MaxRunning: b.MaxRunning, MaxWaiting: b.MaxWaiting, Retries: b.Retries,
		After: (*cay.AfterRun)(b.After), Proof: (*cay.HookProof)(b.Proof),
		Metadata: value(b.Metadata, nil), Env: value(b.Env, nil), Events: value(b.Events, nil),
	}
	if b.Timeout != nil {
		// One beyond the bounds of time.Duration is one beyond ours.
		timeout := time.Duration(min(max(*b.Timeout, -1), int(2*cay.MaxRunTimeout/time.Second))) * time.Second
		out.Timeout = &timeout
	}
	if b.Filters != nil {
		out.Filters = make([]cay.HookFilter, 0, len(*b.Filters))
		for _, f := range *b.Filters {
			out.Filters = append(out.Filters, cay.HookFilter{Path: f.Path, Values: f.Values})
		}
	}
	return out
}

func (o own) wireTrigger(x cay.Trigger, secret string) (cayv1.Trigger, error) {
	env, err := o.triggers.EnvOf(x)
	if err != nil {
		return cayv1.Trigger{}, err
	}
	out := cayv1.Trigger{
		ID: string(x.ID), Name: x.Name, Kind: cayv1.TriggerKind(x.Kind), Enabled: x.Enabled, Secret: pointer(secret),
		Template: pointer(x.Action.Template), SandboxID: pointer(string(x.Action.Sandbox)), Command: x.Action.Command, User: pointer(x.Action.User), Dir: pointer(x.Action.Dir),
		Env: append([]string{}, env...), Timeout: int(x.Action.Timeout / time.Second), After: cayv1.AfterRun(x.Action.After),
		Cron: pointer(x.Cron), Zone: pointer(x.Zone), NextAt: moment(x.Next), MaxRunning: x.MaxRunning, MaxWaiting: x.MaxWaiting, Retries: x.Retries,
		CreatedAt: x.CreatedAt, UpdatedAt: x.UpdatedAt,
	}
	if len(x.Action.Metadata) > 0 {
		out.Metadata = &x.Action.Metadata
	}
	if x.Kind == cay.HookTrigger {
		out.URL = pointer(o.url + strings.Replace(hookRoute, "{triggerID}", string(x.ID), 1))
		proof := cayv1.HookProof(x.Proof)
		out.Proof = &proof
	}
	if len(x.Events) > 0 {
		out.Events = &x.Events
	}
	if len(x.Filters) > 0 {
		list := make([]cayv1.HookFilter, 0, len(x.Filters))
		for _, f := range x.Filters {
			list = append(list, cayv1.HookFilter{Path: f.Path, Values: f.Values})
		}
		out.Filters = &list
	}
	return out, nil
}

// wireRun is a run; whole has what its command wrote.
func wireRun(r cay.Run, whole bool) cayv1.Run {
	out := cayv1.Run{
		ID: string(r.ID), TriggerID: string(r.Trigger), State: cayv1.RunState(r.State), Event: r.Event, Delivery: r.Delivery, Attempt: r.Attempt,
		QueuedAt: r.QueuedAt, StartedAt: moment(r.StartedAt), EndedAt: moment(r.EndedAt), SandboxID: pointer(string(r.Sandbox)),
		ExitCode: r.ExitCode, Error: pointer(r.Error),
	}
	if r.State == cay.RunWaiting {
		out.DueAt = moment(r.DueAt)
	}
	if whole {
		out.Output = pointer(r.Output)
	}
	return out
}
