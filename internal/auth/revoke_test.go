package auth_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
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
	one, other := caller(t, s, team), caller(t, s, team)
	first, done := a.While(ctx, one)
	defer done()
	second, done := a.While(ctx, one)
	defer done()
	theirs, done := a.While(ctx, other)
	defer done()
	if first.Err() != nil || second.Err() != nil {
		t.Error("it ended with its key there")
	}
	if err := s.RemoveKey(ctx, team.ID, one.Key); err != nil {
		t.Fatal(err)
	}
	a.EndKey(one.Key)
	late, done := a.While(ctx, one)
	defer done()
	if first.Err() == nil || second.Err() == nil || late.Err() == nil {
		t.Error("it outlived its key")
	}
	if theirs.Err() != nil {
		t.Error("another key's use ended")
	}
}

// caller makes a key of a team and returns the caller that it stands for.
func caller(t *testing.T, s auth.Store, team cay.Team) cay.Caller {
	t.Helper()
	_, key, err := auth.Issue(t.Context(), s, team.ID, "k")
	if err != nil {
		t.Fatal(err)
	}
	return key.Caller()
}

// A disabled team ends its uses, those that began in the moment before too, and
// not those of others or of an operator.
func TestWhileTheTeamIsEnabled(t *testing.T) {
	s := openStore(t)
	ctx := t.Context()
	team, _, err := auth.FirstStart(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := s.AddTeam(ctx, other); err != nil {
		t.Fatal(err)
	}
	a := auth.New(s)
	mine := caller(t, s, team)
	held, done := a.While(ctx, mine)
	defer done()
	theirs, done := a.While(ctx, caller(t, s, other))
	defer done()
	operator, done := a.While(ctx, cay.ForTeam(team.ID))
	defer done()
	team.DisabledAt = time.Now()
	if err := s.UpdateTeam(ctx, team); err != nil {
		t.Fatal(err)
	}
	a.EndTeam(team.ID)
	late, done := a.While(ctx, mine)
	defer done()
	if held.Err() == nil || late.Err() == nil {
		t.Error("it outlived its team")
	}
	if theirs.Err() != nil || operator.Err() != nil {
		t.Error("another's use ended")
	}
}

// fixed is a store with one key.
type fixed struct {
	auth.Store
	key  cay.APIKey
	team cay.Team
	used []time.Time
}

func (f *fixed) KeyByHash(context.Context, [32]byte) (cay.APIKey, cay.Team, error) {
	return f.key, f.team, nil
}
func (f *fixed) Key(context.Context, cay.TeamID, cay.KeyID) (cay.APIKey, error) { return f.key, nil }
func (f *fixed) Team(context.Context, cay.TeamID) (cay.Team, error)             { return f.team, nil }
func (f *fixed) KeysUsed(_ context.Context, at map[cay.KeyID]time.Time) error {
	f.key.LastUsed = at[f.key.ID]
	f.used = append(f.used, f.key.LastUsed)
	return nil
}

// Uses of a key end at the key's end, to the moment.
func TestWhileTheKeyLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(time.Hour)
		f := &fixed{key: cay.APIKey{ID: "k", ExpiresAt: end}}
		a := auth.New(f)
		held, done := a.While(t.Context(), f.key.Caller())
		defer done()
		<-held.Done()
		if !time.Now().Equal(end) {
			t.Errorf("it ended at %s, not %s", time.Now(), end)
		}
		late, done := a.While(t.Context(), f.key.Caller())
		defer done()
		if late.Err() == nil {
			t.Error("it began after its key's end")
		}
	})
}

// A key that is used all the time is recorded so once a minute, and no request
// waits for it.
func TestUsesAreRecordedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixed{}
		key := auth.NewKey(&f.key)
		a := auth.New(f)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { a.Run(ctx); close(over) }()
		for range 600 { // ten minutes
			if _, err := a.Verify(ctx, key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		stop()
		<-over
		if len(f.used) < 8 || len(f.used) > 11 {
			t.Errorf("recorded %d times", len(f.used))
		}
		for i := 1; i < len(f.used); i++ {
			if f.used[i].Sub(f.used[i-1]) < time.Minute {
				t.Errorf("recorded at %s and %s", f.used[i-1], f.used[i])
			}
		}
	})
}
