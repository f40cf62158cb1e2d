package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testPeople(t *testing.T, s store.Store) {
	ann := cay.Person{ID: cay.NewPersonID(), Email: "ann@example.com", Name: "Ann", CreatedAt: at(1)}
	bob := cay.Person{ID: cay.NewPersonID(), Email: "bob@example.com", CreatedAt: at(2)}
	noError(t, s.AddPerson(t.Context(), bob))
	noError(t, s.AddPerson(t.Context(), ann))
	wantKind(t, s.AddPerson(t.Context(), cay.Person{ID: "x", Email: ann.Email}), cay.Conflict)
	list, err := s.People(t.Context())
	noError(t, err)
	same(t, "the list", list, []cay.Person{ann, bob})
	got, err := s.PersonByEmail(t.Context(), ann.Email)
	noError(t, err)
	same(t, "the person", got, ann)
	_, err = s.PersonByEmail(t.Context(), "none@example.com")
	wantKind(t, err, cay.NotFound)
	ann.Name, ann.DisabledAt = "Anna", at(3)
	noError(t, s.UpdatePerson(t.Context(), ann))
	got, err = s.Person(t.Context(), ann.ID)
	noError(t, err)
	same(t, "the changed person", got, ann)
	bob.Email = ann.Email
	wantKind(t, s.UpdatePerson(t.Context(), bob), cay.Conflict)
	wantKind(t, s.UpdatePerson(t.Context(), cay.Person{ID: "none"}), cay.NotFound)
	testMembers(t, s, ann.ID, bob.ID)
	testAccessTokens(t, s, ann.ID, bob.ID)
}

func testMembers(t *testing.T, s store.Store, ann, bob cay.PersonID) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	first := cay.Member{Team: a.ID, Person: ann, Role: cay.Owner, AddedAt: at(1)}
	second := cay.Member{Team: a.ID, Person: bob, Role: cay.Viewer, AddedAt: at(2)}
	other := cay.Member{Team: b.ID, Person: ann, Role: cay.Developer, AddedAt: at(3)}
	for _, m := range []cay.Member{second, first, other} {
		noError(t, s.AddMember(t.Context(), m))
	}
	wantKind(t, s.AddMember(t.Context(), first), cay.Conflict)
	list, err := s.Members(t.Context(), a.ID)
	noError(t, err)
	same(t, "members", list, []cay.Member{first, second})
	list, err = s.Memberships(t.Context(), ann)
	noError(t, err)
	same(t, "teams of a person", list, []cay.Member{first, other})
	noError(t, s.SetRole(t.Context(), a.ID, bob, cay.Developer))
	wantKind(t, s.SetRole(t.Context(), b.ID, bob, cay.Developer), cay.NotFound)
	noError(t, s.RemoveMember(t.Context(), a.ID, ann))
	wantKind(t, s.RemoveMember(t.Context(), a.ID, ann), cay.NotFound)
	second.Role = cay.Developer
	list, err = s.Members(t.Context(), a.ID)
	noError(t, err)
	same(t, "members who are left", list, []cay.Member{second})
	noError(t, s.RemoveTeam(t.Context(), b.ID, at(4)))
	list, err = s.Memberships(t.Context(), ann)
	noError(t, err)
	if len(list) != 0 {
		t.Errorf("a removed team has %v", list)
	}
}

func testAccessTokens(t *testing.T, s store.Store, ann, bob cay.PersonID) {
	token := cay.AccessToken{ID: "t1", Person: ann, Name: "laptop", Hash: [32]byte{1}, Mask: "sk_e2b_1…2", CreatedAt: at(1)}
	noError(t, s.AddAccessToken(t.Context(), token))
	wantKind(t, s.AddAccessToken(t.Context(), cay.AccessToken{ID: "t2", Person: bob, Hash: token.Hash}), cay.Conflict)
	got, err := s.AccessTokenByHash(t.Context(), token.Hash)
	noError(t, err)
	same(t, "the token", got, token)
	list, err := s.AccessTokens(t.Context(), ann)
	noError(t, err)
	same(t, "the list", list, []cay.AccessToken{token})
	wantKind(t, s.RemoveAccessToken(t.Context(), bob, token.ID), cay.NotFound)
	noError(t, s.RemoveAccessToken(t.Context(), ann, token.ID))
	_, err = s.AccessTokenByHash(t.Context(), token.Hash)
	wantKind(t, err, cay.NotFound)
}
