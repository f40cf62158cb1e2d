package operator

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/store"
)

// A look at all snapshots looks through the records too, with a server and
// without one, and writes nothing to them.
func TestVerifyLooksThroughTheRecords(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	at := Host(cfg)
	path := at.Database()
	key, err := seal.Open(at.Data)
	if err != nil {
		t.Fatal(err)
	}
	open := func() *store.DB {
		db, err := store.Open(t.Context(), path, key)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	verify := func(ids ...string) error {
		return Verify(t.Context(), cfg, ids, func(v Verified) {
			if v.ID != "none" || v.Error == "" {
				t.Errorf("there are no snapshots, and it tells of %+v", v)
			}
		})
	}
	db := open()
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.Now()}
	if err := db.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	event := cay.Event{Team: team.ID, Sandbox: cay.NewSandboxID(), Type: cay.SandboxCreated, At: time.Now(), Data: map[string]string{"a": strings.Repeat("x", 500)}}
	for range 200 {
		if err := db.AddEvents(t.Context(), event); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before := sums(t, path)
	if err := verify(); err != nil {
		t.Errorf("whole, without a server: %v", err)
	}
	if got := sums(t, path); got != before {
		t.Error("a look has written")
	}

	if err := os.Remove(path + "-wal"); err != nil { // it has whole copies of the pages
		t.Fatal(err)
	}
	db = open()
	defer db.Close()
	dir, err := snapshot.Open(at.Data)
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Host: at, Team: team, Store: db, Snapshots: dir})
	l, err := d.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { d.Serve(ctx, l) })
	end := func() { stop(); served.Wait() }
	defer end()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 4096
	for page := len(text) / size / 2; (page+1)*size <= len(text); page++ {
		if _, err := f.WriteAt([]byte{text[page*size] ^ 0x40}, int64(page*size)); err != nil { // the kind of a page
			t.Fatal(err)
		}
	}
	for _, where := range []string{"with a server", "without a server"} {
		if err := verify(); err == nil || !strings.Contains(err.Error(), "the database is damaged") {
			t.Errorf("damaged, %s: %v", where, err)
		}
		if err := verify("none"); err != nil {
			t.Errorf("one snapshot alone, %s: %v", where, err)
		}
		end()
	}
}

// sums is the content of a database's files but the one that readers share.
func sums(t *testing.T, path string) (out [2][32]byte) {
	t.Helper()
	for i, name := range []string{path, path + "-wal"} {
		text, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			t.Fatal(err)
		}
		out[i] = sha256.Sum256(text)
	}
	return out
}
