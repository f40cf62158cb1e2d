package main

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

func TestSnapshotVerify(t *testing.T) {
	data := t.TempDir()
	env := []string{"CAY_DATA_DIR=" + data, "CAY_RUN_DIR=" + t.TempDir()}
	dir, err := snapshot.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 2 {
		tmp, err := dir.Begin()
		if err != nil {
			t.Fatal(err)
		}
		text := []byte("memory")
		if err := os.WriteFile(filepath.Join(tmp, "pages.img"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		sum := fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
		s := cay.Snapshot{ID: cay.NewSnapshotID(), Format: cay.SnapshotFormat, Kind: cay.MemorySnapshot,
			Files: []cay.SnapFile{{Name: "pages.img", Size: int64(len(text)), CRC32C: sum}}}
		if err := dir.Commit(tmp, s); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, string(s.ID))
	}
	if code, out, errs := invoke(t, env, "snapshot", "verify"); code != 0 || strings.Count(out, "✓") != 2 || !strings.Contains(errs, "0 damaged") {
		t.Fatalf("verify: %d %q %q", code, out, errs)
	}

	if err := os.WriteFile(filepath.Join(data, "snapshots", ids[0], "pages.img"), []byte("memorx"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ := invoke(t, env, "snapshot", "verify")
	if code != 1 || !strings.Contains(out, "✗ "+ids[0]) || !strings.Contains(out, "pages.img") || !strings.Contains(out, "✓ "+ids[1]) {
		t.Errorf("verify of a damaged one: %d %q", code, out)
	}
	var told []struct{ SnapshotID, Error string }
	code, out, _ = invoke(t, env, "--json", "snapshot", "verify", ids[0])
	if err := json.Unmarshal([]byte(out), &told); code != 1 || err != nil || len(told) != 1 || told[0].SnapshotID != ids[0] || told[0].Error == "" {
		t.Errorf("as JSON: %d %q", code, out)
	}
	if err := os.Truncate(filepath.Join(data, "snapshots", ids[0], "snapshot.json"), 3); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := invoke(t, env, "snapshot", "verify"); code != 1 || !strings.Contains(out, "✗ "+ids[0]) {
		t.Errorf("verify of a damaged record: %d %q", code, out)
	}
	if code, out, _ := invoke(t, env, "snapshot", "verify", ids[1]); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("verify of the other: %d %q", code, out)
	}
	if code, _, _ := invoke(t, env, "snapshot", "verify", "snothing"); code != 1 {
		t.Errorf("verify of nothing: %d", code)
	}
	missing := []string{"CAY_DATA_DIR=" + filepath.Join(data, "none")}
	if code, _, errs := invoke(t, missing, "snapshot", "verify"); code != 1 || !strings.Contains(errs, "CAY_DATA_DIR") {
		t.Errorf("without data: %d %q", code, errs)
	}
}
