package storetest

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func auditRow(team cay.TeamID, ms int, action string) cay.AuditRow {
	return cay.AuditRow{
		At: at(ms), Actor: cay.Actor{Kind: cay.ActorKey, ID: "k" + action, Name: "ü\""}, Team: team, Action: action, Target: "t" + action,
		Outcome: cay.OutcomeFailed, Request: "r", Address: "192.0.2.1", Agent: "a/1", Details: map[string]string{"b": "2", "a": "ü"},
	}
}

func testAudit(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	seq, hash, err := s.LastAudit(t.Context())
	noError(t, err)
	if seq != 0 || hash != (cay.Hash{}) {
		t.Fatalf("an empty chain ends with %d %s", seq, hash)
	}
	box := sandbox(team.ID, 1)
	killed := eventOf(box, 13, cay.SandboxKilled)
	killed.Actor, killed.From = cay.Actor{Kind: cay.ActorKey, ID: "k", Name: "n"}, &cay.Origin{Request: "r1", Address: "192.0.2.2", Agent: "x"}
	noError(t, s.AddEvents(t.Context(), eventOf(box, 10, cay.SandboxCreated), eventOf(box, 12, cay.SandboxRunning), killed))
	noError(t, s.AddAudit(t.Context(), auditRow(other.ID, 20, "x"), auditRow(team.ID, 21, "y"), auditRow("", 22, "z")))
	all, err := s.Audit(t.Context(), store.AuditQuery{})
	noError(t, err)
	chained(t, all, 5) // the event of a state on the way gives none
	created, gone := all[0], all[1]
	if created.Actor.Kind != cay.ActorSystem || created.Target != string(box.ID) || created.Outcome != cay.OutcomeOK || created.Details["reason"] != cay.ReasonAsked {
		t.Errorf("an event without an actor gives %+v", created)
	}
	if gone.Actor != killed.Actor || gone.Request != "r1" || gone.Address != "192.0.2.2" || gone.Agent != "x" || !killed.From.Told("sandbox.killed") {
		t.Errorf("an event with an actor gives %+v", gone)
	}
	want := auditRow(team.ID, 21, "y")
	want.Seq, want.Prev, want.Hash = all[3].Seq, all[3].Prev, all[3].Hash
	same(t, "a row", all[3], want)
	testAuditQueries(t, s, team.ID, all)
	testAuditHeads(t, s, all)
}

// chained looks whether rows are a chain.
func chained(t *testing.T, rows []cay.AuditRow, n int) {
	t.Helper()
	if len(rows) != n {
		t.Fatalf("%d rows, not %d", len(rows), n)
	}
	var prev cay.Hash
	for i, r := range rows {
		if r.Seq != int64(i+1) || r.Prev != prev || r.Hash != r.Sum() {
			t.Fatalf("row %d does not follow: %+v", i+1, r)
		}
		prev = r.Hash
	}
}

func testAuditQueries(t *testing.T, s store.Store, team cay.TeamID, all []cay.AuditRow) {
	for _, tt := range []struct {
		name string
		q    store.AuditQuery
		want []int64
	}{
		{"a team's", store.AuditQuery{Team: team}, []int64{1, 2, 4}},
		{"the newest", store.AuditQuery{Team: team, Newest: true, Limit: 2}, []int64{4, 2}},
		{"the page after", store.AuditQuery{Team: team, Newest: true, Before: 4}, []int64{2, 1}},
		{"after", store.AuditQuery{After: 3}, []int64{4, 5}},
		{"by actor", store.AuditQuery{Actor: "ky"}, []int64{4}},
		{"by action", store.AuditQuery{Action: "z"}, []int64{5}},
		{"by target", store.AuditQuery{Team: team, Target: "tx"}, nil},
		{"by time", store.AuditQuery{From: at(13), To: at(22)}, []int64{2, 3, 4}},
	} {
		rows, err := s.Audit(t.Context(), tt.q)
		noError(t, err)
		var got []int64
		for _, r := range rows {
			got = append(got, r.Seq)
		}
		same(t, tt.name, got, tt.want)
	}
}

func testAuditHeads(t *testing.T, s store.Store, all []cay.AuditRow) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	var heads []cay.AuditHead
	for i := range 3 {
		h := cay.AuditHead{Seq: all[i].Seq, Hash: all[i].Hash, At: at(1000 * i)}
		h.Sign(key)
		noError(t, s.AddAuditHead(t.Context(), h))
		heads = append(heads, h)
	}
	wantKind(t, s.AddAuditHead(t.Context(), heads[0]), cay.Conflict)
	got, err := s.AuditHeads(t.Context(), 2, 10)
	noError(t, err)
	same(t, "heads", got, heads[1:])
	if !got[0].Genuine() {
		t.Error("a head is not genuine when it is read")
	}
	last, err := s.LastAuditHead(t.Context(), at(2000), false)
	noError(t, err)
	same(t, "the last head of before", last, heads[1])
	_, err = s.LastAuditHead(t.Context(), time.Time{}, true)
	wantKind(t, err, cay.NotFound)
	noError(t, s.DropAudit(t.Context(), 2, auditRow("", 30, "dropped")))
	n, err := s.PruneAudit(t.Context(), at(0))
	noError(t, err)
	same(t, "pruned", n, 2)
	rows, err := s.Audit(t.Context(), store.AuditQuery{})
	noError(t, err)
	if len(rows) != 4 || rows[0].Seq != 3 || rows[3].Seq != 6 || rows[3].Prev != rows[2].Hash {
		t.Errorf("left are %+v", rows)
	}
	got, err = s.AuditHeads(t.Context(), 0, 10)
	noError(t, err)
	same(t, "heads that are left", got, heads[1:]) // one of the day that is dropped
}
