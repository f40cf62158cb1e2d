package store_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// Changes of sandboxes are recorded on a disk that is full to the last
// byte, for long.
func TestRecordsOnAFullDisk(t *testing.T) {
	dir := disktest.Ext4(t, 128<<20)
	s := storetest.Open(t, filepath.Join(dir, "cay.db"))
	team := cay.Team{ID: cay.NewTeamID(), Name: "a", CreatedAt: time.Now()}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	var boxes []cay.Sandbox
	for range 20 {
		box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, State: cay.Running, Env: map[string]string{"A": strings.Repeat("x", 1000)}, StartedAt: time.Now()}
		if err := s.AddSandbox(t.Context(), box); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, box)
	}
	store.Settle(s)
	disktest.Fill(t, dir)
	for n := range 2000 {
		box := boxes[n%len(boxes)]
		box.EndAt = time.UnixMilli(int64(n))
		told := cay.Event{Team: team.ID, Sandbox: box.ID, Type: cay.SandboxTimeoutChanged, At: time.Now(), Data: map[string]string{"end": strings.Repeat("y", 200)}}
		if err := s.UpdateSandbox(t.Context(), box, told); err != nil {
			t.Fatalf("change %d: %v", n, err)
		}
		boxes[n%len(boxes)].Version++
	}
	box := boxes[0]
	box.State = cay.Paused // whose record is synced
	if err := s.UpdateSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := storetest.Open(t, filepath.Join(dir, "cay.db"))
	if got, err := again.Sandbox(t.Context(), team.ID, box.ID); err != nil || got.State != cay.Paused {
		t.Errorf("after it was opened again: %+v, %v", got, err)
	}
}
