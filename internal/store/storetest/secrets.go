package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testSecrets(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "one"), addTeam(t, s, "two")
	x := cay.Secret{
		ID: cay.NewSecretID(), Team: team.ID, Name: "key", Version: 1, Metadata: map[string]string{"a": "b"},
		Sealed: "sealed", CreatedAt: at(1), UpdatedAt: at(1),
	}
	noError(t, s.AddSecret(t.Context(), x))
	twice := x
	twice.ID = cay.NewSecretID()
	if err := s.AddSecret(t.Context(), twice); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a name twice: %v", err)
	}
	twice.Team = other.ID
	noError(t, s.AddSecret(t.Context(), twice))
	for _, ref := range []string{"key", string(x.ID)} {
		got, err := s.Secret(t.Context(), team.ID, ref)
		if diff := cmp.Diff(x, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", ref, err, diff)
		}
	}
	if _, err := s.Secret(t.Context(), other.ID, string(x.ID)); cay.KindOf(err) != cay.NotFound {
		t.Errorf("another team's: %v", err)
	}
	x.Version, x.Sealed, x.Metadata, x.UpdatedAt = 2, "again", nil, at(2)
	noError(t, s.UpdateSecret(t.Context(), x))
	if err := s.UpdateSecret(t.Context(), x); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the same version twice: %v", err)
	}
	list, err := s.Secrets(t.Context(), team.ID)
	noError(t, err)
	if diff := cmp.Diff([]cay.Secret{x}, list); diff != "" {
		t.Error(diff)
	}
	if err := s.RemoveSecret(t.Context(), other.ID, x.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("removed by another team: %v", err)
	}
	noError(t, s.RemoveSecret(t.Context(), team.ID, x.ID))
	if err := s.RemoveSecret(t.Context(), team.ID, x.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("removed twice: %v", err)
	}
}
