package approvals

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// clear seals nothing: approvals have no secrets.
type clear struct{}

func (clear) Seal(plain []byte, _ string) string  { return string(plain) }
func (clear) Open(text, _ string) ([]byte, error) { return []byte(text), nil }

// stage has a team with a sandbox, and time that passes at once.
type stage struct {
	*Approvals
	t       *testing.T
	who     cay.Caller // decides
	box     cay.Sandbox
	records *store.DB
}

func world(t *testing.T, use func(s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		records := storetest.OpenSealed(t, filepath.Join(t.TempDir(), "cay.db"), clear{})
		team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: ledger.Now()}
		box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: "t", State: cay.Running, Alias: "base", Key: "k", StartedAt: ledger.Now()}
		if err := records.AddTeam(ctx, team); err != nil {
			t.Fatal(err)
		}
		if err := records.AddSandbox(ctx, box); err != nil {
			t.Fatal(err)
		}
		x := New(Config{Ledger: ledger.New(ledger.Config{Store: records}), Store: records, Member: true})
		var work sync.WaitGroup
		work.Go(func() { x.Work(ctx) })
		defer func() { stop(); work.Wait(); records.Close() }()
		use(&stage{x, t, cay.ForTeam(team.ID), box, records})
	})
}

// hold is what a sandbox's connection to a host waits for.
func (s *stage) hold(host string, within time.Duration) cay.Approval {
	s.t.Helper()
	x, err := s.Hold(s.t.Context(), s.who.Team, s.question(host), within)
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

func (s *stage) question(host string) Question {
	return Question{Sandbox: s.box.ID, Kind: cay.EgressApproval, Subject: host, Title: "Reach " + host}
}

func (s *stage) decide(id cay.ApprovalID, d cay.Decision) {
	s.t.Helper()
	if _, err := s.Decide(s.t.Context(), s.who, id, d); err != nil {
		s.t.Fatal(err)
	}
}

// later decides what waits after a while.
func (s *stage) later(d cay.Decision) {
	go func() {
		time.Sleep(10 * time.Second)
		list, err := s.List(s.t.Context(), s.who, Query{State: cay.ApprovalPending, Limit: 100})
		if err != nil || len(list) != 1 {
			s.t.Errorf("%d wait, %v", len(list), err)
			return
		}
		s.decide(list[0].ID, d)
	}()
}

// A decision answers the same question for as long as it says.
func TestRemembered(t *testing.T) {
	const asked, yes, no = cay.ApprovalPending, cay.ApprovalApproved, cay.ApprovalDenied
	type then struct {
		after time.Duration // the one before
		host  string
		want  cay.ApprovalState // pending is a question anew
	}
	for name, tt := range map[string]struct {
		d    cay.Decision
		then []then
	}{
		"yes, once":              {cay.Decision{Approve: true}, []then{{0, "a", asked}}},
		"yes, for an hour":       {cay.Decision{Approve: true, Remember: cay.RememberHour}, []then{{0, "a", yes}, {59 * time.Minute, "a", yes}, {0, "b", asked}, {time.Minute, "a", asked}}},
		"yes, for the sandbox":   {cay.Decision{Approve: true, Remember: cay.RememberSandbox}, []then{{0, "a", yes}, {3 * time.Hour, "a", yes}}},
		"no":                     {cay.Decision{}, []then{{0, "a", no}, {50 * time.Second, "a", no}, {10 * time.Second, "a", asked}}},
		"no, for an hour":        {cay.Decision{Remember: cay.RememberHour}, []then{{30 * time.Minute, "a", no}, {30 * time.Minute, "a", asked}}},
		"no, for the sandbox":    {cay.Decision{Remember: cay.RememberSandbox}, []then{{3 * time.Hour, "a", no}, {0, "b", asked}}},
		"a note changes nothing": {cay.Decision{Approve: true, Note: "go on"}, []then{{0, "a", asked}}},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(s *stage) {
				s.later(tt.d)
				first := s.hold("a", time.Minute)
				if want := map[bool]cay.ApprovalState{true: yes, false: no}[tt.d.Approve]; first.State != want {
					t.Fatalf("the first is %s", first.State)
				}
				for i, then := range tt.then {
					time.Sleep(then.after)
					if x := s.hold(then.host, time.Second); x.State != then.want {
						t.Errorf("%d: %s is %s, want %s", i, then.host, x.State, then.want)
					}
				}
			})
		})
	}
}

// A yes to one time is kept for the party that waits no more, once, for a while.
func TestOnce(t *testing.T) {
	world(t, func(s *stage) {
		gone := s.hold("a", time.Second) // gives up
		s.decide(gone.ID, cay.Decision{Approve: true})
		time.Sleep(14 * time.Minute)
		if x := s.hold("a", 0); x.State != cay.ApprovalApproved || x.ID != gone.ID {
			t.Errorf("it comes again and is told %+v", x)
		}
		if x := s.hold("a", 0); x.State != cay.ApprovalPending {
			t.Errorf("the yes counts twice: %+v", x)
		}
		late := s.hold("b", 0)
		s.decide(late.ID, cay.Decision{Approve: true})
		time.Sleep(15 * time.Minute)
		if x := s.hold("b", 0); x.State != cay.ApprovalPending || x.ID == late.ID {
			t.Errorf("the yes counts too late: %+v", x)
		}
	})
}

// Connections that wait for one host have one question, and all get its answer.
func TestTogether(t *testing.T) {
	world(t, func(s *stage) {
		const callers = 5
		got := make(chan cay.Approval, callers)
		for range callers {
			go func() { got <- s.hold("a", time.Minute) }()
		}
		synctest.Wait()
		list, err := s.List(s.t.Context(), s.who, Query{Limit: 100})
		if err != nil || len(list) != 1 {
			t.Fatalf("%d questions, %v", len(list), err)
		}
		s.decide(list[0].ID, cay.Decision{Approve: true})
		for range callers {
			if x := <-got; x.State != cay.ApprovalApproved {
				t.Errorf("one is told %s", x.State)
			}
		}
		if x := s.hold("a", 0); x.State != cay.ApprovalPending {
			t.Errorf("the yes counts again: %+v", x)
		}
	})
}

// The node that ends approvals for all finds those that another one has recorded.
func TestApprovalsOfOtherNodes(t *testing.T) {
	world(t, func(s *stage) {
		synctest.Wait() // it has looked, and none waits
		other := New(Config{Ledger: s.ledger, Store: s.records})
		x, err := other.Hold(s.t.Context(), s.who.Team, s.question("a"), time.Millisecond)
		if err != nil || x.State != cay.ApprovalPending {
			t.Fatal(x, err)
		}
		s.box.State = cay.Killed
		if err := s.records.UpdateSandbox(s.t.Context(), s.box); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lookAgain)
		synctest.Wait()
		if x, err := s.records.ApprovalOf(s.t.Context(), x.ID); err != nil || x.State != cay.ApprovalExpired {
			t.Errorf("its sandbox is over: %+v, %v", x, err)
		}
	})
}

// No decision in time is a no, which the record and the events say then.
func TestNoAnswerIsANo(t *testing.T) {
	world(t, func(s *stage) {
		x := s.hold("a", time.Second)
		if x.State != cay.ApprovalPending {
			t.Fatalf("it is %s at once", x.State)
		}
		time.Sleep(cay.UsualApprovalTime - 2*time.Second)
		if y := s.hold("a", 0); y.ID != x.ID || y.State != cay.ApprovalPending {
			t.Errorf("shortly before: %+v", y)
		}
		if y, err := s.Wait(s.t.Context(), s.who, x.ID, time.Hour); err != nil || y.State != cay.ApprovalExpired {
			t.Errorf("one that waits is told %+v, %v", y, err)
		}
		_, err := s.Decide(s.t.Context(), s.who, x.ID, cay.Decision{Approve: true})
		if cay.CodeOf(err) != cay.CodeApprovalOver || !strings.Contains(err.Error(), "expired") {
			t.Errorf("a late decision: %v", err)
		}
		synctest.Wait()
		y, err := s.records.ApprovalOf(s.t.Context(), x.ID)
		if err != nil || y.State != cay.ApprovalExpired || y.Decided.Kind != "" || !y.DecidedAt.Equal(x.ExpiresAt) {
			t.Errorf("the record is %+v, %v", y, err)
		}
		if y := s.hold("a", 0); y.ID == x.ID || y.State != cay.ApprovalPending {
			t.Errorf("it may be asked again: %+v", y)
		}
	})
}

// A guest that asks without end has ten questions, takes no place of others, and
// leaves ten rows for a quarter of an hour.
func TestAGuestsFlood(t *testing.T) {
	world(t, func(s *stage) {
		refused := 0
		for i := range 100 {
			_, err := s.Hold(s.t.Context(), s.who.Team, s.question(fmt.Sprintf("h%d.example", i)), 0)
			if cay.CodeOf(err) == cay.CodeApprovalLimit {
				refused++
			}
		}
		list, err := s.List(s.t.Context(), s.who, Query{Limit: 1000})
		if err != nil || len(list) != cay.MaxPendingOfAsker || refused == 0 {
			t.Errorf("%d questions wait, %d were refused, %v", len(list), refused, err)
		}
		other := s.box
		other.ID = cay.NewSandboxID()
		if err := s.records.AddSandbox(s.t.Context(), other); err != nil {
			t.Fatal(err)
		}
		s.box = other
		if x := s.hold("a", 0); x.State != cay.ApprovalPending {
			t.Errorf("another sandbox is told %+v", x)
		}
	})
}

// The end of its sandbox ends a question, and a remembered yes.
func TestASandboxThatIsOver(t *testing.T) {
	world(t, func(s *stage) {
		x := s.hold("a", 0)
		over := s.box
		over.State, over.Cause = cay.Killed, cay.CauseAsked
		if err := s.records.UpdateSandbox(s.t.Context(), over); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Decide(s.t.Context(), s.who, x.ID, cay.Decision{Approve: true}); cay.CodeOf(err) != cay.CodeApprovalOver {
			t.Errorf("a decision: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		y, err := s.records.ApprovalOf(s.t.Context(), x.ID)
		if err != nil || y.State != cay.ApprovalExpired || y.Note == "" {
			t.Errorf("the record is %+v, %v", y, err)
		}
		if _, err := s.Hold(s.t.Context(), s.who.Team, s.question("b"), 0); cay.KindOf(err) != cay.NotFound {
			t.Errorf("it asks: %v", err)
		}
	})
}

// Of two servers that share records, one learns within seconds of what the other one
// decided, and what nothing decides waits to its end.
func TestAnotherServerDecides(t *testing.T) {
	world(t, func(s *stage) {
		other := New(Config{Ledger: ledger.New(ledger.Config{Store: s.records}), Store: s.records})
		ctx, stop := context.WithCancel(s.t.Context())
		var following sync.WaitGroup
		following.Go(func() { other.Follow(ctx) })
		defer func() { stop(); following.Wait() }()
		begun := time.Now()
		s.later(cay.Decision{Approve: true})
		x, err := other.Hold(ctx, s.who.Team, s.question("a.com"), time.Minute)
		if took := time.Since(begun); err != nil || x.State != cay.ApprovalApproved || took > 12*time.Second {
			t.Errorf("%+v, %v, after %s", x, err, took)
		}
		begun = time.Now()
		x, err = other.Hold(ctx, s.who.Team, s.question("b.com"), 30*time.Second)
		if took := time.Since(begun); err != nil || x.State != cay.ApprovalPending || took != 30*time.Second {
			t.Errorf("%+v, %v, after %s", x, err, took)
		}
	})
}
