package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

func init() {
	// SQLite in Go under the race detector is slow; `-rapid.checks` asks for more.
	flag.Set("rapid.checks", "25")
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t testing.TB) store.Store {
		return openAt(t, filepath.Join(t.TempDir(), "odd ?&%#name", "cay.db"))
	})
}

func openAt(t testing.TB, path string) *store.DB {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	return storetest.Open(t, path)
}

func TestSQLiteReopens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	a := openAt(t, path)
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.UnixMilli(1).UTC()}
	if err := a.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	b := openAt(t, path) // a second process, while the first lives
	if err := b.AddTeam(t.Context(), cay.Team{ID: cay.NewTeamID(), Name: "b", CreatedAt: time.UnixMilli(2).UTC()}); err != nil {
		t.Fatal(err)
	}
	list, err := a.Teams(t.Context())
	if err != nil || len(list) != 2 || list[0] != team {
		t.Fatalf("found %v, %v", list, err)
	}
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v: it holds secrets", filepath.Base(name), info.Mode())
		}
	}
}

func TestSQLiteErrors(t *testing.T) {
	if _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "none", "cay.db"), clearText{}); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a directory that is not there: %v", err)
	}
	path := filepath.Join(t.TempDir(), "cay.db")
	if err := os.WriteFile(path, []byte("this is no database, but long enough to be taken for one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := store.Open(t.Context(), path, clearText{}); err == nil {
		s.Close()
		t.Error("a file that is no database was opened")
	}
	path = filepath.Join(t.TempDir(), "cay.db")
	if s, err := store.Open(t.Context(), path, nil); err == nil {
		s.Close()
		t.Error("a database was opened without the key of its sealed records")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a database was made without a key")
	}
}

// clearText is the sealer of a version that did not seal.
type clearText struct{}

func (clearText) Seal(plain []byte, _ string) string  { return string(plain) }
func (clearText) Open(text, _ string) ([]byte, error) { return []byte(text), nil }

func TestSecretsOfSandboxesAreSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	box := func() cay.Sandbox {
		return cay.Sandbox{
			ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, Env: map[string]string{"KEY": "s3cret-env"},
			Network: cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "a:1", Username: "u", Password: "s3cret-proxy"}},
		}
	}
	plain, err := store.Open(t.Context(), path, clearText{})
	if err != nil {
		t.Fatal(err)
	}
	old := box() // of a version that did not seal
	if err := errors.Join(plain.AddTeam(t.Context(), team), plain.AddSandbox(t.Context(), old), plain.Close()); err != nil {
		t.Fatal(err)
	}
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), path, key)
	if err != nil {
		t.Fatal(err)
	}
	sealed := box()
	sealed.Env["KEY"] = "another-secret"
	sealed.Network.Proxy.Password = "another-password"
	if err := s.AddSandbox(t.Context(), sealed); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddCheckpoint(t.Context(), cay.Checkpoint{ID: "s1", Team: team.ID, Sandbox: sealed.ID, Source: sealed}); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Checkpoint(t.Context(), team.ID, "s1"); err != nil || c.Source.Env["KEY"] != sealed.Env["KEY"] {
		t.Errorf("read back %+v, %v", c, err)
	}
	for _, want := range []cay.Sandbox{old, sealed} {
		got, err := s.Sandbox(t.Context(), team.ID, want.ID)
		if err != nil || got.Env["KEY"] != want.Env["KEY"] || got.Network.Proxy.Password != want.Network.Proxy.Password {
			t.Errorf("read back %+v, %v", got, err)
		}
	}
	s.Close()
	text, err := os.ReadFile(path)
	if err != nil || bytes.Contains(text, []byte("another-")) || !bytes.Contains(text, []byte("s3cret-env")) {
		t.Errorf("the database holds a secret, or nothing at all: %v", err)
	}
	other, err := seal.NewKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	again, err := store.Open(t.Context(), path, other)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Sandbox(t.Context(), team.ID, sealed.ID); cay.KindOf(err) != cay.Internal {
		t.Errorf("read with another key: %v", err)
	}
}

// A database that has a later migration already takes an earlier one that is
// new to it.
func TestMigrationsInAnyOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	openAt(t, path).Close()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`DROP TABLE ssh_keys`, `DELETE FROM goose_db_version WHERE version_id = 12`,
	} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, path).SSHKeyOpens(t.Context(), "none", "none"); err != nil {
		t.Error(err)
	}
}

// A long policy is in the database once for a team, until no sandbox has it, and
// no change of a sandbox writes it again. One that holds secrets is sealed where
// it was.
func TestLongPoliciesLieOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s := openAt(t, path)
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	var boxes []cay.Sandbox
	for i := range 3 {
		box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Creating}
		for n := range 100 {
			box.Network.AllowOut = append(box.Network.AllowOut, fmt.Sprintf("name-%d.example", n))
		}
		if i == 2 {
			box.Network.Proxy = &cay.EgressProxy{Address: "a:1", Username: "u", Password: "p"}
		}
		if err := s.AddSandbox(t.Context(), box); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, box)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	count := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(`SELECT COUNT(*) FROM policies`); n != 1 {
		t.Errorf("the policy of two lies there %d times", n)
	}
	if n := count(`SELECT COUNT(*) FROM sandboxes WHERE length(network) > 100`); n != 1 {
		t.Errorf("%d rows hold a long policy; only one holds a password", n)
	}
	for _, box := range boxes {
		box.State, box.EndedAt = cay.Killed, time.UnixMilli(5).UTC()
		if err := s.UpdateSandbox(t.Context(), box); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.PruneSandboxes(t.Context(), time.UnixMilli(9)); n != 3 || err != nil {
		t.Errorf("%d were forgotten, %v", n, err)
	}
	if n := count(`SELECT COUNT(*) FROM policies`); n != 0 {
		t.Errorf("%d policies are left without a sandbox", n)
	}
}
