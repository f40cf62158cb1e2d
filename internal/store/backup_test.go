package store_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// A backup that is taken while records are written is one moment of them.
func TestBackup(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, filepath.Join(dir, "cay.db"))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, Env: map[string]string{"A": "b"}, StartedAt: time.Now()}
	if err := s.AddSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	var writes sync.WaitGroup
	stop := make(chan struct{})
	writes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			other := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, StartedAt: time.Now()}
			if err := s.AddSandbox(t.Context(), other); err != nil {
				t.Error(err)
				return
			}
		}
	})
	path := filepath.Join(dir, "copy.db")
	err := s.Backup(t.Context(), path)
	close(stop)
	writes.Wait()
	if err != nil {
		t.Fatal(err)
	}
	again := storetest.Open(t, path)
	if got, err := again.Sandbox(t.Context(), team.ID, box.ID); err != nil || got.Env["A"] != "b" {
		t.Errorf("from the copy: %+v, %v", got, err)
	}
	if err := again.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Backup(t.Context(), path); err == nil {
		t.Error("a backup was written over another")
	}
}

// A database that is damaged is not opened.
func TestDamageIsFoundAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s := storetest.Open(t, path)
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		if err := s.AddSandbox(t.Context(), cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, StartedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + "-wal"); err != nil { // it has whole copies of the pages
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 4096; at < len(text); at += 4096 {
		text[at] ^= 0x40 // the kind of a page
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.CheckFile(t.Context(), path); cay.KindOf(err) != cay.Internal {
		t.Errorf("a damaged database is looked through: %v", err)
	}
	s, err = store.Open(t.Context(), path, clearText{})
	if err == nil {
		s.Close()
		t.Fatal("a damaged database was opened")
	}
	if cay.KindOf(err) != cay.Internal {
		t.Errorf("%v", err)
	}
}
