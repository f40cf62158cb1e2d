package rest

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/shares"
)

// FuzzContentQuery reads queries and bodies about files of volumes: what is
// accepted is within its bounds.
func FuzzContentQuery(f *testing.F) {
	f.Add("path=a&uid=1&gid=2&mode=420&force=true&depth=3", `{"uid":1,"gid":2,"mode":420}`)
	f.Add("path=%ff&mode=4096", `{"mode":1e9}`)
	f.Add("path=;&uid=-1", `[]`)
	f.Fuzz(func(t *testing.T, query, body string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		if q, err := queryOf(r); err == nil {
			if q.path == "" || q.meta.Mode != nil && *q.meta.Mode > maxMode || q.meta.UID != nil && *q.meta.UID > maxUser || q.meta.GID != nil && *q.meta.GID > maxUser {
				t.Errorf("%q gives %+v", query, q)
			}
		}
		if m, err := metaOf(strings.NewReader(body)); err == nil {
			if m.Mode != nil && *m.Mode > maxMode || m.UID != nil && *m.UID > maxUser || m.GID != nil && *m.GID > maxUser {
				t.Errorf("%q gives %+v", body, m)
			}
		}
	})
}

// One team leaves turns to the others, and every turn comes back.
func TestTurns(t *testing.T) {
	turns := turns{shares.New[cay.TeamID](maxContent, maxContentTeam)}
	for range maxContentTeam {
		if err := turns.take("a"); err != nil {
			t.Fatal("a team gets too few turns")
		}
	}
	if err := turns.take("a"); cay.CodeOf(err) != cay.CodeRateLimit {
		t.Error("a team gets too many turns")
	}
	if err := turns.take("b"); err != nil {
		t.Error("another team gets none")
	}
	turns.give("b")
	for range maxContentTeam {
		turns.give("a")
	}
	if left := turns.Used(); left != 0 {
		t.Errorf("there are %d turns left", left)
	}
}
