package triggers

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	// lateMost is how far the time that a sender signed may be from the server's,
	// in either direction. Slack and Standard Webhooks say five minutes.
	lateMost = 5 * time.Minute
	// nameMost is how long a sender's name of a delivery or an event is kept as it
	// is, in bytes.
	nameMost = 200
)

// Body is what a request says: its bytes as they came, and their type.
type Body struct {
	Type  string `json:"type"`
	Bytes []byte `json:"bytes"`
}

// Received is what becomes of a request to a hook.
type Received struct {
	Run      cay.Run
	Repeated bool // the run is that of an earlier request
	// Ignored says why nothing is run; empty where a run is.
	Ignored string
	// Challenge, if any, is to be answered with: Slack tries an address so.
	Challenge string
}

// request is a request to run that is known to be meant.
type request struct {
	delivery, event string
	body            Body
	askers          []cay.Origins // the party of a manual run
}

// noHook is the answer for an address that there is not, and for one that is a
// secret of another kind: a stranger learns nothing from the difference.
func noHook() error { return cay.Errorf(cay.NotFound, "hook not found") }

// Team returns the team of a hook.
func (t *Triggers) Team(ctx context.Context, id cay.TriggerID) (cay.TeamID, error) {
	x, err := t.hook(ctx, id)
	return x.Team, err
}

func (t *Triggers) hook(ctx context.Context, id cay.TriggerID) (cay.Trigger, error) {
	if t.sealer == nil || !cay.ValidUUID(string(id)) {
		return cay.Trigger{}, noHook()
	}
	x, err := t.store.TriggerOf(ctx, id)
	if cay.KindOf(err) == cay.NotFound || err == nil && x.Kind != cay.HookTrigger {
		return x, noHook()
	}
	return x, err
}

// Receive takes a request to a hook: it checks where it comes from, by the bytes
// as they came, and records a run for it. The request is done with then: the run
// is started as soon as there is a place. Once the proof is good, admit is called, which
// may refuse: what a stranger sends counts to no rate of the team.
func (t *Triggers) Receive(ctx context.Context, id cay.TriggerID, h http.Header, body []byte, from *cay.Origin, admit func() error) (Received, error) {
	x, err := t.hook(ctx, id)
	if err != nil {
		return Received{}, err
	}
	s, err := t.open(x)
	if err != nil {
		return Received{}, err
	}
	now := ledger.Now()
	if err := prove(x.Proof, s.secrets(now), h, body, now); err != nil {
		return Received{}, err
	}
	if err := admit(); err != nil {
		return Received{}, err
	}
	team, err := t.store.Team(ctx, x.Team)
	if cay.KindOf(err) == cay.NotFound {
		return Received{}, noHook()
	}
	if err == nil {
		err = team.Open()
	}
	if err != nil {
		return Received{}, err
	}
	told := tell(x.Proof, h, body)
	if told.challenge != "" {
		return Received{Challenge: told.challenge}, nil
	}
	if !x.Enabled {
		return Received{}, cay.Errorf(cay.Conflict, "hook %q is turned off", x.Name).WithCode(cay.CodeTriggerOff)
	}
	if why := ignored(x, told); why != "" {
		return Received{Ignored: why}, nil
	}
	who := runner(x)
	who.From = from
	run, repeated, err := t.queue(ctx, who, x, request{
		delivery: cmp.Or(told.delivery, "once "+string(cay.NewRunID())), event: told.event,
		body: Body{Type: cay.Fit(h.Get("Content-Type"), nameMost), Bytes: body},
	})
	return Received{Run: run, Repeated: repeated}, err
}

// secrets are those that count at a time.
func (s sealed) secrets(now time.Time) []string {
	if s.Before != "" && now.Before(s.Until) {
		return []string{s.Secret, s.Before}
	}
	return []string{s.Secret}
}

// queue records a run, which is started when there is a place.
func (t *Triggers) queue(ctx context.Context, who cay.Caller, x cay.Trigger, r request) (run cay.Run, repeated bool, err error) {
	if len(r.body.Bytes) > cay.MaxHookBody {
		return run, false, cay.Errorf(cay.Invalid, "the body has more than %d bytes", cay.MaxHookBody)
	}
	plain, err := json.Marshal(r.body)
	if err != nil {
		return run, false, cay.Wrap(cay.Internal, err, "encode a run")
	}
	now := ledger.Now()
	run = cay.Run{
		ID: cay.NewRunID(), Team: x.Team, Trigger: x.ID, Delivery: short(r.delivery), Event: short(r.event),
		State: cay.RunWaiting, QueuedAt: now, DueAt: now, Bytes: len(r.body.Bytes), Askers: r.askers,
	}
	run.Sealed = t.sealer.Seal(plain, placeOfRun(run))
	err = t.ledger.Do(ctx, who, "trigger.run_requested", string(x.ID), func(tx store.Store) error {
		run, repeated, err = tx.QueueRun(ctx, run, max(x.MaxWaiting, 1), bodiesMost)
		return err
	}, "name", x.Name, "run", string(run.ID), "event", run.Event)
	if cay.KindOf(err) == cay.NotFound { // it was removed meanwhile
		return run, false, cay.Wrap(cay.NotFound, err, "trigger %q not found", x.Name)
	}
	if cay.KindOf(err) == cay.Exhausted {
		err = cay.Wrap(cay.Exhausted, err, "as many runs of %q wait as may", x.Name).WithCode(cay.CodeTriggerFull).
			WithHint("send it again later, or give the trigger more places: maxRunning, maxWaiting")
	}
	if err == nil {
		t.look()
	}
	return run, repeated, err
}

func placeOfRun(r cay.Run) string { return "run " + string(r.ID) }

// short is a name of the sender's that is fit to be kept and shown: a long one is
// its start and a digest of all of it.
func short(name string) string {
	if len(name) <= nameMost {
		return cay.Fit(name, nameMost)
	}
	sum := sha256.Sum256([]byte(name))
	return cay.Fit(name[:nameMost/2], nameMost) + "…" + hex.EncodeToString(sum[:16])
}

// prove checks that a request comes from a party that knows one of the secrets.
func prove(by cay.HookProof, secrets []string, h http.Header, body []byte, now time.Time) error {
	check, at := proofOf(by, h, body)
	if !at.IsZero() && now.Sub(at).Abs() > lateMost {
		return cay.Errorf(cay.Unauthenticated, "the request was signed at %s, and the server's clock says %s", at.UTC().Format(time.RFC3339), now.Format(time.RFC3339)).
			WithCode(cay.CodeHookLate).WithHint("set the sender's clock, or send the request anew instead of replaying it")
	}
	for _, secret := range secrets {
		if check != nil && check(secret) {
			return nil
		}
	}
	return cay.Errorf(cay.Unauthenticated, "the request does not prove that it comes from a party that knows the hook's secret").
		WithCode(cay.CodeHookProof).WithHint("%s", hints[by])
}

var hints = map[cay.HookProof]string{
	cay.GitHubProof:   "GitHub signs in X-Hub-Signature-256, with the secret of the webhook's settings",
	cay.SlackProof:    "Slack signs in X-Slack-Signature, with the app's signing secret",
	cay.StandardProof: "Standard Webhooks sign in webhook-signature, with the secret that begins with whsec_",
	cay.BearerProof:   "send Authorization: Bearer and the hook's secret",
}

// proofOf returns what tells whether a secret made the proof of a request, and
// when it was signed, where that is a part of it. A nil function means that the
// request has no proof of the kind.
func proofOf(by cay.HookProof, h http.Header, body []byte) (check func(secret string) bool, at time.Time) {
	switch by {
	case cay.GitHubProof:
		given, ok := unhex(strings.CutPrefix(one(h, "X-Hub-Signature-256"), "sha256="))
		if !ok {
			return nil, at
		}
		return func(secret string) bool { return hmac.Equal(given, sum(secret, body)) }, at
	case cay.SlackProof:
		stamp := one(h, "X-Slack-Request-Timestamp")
		given, ok := unhex(strings.CutPrefix(one(h, "X-Slack-Signature"), "v0="))
		at, good := seconds(stamp)
		if !ok || !good {
			return nil, at
		}
		return func(secret string) bool {
			return hmac.Equal(given, sum(secret, []byte("v0:"+stamp+":"), body))
		}, at
	case cay.StandardProof:
		id, stamp := one(h, "Webhook-Id"), one(h, "Webhook-Timestamp")
		at, good := seconds(stamp)
		if !good || id == "" {
			return nil, at
		}
		return func(secret string) bool {
			want := sum(standardKey(secret), []byte(id+"."+stamp+"."), body)
			for given := range strings.FieldsSeq(one(h, "Webhook-Signature")) {
				text, v1 := strings.CutPrefix(given, "v1,")
				mac, err := base64.StdEncoding.DecodeString(text)
				if v1 && err == nil && hmac.Equal(mac, want) {
					return true
				}
			}
			return false
		}, at
	case cay.BearerProof:
		scheme, given, _ := strings.Cut(one(h, "Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || given == "" {
			return nil, at
		}
		digest := sha256.Sum256([]byte(strings.TrimSpace(given)))
		return func(secret string) bool {
			want := sha256.Sum256([]byte(secret))
			return subtle.ConstantTimeCompare(digest[:], want[:]) == 1
		}, at
	}
	return nil, at
}

// one is the value of a header that comes once; a request with several is none
// that a sender makes.
func one(h http.Header, name string) string {
	if values := h[name]; len(values) == 1 {
		return values[0]
	}
	return ""
}

func unhex(text string, found bool) ([]byte, bool) {
	b, err := hex.DecodeString(text)
	return b, found && err == nil && len(b) == sha256.Size
}

func seconds(text string) (time.Time, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > 1<<40 {
		return time.Time{}, false
	}
	return time.Unix(n, 0), true
}

func sum(secret string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// standardKey is what a secret means to Standard Webhooks: bytes in base64 behind
// whsec_, or the text itself.
func standardKey(secret string) string {
	if text, ok := strings.CutPrefix(secret, "whsec_"); ok {
		if key, err := base64.StdEncoding.DecodeString(text); err == nil {
			return string(key)
		}
	}
	return secret
}

// told is what a request says of itself.
type told struct {
	delivery, event, challenge string
	// document is the body as JSON, nil where it is something else.
	document any
}

// tell reads a request that has proved where it comes from.
func tell(by cay.HookProof, h http.Header, body []byte) told {
	out := told{document: documentOf(h.Get("Content-Type"), body)}
	text := func(path string) string { return textAt(out.document, path) }
	switch by {
	case cay.GitHubProof:
		out.delivery, out.event = one(h, "X-Github-Delivery"), one(h, "X-Github-Event")
	case cay.SlackProof:
		if text("type") == "url_verification" {
			out.challenge = text("challenge")
		}
		out.delivery = cmp.Or(text("event_id"), text("trigger_id"))
		out.event = cmp.Or(text("event.type"), text("command"), text("type"))
	case cay.StandardProof:
		out.delivery, out.event = one(h, "Webhook-Id"), text("type")
	case cay.BearerProof:
		out.delivery, out.event = one(h, "Idempotency-Key"), text("type")
	}
	return out
}

// documentOf reads a body as JSON, also of clients that call it a form by default,
// or as a form, whose fields are then the keys; Slack and GitHub can send JSON as
// the field payload of a form.
func documentOf(kind string, body []byte) any {
	if document := readJSON(body); document != nil {
		return document
	}
	if media, _, _ := mime.ParseMediaType(kind); media == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil
		}
		if payload := form.Get("payload"); payload != "" {
			return readJSON([]byte(payload))
		}
		out := make(map[string]any, len(form))
		for name, values := range form {
			out[name] = values[0]
		}
		return out
	}
	return nil
}
