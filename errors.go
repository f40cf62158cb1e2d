package cay

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind says what went wrong in words that every face can translate: to an
// HTTP status, a Connect code or an exit status.
type Kind string

// The kinds. A face that meets an unknown one treats it as Internal.
const (
	Invalid         Kind = "invalid"         // the caller's request is wrong: 400
	Unauthenticated Kind = "unauthenticated" // no key, or a wrong one: 401
	Denied          Kind = "denied"          // known caller, not allowed: 403
	NotFound        Kind = "not_found"       // no such thing for this team: 404
	Conflict        Kind = "conflict"        // the thing's state forbids it: 409
	Exhausted       Kind = "exhausted"       // a limit or quota is reached: 429
	Internal        Kind = "internal"        // a bug, or a part that broke: 500
	Unsupported     Kind = "unsupported"     // not offered here: 501
	Unavailable     Kind = "unavailable"     // busy or away, try again: 503
	NoSpace         Kind = "no_space"        // a disk is full: 507
)

// Error is the one error type of Cay. Msg is for the caller and names the
// field or thing at fault; Hint says what to do next; Err is the cause, for
// logs only.
type Error struct {
	Kind Kind
	Code string // one of the Code constants, or empty
	Msg  string
	Hint string
	Err  error
}

func (e *Error) Error() string {
	s := e.Msg
	if s == "" {
		s = string(e.Kind)
	}
	if e.Err != nil && !strings.HasSuffix(s, e.Err.Error()) {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error of a kind. A %w in the format becomes its cause as
// usual; callers see its text then, so use Wrap where they must not.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// Wrap makes an error of a kind around a cause that callers do not see.
func Wrap(kind Kind, cause error, format string, args ...any) *Error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...), Err: cause}
}

// WithHint returns a copy that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithCode returns a copy that carries a machine-readable code.
func (e *Error) WithCode(code string) *Error {
	c := *e
	c.Code = code
	return &c
}

// CodeOf returns the code of any error; empty when it has none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// KindOf finds the kind of any error. Nil has none; a cancelled or late
// context is Unavailable; an error of another package is Internal.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Unavailable
	}
	return Internal
}
