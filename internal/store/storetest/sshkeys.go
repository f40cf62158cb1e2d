package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testSSHKeys(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	k := cay.SSHKey{
		ID: cay.NewSSHKeyID(), Team: team.ID, Name: "laptop", Fingerprint: "SHA256:x", Public: "ssh-ed25519 x", CreatedAt: at(1), AddedBy: &cay.Origins{Key: "k", Exchange: "x"},
	}
	noError(t, s.AddSSHKey(t.Context(), k, 2))
	twice := k
	twice.ID = cay.NewSSHKeyID()
	if err := s.AddSSHKey(t.Context(), twice, 2); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a key twice: %v", err)
	}
	opens := func(team cay.TeamID, fingerprint string, want bool) {
		t.Helper()
		if got, err := s.SSHKeyOpens(t.Context(), team, fingerprint); got != want || err != nil {
			t.Errorf("opens: %t, %v, want %t", got, err, want)
		}
	}
	opens(team.ID, "SHA256:x", true)
	got, err := s.SSHKeyOf(t.Context(), team.ID, "SHA256:x")
	noError(t, err)
	same(t, "the key of a fingerprint", got, k)
	_, err = s.SSHKeyOf(t.Context(), other.ID, "SHA256:x")
	wantKind(t, err, cay.NotFound)
	opens(team.ID, "SHA256:y", false)
	opens(other.ID, "SHA256:x", false)
	twice.Team = other.ID
	noError(t, s.AddSSHKey(t.Context(), twice, 2))
	opens(other.ID, "SHA256:x", true)
	list, err := s.SSHKeys(t.Context(), team.ID)
	noError(t, err)
	if diff := cmp.Diff([]cay.SSHKey{k}, list); diff != "" {
		t.Error(diff)
	}
	if err := s.RemoveSSHKey(t.Context(), other.ID, k.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("removed by another team: %v", err)
	}
	noError(t, s.RemoveSSHKey(t.Context(), team.ID, k.ID))
	opens(team.ID, "SHA256:x", false)
	opens(other.ID, "SHA256:x", true)
}
