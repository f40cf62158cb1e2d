package storetest

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// approval has every field that is recorded with a question.
func approval(box cay.Sandbox, subject string, created int) cay.Approval {
	return cay.Approval{
		ID: cay.NewApprovalID(), Team: box.Team, Sandbox: box.ID, Kind: cay.EgressApproval, Subject: subject, Title: "reach \"ü\"", Body: "all\nof it",
		Risk: cay.HighRisk, Asked: cay.Actor{Kind: cay.ActorSandbox, ID: string(box.ID), Name: "its name"}, Askers: []cay.Origins{{Key: "k", Person: "p", Exchange: "x"}},
		CreatedAt: at(created), ExpiresAt: at(created + 1000), State: cay.ApprovalPending,
	}
}

func testApprovals(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	box, second, theirs := sandbox(team.ID, 1), sandbox(team.ID, 2), sandbox(other.ID, 3)
	for _, b := range []cay.Sandbox{box, second, theirs} {
		noError(t, s.AddSandbox(ctx, b))
	}
	add := func(x cay.Approval) cay.Approval {
		t.Helper()
		out, joined, err := s.AddApproval(ctx, x, 2, 3)
		noError(t, err)
		if joined {
			t.Fatalf("%s was there", x.Subject)
		}
		same(t, "a question", out, x)
		return x
	}
	one, two := add(approval(box, "a.example", 1)), add(approval(box, "b.example", 2))
	foreign := add(approval(theirs, "a.example", 4))
	joins, joined, err := s.AddApproval(ctx, approval(box, "a.example", 3), 2, 3)
	noError(t, err)
	same(t, "the same question", joins, one)
	if !joined {
		t.Error("the same question is another one")
	}
	more := approval(box, "b.example", 3)
	more.Askers = []cay.Origins{{Key: "k2"}, {Key: "k", Person: "p", Exchange: "x"}}
	two.Askers = append(two.Askers, cay.Origins{Key: "k2"})
	joins, _, err = s.AddApproval(ctx, more, 2, 3)
	noError(t, err)
	same(t, "a question that another party asks too", joins, two)
	for range 2 {
		noError(t, s.AddTokenHolder(ctx, box.ID, cay.Origins{Key: "k", Person: "p", Exchange: "x"}))
	}
	noError(t, s.AddTokenHolder(ctx, box.ID, cay.Origins{Person: "p"}))
	noError(t, s.AddTokenHolder(ctx, second.ID, cay.Origins{Key: "k"}))
	holders, err := s.TokenHolders(ctx, box.ID)
	noError(t, err)
	same(t, "those that have a token", holders, []cay.Origins{{Person: "p"}, {Key: "k", Person: "p", Exchange: "x"}})
	_, _, err = s.AddApproval(ctx, approval(box, "c.example", 3), 2, 9)
	wantKind(t, err, cay.Exhausted) // of the sandbox
	three := add(approval(second, "a.example", 3))
	_, _, err = s.AddApproval(ctx, approval(second, "b.example", 3), 2, 3)
	wantKind(t, err, cay.Exhausted) // of the team

	got, err := s.Approval(ctx, team.ID, one.ID)
	noError(t, err)
	same(t, "an approval", got, one)
	_, err = s.Approval(ctx, team.ID, foreign.ID)
	wantKind(t, err, cay.NotFound)
	got, err = s.ApprovalOf(ctx, foreign.ID)
	noError(t, err)
	same(t, "of any team", got, foreign)
	list := func(what string, q store.ApprovalQuery, want ...cay.Approval) {
		t.Helper()
		q.Team, q.Limit = team.ID, max(q.Limit, 2)
		list, err := s.Approvals(ctx, q)
		noError(t, err)
		same(t, what, list, want)
	}
	list("the newest", store.ApprovalQuery{}, three, two)
	list("after those", store.ApprovalQuery{After: &store.ApprovalCursor{At: two.CreatedAt, ID: two.ID}}, one)
	list("of a sandbox", store.ApprovalQuery{Sandbox: second.ID}, three)

	_, err = s.LastDecision(ctx, one)
	wantKind(t, err, cay.NotFound)
	decided := one
	decided.State, decided.Decided, decided.DecidedAt, decided.Note, decided.Remember = cay.ApprovalApproved, cay.Actor{Kind: cay.ActorPerson, ID: "p2", Name: "Ann"}, at(50), "yes", cay.RememberOnce
	stranger := decided
	stranger.Team = other.ID
	wantKind(t, s.EndApproval(ctx, stranger), cay.Conflict)
	late := decided
	late.DecidedAt = one.ExpiresAt
	wantKind(t, s.EndApproval(ctx, late), cay.Conflict)
	noError(t, s.EndApproval(ctx, decided))
	no := decided
	no.State = cay.ApprovalDenied
	wantKind(t, s.EndApproval(ctx, no), cay.Conflict)
	got, err = s.Approval(ctx, team.ID, one.ID)
	noError(t, err)
	same(t, "a decided one", got, decided)
	list("pending", store.ApprovalQuery{State: cay.ApprovalPending}, three, two)
	last := func(want cay.Approval) {
		t.Helper()
		got, err := s.LastDecision(ctx, one)
		noError(t, err)
		same(t, "the last decision", got, want)
	}
	last(decided)
	for _, change := range []func(*cay.Approval){
		func(q *cay.Approval) { q.Team = other.ID }, func(q *cay.Approval) { q.Sandbox = second.ID }, func(q *cay.Approval) { q.Kind = cay.SecretApproval },
		func(q *cay.Approval) { q.Subject = "" }, func(q *cay.Approval) { q.Subject = "b.example" }, func(q *cay.Approval) { q.Body = "another" },
	} {
		q := one
		change(&q)
		_, err := s.LastDecision(ctx, q)
		wantKind(t, err, cay.NotFound)
	}
	noError(t, s.UseApproval(ctx, one.ID, at(60)))
	wantKind(t, s.UseApproval(ctx, one.ID, at(61)), cay.Conflict)
	decided.UsedAt = at(60)
	last(decided)
	again := add(approval(box, "a.example", 70)) // the question may come again
	again.State, again.DecidedAt, again.Remember = cay.ApprovalDenied, at(80), cay.RememberSandbox
	noError(t, s.EndApproval(ctx, again))
	last(again)
	unlike := one
	unlike.Body = "another"
	got, err = s.LastDecision(ctx, unlike)
	noError(t, err)
	same(t, "one for longer answers whatever the body is", got, again)

	lapsed := func(now int, want ...cay.Approval) {
		t.Helper()
		list, err := s.LapsedApprovals(ctx, at(now), 9)
		noError(t, err)
		same(t, "lapsed", list, append([]cay.Approval(nil), want...))
	}
	lapsed(1001)
	next, err := s.NextLapse(ctx)
	noError(t, err)
	same(t, "the next end", next, at(1002))
	second.State, second.Cause = cay.Killed, cay.CauseAsked
	noError(t, s.UpdateSandbox(ctx, second))
	lapsed(1001, three) // its sandbox is over
	lapsed(1002, two, three)
	three.State, three.DecidedAt = cay.ApprovalExpired, at(90)
	noError(t, s.EndApproval(ctx, three))
	two.State, two.DecidedAt = cay.ApprovalExpired, at(1002)
	noError(t, s.EndApproval(ctx, two)) // its time is over, which is what is recorded
	lapsed(1002)
	lapsed(1004, foreign)

	n, err := s.PruneApprovals(ctx, at(1000), 9)
	noError(t, err)
	if n != 3 { // not what counts for the life of a sandbox, and not what waits
		t.Errorf("%d were forgotten", n)
	}
	last(again)
	box.State, box.Cause = cay.Killed, cay.CauseAsked
	noError(t, s.UpdateSandbox(ctx, box))
	if n, err = s.PruneApprovals(ctx, at(0), 0); err != nil || n != 1 {
		t.Errorf("%d were forgotten then, %v", n, err)
	}
	if _, err := s.ApprovalOf(ctx, foreign.ID); err != nil {
		t.Errorf("one that waits was forgotten: %v", err)
	}
}

// testApprovalsTogether has many ask and decide at once: of equal questions there
// is one, and one of two decisions counts.
func testApprovalsTogether(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	box := sandbox(team.ID, 1)
	noError(t, s.AddSandbox(ctx, box))
	const callers = 8
	ids := make(chan cay.ApprovalID, callers)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			x, _, err := s.AddApproval(ctx, approval(box, "a.example", 1), 5, 9)
			if err != nil {
				t.Error(err)
			}
			ids <- x.ID
		})
	}
	all.Wait()
	first := <-ids
	for range callers - 1 {
		if id := <-ids; id != first {
			t.Errorf("two questions are one: %s and %s", first, id)
		}
	}
	var won sync.Map
	for i := range callers {
		all.Go(func() {
			x := approval(box, "a.example", 1)
			x.ID, x.State, x.DecidedAt, x.Note = first, cay.ApprovalApproved, at(5), strconv.Itoa(i)
			if err := s.EndApproval(ctx, x); err == nil {
				won.Store(x.Note, true)
			} else if cay.KindOf(err) != cay.Conflict {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got, err := s.ApprovalOf(ctx, first)
	noError(t, err)
	n := 0
	won.Range(func(note, _ any) bool { n++; return note == got.Note })
	if n != 1 {
		t.Errorf("%d decisions count, and the record has that of %s", n, got.Note)
	}
	used := 0
	var mu sync.Mutex
	for range callers {
		all.Go(func() {
			if s.UseApproval(ctx, first, time.Now()) == nil {
				mu.Lock()
				defer mu.Unlock()
				used++
			}
		})
	}
	all.Wait()
	if used != 1 {
		t.Errorf("one yes was used %d times", used)
	}
}
