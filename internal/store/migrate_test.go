package store_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// TestTagsOfOlderDatabases takes a database from before assignments of tags and
// silent agents were recorded, with rows in it.
func TestTagsOfOlderDatabases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s := openAt(t, path)
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	tmpl := cay.Template{ID: cay.NewTemplateID(), Team: team.ID, Names: []string{"app"}, CreatedAt: time.Now()}
	build := cay.Build{
		ID: cay.NewBuildID(), Template: tmpl.ID, Team: team.ID, State: cay.BuildReady, Snapshot: cay.NewSnapshotID(),
		CreatedAt: time.UnixMilli(1000), UpdatedAt: time.UnixMilli(2000), FinishedAt: time.UnixMilli(3000), Tags: []string{"default", "v1"},
	}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: tmpl.ID, State: cay.Paused}
	for _, err := range []error{
		s.AddTeam(t.Context(), team), s.AddTemplate(t.Context(), tmpl), s.PutBuild(t.Context(), build),
		s.AddSandbox(t.Context(), box), s.Close(),
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
		`DROP TABLE template_tag_assignments`, `ALTER TABLE sandboxes DROP COLUMN unresponsive`,
		`DELETE FROM goose_db_version WHERE version_id IN (43, 44)`,
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
	if got, err := s.Sandbox(t.Context(), team.ID, box.ID); err != nil || got.Unresponsive {
		t.Errorf("its sandbox is %+v, %v", got, err)
	}
}
