package operator

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/store"
)

func TestDownWithoutAnything(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir()+"/never/made", t.TempDir()
	if err := Down(t.Context(), cfg, host.Open, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.Data); !os.IsNotExist(err) {
		t.Error("Down made the data directory")
	}
}

// The end of every live sandbox is recorded, in whatever state it is and
// whatever of its record is sealed.
func TestDownRecordsEverySandbox(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	at := Host(cfg)
	key, err := seal.Open(at.Data)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), at.Database(), key)
	if err != nil {
		t.Fatal(err)
	}
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	if err := db.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	options := map[string]cay.Sandbox{
		"nothing":        {},
		"environment":    {Env: map[string]string{"A": "b"}},
		"SOCKS proxy":    {Network: cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "a:1", Username: "u", Password: "p"}}},
		"header rules":   {Network: cay.NetworkPolicy{Rules: map[string][]cay.HeaderRule{"api.test": {{Headers: map[string]string{"Authorization": "Bearer x"}}}}}},
		"public traffic": {Network: cay.NetworkPolicy{AllowPublic: true}},
	}
	after := map[cay.State]cay.State{
		cay.Creating: cay.Killed, cay.Running: cay.Killed, cay.Pausing: cay.Killed,
		cay.Paused: cay.Paused, cay.Resuming: cay.Killed,
	}
	made, want := map[cay.SandboxID]string{}, map[cay.SandboxID]cay.State{}
	for name, box := range options {
		for state := range after {
			box.ID, box.Team, box.State, box.StartedAt = cay.NewSandboxID(), team.ID, state, time.Now()
			box.Instance, box.Snapshot = cay.NewInstanceID(), cay.NewSnapshotID() // no snapshot is on the disk: none is kept
			if err := db.AddSandbox(t.Context(), box); err != nil {
				t.Fatal(err)
			}
			want[box.ID] = after[state]
			made[box.ID] = name + ", " + string(state)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	m := &host.Machine{}
	if m.Snapshots, err = snapshot.Open(at.Data); err != nil {
		t.Fatal(err)
	}
	if err := recordDown(t.Context(), cfg, m); err != nil {
		t.Fatalf("the ends were not recorded: %v", err)
	}
	if db, err = store.Open(t.Context(), at.Database(), key); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for id, what := range made {
		got, err := db.Sandbox(t.Context(), team.ID, id)
		if err != nil || got.State != want[id] {
			t.Errorf("%s: %s after down, want %s, %v", what, got.State, want[id], err)
		}
	}
}

// Records that cannot be read are an error, and not the end of the program.
func TestDownWithAnotherKey(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	at := Host(cfg)
	key, err := seal.Open(at.Data)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), at.Database(), key)
	if err != nil {
		t.Fatal(err)
	}
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, Env: map[string]string{"A": "b"}}
	if err := errors.Join(db.AddTeam(t.Context(), team), db.AddSandbox(t.Context(), box), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at.Data+"/seal.key", make([]byte, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &host.Machine{}
	if m.Snapshots, err = snapshot.Open(at.Data); err != nil {
		t.Fatal(err)
	}
	if err := recordDown(t.Context(), cfg, m); cay.KindOf(err) != cay.Internal {
		t.Errorf("with another key: %v", err)
	}
}
