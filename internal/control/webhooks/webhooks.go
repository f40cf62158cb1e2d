// Package webhooks tells events to addresses of the team's choice. The records
// of events are the queue: each webhook has a cursor in them, and a row for each
// attempt, which says when it is repeated. A server that is killed therefore
// loses no event, and repeats no attempt but those that were under way.
package webhooks

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/store"
)

// KeepAttempts is how long attempts are kept.
const KeepAttempts = 7 * 24 * time.Hour

// Sealer encrypts values for a place in the records.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

// Networks says which addresses webhooks may have, and connects to no others.
type Networks interface {
	Outside(netip.Addr) (bool, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Config is what Hooks need. Sealer and Networks may be nil for a server that
// has no webhooks; Log may be nil.
type Config struct {
	Ledger   *ledger.Ledger
	Store    store.Store
	Sealer   Sealer
	Networks Networks
	// Transport sends requests, in place of one over Networks in tests.
	Transport http.RoundTripper
	// Link makes the link by which the receiver of a webhook decides an approval;
	// empty where it is not to have one. nil makes none.
	Link func(ctx context.Context, w cay.Webhook, id cay.ApprovalID) (string, error)
	// LookAgain is after how long each webhook is looked at again for events that a
	// part recorded without telling; zero for a minute.
	LookAgain time.Duration
	Log       *slog.Logger
}

// Hooks are the use cases of webhooks, and what sends.
type Hooks struct {
	ledger    *ledger.Ledger
	store     store.Store
	sealer    Sealer
	networks  Networks
	transport http.RoundTripper
	link      func(context.Context, cay.Webhook, cay.ApprovalID) (string, error)
	lookAgain time.Duration
	log       *slog.Logger

	places   *shares.Bound[cay.TeamID] // of attempts at once
	ailing   *shares.Bound[cay.TeamID] // and of those to addresses that fail
	outcomes chan outcome
	pace     pace

	mu    sync.Mutex
	lines map[cay.WebhookID]*line
	tests map[cay.TeamID]int // that are under way
	start func(*line)        // nil while Run does not run
}

// New returns hooks that send nothing before Run.
func New(cfg Config) *Hooks {
	h := &Hooks{
		ledger: cfg.Ledger, store: cfg.Store, sealer: cfg.Sealer, networks: cfg.Networks, transport: cfg.Transport, link: cfg.Link, log: cfg.Log,
		lookAgain: cmp.Or(cfg.LookAgain, time.Minute),
		places:    shares.New[cay.TeamID](mostAtOnce, 0), ailing: shares.New[cay.TeamID](mostAiling, 0),
		outcomes: make(chan outcome), lines: make(map[cay.WebhookID]*line), tests: make(map[cay.TeamID]int),
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.transport == nil && h.networks != nil {
		h.transport = newTransport(h.networks.DialContext)
	}
	return h
}

// WebhookChange is what a client asks of a webhook. A nil field stays as it is,
// or is as usual.
type WebhookChange struct {
	Name, URL *string
	Events    []string
	Enabled   *bool
	Secret    *string
}

// apply puts a change into a webhook and names what it changes.
func (c WebhookChange) apply(w *cay.Webhook) (changed []string) {
	set := func(name string, is bool) {
		if is {
			changed = append(changed, name)
		}
	}
	if c.Name != nil {
		set("name", w.Name != *c.Name)
		w.Name = *c.Name
	}
	if c.URL != nil {
		set("url", w.URL != *c.URL)
		w.URL = *c.URL
	}
	if c.Events != nil {
		set("events", !slices.Equal(w.Events, c.Events))
		w.Events = nil
		for _, name := range c.Events {
			if !slices.Contains(w.Events, name) {
				w.Events = append(w.Events, name)
			}
		}
	}
	if c.Enabled != nil {
		set("enabled", w.Enabled != *c.Enabled)
		w.Enabled = *c.Enabled
	}
	set("secret", c.Secret != nil)
	return changed
}

// CreateWebhook has events from now on sent to an address. Without a secret it
// makes one and returns it, this once.
func (h *Hooks) CreateWebhook(ctx context.Context, who cay.Caller, c WebhookChange) (cay.Webhook, string, error) {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return cay.Webhook{}, "", err
	}
	at := ledger.Now()
	w := cay.Webhook{ID: cay.NewWebhookID(), Team: who.Team, Enabled: true, CreatedAt: at, UpdatedAt: at, Version: 1}
	c.apply(&w)
	if err := h.check(w); err != nil {
		return w, "", err
	}
	if err := choose(who, &w); err != nil {
		return w, "", err
	}
	made := ""
	if c.Secret == nil {
		made = newSecret()
		c.Secret = &made
	}
	if err := h.sealNew(&w, *c.Secret); err != nil {
		return w, "", err
	}
	err := h.store.Tx(ctx, func(tx store.Store) error {
		added := ledger.NewEvent(who, cay.Sandbox{Team: w.Team}, cay.WebhookAdded, cay.ReasonAsked, "webhook", string(w.ID), "name", w.Name)
		if err := tx.AddEvents(ctx, added); err != nil { // before: it is not told itself
			return err
		}
		return tx.AddWebhook(ctx, w, cay.MaxWebhooks)
	})
	if cay.KindOf(err) == cay.Exhausted {
		err = cay.Wrap(cay.Exhausted, err, "the team has %d webhooks, which is the most", cay.MaxWebhooks).
			WithCode(cay.CodeWebhookLimit).WithHint("remove one")
	}
	if err != nil {
		return w, "", err
	}
	h.ledger.Wake(w.Team)
	h.look(w)
	return w, made, nil
}

// choose notes the credential that says where links go which decide approvals; it
// must be able to decide itself.
func choose(who cay.Caller, w *cay.Webhook) error {
	if !w.Decides() {
		w.ChosenBy = cay.Origins{}
		return nil
	}
	w.ChosenBy = cay.Origins{Key: who.Key, Person: who.Person}
	return who.May(cay.DecideApprovals)
}

// check says what is wrong with a webhook, its address included where that
// names no host. A host's name is resolved, and looked at, when it is dialled.
func (h *Hooks) check(w cay.Webhook) error {
	if h.sealer == nil || h.transport == nil {
		return cay.Errorf(cay.Unsupported, "this server has no webhooks")
	}
	if err := w.Check(); err != nil {
		return err
	}
	u, err := url.Parse(w.URL)
	if err != nil || h.networks == nil {
		return err
	}
	addr, err := netip.ParseAddr(strings.Trim(u.Hostname(), "[]"))
	if err != nil { // a name
		return nil
	}
	if ok, err := h.networks.Outside(addr); err != nil || !ok {
		return cay.Wrap(cay.Invalid, err, "url: %s is on a private network, or on the server's own", addr).
			WithCode(cay.CodeWebhookAddress).WithHint("use a public address; the operator of the server can open others with CAY_WEBHOOK_OPEN")
	}
	return nil
}

// Webhooks lists a team's webhooks, oldest first.
func (h *Hooks) Webhooks(ctx context.Context, who cay.Caller) ([]cay.Webhook, error) {
	if err := who.May(cay.ReadWebhooks); err != nil {
		return nil, err
	}
	return h.store.Webhooks(ctx, who.Team)
}

// Webhook finds a team's webhook.
func (h *Hooks) Webhook(ctx context.Context, who cay.Caller, id cay.WebhookID) (cay.Webhook, error) {
	if err := who.May(cay.ReadWebhooks); err != nil {
		return cay.Webhook{}, err
	}
	return h.webhook(ctx, who.Team, id)
}

func (h *Hooks) webhook(ctx context.Context, team cay.TeamID, id cay.WebhookID) (cay.Webhook, error) {
	w, err := h.store.Webhook(ctx, team, id)
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Wrap(cay.NotFound, err, "webhook %.60q not found", string(id))
	}
	return w, err
}

// UpdateWebhook changes a webhook. Turned on again, it begins with what happens
// from then on.
func (h *Hooks) UpdateWebhook(ctx context.Context, who cay.Caller, id cay.WebhookID, c WebhookChange) (cay.Webhook, error) {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return cay.Webhook{}, err
	}
	w, err := h.webhook(ctx, who.Team, id)
	if err != nil {
		return w, err
	}
	changed := c.apply(&w)
	if err := h.check(w); err != nil {
		return w, err
	}
	if c.Secret != nil {
		if err := h.sealNext(&w, *c.Secret, ledger.Now()); err != nil {
			return w, err
		}
	}
	if len(changed) == 0 {
		return w, nil
	}
	if err := choose(who, &w); err != nil {
		return w, err
	}
	return h.update(ctx, who, w, changed)
}

// update records a changed webhook, and says so.
func (h *Hooks) update(ctx context.Context, who cay.Caller, w cay.Webhook, changed []string) (cay.Webhook, error) {
	w.Version, w.UpdatedAt = w.Version+1, ledger.Now()
	err := h.store.Tx(ctx, func(tx store.Store) error {
		told := ledger.NewEvent(who, cay.Sandbox{Team: w.Team}, cay.WebhookChanged, cay.ReasonAsked,
			"webhook", string(w.ID), "name", w.Name, "changed", strings.Join(changed, " "))
		if err := tx.AddEvents(ctx, told); err != nil {
			return err
		}
		return tx.UpdateWebhook(ctx, w)
	})
	if err != nil {
		return w, err
	}
	h.ledger.Wake(w.Team)
	h.look(w)
	return h.store.Webhook(ctx, w.Team, w.ID)
}

// RotateWebhook gives a webhook another secret, which it makes and returns if it
// is told none. For a day, requests are signed with the one before as well.
func (h *Hooks) RotateWebhook(ctx context.Context, who cay.Caller, id cay.WebhookID, secret string) (cay.Webhook, string, error) {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return cay.Webhook{}, "", err
	}
	w, err := h.webhook(ctx, who.Team, id)
	if err != nil {
		return w, "", err
	}
	if err := h.check(w); err != nil {
		return w, "", err
	}
	made := ""
	if secret == "" {
		made = newSecret()
		secret = made
	}
	if err := h.sealNext(&w, secret, ledger.Now()); err != nil {
		return w, "", err
	}
	w, err = h.update(ctx, who, w, []string{"secret"})
	return w, made, err
}

// RemoveWebhook forgets a webhook and all attempts.
func (h *Hooks) RemoveWebhook(ctx context.Context, who cay.Caller, id cay.WebhookID) error {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return err
	}
	w, err := h.webhook(ctx, who.Team, id)
	if err != nil {
		return err
	}
	err = h.store.Tx(ctx, func(tx store.Store) error {
		if err := tx.RemoveWebhook(ctx, w.Team, w.ID); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, cay.Sandbox{Team: w.Team}, cay.WebhookRemoved, cay.ReasonAsked, "webhook", string(w.ID), "name", w.Name))
	})
	if err == nil {
		h.ledger.Wake(w.Team)
		h.look(w)
	}
	return err
}

// DeliveryQuery says which deliveries to list.
type DeliveryQuery = store.DeliveryQuery

// DeliveryCursor is a place in a list of deliveries.
type DeliveryCursor = store.DeliveryCursor

// Deliveries lists what was sent to a webhook in the last week.
func (h *Hooks) Deliveries(ctx context.Context, who cay.Caller, q DeliveryQuery) ([]cay.WebhookDelivery, error) {
	if err := who.May(cay.ReadWebhooks); err != nil {
		return nil, err
	}
	if _, err := h.webhook(ctx, who.Team, q.Webhook); err != nil {
		return nil, err
	}
	return h.store.Deliveries(ctx, q)
}

// bucketsMost is how many buckets statistics have at most.
const bucketsMost = 200

// WebhookStats sums up the attempts of a while: its last day unless told
// otherwise. Buckets have five minutes, an hour or more, by the length of it.
func (h *Hooks) WebhookStats(ctx context.Context, who cay.Caller, id cay.WebhookID, from, to time.Time) ([]cay.WebhookBucket, error) {
	if err := who.May(cay.ReadWebhooks); err != nil {
		return nil, err
	}
	if _, err := h.webhook(ctx, who.Team, id); err != nil {
		return nil, err
	}
	if to.IsZero() {
		to = ledger.Now()
	}
	if from.IsZero() {
		from = to.Add(-24 * time.Hour)
	}
	if !from.Before(to) {
		return nil, cay.Errorf(cay.Invalid, "start: must be before end")
	}
	width := 5 * time.Minute
	for _, wider := range []time.Duration{time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 3650 * 24 * time.Hour} {
		if to.Sub(from)/width > bucketsMost {
			width = wider
		}
	}
	return h.store.WebhookStats(ctx, id, from, to, width)
}

// Redeliver has an event that was tried be sent once more, now.
func (h *Hooks) Redeliver(ctx context.Context, who cay.Caller, id cay.WebhookID, event string) error {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return err
	}
	w, err := h.webhook(ctx, who.Team, id)
	switch {
	case err != nil:
		return err
	case !w.Enabled:
		return cay.Errorf(cay.Conflict, "webhook %q is turned off", w.Name).WithHint("turn it on first")
	}
	err = h.store.Redeliver(ctx, id, event, ledger.Now())
	if cay.KindOf(err) == cay.NotFound {
		err = cay.Wrap(cay.NotFound, err, "delivery %.60q not found: deliveries are kept for 7 days", event)
	}
	if err == nil {
		h.look(w)
	}
	return err
}

// TestWebhook sends an event of the type webhook.test, once, and tells how that
// went. A webhook that is turned off can be tried too.
func (h *Hooks) TestWebhook(ctx context.Context, who cay.Caller, id cay.WebhookID) (cay.WebhookAttempt, error) {
	if err := who.May(cay.WriteWebhooks); err != nil {
		return cay.WebhookAttempt{}, err
	}
	w, err := h.webhook(ctx, who.Team, id)
	if err != nil {
		return cay.WebhookAttempt{}, err
	}
	if err := h.check(w); err != nil {
		return cay.WebhookAttempt{}, err
	}
	e := ledger.NewEvent(who, cay.Sandbox{Team: w.Team}, cay.WebhookTest, cay.ReasonAsked, "webhook", string(w.ID))
	a := cay.WebhookAttempt{Webhook: w.ID, Team: w.Team, Event: cay.NewDeliveryID(), Type: string(e.Type), Number: 1}
	if a.Body, err = ownBody(e, a.Event, nil); err != nil {
		return a, err
	}
	if !h.beginTest(w.Team) {
		return a, cay.Errorf(cay.Exhausted, "your team tests %d webhooks already", testsAtOnce).WithCode(cay.CodeRateLimit)
	}
	defer h.endTest(w.Team)
	if err := take(ctx, h.ailing, w.Team); err != nil {
		return a, err
	}
	defer h.ailing.Give(w.Team, 1)
	h.try(ctx, w, &a)
	a.Next = time.Time{}
	return a, h.store.RecordAttempts(context.WithoutCancel(ctx), []cay.WebhookAttempt{a}, nil)
}

// testsAtOnce is how many tests of a team's webhooks are under way at once: they
// have the places of addresses that fail, and each may take 15 seconds.
const testsAtOnce = 2

// beginTest reports whether a team may begin one more test.
func (h *Hooks) beginTest(team cay.TeamID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tests[team] >= testsAtOnce {
		return false
	}
	h.tests[team]++
	return true
}

func (h *Hooks) endTest(team cay.TeamID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tests[team]--; h.tests[team] == 0 {
		delete(h.tests, team)
	}
}

// take waits for a place among those that work at once.
func take(ctx context.Context, places *shares.Bound[cay.TeamID], team cay.TeamID) error {
	if err := places.Wait(ctx, team, 1); err != nil {
		return cay.Wrap(cay.Unavailable, err, "the server sends many webhooks")
	}
	return nil
}
