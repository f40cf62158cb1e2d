package auth_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// BenchmarkCaller is what it takes to know the caller of a request, by an API
// key and by an access token, on a server of one team and on one of 1,000 teams
// with 10,000 keys.
func BenchmarkCaller(b *testing.B) {
	for _, size := range []struct{ teams, keys int }{{1, 1}, {1000, 10_000}} {
		s := storetest.Open(b, b.TempDir()+"/cay.db")
		key, token := fill(b, s, size.teams, size.keys)
		a := auth.New(s)
		for name, p := range map[string]auth.Presented{"key": {Key: key}, "token": {Bearer: token, Team: "t0"}} {
			b.Run(fmt.Sprintf("%s/teams=%d/keys=%d", name, size.teams, size.keys), func(b *testing.B) {
				for b.Loop() {
					if _, err := a.Caller(b.Context(), p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// fill makes teams with keys and one person, and returns what opens the first.
func fill(b *testing.B, s *store.DB, teams, keys int) (key, token string) {
	b.Helper()
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	check(s.Tx(ctx, func(tx store.Store) error {
		for i := range teams {
			t := cay.Team{ID: cay.NewTeamID(), Name: fmt.Sprintf("t%d", i), CreatedAt: time.Now()}
			check(tx.AddTeam(ctx, t))
			for range keys / teams {
				k := cay.APIKey{Team: t.ID, Name: "k"}
				text := auth.NewKey(&k)
				check(tx.AddKey(ctx, k))
				if key == "" {
					key = text
				}
			}
			if i == 0 {
				p := cay.Person{ID: cay.NewPersonID(), Email: "a@example.com"}
				record := cay.AccessToken{Person: p.ID}
				token = auth.NewAccessToken(&record)
				check(tx.AddPerson(ctx, p))
				check(tx.AddMember(ctx, cay.Member{Team: t.ID, Person: p.ID, Role: cay.Owner}))
				check(tx.AddAccessToken(ctx, record))
			}
		}
		return nil
	}))
	return key, token
}
