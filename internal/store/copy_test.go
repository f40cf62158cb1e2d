package store_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// TestImport moves records into PostgreSQL and, by a backup, back: what can be read
// is the same each time.
func TestImport(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	lite := storetest.Open(t, filepath.Join(dir, "cay.db"))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.UnixMilli(1).UTC()}
	kind := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"x", "y"}, CreatedAt: time.UnixMilli(2).UTC(), UpdatedAt: time.UnixMilli(2).UTC()}
	build := cay.Build{ID: cay.NewBuildID(), Template: kind.ID, Team: team.ID, State: cay.BuildReady, Snapshot: cay.NewSnapshotID(), CreatedAt: time.UnixMilli(3), UpdatedAt: time.UnixMilli(3)}
	odd := "zero \x00, not UTF-8 \xff, mark \U0010FFFF"
	hook := cay.Webhook{ID: cay.NewWebhookID(), Team: team.ID, Name: "w", Enabled: true, Version: 1}
	for _, err := range []error{
		lite.AddTeam(ctx, team), lite.AddTemplate(ctx, kind), lite.PutBuild(ctx, build), lite.AddWebhook(ctx, hook, 1),
		lite.RecordAttempts(ctx, []cay.WebhookAttempt{{Webhook: hook.ID, Event: "e", Number: 1, ID: "i", Team: team.ID, ResponseBody: odd}}, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 210 { // more than one statement takes
		b, told := box(team.ID)
		b.Env, b.Metadata = map[string]string{"A": "secret"}, map[string]string{"odd": odd}
		if err := lite.AddSandbox(ctx, b, told); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Start(t)
	at := server.URL(server.Database(t, ""))
	pg := storetest.OpenPostgres(t, at)
	copied, err := store.Import(ctx, lite, pg)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int64{}
	for _, c := range copied {
		rows[c.Table] = c.Rows
	}
	if rows["teams"] != 1 || rows["sandboxes"] != 210 || rows["audit"] == 0 {
		t.Errorf("copied are %v", rows)
	}
	sameRecords(t, lite, pg, team.ID, hook.ID)
	b, told := box(team.ID)
	if err := pg.AddSandbox(ctx, b, told); err != nil { // events and the chain go on
		t.Fatal(err)
	}
	back := filepath.Join(dir, "backup.db")
	if err := pg.Backup(ctx, back); err != nil { // with an audit row that waits
		t.Fatal(err)
	}
	sameRecords(t, storetest.Open(t, back), pg, team.ID, hook.ID)
	if _, err := store.Import(ctx, lite, pg); cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), "teams") {
		t.Errorf("a second import: %v", err)
	}
	var before cay.AuditRow
	list, err := pg.Audit(ctx, store.AuditQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Prev != before.Hash || r.Hash != r.Sum() {
			t.Fatalf("row %d does not follow", r.Seq)
		}
		before = r
	}
}

func sameRecords(t *testing.T, a, b *store.DB, team cay.TeamID, hook cay.WebhookID) {
	t.Helper()
	type records struct {
		Sandboxes []cay.Sandbox
		Templates []cay.Template
		Events    []cay.Event
		Audit     []cay.AuditRow
		Told      []cay.WebhookDelivery
	}
	read := func(s *store.DB) (r records) {
		t.Helper()
		var errs [5]error
		r.Sandboxes, errs[0] = s.Sandboxes(t.Context(), store.SandboxQuery{Team: team})
		r.Templates, errs[1] = s.Templates(t.Context(), team)
		r.Events, errs[2] = s.Events(t.Context(), store.EventQuery{Team: team})
		r.Audit, errs[3] = s.Audit(t.Context(), store.AuditQuery{})
		r.Told, errs[4] = s.Deliveries(t.Context(), store.DeliveryQuery{Webhook: hook, Limit: 10})
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	if d := cmp.Diff(read(a), read(b)); d != "" {
		t.Errorf("the records differ:\n%s", d)
	}
}
