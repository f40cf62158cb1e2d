package cay

import (
	"crypto/rand"
	"fmt"
	"strings"
)

// Ids are opaque, lower-case and safe in a host label and in a file name. All
// ids of one kind have one length, because the engine matches names by prefix.
type (
	// TeamID names the owner of a row.
	TeamID string
	// SandboxID names a sandbox for life: its URL, tokens and policy hang on it.
	SandboxID string
	// InstanceID names one incarnation of a sandbox: one engine container, one
	// cgroup, one network slot.
	InstanceID string
	// TemplateID names a template; its builds come and go.
	TemplateID string
	// BuildID names one build of a template. It is a UUID, as E2B's wire wants.
	BuildID string
	// SnapshotID names an immutable snapshot.
	SnapshotID string
	// NodeID names a machine that runs sandboxes.
	NodeID string
	// KeyID names an API key; it is not the key.
	KeyID string
	// BudgetID names a budget.
	BudgetID string
	// PersonID names a person, who may be a member of many teams.
	PersonID string
)

const (
	alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength = 20
)

// NewSandboxID returns a fresh id: "i" and 20 characters.
func NewSandboxID() SandboxID { return SandboxID("i" + random(idLength)) }

// NewInstanceID returns a fresh id: "n" and 20 characters.
func NewInstanceID() InstanceID { return InstanceID("n" + random(idLength)) }

// NewTemplateID returns a fresh id of 20 characters.
func NewTemplateID() TemplateID { return TemplateID(random(idLength)) }

// NewSnapshotID returns a fresh id: "s" and 20 characters.
func NewSnapshotID() SnapshotID { return SnapshotID("s" + random(idLength)) }

// NewTeamID returns a fresh UUID.
func NewTeamID() TeamID { return TeamID(uuid()) }

// NewKeyID returns a fresh UUID.
func NewKeyID() KeyID { return KeyID(uuid()) }

// NewPersonID returns a fresh UUID.
func NewPersonID() PersonID { return PersonID(uuid()) }

// NewBudgetID returns a fresh UUID.
func NewBudgetID() BudgetID { return BudgetID(uuid()) }

// NewBuildID returns a fresh UUID.
func NewBuildID() BuildID { return BuildID(uuid()) }

// NewAssignmentID returns a fresh UUID.
func NewAssignmentID() string { return uuid() }

// ValidUUID reports whether s is a UUID in lower case.
func ValidUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// ValidID reports whether s could be the id of a sandbox, an instance, a
// template or a snapshot: lower-case letters and digits, at most 64 of them.
func ValidID(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, alphabet) == ""
}

// random draws n characters of the alphabet without bias.
func random(n int) string {
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		rand.Read(buf[:]) // never fails: it ends the program instead
		for _, b := range buf {
			if b < 252 && len(out) < n { // 252 = 7 × 36
				out = append(out, alphabet[b%36])
			}
		}
	}
	return string(out)
}

func uuid() string {
	var b [16]byte
	rand.Read(b[:])
	return uuidOf(b, 4)
}

// uuidOf makes a UUID of a version of 16 bytes.
func uuidOf(b [16]byte, version byte) string {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
