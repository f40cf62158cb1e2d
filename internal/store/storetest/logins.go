package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testUsedTokens(t *testing.T, s store.Store) {
	one, other := [32]byte{1}, [32]byte{2}
	noError(t, s.UseToken(t.Context(), one, at(1), at(10)))
	wantKind(t, s.UseToken(t.Context(), one, at(2), at(10)), cay.Conflict)
	noError(t, s.UseToken(t.Context(), other, at(9), at(20)))
	wantKind(t, s.UseToken(t.Context(), one, at(10), at(20)), cay.Conflict)
	noError(t, s.UseToken(t.Context(), one, at(11), at(20))) // forgotten: it is over by itself
	wantKind(t, s.UseToken(t.Context(), other, at(12), at(20)), cay.Conflict)
}

func testSessions(t *testing.T, s store.Store) {
	p := cay.Person{ID: cay.NewPersonID(), Email: "a@example.com", CreatedAt: at(1)}
	other := cay.Person{ID: cay.NewPersonID(), Email: "b@example.com", CreatedAt: at(1)}
	noError(t, s.AddPerson(t.Context(), p))
	noError(t, s.AddPerson(t.Context(), other))
	x := cay.Session{ID: cay.NewSessionID(), SessionOwner: cay.SessionOwner{Person: p.ID}, Hash: [32]byte{1}, Agent: "cay/1", Address: "192.0.2.1", CreatedAt: at(1), UsedAt: at(1)}
	noError(t, s.AddSession(t.Context(), x))
	twice := x
	twice.ID = cay.NewSessionID()
	wantKind(t, s.AddSession(t.Context(), twice), cay.Conflict)
	twice.Hash, twice.CreatedAt = [32]byte{2}, at(2)
	noError(t, s.AddSession(t.Context(), twice))
	noError(t, s.UseSession(t.Context(), x.ID, at(5)))
	noError(t, s.UseSession(t.Context(), x.ID, at(4))) // of a request that was slower
	x.UsedAt = at(5)
	for _, find := range []func() (cay.Session, error){
		func() (cay.Session, error) { return s.SessionByHash(t.Context(), x.Hash) },
		func() (cay.Session, error) { return s.Session(t.Context(), x.ID) },
	} {
		got, err := find()
		if diff := cmp.Diff(x, got); diff != "" || err != nil {
			t.Errorf("%v, %s", err, diff)
		}
	}
	list, err := s.Sessions(t.Context(), x.SessionOwner)
	if diff := cmp.Diff([]cay.Session{twice, x}, list); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	wantKind(t, s.RemoveSession(t.Context(), cay.SessionOwner{Person: other.ID}, x.ID), cay.NotFound)
	noError(t, s.RemoveSession(t.Context(), x.SessionOwner, twice.ID))
	wantKind(t, s.RemoveSession(t.Context(), x.SessionOwner, twice.ID), cay.NotFound)
	// Those of a key and of the operator are each their owner's alone.
	for i, of := range []cay.SessionOwner{{Key: "k"}, {Operator: "o"}} {
		y := cay.Session{ID: cay.NewSessionID(), SessionOwner: of, Hash: [32]byte{byte(10 + i)}, CreatedAt: at(1), UsedAt: at(1)}
		noError(t, s.AddSession(t.Context(), y))
		list, err := s.Sessions(t.Context(), of)
		if diff := cmp.Diff([]cay.Session{y}, list); diff != "" || err != nil {
			t.Errorf("%+v: %v, %s", of, err, diff)
		}
		wantKind(t, s.RemoveSession(t.Context(), of, x.ID), cay.NotFound)
		wantKind(t, s.RemoveSession(t.Context(), x.SessionOwner, y.ID), cay.NotFound)
		noError(t, s.RemoveSession(t.Context(), of, y.ID))
	}
	noError(t, s.PruneSessions(t.Context(), at(5).Add(cay.SessionIdle-time.Second)))
	if _, err := s.Session(t.Context(), x.ID); err != nil {
		t.Errorf("it is not over: %v", err)
	}
	noError(t, s.PruneSessions(t.Context(), at(5).Add(cay.SessionIdle)))
	_, err = s.Session(t.Context(), x.ID)
	wantKind(t, err, cay.NotFound)
}

func testIdentities(t *testing.T, s store.Store) {
	one, two := addTeam(t, s, "one"), addTeam(t, s, "two")
	p := cay.Person{ID: cay.NewPersonID(), Email: "a@example.com", CreatedAt: at(1)}
	noError(t, s.AddPerson(t.Context(), p))
	_, err := s.PersonOf(t.Context(), "i", "s")
	wantKind(t, err, cay.NotFound)
	noError(t, s.BindPerson(t.Context(), "i", "s", p.ID))
	wantKind(t, s.BindPerson(t.Context(), "i", "other", p.ID), cay.Conflict)
	noError(t, s.BindPerson(t.Context(), "j", "s", p.ID))
	if got, err := s.PersonOf(t.Context(), "i", "s"); got != p.ID || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	for _, teams := range [][]cay.TeamID{{one.ID, two.ID}, {two.ID}, nil} {
		noError(t, s.SetLoginTeams(t.Context(), p.ID, teams))
		if got, err := s.LoginTeams(t.Context(), p.ID); len(got) != len(teams) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
}
