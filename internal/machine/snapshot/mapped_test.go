package snapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cay-run/cay"
)

// left names what is in the directory of snapshots.
func left(t *testing.T, data string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(data, "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestMapped: a snapshot that is removed while instances read its files is not
// found any more, is told and counted, and can be verified until the last of
// them has let go.
func TestMapped(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	tmp, s := begin(t, d, "memory")
	s.Team, s.Sandbox = "a", "i1"
	if err := d.Commit(tmp, s); err != nil {
		t.Fatal(err)
	}
	saved := func(want int64) {
		t.Helper()
		if got, err := d.Saved("a"); err != nil || got != want {
			t.Errorf("%d bytes are saved, %v, want %d", got, err, want)
		}
	}
	saved(6)
	d.Hold(s.ID)
	d.Hold(s.ID)
	for range 2 {
		if err := d.Remove(s.ID); err != nil {
			t.Fatal(err)
		}
		_, _, err := d.Get(s.ID)
		wantKind(t, err, cay.NotFound)
		if all, err := d.List(); err != nil || len(all) > 0 {
			t.Errorf("listed: %v, %v", all, err)
		}
		saved(6)
		if err := d.Verify(t.Context(), s.ID); err != nil {
			t.Errorf("verified: %v", err)
		}
		if ids, err := d.IDs(); err != nil || len(ids) != 1 || ids[0] != string(s.ID) {
			t.Errorf("ids %v, %v", ids, err)
		}
	}
	told := func(by int) {
		t.Helper()
		all, err := d.Mapped()
		if err != nil || len(all) != 1 || all[0].Snapshot.ID != s.ID || all[0].By != by {
			t.Fatalf("mapped: %+v, %v", all, err)
		}
	}
	told(2)
	if err := d.LetGo(s.ID); err != nil {
		t.Fatal(err)
	}
	told(1)
	saved(6)
	path := filepath.Join(d.mappedPath(s.ID), "memory.img")
	if err := os.WriteFile(path, []byte("mEmory"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantKind(t, d.Verify(t.Context(), s.ID), cay.Internal)
	if err := d.LetGo(s.ID); err != nil {
		t.Fatal(err)
	}
	d.Settle()
	if names := left(t, data); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
	saved(0)
	wantKind(t, d.Verify(t.Context(), s.ID), cay.NotFound)
}

// TestMappedAfterACrash: the next process finds what was removed and read. It
// keeps what instances still read, and Sweep removes the rest.
func TestMappedAfterACrash(t *testing.T) {
	data := t.TempDir()
	before := open(t, data)
	read, unread, whole := commit(t, before, "read"), commit(t, before, "unread"), commit(t, before, "whole")
	for _, s := range []cay.Snapshot{read, unread, whole} {
		before.Hold(s.ID)
	}
	for _, s := range []cay.Snapshot{read, unread} {
		if err := before.Remove(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, data)
	if all, err := d.Mapped(); err != nil || len(all) != 2 || all[0].By != 0 {
		t.Fatalf("found %+v, %v", all, err)
	}
	d.Hold(read.ID)
	if err := d.Sweep(); err != nil {
		t.Fatal(err)
	}
	d.Settle()
	if names := left(t, data); len(names) != 2 {
		t.Fatalf("left after the sweep: %q", names)
	}
	if err := d.LetGo(read.ID); err != nil {
		t.Fatal(err)
	}
	d.Settle()
	if names := left(t, data); len(names) != 1 || names[0] != string(whole.ID) {
		t.Errorf("left: %q", names)
	}
}

// TestHoldsRace: however holds and a removal fall, nothing is left and no file
// goes while it is held.
func TestHoldsRace(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	for range 50 {
		s := commit(t, d, "memory")
		var all sync.WaitGroup
		d.Hold(s.ID)
		for range 4 {
			all.Go(func() {
				d.Hold(s.ID)
				if err := d.LetGo(s.ID); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if err := d.Remove(s.ID); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if _, err := os.Stat(d.mappedPath(s.ID)); err != nil {
			t.Fatalf("a held snapshot has no files: %v", err)
		}
		if err := d.LetGo(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	d.Settle()
	if names := left(t, data); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
}

// TestCheckOnce: a large file is read once in a run of the host's kernel,
// whichever process read it, and again when it has changed; a small one is not
// remembered by another process.
func TestCheckOnce(t *testing.T) {
	data := t.TempDir()
	writer := open(t, data)
	large := commit(t, writer, strings.Repeat("m", largeFile))
	small := commit(t, writer, "memory")
	wrong := func(s cay.Snapshot) []cay.SnapFile {
		f := s.Files[0]
		f.SHA256 = strings.Repeat("0", 64)
		return []cay.SnapFile{f}
	}
	path := filepath.Join(writer.path(large.ID), "memory.img")
	list := filepath.Join(writer.path(large.ID), keptName)
	damaged := func(d *Dir, s cay.Snapshot, files []cay.SnapFile) {
		t.Helper()
		if err := d.CheckOnce(t.Context(), s, files); cay.CodeOf(err) != cay.CodeDamaged {
			t.Fatalf("not read: %v", err)
		}
	}
	known := func(d *Dir) {
		t.Helper()
		if err := d.CheckOnce(t.Context(), large, wrong(large)); err != nil {
			t.Fatalf("read again: %v", err)
		}
	}
	known(writer)
	next := open(t, data) // the server starts again
	known(next)
	damaged(next, small, wrong(small))
	if err := next.Check(t.Context(), large, wrong(large)); cay.CodeOf(err) != cay.CodeDamaged {
		t.Fatalf("an eager start relies on what was read some time ago: %v", err)
	}

	for name, text := range map[string]string{"another boot": `{"boot":"x","files":{}}`, "rubbish": "{", "none": ""} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			d := open(t, data)
			damaged(d, large, wrong(large))
			if err := d.CheckOnce(t.Context(), large, large.Files); err != nil {
				t.Fatal(err)
			}
			known(open(t, data))
		})
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged(open(t, data), large, large.Files)
	damaged(next, large, large.Files)
	var k kept
	if text, err := os.ReadFile(list); err != nil || json.Unmarshal(text, &k) != nil || k.Boot != boot() {
		t.Errorf("the list holds %s, %v", text, err)
	}
}
