package server_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store/pgtest"
)

// A machine's records move into PostgreSQL, a server goes on there with all that
// it had, no second server has them at the same time, and a backup brings them back
// into a file.
func TestServerOverPostgres(t *testing.T) {
	ctx := t.Context()
	database := pgtest.Start(t)
	at := database.URL(database.Database(t, ""))
	w := servertest.New(t)
	w.Config.DatabaseURL = ""
	w.Start()
	runs, err := w.Client().Create(ctx, client.CreateOptions{Template: "base", Env: map[string]string{"A": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()

	cfg := w.Config
	cfg.DatabaseURL = at
	w.Config = cfg
	if _, err := w.Open(); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "CAY_DATABASE_URL") {
		t.Errorf("a start beside records that were not moved: %v", err)
	}
	copied, err := operator.Import(ctx, w.Config)
	if err != nil || len(copied) == 0 {
		t.Fatal(copied, err)
	}
	w.Config.DatabaseURL = ""
	if _, err := w.Open(); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "moved to PostgreSQL") {
		t.Errorf("a start without the address: %v", err)
	}
	w.Config.DatabaseURL = at
	w.Start()
	more, err := w.Client().Create(ctx, client.CreateOptions{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	both := func(when string, want ...string) {
		t.Helper()
		found := map[string]bool{}
		list, err := w.Client().List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			found[s.ID] = true
		}
		for _, id := range want {
			if !found[id] {
				t.Errorf("%s sandbox %s is not there", when, id)
			}
		}
	}
	both("after the move", runs.ID, more.ID)

	other := servertest.New(t)
	other.Config.DatabaseURL = at
	if s, err := other.Open(); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("a second machine's server: %v", err)
		if err == nil {
			s.Close()
		}
	}
	archive := filepath.Join(t.TempDir(), "backup.tar")
	if err := w.Operator().Backup(ctx, archive); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Start()
	both("after a restart", runs.ID, more.ID)
	w.Stop()

	restored := other.Config
	restored.DatabaseURL = ""
	if err := operator.Restore(ctx, restored, archive); err == nil {
		t.Error("a backup was restored over keys")
	}
	restored.Data = t.TempDir()
	if err := operator.Restore(ctx, restored, archive); err != nil {
		t.Fatal(err)
	}
	restored.DatabaseURL = database.URL(database.Database(t, ""))
	again, err := operator.Import(ctx, restored)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range again {
		if c.Table == "sandboxes" && c.Rows != 2 || c.Table != copied[i].Table {
			t.Errorf("restored are %+v", c)
		}
	}
	if err := w.Down(); err != nil { // which records the ends there
		t.Error(err)
	}
}
