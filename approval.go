package cay

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// ApprovalID names an approval. It is a UUID.
type ApprovalID string

// NewApprovalID returns a fresh UUID.
func NewApprovalID() ApprovalID { return ApprovalID(uuid()) }

// ApprovalKind says what is asked for.
type ApprovalKind string

// The kinds of approvals.
const (
	CustomApproval ApprovalKind = "custom" // whatever a program asks
	EgressApproval ApprovalKind = "egress" // a sandbox reaches a host
	SecretApproval ApprovalKind = "secret" // a request of a sandbox gets a secret
	ToolApproval   ApprovalKind = "tool"   // a tool of the gateway inside is called
	// CommandApproval is of a program or code that a client starts in a sandbox.
	CommandApproval ApprovalKind = "command"
)

// ApprovalState is how far an approval is.
type ApprovalState string

// The states. All but the first are final.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalDenied   ApprovalState = "denied"
	ApprovalExpired  ApprovalState = "expired" // no decision came in time, or its sandbox is over: a no
)

// ApprovalStates lists the states.
func ApprovalStates() []ApprovalState {
	return []ApprovalState{ApprovalPending, ApprovalApproved, ApprovalDenied, ApprovalExpired}
}

// Risk is how much the asking party says is at stake.
type Risk string

// The risks.
const (
	LowRisk    Risk = "low"
	MediumRisk Risk = "medium"
	HighRisk   Risk = "high"
)

// Remember says for how long a decision counts for the same subject.
type Remember string

// The lengths. A no counts for DeniedFor at least.
const (
	RememberOnce    Remember = "once"    // for what waits, or the next time within UseWithin
	RememberHour    Remember = "hour"    // for an hour
	RememberSandbox Remember = "sandbox" // for the sandbox's life
)

// The times of approvals.
const (
	// UseWithin is how long a yes to one time is kept for the party that asked and
	// waits no more.
	UseWithin = 15 * time.Minute
	// DeniedFor is how long a no answers the same question at least.
	DeniedFor = time.Minute

	UsualApprovalTime = 15 * time.Minute
	leastApprovalTime = 10 * time.Second
	mostApprovalTime  = 7 * 24 * time.Hour
)

// The bounds of approvals.
const (
	// MaxPendingOfAsker is how many approvals of one sandbox, key or person wait at
	// once, and MaxPending how many of a team.
	MaxPendingOfAsker = 10
	MaxPending        = 500
	maxApprovalTitle  = 200
	maxApprovalBody   = 16 << 10
	maxApprovalNote   = 1000
	maxSubject        = 512
)

// Approval is a question that a party other than the asking one answers. Of equal
// ones about a subject of a sandbox one is pending at most.
type Approval struct {
	ID      ApprovalID
	Team    TeamID
	Sandbox SandboxID // that it is about; empty for none
	Kind    ApprovalKind
	// Subject says what is asked for, for programs, such as the host that is to be
	// reached: a decision that counts for longer answers later questions with it, a
	// decision for this once those that have the same Body too. Empty makes each
	// request a question of its own.
	Subject string
	// Title and Body say it for people, in one line and in full; Risk is the asking
	// party's word.
	Title, Body string
	Risk        Risk
	Asked       Actor
	// Askers are the requesting parties, or all possible ones: none of them decides.
	Askers               []Origins
	CreatedAt, ExpiresAt time.Time

	State     ApprovalState
	Decided   Actor // by which a decision came; not set when none did
	DecidedAt time.Time
	Note      string
	Remember  Remember
	UsedAt    time.Time // when the yes to one time was used
}

// Origins are a party: a key or a person, and what is behind the key. All are empty for
// the server and its operator.
type Origins struct {
	Key      KeyID    `json:"key,omitempty"`
	Person   PersonID `json:"person,omitempty"`   // behind the key, where it goes back to one
	Exchange string   `json:"exchange,omitempty"` // the same of an exchange of tokens: see APIKey
}

// Check says what is wrong with a request for an approval.
func (a Approval) Check() error {
	within := a.ExpiresAt.Sub(a.CreatedAt)
	switch {
	case strings.TrimSpace(a.Title) == "" || len(a.Title) > maxApprovalTitle || Fit(a.Title, maxApprovalTitle) != a.Title:
		return Errorf(Invalid, "title: must have 1 to %d bytes in one line of printable characters", maxApprovalTitle)
	case len(a.Body) > maxApprovalBody || Legible(a.Body, maxApprovalBody) != a.Body:
		return Errorf(Invalid, "body: must have at most %d bytes of printable characters, with line breaks and tabs", maxApprovalBody)
	case len(a.Subject) > maxSubject || Fit(a.Subject, maxSubject) != a.Subject:
		return Errorf(Invalid, "subject: must have at most %d bytes in one line of printable characters", maxSubject)
	case a.Subject != "" && a.Sandbox == "":
		return Errorf(Invalid, "subject: needs a sandboxID: a decision is remembered for a sandbox")
	case a.Risk != LowRisk && a.Risk != MediumRisk && a.Risk != HighRisk:
		return Errorf(Invalid, "risk: must be low, medium or high")
	case within < leastApprovalTime || within > mostApprovalTime:
		return Errorf(Invalid, "timeout: must be %d to %d seconds", int(leastApprovalTime/time.Second), int(mostApprovalTime/time.Second))
	}
	return nil
}

// Decision is an answer to an approval.
type Decision struct {
	Approve  bool
	Remember Remember // empty means once
	Note     string
}

// Apply decides an approval.
func (d Decision) Apply(a *Approval, by Actor, at time.Time) error {
	if d.Remember == "" {
		d.Remember = RememberOnce
	}
	switch {
	case !slices.Contains([]Remember{RememberOnce, RememberHour, RememberSandbox}, d.Remember):
		return Errorf(Invalid, "remember: must be once, hour or sandbox")
	case d.Remember != RememberOnce && a.Subject == "":
		return Errorf(Invalid, "remember: this question has no subject that could come again: it must be once")
	case len(d.Note) > maxApprovalNote || Legible(d.Note, maxApprovalNote) != d.Note:
		return Errorf(Invalid, "note: must have at most %d bytes of printable characters", maxApprovalNote)
	}
	a.State = ApprovalDenied
	if d.Approve {
		a.State = ApprovalApproved
	}
	a.Decided, a.DecidedAt, a.Note, a.Remember = by, at, d.Note, d.Remember
	return nil
}

// Counts reports whether a decision answers the same question at a time.
func (a Approval) Counts(now time.Time) bool {
	age := now.Sub(a.DecidedAt)
	switch {
	case a.State != ApprovalApproved && a.State != ApprovalDenied:
		return false
	case a.Remember == RememberSandbox:
		return true
	case a.Remember == RememberHour:
		return age < time.Hour
	case a.State == ApprovalDenied:
		return age < DeniedFor
	}
	return a.UsedAt.IsZero() && age < UseWithin
}

// Legible makes text from anywhere lines of printable characters, at most so many
// bytes of them.
func Legible(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, ""))
}
