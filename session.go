package cay

import "time"

// SessionID names a session. It opens nothing.
type SessionID string

// NewSessionID returns a fresh UUID.
func NewSessionID() SessionID { return SessionID(uuid()) }

// How long a session lasts: without being used, and at most.
const (
	SessionIdle = 12 * time.Hour
	SessionMost = 7 * 24 * time.Hour
)

// SessionOwner is the party that a session stands for; one field is set.
type SessionOwner struct {
	Person PersonID
	Key    KeyID
	// Operator marks the operator's, by the token that opened it: another token
	// ends it.
	Operator string
}

// Session is the record of a login. Its token is told once and never stored;
// Hash is SHA-256 of it.
type Session struct {
	ID SessionID
	SessionOwner
	Hash      [32]byte
	Agent     string // User-Agent of the login, shortened
	Address   string // from where
	CreatedAt time.Time
	UsedAt    time.Time // to the minute
}

// Ends is when the session is over, if it is not used any more.
func (s Session) Ends() time.Time {
	idle, most := s.UsedAt.Add(SessionIdle), s.CreatedAt.Add(SessionMost)
	if idle.Before(most) {
		return idle
	}
	return most
}
