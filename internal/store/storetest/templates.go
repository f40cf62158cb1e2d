package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func template(team cay.TeamID, created int, names ...string) cay.Template {
	return cay.Template{
		ID: cay.NewTemplateID(), Team: team, Names: names,
		CreatedAt: at(created), UpdatedAt: at(created), BuildState: cay.BuildWaiting,
	}
}

func build(t cay.Template, created int, state cay.BuildState) cay.Build {
	return cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: t.Team, State: state,
		RecipeDigest: "sha256:1", Limits: cay.Limits{CPUs: 2, MemoryMB: 1024, DiskMB: 4096},
		EnvdVersion: "0.6.13", CreatedAt: at(created), UpdatedAt: at(created + 1),
	}
}

func testTemplates(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	one := template(team.ID, 1, "base", "zero", "alias")
	two := template(team.ID, 2)
	noError(t, s.AddTemplate(t.Context(), one))
	noError(t, s.AddTemplate(t.Context(), two))
	got, err := s.Template(t.Context(), team.ID, one.ID)
	noError(t, err)
	same(t, "by id", got, one)
	got, err = s.TemplateByName(t.Context(), team.ID, "zero")
	noError(t, err)
	same(t, "by name", got, one)
	list, err := s.Templates(t.Context(), team.ID)
	noError(t, err)
	same(t, "the list", list, []cay.Template{two, one})
	for _, ref := range []string{string(one.ID), "alias"} {
		got, err = s.FindTemplate(t.Context(), team.ID, ref)
		noError(t, err)
		same(t, "by "+ref, got, one)
	}
	_, err = s.FindTemplate(t.Context(), team.ID, "none")
	wantKind(t, err, cay.NotFound)
	tricky := template(team.ID, 0, string(one.ID)) // a name that is another's id
	noError(t, s.AddTemplate(t.Context(), tricky))
	got, err = s.FindTemplate(t.Context(), team.ID, string(one.ID))
	noError(t, err)
	same(t, "what has the id", got, one)

	_, err = s.TemplateByName(t.Context(), team.ID, "none")
	wantKind(t, err, cay.NotFound)
	_, err = s.Template(t.Context(), team.ID, "none")
	wantKind(t, err, cay.NotFound)

	// A name that is taken leaves nothing of the new template.
	three := template(team.ID, 3, "fresh", "alias")
	wantKind(t, s.AddTemplate(t.Context(), three), cay.Conflict)
	_, err = s.TemplateByName(t.Context(), team.ID, "fresh")
	wantKind(t, err, cay.NotFound)

	box := sandbox(team.ID, 50)
	box.Template = one.ID
	noError(t, s.AddSandbox(t.Context(), box))
	got, err = s.Template(t.Context(), team.ID, one.ID)
	noError(t, err)
	if got.SpawnCount != 1 || !got.LastSpawned.Equal(at(50)) {
		t.Fatalf("spawned %d times, last at %v", got.SpawnCount, got.LastSpawned)
	}
}

func testVisibility(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	private := template(a.ID, 1, "private")
	public := template(a.ID, 2, "base")
	public.Public = true
	own := template(b.ID, 3, "base")
	for _, x := range []cay.Template{private, public, own} {
		noError(t, s.AddTemplate(t.Context(), x))
	}
	_, err := s.Template(t.Context(), b.ID, private.ID)
	wantKind(t, err, cay.NotFound)
	_, err = s.TemplateByName(t.Context(), b.ID, "private")
	wantKind(t, err, cay.NotFound)
	for _, ref := range []string{"private", string(private.ID)} {
		_, err = s.FindTemplate(t.Context(), b.ID, ref)
		wantKind(t, err, cay.NotFound)
	}
	got, err := s.Template(t.Context(), b.ID, public.ID)
	noError(t, err)
	same(t, "the public one", got, public)
	got, err = s.TemplateByName(t.Context(), b.ID, "base")
	noError(t, err)
	same(t, "the team's own", got, own)
	got, err = s.FindTemplate(t.Context(), b.ID, "base")
	noError(t, err)
	same(t, "the team's own", got, own)
	list, err := s.Templates(t.Context(), b.ID)
	noError(t, err)
	same(t, "the list", list, []cay.Template{own, public})
}

func testBuilds(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	tmpl := template(a.ID, 1, "base")
	noError(t, s.AddTemplate(t.Context(), tmpl))

	old := build(tmpl, 10, cay.BuildBuilding)
	noError(t, s.PutBuild(t.Context(), old))
	got, err := s.Template(t.Context(), a.ID, tmpl.ID)
	noError(t, err)
	if got.Build != "" || got.BuildState != cay.BuildBuilding || got.BuildCount != 1 {
		t.Fatalf("a template whose build is under way: %+v", got)
	}

	old.State, old.Snapshot, old.FinishedAt, old.UpdatedAt = cay.BuildReady, cay.NewSnapshotID(), at(20), at(20)
	noError(t, s.PutBuild(t.Context(), old))
	failed := build(tmpl, 30, cay.BuildError)
	noError(t, s.PutBuild(t.Context(), failed))
	got, err = s.TemplateByName(t.Context(), a.ID, "base")
	noError(t, err)
	want := tmpl
	want.Build, want.Snapshot, want.BuildState, want.BuildCount = old.ID, old.Snapshot, cay.BuildReady, 2
	want.Limits, want.EnvdVersion, want.RecipeDigest = old.Limits, old.EnvdVersion, old.RecipeDigest
	want.UpdatedAt = at(20)
	same(t, "the template", got, want)

	list, err := s.Builds(t.Context(), a.ID, tmpl.ID)
	noError(t, err)
	same(t, "the builds", list, []cay.Build{failed, old})
	list, err = s.Builds(t.Context(), b.ID, tmpl.ID)
	noError(t, err)
	if len(list) != 0 {
		t.Fatalf("a team sees another's builds: %v", list)
	}
}
