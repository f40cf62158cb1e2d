package volumes

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/machine/volume/dirs"
	"github.com/cay-run/cay/internal/store/storetest"
)

// A volume that cannot be read is of no matter to what others take, and counts as it did
// before.
func TestAVolumeThatCannotBeReadCountsAsBefore(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	records := storetest.Open(t, filepath.Join(t.TempDir(), "cay.db"))
	defer records.Close()
	storage, err := dirs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := New(Config{Ledger: ledger.New(ledger.Config{Store: records}), Store: records, Storage: storage, Log: slog.New(slog.DiscardHandler)})
	var made []cay.Volume
	for _, name := range []string{"a", "b"} {
		team := cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: ledger.Now()}
		if err := records.AddTeam(ctx, team); err != nil {
			t.Fatal(err)
		}
		one := cay.Volume{ID: cay.NewVolumeID(), Team: team.ID, Name: name, SizeMB: 16, CreatedAt: ledger.Now()}
		if err := storage.Create(ctx, one.ID, one.SizeMB); err != nil {
			t.Fatal(err)
		}
		if err := records.AddVolume(ctx, one); err != nil {
			t.Fatal(err)
		}
		root, err := storage.Attach(ctx, one.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, 100<<10), 0o644); err != nil {
			t.Fatal(err)
		}
		storage.Detach(one.ID)
		made = append(made, one)
	}
	before, err := v.Kept(ctx)
	if err != nil || before[made[0].Team] == 0 || before[made[1].Team] == 0 {
		t.Fatalf("%v, %v", before, err)
	}
	broken, err := filepath.Glob(filepath.Join(dir, string(made[0].ID), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range broken {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			if err := os.WriteFile(path, []byte("no size"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := storage.Usage(ctx, made[0].ID); err == nil {
		t.Fatal("it can be read still")
	}
	after, err := v.Kept(ctx)
	if err != nil || after[made[0].Team] != before[made[0].Team] || after[made[1].Team] != before[made[1].Team] {
		t.Errorf("%v, before %v, %v", after, before, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := v.Kept(ended); err == nil {
		t.Error("what a server that stops could not read is counted")
	}
}
