package rest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/webhooks"
)

// Bounds of E2B's events service.
const (
	defaultLifecycleEvents = 10
	maxLifecycleEvents     = 100
	defaultDeliveries      = 25
	maxDeliveries          = 100
)

// lifecycleEvents is a list in E2B's form, which is that of a webhook's body.
type lifecycleEvents []webhooks.LifecycleEvent

// VisitListLifecycleEventsResponse answers with the list.
func (l lifecycleEvents) VisitListLifecycleEventsResponse(w http.ResponseWriter) error {
	body, err := json.Marshal([]webhooks.LifecycleEvent(l))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the client may be gone
	return nil
}

// VisitListLifecycleEventsOfSandboxResponse answers with the list.
func (l lifecycleEvents) VisitListLifecycleEventsOfSandboxResponse(w http.ResponseWriter) error {
	return l.VisitListLifecycleEventsResponse(w)
}

// ListLifecycleEvents lists what happened to a team's sandboxes.
func (s *server) ListLifecycleEvents(ctx context.Context, r e2b.ListLifecycleEventsRequestObject) (e2b.ListLifecycleEventsResponseObject, error) {
	return s.lifecycleEvents(ctx, "", r.Params)
}

// ListLifecycleEventsOfSandbox lists what happened to a sandbox.
func (s *server) ListLifecycleEventsOfSandbox(ctx context.Context, r e2b.ListLifecycleEventsOfSandboxRequestObject) (e2b.ListLifecycleEventsOfSandboxResponseObject, error) {
	return s.lifecycleEvents(ctx, sandboxID(r.SandboxID), e2b.ListLifecycleEventsParams(r.Params))
}

func (s *server) lifecycleEvents(ctx context.Context, id cay.SandboxID, p e2b.ListLifecycleEventsParams) (lifecycleEvents, error) {
	q := webhooks.LifecycleQuery{
		Sandbox: id, Types: split(value(p.Types, nil)), Ascending: value(p.OrderAsc, false),
		Offset: int(value(p.Offset, 0)), Limit: int(value(p.Limit, defaultLifecycleEvents)),
	}
	switch {
	case q.Limit < 1 || q.Limit > maxLifecycleEvents:
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxLifecycleEvents)
	case q.Offset < 0:
		return nil, cay.Errorf(cay.Invalid, "offset: must not be below 0")
	}
	return s.webhooks.LifecycleEvents(ctx, callerOf(ctx), q)
}

// split takes apart values that have commas, as some clients send lists.
func split(list []string) (out []string) {
	for _, text := range list {
		for part := range strings.SplitSeq(text, ",") {
			if part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// ListWebhooks lists a team's webhooks.
func (s *server) ListWebhooks(ctx context.Context, _ e2b.ListWebhooksRequestObject) (e2b.ListWebhooksResponseObject, error) {
	list, err := s.webhooks.Webhooks(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(e2b.ListWebhooks200JSONResponse, 0, len(list))
	for _, w := range list {
		out = append(out, wireWebhook(w, ""))
	}
	return out, nil
}

// CreateWebhook has events sent to an address.
func (s *server) CreateWebhook(ctx context.Context, r e2b.CreateWebhookRequestObject) (e2b.CreateWebhookResponseObject, error) {
	w, secret, err := s.webhooks.CreateWebhook(ctx, callerOf(ctx), webhookChange(*r.Body))
	if err != nil {
		return nil, err
	}
	return e2b.CreateWebhook201JSONResponse(wireWebhook(w, secret)), nil
}

// GetWebhook finds a webhook.
func (s *server) GetWebhook(ctx context.Context, r e2b.GetWebhookRequestObject) (e2b.GetWebhookResponseObject, error) {
	w, err := s.webhooks.Webhook(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID))
	if err != nil {
		return nil, err
	}
	return e2b.GetWebhook200JSONResponse(wireWebhook(w, "")), nil
}

// UpdateWebhook changes a webhook.
func (s *server) UpdateWebhook(ctx context.Context, r e2b.UpdateWebhookRequestObject) (e2b.UpdateWebhookResponseObject, error) {
	w, err := s.webhooks.UpdateWebhook(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID), webhookChange(*r.Body))
	if err != nil {
		return nil, err
	}
	return e2b.UpdateWebhook200JSONResponse(wireWebhook(w, "")), nil
}

// DeleteWebhook forgets a webhook.
func (s *server) DeleteWebhook(ctx context.Context, r e2b.DeleteWebhookRequestObject) (e2b.DeleteWebhookResponseObject, error) {
	if err := s.webhooks.RemoveWebhook(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID)); err != nil {
		return nil, err
	}
	return e2b.DeleteWebhook200Response{}, nil
}

func webhookChange(b e2b.WebhookChange) webhooks.WebhookChange {
	out := webhooks.WebhookChange{Name: b.Name, URL: b.URL, Enabled: b.Enabled, Secret: b.SignatureSecret}
	if b.Events != nil {
		out.Events = *b.Events
		if out.Events == nil {
			out.Events = []string{}
		}
	}
	return out
}

func wireWebhook(w cay.Webhook, secret string) e2b.Webhook {
	return e2b.Webhook{
		ID: string(w.ID), Name: w.Name, CreatedAt: w.CreatedAt, TeamID: string(w.Team), URL: w.URL, Enabled: w.Enabled, Events: w.Events,
		SignatureSecret: pointer(secret), DisabledReason: pointer(w.Disabled), FailingSince: moment(w.FailingSince),
	}
}

// moment is a time of the wire, or nil for none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// ListWebhookDeliveries lists what was sent to a webhook.
func (s *server) ListWebhookDeliveries(ctx context.Context, r e2b.ListWebhookDeliveriesRequestObject) (e2b.ListWebhookDeliveriesResponseObject, error) {
	p := r.Params
	q := webhooks.DeliveryQuery{
		Webhook: cay.WebhookID(r.WebhookID), From: value(p.Start, time.Time{}), To: value(p.End, time.Time{}),
		Types: split(value(p.EventType, nil)), Ascending: value(p.OrderAsc, false), Limit: int(value(p.Limit, defaultDeliveries)),
	}
	if q.Limit < 1 || q.Limit > maxDeliveries {
		return nil, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxDeliveries)
	}
	var err error
	if q.Failed, err = deliveryStatus(split(value(p.DeliveryStatus, nil))); err != nil {
		return nil, err
	}
	if p.Cursor != nil {
		if q.After, err = readDeliveryCursor(*p.Cursor); err != nil {
			return nil, err
		}
	}
	limit := q.Limit
	q.Limit++ // says whether there are more
	list, err := s.webhooks.Deliveries(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	out := e2b.WebhookDeliveries{}
	if len(list) > limit {
		list = list[:limit]
		last := list[limit-1]
		out.NextCursor = pointer(deliveryCursor(last.Attempts[0].At, last.Event))
	}
	out.Data = make([]e2b.WebhookDelivery, 0, len(list))
	for _, d := range list {
		one := e2b.WebhookDelivery{EventID: d.Event, EventType: d.Type, SandboxID: string(d.Sandbox), Attempts: []e2b.WebhookAttempt{}}
		for _, a := range d.Attempts {
			one.Attempts = append(one.Attempts, wireAttempt(a))
		}
		out.Data = append(out.Data, one)
	}
	return e2b.ListWebhookDeliveries200JSONResponse(out), nil
}

// deliveryStatus reads a filter: nil for any.
func deliveryStatus(list []string) (failed *bool, err error) {
	var good, bad bool
	for _, status := range list {
		switch status {
		case "success":
			good = true
		case "failed":
			bad = true
		default:
			return nil, cay.Errorf(cay.Invalid, "deliveryStatus: %.40q is neither success nor failed", status)
		}
	}
	if good == bad {
		return nil, nil
	}
	return &bad, nil
}

func deliveryCursor(at time.Time, event string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(at.UnixMilli(), 10) + " " + event))
}

func readDeliveryCursor(text string) (*webhooks.DeliveryCursor, error) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	ms, event, found := strings.Cut(string(plain), " ")
	at, bad := strconv.ParseInt(ms, 10, 64)
	if err != nil || bad != nil || !found {
		return nil, cay.Errorf(cay.Invalid, "cursor: is not one that this list gave")
	}
	return &webhooks.DeliveryCursor{At: time.UnixMilli(at), Event: event}, nil
}

func wireAttempt(a cay.WebhookAttempt) e2b.WebhookAttempt {
	out := e2b.WebhookAttempt{
		ID: a.ID, TeamID: string(a.Team), WebhookID: string(a.Webhook), EventID: a.Event, SandboxID: string(a.Sandbox), EventType: a.Type,
		Status: "success", DurationMs: a.Took.Milliseconds(), RequestBody: a.Body, RequestHeaders: a.RequestHeaders, RequestURL: a.URL,
		ErrorClass: pointer(a.Class), ErrorMessage: pointer(a.Error), Timestamp: a.At, NextAttemptAt: moment(a.Next),
	}
	if a.Failed() {
		out.Status = "failed"
	}
	if a.Status != 0 {
		out.ResponseHTTPStatusCode, out.ResponseBody, out.ResponseHeaders = &a.Status, &a.ResponseBody, &a.ResponseHeaders
	}
	return out
}

// GetWebhookStats sums up what was sent to a webhook.
func (s *server) GetWebhookStats(ctx context.Context, r e2b.GetWebhookStatsRequestObject) (e2b.GetWebhookStatsResponseObject, error) {
	list, err := s.webhooks.WebhookStats(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID), value(r.Params.Start, time.Time{}), value(r.Params.End, time.Time{}))
	if err != nil {
		return nil, err
	}
	var all cay.WebhookBucket
	out := e2b.WebhookStats{Buckets: make([]e2b.WebhookBucket, 0, len(list))}
	for _, b := range list {
		out.Buckets = append(out.Buckets, e2b.WebhookBucket{Timestamp: b.At, Total: b.Total, Failed: b.Failed, DurationMs: durations(b)})
		if all.Total == 0 {
			all.Least = b.Least
		}
		all.Total, all.Failed, all.Sum = all.Total+b.Total, all.Failed+b.Failed, all.Sum+b.Sum
		all.Least, all.Most = min(all.Least, b.Least), max(all.Most, b.Most)
	}
	out.Total, out.Failed, out.DurationMs = all.Total, all.Failed, durations(all)
	return e2b.GetWebhookStats200JSONResponse(out), nil
}

func durations(b cay.WebhookBucket) e2b.WebhookDurations {
	out := e2b.WebhookDurations{Minimum: b.Least.Milliseconds(), Maximum: b.Most.Milliseconds()}
	if b.Total > 0 {
		out.Average = b.Sum.Milliseconds() / int64(b.Total)
	}
	return out
}

// TestWebhook tries a webhook.
func (o own) TestWebhook(ctx context.Context, r cayv1.TestWebhookRequestObject) (cayv1.TestWebhookResponseObject, error) {
	a, err := o.webhooks.TestWebhook(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID))
	if err != nil {
		return nil, err
	}
	return cayv1.TestWebhook200JSONResponse{
		DeliveryID: a.ID, EventID: a.Event, Success: !a.Failed(), DurationMs: a.Took.Milliseconds(),
		StatusCode: pointer(a.Status), ResponseBody: pointer(a.ResponseBody), ErrorClass: pointer(a.Class), ErrorMessage: pointer(a.Error),
	}, nil
}

// RotateWebhook gives a webhook another secret.
func (o own) RotateWebhook(ctx context.Context, r cayv1.RotateWebhookRequestObject) (cayv1.RotateWebhookResponseObject, error) {
	asked := ""
	if r.Body != nil {
		asked = value(r.Body.SignatureSecret, "")
	}
	_, secret, err := o.webhooks.RotateWebhook(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID), asked)
	if err != nil {
		return nil, err
	}
	return cayv1.RotateWebhook200JSONResponse{SignatureSecret: pointer(secret)}, nil
}

// RedeliverWebhook has an event be sent once more.
func (o own) RedeliverWebhook(ctx context.Context, r cayv1.RedeliverWebhookRequestObject) (cayv1.RedeliverWebhookResponseObject, error) {
	if err := o.webhooks.Redeliver(ctx, callerOf(ctx), cay.WebhookID(r.WebhookID), r.EventID); err != nil {
		return nil, err
	}
	return cayv1.RedeliverWebhook202Response{}, nil
}
