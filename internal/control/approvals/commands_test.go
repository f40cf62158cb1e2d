package approvals

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// start is what a client is told that wants a line to run.
func (s *stage) start(line string) error {
	box := s.box
	box.AskCommands = []string{"deploy*"}
	return s.MayStart(s.t.Context(), box, cay.Start{Command: []string{"/bin/bash", "-l", "-c", line}})
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if cay.CodeOf(err) != code || code == "" && err != nil {
		t.Errorf("%s: %v, want %q", what, err, code)
	}
}

// A command that waits is told of the decision, in words and by a code.
func TestCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		decision *cay.Decision // nil for none
		first    string        // what the first caller is told, after 50 s at most
		again    string        // and one that comes a moment later
		words    string
	}{
		"yes":              {&cay.Decision{Approve: true}, "", cay.CodeCommandWaits, ""},
		"yes, for an hour": {&cay.Decision{Approve: true, Remember: cay.RememberHour}, "", "", ""},
		"no":               {&cay.Decision{Note: "not on a Friday"}, cay.CodeCommandDenied, cay.CodeCommandDenied, "not on a Friday"},
		"no answer":        {nil, cay.CodeCommandWaits, cay.CodeCommandWaits, "waits for a decision"},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(s *stage) {
				wantCode(t, "another command", s.start("ls"), "")
				if tt.decision != nil {
					s.later(*tt.decision)
				}
				err := s.start("deploy production")
				wantCode(t, "the first", err, tt.first)
				if err != nil && !strings.Contains(err.Error(), tt.words) {
					t.Errorf("it is told %v", err)
				}
				wantCode(t, "again", s.start("deploy production"), tt.again)
				if tt.decision != nil && tt.decision.Remember == cay.RememberHour {
					wantCode(t, "another of the pattern", s.start("deploy production --force"), cay.CodeCommandWaits)
				}
			})
		})
	}
}

// A yes lets one start pass of five that wait for it, and each next one another.
func TestOneStartForEachYes(t *testing.T) {
	world(t, func(s *stage) {
		passed := make(chan error, 5)
		for range cap(passed) {
			go func() { passed <- s.start("deploy") }()
		}
		s.later(cay.Decision{Approve: true})
		wantCode(t, "the one of the first yes", <-passed, "")
		s.later(cay.Decision{Approve: true})
		wantCode(t, "the one of the second", <-passed, "")
		for range 3 {
			wantCode(t, "one that waits in vain", <-passed, cay.CodeCommandWaits)
		}
	})
}

// A yes that comes when its client is gone is kept for the next start, for a while.
func TestAYesThatComesLate(t *testing.T) {
	world(t, func(s *stage) {
		wantCode(t, "the first", s.start("deploy"), cay.CodeCommandWaits)
		s.later(cay.Decision{Approve: true})
		time.Sleep(14 * time.Minute)
		wantCode(t, "the next", s.start("deploy"), "")
		wantCode(t, "one more", s.start("deploy"), cay.CodeCommandWaits)
	})
}

// A command that a person cannot be shown whole does not start; nor does one that
// comes when as many questions wait as may, or when the sandbox is over.
func TestCommandsThatCannotBeAsked(t *testing.T) {
	world(t, func(s *stage) {
		wantCode(s.t, "a long one", s.start("deploy "+strings.Repeat("x", cay.MaxStartShown)), cay.CodeCommandDenied)
		for i := range cay.MaxPendingOfAsker {
			if _, err := s.Hold(s.t.Context(), s.who.Team, s.question(string(rune('a'+i))), 0); err != nil {
				s.t.Fatal(err)
			}
		}
		wantCode(s.t, "one too many", s.start("deploy"), cay.CodeApprovalLimit)
		box := s.box
		box.State, box.Cause = cay.Killed, cay.CauseAsked
		if err := s.records.UpdateSandbox(s.t.Context(), box); err != nil {
			s.t.Fatal(err)
		}
		if err := s.start("deploy"); cay.KindOf(err) != cay.NotFound {
			s.t.Errorf("in a sandbox that is over: %v", err)
		}
	})
}

// A yes counts for what another party asks, and not for the same of the one that gave it;
// of a question that several ask none decides.
func TestAYesOfOnesOwn(t *testing.T) {
	world(t, func(s *stage) {
		t := s.t
		keys := map[string]cay.KeyID{}
		for i, name := range []string{"ann", "bob", "carol"} {
			k := cay.APIKey{ID: cay.NewKeyID(), Team: s.box.Team, Name: name, Hash: [32]byte{byte(i + 1)}, CreatedAt: ledger.Now()}
			if err := s.records.AddKey(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			keys[name] = k.ID
		}
		by := func(name string) cay.Caller {
			return cay.Caller{Team: s.box.Team, Key: keys[name], Name: name, Scopes: cay.TeamScopes}
		}
		start := func(name, line string) error {
			box := s.box
			box.AskCommands = []string{"deploy*"}
			return s.MayStart(t.Context(), box, cay.Start{Command: []string{"/bin/bash", "-c", line}}, by(name).Origins())
		}
		s.who = by("bob")
		s.later(cay.Decision{Approve: true, Remember: cay.RememberHour})
		wantCode(t, "ann's", start("ann", "deploy a"), "")
		wantCode(t, "ann's once more", start("ann", "deploy a"), "")
		wantCode(t, "bob's own", start("bob", "deploy a"), cay.CodeCommandWaits)

		both := make(chan error, 2)
		for _, name := range []string{"ann", "bob"} {
			go func() { both <- start(name, "deploy b") }()
			synctest.Wait()
		}
		list, err := s.List(t.Context(), cay.ForTeam(s.box.Team), Query{Limit: 1})
		if err != nil || len(list) != 1 || len(list[0].Askers) != 2 {
			t.Fatalf("the question of two: %+v, %v", list, err)
		}
		for _, name := range []string{"ann", "bob"} {
			_, err := s.Decide(t.Context(), by(name), list[0].ID, cay.Decision{Approve: true})
			wantCode(t, name+" decides", err, cay.CodeApprovalOwn)
		}
		if _, err := s.Decide(t.Context(), by("carol"), list[0].ID, cay.Decision{Approve: true, Remember: cay.RememberHour}); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "one of two", <-both, "")
		wantCode(t, "the other", <-both, "")
	})
}
