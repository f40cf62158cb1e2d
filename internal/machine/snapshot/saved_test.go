package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
)

// TestSaved follows what teams have saved, from before it is asked for and
// after.
func TestSaved(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	save := func(team cay.TeamID, of cay.SandboxID, text string) cay.SnapshotID {
		t.Helper()
		tmp, s := begin(t, d, text)
		s.Team, s.Sandbox = team, of
		if err := d.Commit(tmp, s); err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	is := func(want int64, team cay.TeamID, but ...cay.SnapshotID) {
		t.Helper()
		if got, err := d.Saved(team, but...); err != nil || got != want {
			t.Errorf("team %s has saved %d bytes, %v, want %d", team, got, err, want)
		}
	}
	first := save("a", "i1", "12345")
	save("a", "", "a template")
	is(5, "a")
	is(0, "b")
	theirs := save("b", "i2", "123")
	second := save("a", "i1", "1234567")
	is(12, "a")
	is(7, "a", first, theirs, "none")
	is(3, "b")

	tmp, err := d.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(tmp, "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "files/layer"), []byte("12"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Attach(tmp, second, []cay.SnapFile{{Name: "files/layer", Size: 2}}); err != nil {
		t.Fatal(err)
	}
	is(14, "a")
	for range 2 {
		if err := d.Remove(first); err != nil {
			t.Fatal(err)
		}
		is(9, "a")
	}
	if err := d.Remove(theirs); err != nil {
		t.Fatal(err)
	}
	is(0, "b")
	d = open(t, data)
	is(9, "a")
}
