package store_test

import (
	"database/sql"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// TestOlderDatabases takes a database from before assignments of tags, silent
// agents, waiting builds, use and the people behind keys were recorded, with rows
// in it.
func TestOlderDatabases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s := openAt(t, path)
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	tmpl := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"app"}, CreatedAt: time.Now()}
	build := cay.Build{
		ID: cay.NewBuildID(), Template: tmpl.ID, Team: team.ID, State: cay.BuildReady, Snapshot: cay.NewSnapshotID(),
		CreatedAt: time.UnixMilli(1000), UpdatedAt: time.UnixMilli(2000), FinishedAt: time.UnixMilli(3000), Tags: []string{"default", "v1"},
	}
	lost := cay.Build{ID: cay.NewBuildID(), Template: tmpl.ID, Team: team.ID, State: cay.BuildBuilding, UpdatedAt: time.UnixMilli(4000)}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: tmpl.ID, State: cay.Paused}
	runs := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: tmpl.ID, State: cay.Running, Limits: cay.Limits{CPUs: 1}}
	ann := cay.Person{ID: cay.NewPersonID(), Email: "ann@example.com", CreatedAt: time.Now()}
	first := cay.APIKey{ID: cay.NewKeyID(), Team: team.ID, Hash: [32]byte{1}, CreatedBy: string(ann.ID)}
	second := cay.APIKey{ID: cay.NewKeyID(), Team: team.ID, Hash: [32]byte{2}, CreatedBy: string(first.ID)}
	third := cay.APIKey{ID: cay.NewKeyID(), Team: team.ID, Hash: [32]byte{3}, CreatedBy: string(second.ID)}
	others := cay.APIKey{ID: cay.NewKeyID(), Team: team.ID, Hash: [32]byte{4}}
	told := cay.Event{Team: team.ID, Sandbox: box.ID, Type: cay.SandboxPaused, At: time.UnixMilli(5000)}
	for _, err := range []error{
		s.AddTeam(t.Context(), team), s.AddTemplate(t.Context(), tmpl), s.PutBuild(t.Context(), build), s.PutBuild(t.Context(), lost),
		s.AddSandbox(t.Context(), box), s.AddSandbox(t.Context(), runs), s.AddEvents(t.Context(), told),
		s.AddPerson(t.Context(), ann), s.AddKey(t.Context(), first), s.AddKey(t.Context(), second), s.AddKey(t.Context(), third),
		s.AddKey(t.Context(), others), s.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`DROP TABLE usage_accounts`, `DROP TABLE usage_labels`, `DROP TABLE usage_open`, `DROP TABLE usage_kept`, `DROP TABLE usage_rows`,
		`DROP TABLE team_minutes`, `DROP TABLE usage_prices`, `DROP TABLE budgets`, `ALTER TABLE sandboxes DROP COLUMN api_key`,
		`DROP TABLE template_tag_assignments`, `ALTER TABLE sandboxes DROP COLUMN unresponsive`, `DROP TABLE build_queue`, `DROP TABLE team_limits`,
		`DROP TABLE webhook_attempts`, `DROP TABLE webhooks`, `DROP TABLE approvals`, `DROP TABLE model_providers`, `DROP TABLE model_use`, `ALTER TABLE events DROP COLUMN instance`, `ALTER TABLE events DROP COLUMN outwards`,
		`DELETE FROM goose_db_version WHERE version_id IN (43, 44, 45, 50, 53, 54, 56, 65, 69, 119, 128)`,
		`DROP INDEX api_keys_person`, `ALTER TABLE api_keys DROP COLUMN person`,
	} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, path)
	list, err := s.TagAssignments(t.Context(), tmpl.ID)
	if err != nil || len(list) != 2 {
		t.Fatalf("its tags were assigned %+v, %v", list, err)
	}
	for _, a := range list {
		if !cay.ValidUUID(a.ID) || a.Build != build.ID || !a.At.Equal(build.UpdatedAt) {
			t.Errorf("assigned as %+v", a)
		}
	}
	failed, err := s.Build(t.Context(), team.ID, lost.ID)
	if err != nil || failed.State != cay.BuildError || failed.Reason.Message == "" || !failed.FinishedAt.Equal(lost.UpdatedAt) {
		t.Errorf("a build that was under way is %+v, %v", failed, err)
	}
	for range 2 { // the first look says since when
		if err := s.CountUsage(t.Context(), []cay.Sandbox{runs, box}); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); time.Since(begun) < 2*time.Millisecond; {
			runtime.Gosched()
		}
	}
	used, err := s.Usage(t.Context(), store.UsageQuery{Team: team.ID, To: time.Now().Add(time.Hour)})
	if err != nil || len(used) != 1 || used[0].Amounts.VCPU <= 0 || used[0].Amounts.VCPU > time.Hour.Milliseconds() {
		t.Errorf("its sandbox that runs is counted as %+v, %v", used, err)
	}
	minutes, err := s.TeamMinutes(t.Context(), team.ID, time.Now(), time.Now())
	if err != nil || len(minutes) != 1 || minutes[0].Running != 1 {
		t.Errorf("its team has %+v, %v", minutes, err)
	}
	if list, err := s.Events(t.Context(), store.EventQuery{Team: team.ID}); err != nil || len(list) != 1 || list[0].Instance != "" || list[0].Outwards != nil {
		t.Errorf("its events are %+v, %v", list, err)
	}
	hook := cay.Webhook{ID: cay.NewWebhookID(), Team: team.ID, Name: "a", Version: 1}
	if err := s.AddWebhook(t.Context(), hook, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Webhook(t.Context(), team.ID, hook.ID); err != nil || got.Cursor != 1 {
		t.Errorf("a webhook begins at %+v, %v", got, err)
	}
	want := []cay.KeyID{first.ID, second.ID, third.ID}
	slices.Sort(want)
	if keys, err := s.KeysOfPerson(t.Context(), ann.ID); err != nil || !slices.Equal(keys, want) {
		t.Errorf("the keys of a person are %v, not %v: %v", keys, want, err)
	}
	if got, err := s.Sandbox(t.Context(), team.ID, box.ID); err != nil || got.Unresponsive {
		t.Errorf("its sandbox is %+v, %v", got, err)
	}
}
