package operator

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// A restore gives back all that the backup of a working server has:
// records, and keys that open them.
func TestBackupAndRestore(t *testing.T) {
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
	defer db.Close()
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Paused, Env: map[string]string{"A": "b"}, StartedAt: time.Now()}
	if err := db.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	if err := db.AddSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(at.Data, "authority", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at.Data, "authority", "in", "key.pem"), []byte("pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := New(Config{Host: at, Team: team, Store: db, Disk: Reserve(cfg)})
	l, err := d.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { d.Serve(ctx, l) })
	defer func() { stop(); served.Wait() }()

	path := filepath.Join(t.TempDir(), "backup.tar")
	if err := Ask(cfg).Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v, %v: it opens everything", st.Mode(), err)
	}
	if err := Ask(cfg).Backup(t.Context(), path); cay.KindOf(err) != cay.Conflict {
		t.Errorf("over another backup: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(at.Data, ".backup-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := Restore(t.Context(), cfg, path); cay.KindOf(err) != cay.Conflict {
		t.Errorf("over the records that are there: %v", err)
	}

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.tar")
	for what, text := range map[string][]byte{
		"cut off": whole[:len(whole)/2], "without its end": whole[:len(whole)-3*512],
		"flipped": bytes.Replace(whole, []byte("SQLite format 3"), []byte("SQLite format 4"), 1), "something else": []byte("hello"),
	} {
		other := cfg
		other.Data, other.Run = t.TempDir(), t.TempDir()
		if err := os.WriteFile(bad, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Restore(t.Context(), other, bad); err == nil {
			t.Errorf("%s: it was restored", what)
		}
		if _, err := os.Stat(filepath.Join(other.Data, recordsName)); err == nil {
			t.Errorf("%s: records were put into place", what)
		}
	}

	other := cfg
	other.Data, other.Run = t.TempDir(), t.TempDir()
	if err := Restore(t.Context(), other, path); err != nil {
		t.Fatal(err)
	}
	if key, err = seal.Open(other.Data); err != nil {
		t.Fatal(err)
	}
	again, err := store.Open(t.Context(), Host(other).Database(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := again.Sandbox(t.Context(), team.ID, box.ID); err != nil || got.Env["A"] != "b" {
		t.Errorf("restored: %+v, %v", got, err)
	}
	if text, err := os.ReadFile(filepath.Join(other.Data, "authority", "in", "key.pem")); string(text) != "pem" {
		t.Errorf("a key of the authority: %q, %v", text, err)
	}
}
