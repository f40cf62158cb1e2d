package server_test

import (
	"compress/gzip"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/guest/archive"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// The archive before-teams.tar.gz has the database and the keys of a server of
// 22 November 2026, which knew no scopes, members, limits, usage, webhooks and
// audit. Its own code wrote them.
const (
	olderKey    = "e2b_2333ae5907d2699d2de0d66a02f186b28fd22c7d" // the first one, of the team default
	olderSecond = "e2b_66997971189103e1fda12be26e68ada4c99f5cfc" // ci, of the same team
	olderOthers = "e2b_47a4c2e27172cf0ba2f70c63d3d1d73b17b17b1f" // of another team, whose name none may have today
	olderPaused = "iewmunllc6vquq5jtihdp"
	olderRuns   = "i88mc3swvpzmpx50o4452"
)

// TestRecordsFromBeforeTeams starts a server over the records of one that knew no
// teams but by rows: its keys open what they did, and all that came since works
// for them.
func TestRecordsFromBeforeTeams(t *testing.T) {
	w := servertest.New(t)
	ctx := t.Context()
	f, err := os.Open("testdata/before-teams.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err == nil {
		_, err = archive.Unpack(t.Context(), plain, w.Config.Data, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.Key = olderKey
	w.Start()
	answers := func(key, method, path, body string, code int, holds ...string) {
		t.Helper()
		got, text := call(t, w, key, method, path, body)
		if got != code {
			t.Errorf("%s %s: %d %s", method, path, got, text)
		}
		for _, one := range holds {
			if !strings.Contains(text, one) {
				t.Errorf("%s %s lacks %s: %s", method, path, one, text)
			}
		}
	}
	answers(olderKey, "GET", "/teams", "", 200, `"name":"default"`)
	answers(olderOthers, "GET", "/teams", "", 200, `"name":"Other Team"`)
	answers(olderSecond, "GET", "/api-keys", "", 200, `"name":"first"`, `"name":"ci"`)
	answers(olderKey, "GET", "/secrets", "", 200, `"name":"token"`)
	answers(olderKey, "GET", "/cay/v1/ssh-keys", "", 200, `"name":"laptop"`)
	answers(olderKey, "GET", "/templates", "", 200, `"app"`)
	answers(olderKey, "GET", "/sandboxes/"+olderPaused, "", 200, `"state":"paused"`, `"user":"ann"`, "Straße")
	answers(olderKey, "GET", "/cay/v1/sandboxes/"+olderRuns+"/checkpoints", "", 200, `"label":"before"`)
	answers(olderOthers, "GET", "/sandboxes/"+olderPaused, "", 404)
	answers(olderOthers, "GET", "/secrets", "", 200, "[]")

	// A key of before scopes may all that there is in its team, and nothing of all
	// teams.
	answers(olderSecond, "POST", "/cay/v1/budgets", `{"meter":"creates","limit":"2","period":"month"}`, 201)
	answers(olderSecond, "GET", "/cay/v1/limits", "", 200, `"sandboxes"`)
	answers(olderSecond, "GET", "/cay/v1/audit", "", 200)
	answers(olderSecond, "POST", "/events/webhooks", `{"name":"a","url":"https://127.1/","enabled":false,"events":["*"],"signatureSecret":"a secret"}`, 201)
	answers(olderSecond, "GET", "/cay/v1/admin/teams", "", 403, cay.CodeScope)
	answers(olderOthers, "GET", "/cay/v1/budgets", "", 200, "[]")
	for range 2 {
		if _, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour}); cay.CodeOf(err) != cay.CodeBudget {
		t.Errorf("a budget does not bound a key of before: %v", err)
	}
	if _, err := w.Admin("").RenameTeam(ctx, "Other Team", "other"); err != nil {
		t.Errorf("a team whose name none may have today gets no other: %v", err)
	}
	if _, err := w.Admin("").DisableTeam(ctx, "other", false); err != nil {
		t.Fatal(err)
	}
	answers(olderOthers, "GET", "/teams", "", http.StatusForbidden, cay.CodeTeamDisabled)

	w.Stop()
	w.Records(func(s *store.DB) {
		if err := s.Check(ctx); err != nil {
			t.Error(err)
		}
		teams, err := s.Teams(ctx)
		if err != nil || len(teams) != 2 {
			t.Fatal(teams, err)
		}
		if b, err := s.Sandbox(ctx, teams[0].ID, olderPaused); err != nil || b.Env["SECRET"] != "value" || len(b.Network.AllowOut) != 1 || !b.AutoResume {
			t.Errorf("the paused sandbox is %+v, %v", b, err)
		}
		if keys, err := s.Keys(ctx, teams[0].ID); err != nil || len(keys) != 2 || keys[0].LastUsed.IsZero() || len(keys[0].Grant) > 0 || !keys[0].ExpiresAt.IsZero() {
			t.Errorf("the keys are %+v, %v", keys, err)
		}
	})
	w.Start()
	answers(olderKey, "GET", "/secrets", "", 200, `"name":"token"`)
}
