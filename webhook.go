package cay

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// WebhookID names a webhook. It is a UUID, as E2B's wire wants.
type WebhookID string

// NewWebhookID returns a fresh UUID.
func NewWebhookID() WebhookID { return WebhookID(uuid()) }

// NewDeliveryID returns a fresh UUID, for one attempt.
func NewDeliveryID() string { return uuid() }

// ID is a UUID of the event, the same each time.
func (e Event) ID() string {
	b := sha256.Sum256(fmt.Appendf(nil, "event %d of team %s", e.Seq, e.Team))
	return uuidOf([16]byte(b[:16]), 8)
}

// Webhook has a team's events sent to an address.
type Webhook struct {
	ID   WebhookID
	Team TeamID
	Name string
	URL  string
	// Events are the types that are sent: E2B's, Cay's own, or AllEvents.
	Events  []string
	Enabled bool
	// Sealed are the secrets that sign requests, encrypted.
	Sealed    string
	CreatedAt time.Time
	UpdatedAt time.Time
	// Version is raised by one with each change that a client asks for.
	Version int64

	// Cursor is the number of an event: it and all before it are told, or are
	// of no interest. The store moves it with the record of an attempt.
	Cursor int64
	// FailingSince is the start of the first attempt that failed after the last
	// that did not; zero while all is well.
	FailingSince time.Time
	// Disabled says why the server turned it off; empty when it did not.
	Disabled string
	// ChosenBy is the credential that last changed one that gets links which decide
	// approvals; empty for others, and for the operator's.
	ChosenBy Origins
}

// Decides reports whether a webhook is sent links that decide approvals: it names
// their event, which AllEvents does not.
func (w Webhook) Decides() bool { return slices.Contains(w.Events, string(ApprovalRequested)) }

// AllEvents, as a type, means all of Cay's own.
const AllEvents = "*"

// The bounds of webhooks.
const (
	MaxWebhooks      = 50 // of a team
	maxWebhookName   = 128
	maxWebhookURL    = 2048
	maxWebhookEvents = 64
)

// E2B's types of a sandbox's events.
const (
	LifecycleCreated      = "sandbox.lifecycle.created"
	LifecycleUpdated      = "sandbox.lifecycle.updated"
	LifecycleKilled       = "sandbox.lifecycle.killed"
	LifecyclePaused       = "sandbox.lifecycle.paused"
	LifecycleResumed      = "sandbox.lifecycle.resumed"
	LifecycleCheckpointed = "sandbox.lifecycle.checkpointed"
)

// LifecycleTypes lists E2B's types.
func LifecycleTypes() []string {
	return []string{LifecycleCreated, LifecycleUpdated, LifecycleKilled, LifecyclePaused, LifecycleResumed, LifecycleCheckpointed}
}

// Check says what is wrong with a webhook that a client asks for, but for its
// secret and the network of its address.
func (w Webhook) Check() error {
	switch {
	case strings.TrimSpace(w.Name) == "" || len(w.Name) > maxWebhookName:
		return Errorf(Invalid, "name: must have 1 to %d bytes", maxWebhookName)
	case len(w.Events) == 0 || len(w.Events) > maxWebhookEvents:
		return Errorf(Invalid, "events: must be 1 to %d types", maxWebhookEvents)
	}
	for _, name := range w.Events {
		ours := func(e EventInfo) bool { return string(e.Type) == name }
		if name != AllEvents && !slices.Contains(LifecycleTypes(), name) && !slices.ContainsFunc(Events(), ours) {
			return Errorf(Invalid, "events: %.80q is no type of event", name).
				WithHint("E2B's are %s; docs/use/events.md lists Cay's own, and %q means all of those", strings.Join(LifecycleTypes(), ", "), AllEvents)
		}
	}
	return checkWebhookURL(w.URL)
}

func checkWebhookURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxWebhookURL:
		return Errorf(Invalid, "url: has more than %d bytes", maxWebhookURL)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "":
		return Errorf(Invalid, "url: must be like https://example.com/hook")
	case u.User != nil:
		return Errorf(Invalid, "url: must have no user and no password").WithHint("requests are signed: check the signature")
	case u.Fragment != "":
		return Errorf(Invalid, "url: must have no fragment")
	}
	return nil
}

// Why an attempt failed.
const (
	FailedHTTP      = "http_error" // an answer, but none of 2xx
	FailedDNS       = "dns_error"
	FailedTimeout   = "timeout"
	FailedTransport = "transport_error" // the connection, TLS, or an address that is closed
	FailedRequest   = "request_error"   // the request could not be made
	FailedSignature = "signature_error" // or not signed
	FailedCanceled  = "canceled"        // the server stopped
)

// WebhookAttempt is one request to a webhook's address.
type WebhookAttempt struct {
	ID      string // a UUID
	Webhook WebhookID
	Team    TeamID
	Seq     int64  // of the event; 0 for a test
	Event   string // its UUID, the same at each attempt
	Type    string // as the webhook names it
	Sandbox SandboxID
	Number  int // counts the event's attempts from 1
	At      time.Time
	Took    time.Duration
	URL     string
	Body    string
	// RequestHeaders and ResponseHeaders are JSON; signatures are left out.
	RequestHeaders  string
	ResponseHeaders string
	ResponseBody    string // its start
	Status          int    // of HTTP; 0 without an answer
	// Class and Error say why it failed; empty when it did not.
	Class, Error string
	// Next is when the event is tried again; zero for never.
	Next time.Time
}

// Failed reports whether the attempt failed.
func (a WebhookAttempt) Failed() bool { return a.Class != "" }

// WebhookDelivery is an event with all attempts to tell it.
type WebhookDelivery struct {
	Event    string
	Type     string
	Sandbox  SandboxID
	Attempts []WebhookAttempt // oldest first
}

// WebhookBucket sums up the attempts of a while.
type WebhookBucket struct {
	At            time.Time // its start
	Total, Failed int
	Least, Most   time.Duration
	Sum           time.Duration
}
