package webhooks

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// lifecycle says which of Cay's events E2B's types stand for. A sandbox is
// created, to E2B, when it runs for the first time; one that never ran was not
// killed, and a pause or a resume that failed changed nothing.
var lifecycle = []struct {
	rule store.EventRule
	kind string
}{
	{store.EventRule{Type: cay.SandboxRunning, Only: cay.ReasonAsked}, cay.LifecycleCreated},
	{store.EventRule{Type: cay.SandboxTimeoutChanged}, cay.LifecycleUpdated},
	{store.EventRule{Type: cay.SandboxNetworkChanged}, cay.LifecycleUpdated},
	{store.EventRule{Type: cay.SandboxKilled, Not: string(cay.CauseFailedStart)}, cay.LifecycleKilled},
	{store.EventRule{Type: cay.SandboxPaused, Not: cay.ReasonFailed}, cay.LifecyclePaused},
	{store.EventRule{Type: cay.SandboxResumed}, cay.LifecycleResumed},
	{store.EventRule{Type: cay.SandboxCheckpointed}, cay.LifecycleCheckpointed},
}

// lifecycleOf is E2B's type of an event, or empty.
func lifecycleOf(e cay.Event) string {
	for _, row := range lifecycle {
		r := row.rule
		if r.Type == e.Type && (r.Only == "" || r.Only == e.Reason) && (r.Not == "" || r.Not != e.Reason) {
			return row.kind
		}
	}
	return ""
}

// killReasons are E2B's words for causes; others are unknown to it.
var killReasons = map[string]string{
	string(cay.CauseAsked):    "request",
	string(cay.CauseTimeout):  "timeout",
	string(cay.CauseHostLost): "orphaned",
}

// wanted is the type by which a webhook is told an event; empty for not at all.
// One that it names in both vocabularies is told in E2B's.
func wanted(w cay.Webhook, e cay.Event) string {
	if kind := lifecycleOf(e); kind != "" && slices.Contains(w.Events, kind) {
		return kind
	}
	if slices.Contains(w.Events, string(e.Type)) || slices.Contains(w.Events, cay.AllEvents) {
		return string(e.Type)
	}
	return ""
}

// LifecycleEvent is an event in E2B's form.
type LifecycleEvent struct {
	ID          string         `json:"id"`
	Version     string         `json:"version"`
	Type        string         `json:"type"`
	Timestamp   string         `json:"timestamp"`
	EventData   *LifecycleData `json:"eventData"`
	SandboxID   string         `json:"sandboxId"`
	ExecutionID string         `json:"sandboxExecutionId"`
	TemplateID  string         `json:"sandboxTemplateId"`
	BuildID     string         `json:"sandboxBuildId"`
	TeamID      string         `json:"sandboxTeamId"`
}

// LifecycleData is what an event in E2B's form carries.
type LifecycleData struct {
	Metadata   map[string]string `json:"sandbox_metadata,omitempty"`
	SetTimeout string            `json:"set_timeout,omitempty"`
	Egress     *LifecycleEgress  `json:"network_egress,omitempty"`
	KillReason string            `json:"kill_reason,omitempty"`
	Execution  *Execution        `json:"execution,omitempty"`
}

// LifecycleEgress is a network policy in E2B's form.
type LifecycleEgress struct {
	AllowedCIDRs   []string `json:"allowed_cidrs,omitempty"`
	DeniedCIDRs    []string `json:"denied_cidrs,omitempty"`
	AllowedDomains []string `json:"allowed_domains,omitempty"`
}

// Execution is a run that ended.
type Execution struct {
	StartedAt string `json:"started_at"`
	VCPUCount int    `json:"vcpu_count"`
	MemoryMB  int    `json:"memory_mb"`
	TimeMS    int64  `json:"execution_time"`
}

// lifecycleEvent puts an event into E2B's form. It leaves out what the records
// have forgotten.
func (h *Hooks) lifecycleEvent(ctx context.Context, e cay.Event, kind string) (LifecycleEvent, error) {
	s, err := h.sandboxOf(ctx, e)
	if err != nil {
		return LifecycleEvent{}, err
	}
	began, instance, err := h.store.RunOf(ctx, e.Team, e.Sandbox, e.Seq)
	if err != nil && cay.KindOf(err) != cay.NotFound {
		return LifecycleEvent{}, err
	}
	if began.IsZero() {
		began = s.StartedAt
	}
	out := LifecycleEvent{
		ID: e.ID(), Version: "v2", Type: kind, Timestamp: ledger.Stamp(e.At), SandboxID: string(e.Sandbox), ExecutionID: string(e.Instance),
		TemplateID: string(s.Template), BuildID: string(s.Build), TeamID: string(e.Team),
		EventData: &LifecycleData{Metadata: s.Metadata, SetTimeout: e.Data["endAt"]},
	}
	ran := out.ExecutionID != ""
	if !ran { // it was paused: the run before is meant
		out.ExecutionID = string(instance)
	}
	d := out.EventData
	if kind == cay.LifecycleKilled {
		if d.KillReason = killReasons[e.Reason]; d.KillReason == "" {
			d.KillReason = "unknown"
		}
	}
	if ran && (kind == cay.LifecycleKilled || kind == cay.LifecyclePaused) && !began.IsZero() {
		d.Execution = &Execution{
			StartedAt: ledger.Stamp(began), VCPUCount: s.Limits.CPUs, MemoryMB: s.Limits.MemoryMB,
			TimeMS: max(0, e.At.Sub(began).Milliseconds()),
		}
	}
	if e.Outwards != nil {
		d.Egress = egressOf(*e.Outwards)
	}
	return out, nil
}

func egressOf(o cay.Outwards) *LifecycleEgress {
	out := &LifecycleEgress{DeniedCIDRs: o.Deny}
	for _, to := range o.Allow {
		if _, address := cay.Destination(to); address {
			out.AllowedCIDRs = append(out.AllowedCIDRs, to)
		} else {
			out.AllowedDomains = append(out.AllowedDomains, to)
		}
	}
	return out
}

// sandboxOf is the record of an event's sandbox, or an empty one.
func (h *Hooks) sandboxOf(ctx context.Context, e cay.Event) (cay.Sandbox, error) {
	if e.Sandbox == "" {
		return cay.Sandbox{}, nil
	}
	s, err := h.store.Sandbox(ctx, e.Team, e.Sandbox)
	if cay.KindOf(err) == cay.NotFound {
		err = nil
	}
	return s, err
}

// own is the body of an event in Cay's form.
type own struct {
	Type      cay.EventType `json:"type"`
	Timestamp string        `json:"timestamp"`
	Data      ownData       `json:"data"`
}

type ownData struct {
	ID        string            `json:"id"`
	Seq       int64             `json:"seq,omitempty"`
	TeamID    cay.TeamID        `json:"teamID"`
	SandboxID cay.SandboxID     `json:"sandboxID,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Data      map[string]string `json:"data,omitempty"`
	DecideURL string            `json:"decideURL,omitempty"` // of an approval; it is sent, and not recorded
}

func ownBody(e cay.Event, id string, metadata map[string]string) (string, error) {
	return encode(own{e.Type, ledger.Stamp(e.At), ownData{ID: id, Seq: e.Seq, TeamID: e.Team, SandboxID: e.Sandbox, Metadata: metadata, Reason: e.Reason, Data: e.Data}})
}

// withLink is the body of an attempt as it is sent: that of the record, with the
// link by which the receiver decides an approval. The record has no link, because
// more parties read it.
func (h *Hooks) withLink(ctx context.Context, w cay.Webhook, a cay.WebhookAttempt) (body, link string, err error) {
	if h.link == nil || a.Type != string(cay.ApprovalRequested) || !w.Decides() {
		return a.Body, "", nil
	}
	var out own
	if err := json.Unmarshal([]byte(a.Body), &out); err != nil {
		return "", "", cay.Wrap(cay.Internal, err, "the record of an attempt is damaged")
	}
	link, err = h.link(ctx, w, cay.ApprovalID(out.Data.Data["approval"]))
	if err != nil || link == "" {
		return a.Body, "", err
	}
	out.Data.DecideURL = link
	body, err = encode(out)
	return body, link, err
}

func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", cay.Wrap(cay.Internal, err, "cannot encode an event")
	}
	return string(text), nil
}

// body is what a webhook is sent for an event that it wants by a type.
func (h *Hooks) body(ctx context.Context, e cay.Event, kind string) (string, error) {
	if kind == string(e.Type) {
		s, err := h.sandboxOf(ctx, e)
		if err != nil {
			return "", err
		}
		return ownBody(e, e.ID(), s.Metadata)
	}
	out, err := h.lifecycleEvent(ctx, e, kind)
	if err != nil {
		return "", err
	}
	return encode(out)
}

// LifecycleQuery says which events in E2B's form to list.
type LifecycleQuery struct {
	Sandbox       cay.SandboxID // empty means all
	Types         []string      // E2B's; none means all
	Ascending     bool          // else newest first
	Offset, Limit int
}

// LifecycleEvents lists a team's events in E2B's form.
func (h *Hooks) LifecycleEvents(ctx context.Context, who cay.Caller, q LifecycleQuery) ([]LifecycleEvent, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	if q.Sandbox != "" {
		if _, err := h.store.Sandbox(ctx, who.Team, q.Sandbox); err != nil {
			return nil, ledger.Known(err, q.Sandbox)
		}
	}
	for _, kind := range q.Types {
		if !slices.Contains(cay.LifecycleTypes(), kind) {
			return nil, cay.Errorf(cay.Invalid, "types: %.80q is no type of event", kind).WithHint("they are %v", cay.LifecycleTypes())
		}
	}
	in := store.EventQuery{Team: who.Team, Sandbox: q.Sandbox, Newest: !q.Ascending, Offset: q.Offset, Limit: q.Limit}
	for _, row := range lifecycle {
		if len(q.Types) == 0 || slices.Contains(q.Types, row.kind) {
			in.Rules = append(in.Rules, row.rule)
		}
	}
	list, err := h.store.Events(ctx, in)
	out := make([]LifecycleEvent, 0, len(list))
	for _, e := range list {
		var one LifecycleEvent
		if err == nil {
			one, err = h.lifecycleEvent(ctx, e, lifecycleOf(e))
		}
		out = append(out, one)
	}
	return out, err
}
