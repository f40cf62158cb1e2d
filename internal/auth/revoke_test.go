package auth_test

import (
	"testing"

	"github.com/cay-run/cay/internal/auth"
)

// Connections of a key end when the key is removed, also in the moment between
// its check and its use; streams of other keys go on.
func TestWhile(t *testing.T) {
	s := openStore(t)
	ctx := t.Context()
	team, _, err := auth.FirstStart(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	a := auth.New(s)
	_, one, err := a.Issue(ctx, team.ID, "one")
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := a.Issue(ctx, team.ID, "other")
	if err != nil {
		t.Fatal(err)
	}
	first, done := a.While(ctx, team.ID, one.ID)
	defer done()
	second, done := a.While(ctx, team.ID, one.ID)
	defer done()
	theirs, done := a.While(ctx, team.ID, other.ID)
	defer done()
	if first.Err() != nil || second.Err() != nil {
		t.Error("it ended with its key there")
	}
	if err := a.Remove(ctx, team.ID, one.ID); err != nil {
		t.Fatal(err)
	}
	late, done := a.While(ctx, team.ID, one.ID)
	defer done()
	if first.Err() == nil || second.Err() == nil || late.Err() == nil {
		t.Error("it outlived its key")
	}
	if theirs.Err() != nil {
		t.Error("another key's use ended")
	}
}
