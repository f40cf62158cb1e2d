package cay

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ActorKind says what kind of party acted.
type ActorKind string

// The kinds of actors.
const (
	ActorKey     ActorKind = "key"
	ActorPerson  ActorKind = "person"
	ActorAdmin   ActorKind = "admin"   // the operator of the installation
	ActorSystem  ActorKind = "system"  // this server by itself: at a time limit, for traffic, at a start
	ActorSandbox ActorKind = "sandbox" // programs inside: what the agent and egress saw of them
	ActorLink    ActorKind = "link"    // the holder of a link that a webhook carried, which gives its id and name
)

// Actor is the party that did something.
type Actor struct {
	Kind ActorKind
	ID   string // of a key, a person or a sandbox
	Name string // as it was called then
}

// Actor returns the party that a caller is, for records.
func (c Caller) Actor() Actor {
	switch {
	case c.Person != "":
		return Actor{ActorPerson, string(c.Person), c.Name}
	case c.Key != "":
		return Actor{ActorKey, string(c.Key), c.Name}
	case c.From != nil && c.Scopes&Admin != 0: // a request that neither of them made
		return Actor{ActorAdmin, "", c.Name}
	}
	return Actor{Kind: ActorSystem, Name: c.Name} // the server itself, also for a login or an exchange of a token
}

// Outcome is what came of an action.
type Outcome string

// The outcomes of actions.
const (
	OutcomeOK     Outcome = "ok"
	OutcomeDenied Outcome = "denied" // the actor lacks a scope, or is kept from it
	OutcomeFailed Outcome = "failed"
)

// AuditRow says who did what. Rows of an installation are a chain: each has the
// hash of the one before, so that a row that is changed, removed or put in
// between shows. There is no secret in a row: details are names, sizes, hashes.
type AuditRow struct {
	Seq     int64 // from 1 without a gap, in the order of commits; the store gives it
	At      time.Time
	Actor   Actor
	Team    TeamID // empty for what concerns no team
	Action  string // such as sandbox.created, the type of its event where there is one
	Target  string // the id or name of what it was done to
	Outcome Outcome
	Request string // the id of the request; empty for what no request asked for
	Address string // the client's
	Agent   string // the client's User-Agent
	Details map[string]string
	Prev    Hash // of the row before; zero in the first
	Hash    Hash // of this one; the store gives both
}

// Hash is a SHA-256.
type Hash [sha256.Size]byte

// String is the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads 64 hexadecimal digits.
func ParseHash(s string) (h Hash, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, Errorf(Invalid, "%.80q is no SHA-256 in hexadecimal digits", s)
	}
	return Hash(b), nil
}

// AuditTime is the form of times in the chain: UTC, always with three digits of
// milliseconds.
const AuditTime = "2006-01-02T15:04:05.000Z"

// Canonical returns the bytes that a row's hash is of, without Prev and Hash.
// They are texts in this order: "cay-audit-1", Seq in decimal, At as AuditTime,
// the actor's kind, id and name, Team, Action, Target, Outcome, Request,
// Address, Agent, and then of each detail its key and its value, the keys in
// the order of their bytes. Each text is its number of bytes in decimal, a
// colon, and its bytes in UTF-8.
func (r AuditRow) Canonical() []byte {
	out := netstrings(nil, "cay-audit-1", strconv.FormatInt(r.Seq, 10), r.At.UTC().Format(AuditTime),
		string(r.Actor.Kind), r.Actor.ID, r.Actor.Name, string(r.Team), r.Action, r.Target, string(r.Outcome),
		r.Request, r.Address, r.Agent)
	for _, k := range slices.Sorted(maps.Keys(r.Details)) {
		out = netstrings(out, k, r.Details[k])
	}
	return out
}

// Sum returns the hash that a row must have: SHA-256 of Prev and the canonical
// bytes.
func (r AuditRow) Sum() Hash { return sha256.Sum256(append(r.Prev[:], r.Canonical()...)) }

// Bounds of a row's texts, in bytes.
const (
	maxAuditText   = 512
	maxAuditDetail = 20
)

// Fit makes every text of a row short, and fit to be read back as it is.
func (r *AuditRow) Fit() {
	for _, text := range []*string{&r.Actor.ID, &r.Actor.Name, &r.Action, &r.Target, &r.Request, &r.Address, &r.Agent} {
		*text = Fit(*text, maxAuditText)
	}
	details := make(map[string]string, len(r.Details))
	for _, k := range slices.Sorted(maps.Keys(r.Details)) {
		if len(details) < maxAuditDetail {
			details[Fit(k, maxAuditText)] = Fit(r.Details[k], maxAuditText)
		}
	}
	r.Details, r.At = details, r.At.UTC().Truncate(time.Millisecond)
}

func netstrings(out []byte, texts ...string) []byte {
	for _, text := range texts {
		out = strconv.AppendInt(out, int64(len(text)), 10)
		out = append(out, ':')
		out = append(out, text...)
	}
	return out
}

// AuditHead says which row was the last at a time, signed with the key of the
// installation. Rows up to it that are rewritten later do not fit it.
type AuditHead struct {
	Seq       int64
	Hash      Hash
	At        time.Time
	Key       ed25519.PublicKey
	Signature []byte
}

// signed are the bytes that the signature is of: the texts "cay-audit-head-1",
// Seq in decimal, Hash in hexadecimal digits and At as AuditTime, each with its
// length as in a row's canonical bytes.
func (h AuditHead) signed() []byte {
	return netstrings(nil, "cay-audit-head-1", strconv.FormatInt(h.Seq, 10), h.Hash.String(), h.At.UTC().Format(AuditTime))
}

// Sign signs a head.
func (h *AuditHead) Sign(key ed25519.PrivateKey) {
	h.Key, _ = key.Public().(ed25519.PublicKey)
	h.Signature = ed25519.Sign(key, h.signed())
}

// Genuine reports whether the head's key signed it.
func (h AuditHead) Genuine() bool {
	return len(h.Key) == ed25519.PublicKeySize && ed25519.Verify(h.Key, h.signed(), h.Signature)
}

// unaudited are the types of events that give no row: states on the way to one
// that does, what the server does by itself, what is told of the machine to every team, and what a guest can
// cause at will, which is counted.
var unaudited = []EventType{
	SandboxRunning, SandboxPausing, SandboxReplicated, SandboxResuming, MachineDiskLow, MachineDiskFreed, EgressDenied, ProcessKilled, ModelProviderFailing, AuditCheckpoint,
}

// AuditRows returns the rows of events that are recorded together.
func AuditRows(events []Event) []AuditRow {
	failed := slices.ContainsFunc(events, startFailed)
	var out []AuditRow
	for _, e := range events {
		// Of a start that failed its end is told.
		if slices.Contains(unaudited, e.Type) || failed && e.Type == SandboxCreated {
			continue
		}
		out = append(out, e.auditRow())
	}
	return out
}

func startFailed(e Event) bool {
	return e.Type == SandboxKilled && e.Reason == string(CauseFailedStart)
}

func (e Event) auditRow() AuditRow {
	r := AuditRow{
		At: e.At, Actor: e.Actor, Team: e.Team, Action: string(e.Type), Target: string(e.Sandbox), Outcome: OutcomeOK,
		Details: make(map[string]string, len(e.Data)+1),
	}
	for k, v := range e.Data {
		if k != "by" { // the actor says it
			r.Details[k] = v
		}
	}
	if e.Reason != "" {
		r.Details["reason"] = e.Reason
	}
	if r.Actor.Kind == "" {
		r.Actor.Kind = ActorSystem
	}
	if e.Reason == ReasonFailed || startFailed(e) {
		r.Outcome = OutcomeFailed
	}
	if e.Sandbox == "" {
		r.Target = e.subject()
	}
	r.Come(e.From)
	return r
}

// subject is what an event of no sandbox is of: its data names it by the first
// word of its type. Else it is the team.
func (e Event) subject() string {
	noun, _, _ := strings.Cut(string(e.Type), ".")
	if name := e.Data[noun]; name != "" {
		return name
	}
	return string(e.Team)
}

// Come gives a row the origin of the request that asked for it, which then
// knows of the row.
func (r *AuditRow) Come(from *Origin) {
	if from == nil {
		return
	}
	r.Request, r.Address, r.Agent = from.Request, from.Address, from.Agent
	told.Lock()
	defer told.Unlock()
	from.told = append(from.told, r.Action)
}

// told guards Origin.told: parts of one request may work side by side.
var told sync.Mutex

// Told reports whether a row of an action was made for the request.
func (o *Origin) Told(action string) bool {
	if o == nil {
		return false
	}
	told.Lock()
	defer told.Unlock()
	return slices.Contains(o.told, action)
}
