package auth_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

func openStore(t *testing.T) *store.DB {
	t.Helper()
	return storetest.Open(t, filepath.Join(t.TempDir(), "cay.db"))
}

func TestFirstStartMakesOneKey(t *testing.T) {
	s := openStore(t)
	team, key, err := auth.FirstStart(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(key) {
		t.Errorf("SDKs refuse the key %q", key)
	}
	record, err := auth.New(s).Verify(t.Context(), key)
	if err != nil || record.Team != team.ID {
		t.Errorf("verified as %+v, %v", record, err)
	}
	if len(record.Mask) > 16 || strings.Contains(record.Mask, key[8:20]) {
		t.Errorf("the mask %q tells too much", record.Mask)
	}
	again, none, err := auth.FirstStart(t.Context(), s)
	if err != nil || none != "" || again.ID != team.ID {
		t.Errorf("a second start gave %+v, %q, %v", again, none, err)
	}
}

func TestWrongKeysLookAlike(t *testing.T) {
	s := openStore(t)
	_, key, err := auth.FirstStart(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	last := byte('0')
	if key[len(key)-1] == last {
		last = '1'
	}
	a := auth.New(s)
	var texts []string
	for _, wrong := range []string{"", "e2b_", key[:len(key)-1] + string(last), key + "0", "x" + key, strings.Repeat("z", 44)} {
		_, err := a.Verify(t.Context(), wrong)
		if cay.KindOf(err) != cay.Unauthenticated {
			t.Errorf("%q: %v", wrong, err)
			continue
		}
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("wrong keys can be told apart: %q and %q", text, texts[0])
		}
	}
}

// The right key of a disabled team, and one whose time is over, are told so; a
// removed team's is like any wrong one.
func TestKeysThatOpenNothingAnyMore(t *testing.T) {
	s := openStore(t)
	ctx := t.Context()
	team, key, err := auth.FirstStart(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	record := cay.APIKey{Team: team.ID, ExpiresAt: time.Now().Add(-time.Second)}
	old := auth.NewKey(&record)
	if err := s.AddKey(ctx, record); err != nil {
		t.Fatal(err)
	}
	a := auth.New(s)
	_, err = a.Verify(ctx, old)
	if cay.KindOf(err) != cay.Unauthenticated || cay.CodeOf(err) != cay.CodeKeyExpired {
		t.Errorf("an expired key: %v", err)
	}
	_, wrong := a.Verify(ctx, "e2b_"+strings.Repeat("0", 40))
	team.DisabledAt = time.Now()
	if err := s.UpdateTeam(ctx, team); err != nil {
		t.Fatal(err)
	}
	_, err = a.Verify(ctx, key)
	if cay.KindOf(err) != cay.Denied || cay.CodeOf(err) != cay.CodeTeamDisabled {
		t.Errorf("a disabled team's key: %v", err)
	}
	if err := s.RemoveTeam(ctx, team.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err = a.Verify(ctx, key); err == nil || err.Error() != wrong.Error() || cay.CodeOf(err) != "" {
		t.Errorf("a removed team's key: %v", err)
	}
}

// The operator's token opens all teams, by id and name; a wrong one opens
// nothing, also where there is none.
func TestAdminToken(t *testing.T) {
	s := openStore(t)
	ctx := t.Context()
	team, key, err := auth.FirstStart(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token, err := auth.OpenAdmin(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := auth.OpenAdmin(dir)
	if info, bad := os.Stat(filepath.Join(dir, "admin.token")); err != nil || again != token || bad != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v %v %v", info, bad, err)
	}
	a := auth.New(s)
	if _, err := a.Caller(ctx, auth.Presented{Admin: token}); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("a token that nothing trusts: %v", err)
	}
	a.TrustAdmin(token)
	for _, name := range []string{string(team.ID), team.Name} {
		who, err := a.Caller(ctx, auth.Presented{Admin: token, Team: name})
		if err != nil || who.Team != team.ID || who.Scopes != cay.AllScopes {
			t.Errorf("for %s: %+v, %v", name, who, err)
		}
	}
	if who, err := a.Caller(ctx, auth.Presented{Admin: token}); err != nil || who.Team != "" {
		t.Errorf("for no team: %+v, %v", who, err)
	}
	if _, err := a.Caller(ctx, auth.Presented{Admin: token, Team: "none"}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("for a team that is not there: %v", err)
	}
	if _, err := a.Caller(ctx, auth.Presented{Admin: token[1:], Key: key}); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("a wrong token beside a key: %v", err)
	}
	// A key's caller is of the key's team, whatever it names, unless its scope is admin.
	if who, err := a.Caller(ctx, auth.Presented{Bearer: key, Team: "none"}); err != nil || who.Team != team.ID || who.Scopes != cay.TeamScopes {
		t.Errorf("a key: %+v, %v", who, err)
	}
	record := cay.APIKey{Team: team.ID, Grant: []string{"admin"}}
	chief := auth.NewKey(&record)
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := errors.Join(s.AddKey(ctx, record), s.AddTeam(ctx, other)); err != nil {
		t.Fatal(err)
	}
	if who, err := a.Caller(ctx, auth.Presented{Key: chief, Team: "other"}); err != nil || who.Team != other.ID || who.Scopes != cay.AllScopes {
		t.Errorf("an operator's key: %+v, %v", who, err)
	}
}

type broken struct{ auth.Store }

func (broken) KeyByHash(context.Context, [32]byte) (cay.APIKey, cay.Team, error) {
	return cay.APIKey{}, cay.Team{}, cay.Wrap(cay.Unavailable, errors.New("disk"), "the database is busy")
}

func TestIsKey(t *testing.T) {
	_, key, err := auth.FirstStart(t.Context(), openStore(t))
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{
		key: true, "": false, "e2b_": false, key[4:]: false, key + "0": false, key[:len(key)-1] + "g": false,
	} {
		if auth.IsKey(s) != want {
			t.Errorf("IsKey(%q) = %v", s, !want)
		}
	}
}

func TestABrokenStoreIsNoWrongKey(t *testing.T) {
	_, err := auth.New(broken{}).Verify(t.Context(), "e2b_"+strings.Repeat("0", 40))
	if cay.KindOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
}

func TestTokensLastAndDiffer(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got { // a first start that happens many times at once
		wg.Go(func() {
			tokens, err := auth.OpenTokens(dir)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = tokens.Access("ia")
		})
	}
	wg.Wait()
	for _, token := range got {
		if token != got[0] || len(token) != 64 {
			t.Fatalf("the tokens of one sandbox differ: %q", got)
		}
	}
	tokens, err := auth.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, token := range []string{tokens.Access("ia"), tokens.Traffic("ia"), tokens.Access("ib"), tokens.Traffic("ib")} {
		if seen[token] {
			t.Errorf("two tokens are equal")
		}
		seen[token] = true
	}
	if !tokens.CheckAccess("ia", got[0]) || tokens.CheckAccess("ib", got[0]) ||
		tokens.CheckTraffic("ia", got[0]) || tokens.CheckAccess("ia", "") {
		t.Error("a check is wrong")
	}
	token := tokens.Volume("team", "volume")
	if team, ok := tokens.Owner("volume", token); !ok || team != "team" {
		t.Errorf("the token of a volume opens nothing, of %q", team)
	}
	for _, other := range []string{"", ".", "other" + strings.TrimPrefix(token, "team"), token + "0", tokens.Volume("team", "other")} {
		if _, ok := tokens.Owner("volume", other); ok {
			t.Errorf("%q opens a volume", other)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "secret.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("secret.key: %v, %v", info, err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left over: %v", list)
	}
}

func TestADamagedSecretIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.OpenTokens(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
}

// A session is over after half a day without use and after seven days in all, and
// says so; what it holds open ends at the seven days.
func TestSessionsAreOver(t *testing.T) {
	s := openStore(t)
	ctx := t.Context()
	team, _, err := auth.FirstStart(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	ann := cay.Person{ID: cay.NewPersonID(), Email: "ann@example.com", CreatedAt: time.Now()}
	member := cay.Member{Team: team.ID, Person: ann.ID, Role: cay.Viewer, AddedAt: time.Now()}
	if err := errors.Join(s.AddPerson(ctx, ann), s.AddMember(ctx, member)); err != nil {
		t.Fatal(err)
	}
	a := auth.New(s)
	for what, one := range map[string]struct {
		age, idle time.Duration
		over      bool
	}{
		"new":                {0, 0, false},
		"used lately":        {6 * 24 * time.Hour, 11 * time.Hour, false},
		"not used":           {13 * time.Hour, 12*time.Hour + time.Minute, true},
		"old, and in use":    {7*24*time.Hour + time.Minute, 0, true},
		"of a clock to come": {-time.Hour, -time.Hour, false},
	} {
		x := cay.Session{SessionOwner: cay.SessionOwner{Person: ann.ID}}
		token := auth.NewSession(&x)
		x.CreatedAt, x.UsedAt = time.Now().Add(-one.age), time.Now().Add(-one.idle)
		if err := s.AddSession(ctx, x); err != nil {
			t.Fatal(err)
		}
		who, err := a.Caller(ctx, auth.Presented{Bearer: token})
		if one.over != (cay.CodeOf(err) == cay.CodeSessionEnded) || !one.over && (err != nil || who.Team != team.ID) {
			t.Errorf("%s: %+v, %v", what, who, err)
		}
		held, done := a.While(ctx, cay.Caller{Team: team.ID, Person: ann.ID, Session: x.ID, Scopes: cay.Viewer.Scopes()})
		if (held.Err() != nil) != one.over {
			t.Errorf("%s: what it holds open: %v", what, held.Err())
		}
		done()
	}
}
