package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
)

// Whichever byte of a record is flipped, the snapshot is damaged: none is read
// as another number or another name.
func TestEveryByteOfARecordCounts(t *testing.T) {
	d := open(t, t.TempDir())
	s := commit(t, d, "memory")
	for _, name := range []string{recordName, sumName} {
		path := filepath.Join(d.path(s.ID), name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range whole[:len(whole)-1] { // the last line's end says nothing
			bad := append([]byte{}, whole...)
			bad[i] ^= 1
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := d.Get(s.ID)
			var ours *cay.Error
			if !errors.As(err, &ours) || ours.Code != cay.CodeDamaged {
				t.Fatalf("byte %d of %s, %q for %q: %v", i, name, bad[i], whole[i], err)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, got, err := d.Get(s.ID); err != nil || got.ID != s.ID {
		t.Errorf("whole again: %+v, %v", got, err)
	}
	if err := os.Remove(filepath.Join(d.path(s.ID), sumName)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get(s.ID); err != nil {
		t.Errorf("one of an older Cay: %v", err)
	}
}
