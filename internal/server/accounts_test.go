package server_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A team from its first day to its last: made with a key, renamed, disabled,
// enabled, removed with all that it has, while another team notices nothing.
func TestTeamsLife(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	admin := w.Admin("")
	team, err := admin.CreateTeam(ctx, "blue")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTeam(ctx, "blue"); cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("a second team of the name: %v", err)
	}
	for _, name := range []string{"", "Blue", "a/b", "-a", "x y", strings.Repeat("x", 64), string(cay.NewTeamID()), "blaü"} {
		if _, err := admin.CreateTeam(ctx, name); cay.KindOf(err) != cay.Invalid {
			t.Errorf("a team called %q: %v", name, err)
		}
	}
	key, err := w.Admin("blue").CreateAPIKey(ctx, client.NewAPIKey{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	blue := w.ClientOf(key.Key)
	box, err := blue.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	paused, err := blue.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err := errors.Join(err, blue.Pause(ctx, paused.ID)); err != nil {
		t.Fatal(err)
	}
	belongingsOf(t, w, key.Key, box.ID)
	ours, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := admin.RenameTeam(ctx, team.ID, "default"); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("renamed to a name that is taken: %v", err)
	}
	if got, err := admin.RenameTeam(ctx, "blue", "navy"); err != nil || got.Name != "navy" || got.ID != team.ID {
		t.Errorf("renamed: %+v, %v", got, err)
	}
	got, err := admin.DisableTeam(ctx, "navy", false)
	if err != nil || !got.Disabled || got.DisabledAt == nil {
		t.Errorf("disabled: %+v, %v", got, err)
	}
	if _, err := blue.List(ctx); cay.CodeOf(err) != cay.CodeTeamDisabled {
		t.Errorf("its key: %v", err)
	}
	if list, err := w.Admin("navy").List(ctx); err != nil || len(list) != 2 {
		t.Errorf("the operator sees %v, %v", list, err)
	}
	if got, err := admin.DisableTeam(ctx, "navy", true); err != nil || got.Disabled {
		t.Errorf("enabled: %+v, %v", got, err)
	}
	if _, err := blue.List(ctx); err != nil {
		t.Errorf("its key after that: %v", err)
	}

	err = admin.RemoveTeam(ctx, "navy", false)
	if cay.CodeOf(err) != cay.CodeTeamNotEmpty || !strings.Contains(err.Error(), "1 running sandboxes, 1 paused sandboxes, 2 templates and snapshots, 1 API keys, 1 secrets") {
		t.Errorf("removed though it has things: %v", err)
	}
	if err := admin.RemoveTeam(ctx, "navy", true); err != nil {
		t.Fatal(err)
	}
	if _, err := blue.List(ctx); cay.KindOf(err) != cay.Unauthenticated || cay.CodeOf(err) != "" {
		t.Errorf("its key after its end: %v", err)
	}
	if _, err := admin.Team(ctx, team.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("it is still there: %v", err)
	}
	if err := admin.RemoveTeam(ctx, "default", true); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the first team was removed: %v", err)
	}
	if _, err := admin.CreateTeam(ctx, "navy"); err != nil {
		t.Errorf("its name is not free: %v", err)
	}
	if list, err := w.Client().List(ctx); err != nil || len(list) != 1 || list[0].ID != ours.ID {
		t.Errorf("the other team has %v, %v", list, err)
	}
}

// belongingsOf gives a team a template, a snapshot and a secret.
func belongingsOf(t *testing.T, w *servertest.World, key, sandbox string) {
	t.Helper()
	for _, one := range [][2]string{
		{"/v3/templates", `{"name":"mine"}`}, {"/sandboxes/" + sandbox + "/snapshots", `{"name":"saved"}`},
		{"/secrets", `{"name":"S","value":"v"}`}, {"/cay/v1/sandboxes/" + sandbox + "/checkpoints", `{}`},
	} {
		if code, text := call(t, w, key, "POST", one[0], one[1]); code/100 != 2 {
			t.Fatalf("%s: %d %s", one[0], code, text)
		}
	}
}
