package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func open(t *testing.T, data string) *Dir {
	t.Helper()
	d, err := Open(data)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// begin writes one file into a new temporary directory and returns it with a
// record that names the file.
func begin(t *testing.T, d *Dir, content string) (string, cay.Snapshot) {
	t.Helper()
	tmp, err := d.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "memory.img"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	return tmp, cay.Snapshot{
		Format: cay.SnapshotFormat, ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot,
		Root:      strings.Repeat("ab", 32),
		Files:     []cay.SnapFile{{Name: "memory.img", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}},
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
}

func commit(t *testing.T, d *Dir, content string) cay.Snapshot {
	t.Helper()
	tmp, s := begin(t, d, content)
	if err := d.Commit(tmp, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantKind(t *testing.T, err error, kind cay.Kind) {
	t.Helper()
	if cay.KindOf(err) != kind {
		t.Fatalf("got error %v of kind %q, want kind %q", err, cay.KindOf(err), kind)
	}
}

func TestCommitThenGet(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	want := commit(t, d, "memory")

	d = open(t, data) // another process
	dir, got, err := d.Get(want.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != want.ID || !got.CreatedAt.Equal(want.CreatedAt) || got.Files[0] != want.Files[0] {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	text, err := os.ReadFile(filepath.Join(dir, "memory.img"))
	if err != nil || string(text) != "memory" {
		t.Fatalf("got %q, %v", text, err)
	}
	if err := d.Verify(t.Context(), want.ID); err != nil {
		t.Fatal(err)
	}
}

// TestFilesInADirectory: a memory snapshot keeps its files' layer beside the
// memory, under names that both have.
func TestFilesInADirectory(t *testing.T) {
	d := open(t, t.TempDir())
	tmp, s := begin(t, d, "memory")
	layer := s.Files[0]
	layer.Name = "files/" + layer.Name
	s.Files = append(s.Files, layer)
	if err := os.Mkdir(filepath.Join(tmp, "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(tmp, layer.Name)
	if err := os.WriteFile(path, []byte("memory"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantKind(t, d.Commit(tmp, s), cay.Internal)
	if err := os.Remove(path + "2"); err != nil {
		t.Fatal(err)
	}
	if err := d.Commit(tmp, s); err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(s.ID); err != nil {
		t.Fatal(err)
	}
}

func TestGetWhatIsNotThere(t *testing.T) {
	d := open(t, t.TempDir())
	for _, id := range []cay.SnapshotID{cay.NewSnapshotID(), "", "..", "../snapshots", ".tmp-1"} {
		_, _, err := d.Get(id)
		wantKind(t, err, cay.NotFound)
	}
}

func TestOpenRemovesLeftoversOnly(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	kept := commit(t, d, "kept")
	atWork, s := begin(t, d, "at work")
	crashed := filepath.Join(data, "snapshots", tempPrefix+"crashed")
	crashedImage := filepath.Join(data, "images", tempPrefix+"crashed")
	if err := os.MkdirAll(filepath.Join(crashed, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(crashedImage, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	open(t, data)
	for _, path := range []string{crashed, crashedImage} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there", path)
		}
	}
	if _, _, err := d.Get(kept.ID); err != nil {
		t.Error(err)
	}
	if err := d.Commit(atWork, s); err != nil {
		t.Errorf("an unfinished snapshot of a living writer was removed: %v", err)
	}
}

func TestAbort(t *testing.T) {
	d := open(t, t.TempDir())
	tmp, _ := begin(t, d, "x")
	if err := d.Abort(tmp); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tmp); !os.IsNotExist(err) {
		t.Fatal("the directory is still there")
	}
	tmp, s := begin(t, d, "x")
	if err := d.Commit(tmp, s); err != nil {
		t.Fatal(err)
	}
	if err := d.Abort(tmp); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get(s.ID); err != nil {
		t.Fatalf("Abort after Commit took the snapshot: %v", err)
	}
}

func TestCommitRefusesWhatTheRecordDoesNotSay(t *testing.T) {
	d := open(t, t.TempDir())
	for name, spoil := range map[string]func(tmp string, s *cay.Snapshot){
		"short file": func(tmp string, s *cay.Snapshot) { s.Files[0].Size++ },
		"no file":    func(tmp string, s *cay.Snapshot) { os.Remove(filepath.Join(tmp, "memory.img")) },
		"extra file": func(tmp string, s *cay.Snapshot) { os.WriteFile(filepath.Join(tmp, "more"), nil, 0o600) },
		"empty list": func(tmp string, s *cay.Snapshot) { s.Files = nil },
		"path":       func(tmp string, s *cay.Snapshot) { s.Files[0].Name = "../memory.img" },
		"deep path":  func(tmp string, s *cay.Snapshot) { s.Files[0].Name = "a/b/memory.img" },
		"its record": func(tmp string, s *cay.Snapshot) { s.Files[0].Name = recordName },
		"directory":  func(tmp string, s *cay.Snapshot) { os.Mkdir(filepath.Join(tmp, "more"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			tmp, s := begin(t, d, "memory")
			spoil(tmp, &s)
			wantKind(t, d.Commit(tmp, s), cay.Internal)
			_, _, err := d.Get(s.ID)
			wantKind(t, err, cay.NotFound)
		})
	}
	tmp, s := begin(t, d, "memory")
	s.ID = "../x"
	wantKind(t, d.Commit(tmp, s), cay.Invalid)

	one := commit(t, d, "memory")
	tmp, s = begin(t, d, "memory")
	s.ID = one.ID
	wantKind(t, d.Commit(tmp, s), cay.Conflict)
}

func TestDamage(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(dir string) error
		kind   cay.Kind
	}{
		"no record":   {func(dir string) error { return os.Remove(filepath.Join(dir, recordName)) }, cay.NotFound},
		"half record": {func(dir string) error { return os.Truncate(filepath.Join(dir, recordName), 40) }, cay.Internal},
		"short file":  {func(dir string) error { return os.Truncate(filepath.Join(dir, "memory.img"), 1) }, cay.Internal},
		"gone file":   {func(dir string) error { return os.Remove(filepath.Join(dir, "memory.img")) }, cay.Internal},
		"later format": {func(dir string) error {
			path := filepath.Join(dir, recordName)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = []byte(strings.Replace(string(text), `"format": 1`, `"format": 99`, 1))
			return errors.Join(os.WriteFile(path, text, 0o600), os.WriteFile(filepath.Join(dir, sumName), []byte(sumOf(text)), 0o600))
		}, cay.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			bad, good := commit(t, d, "memory"), commit(t, d, "other")
			if err := c.damage(d.path(bad.ID)); err != nil {
				t.Fatal(err)
			}
			_, _, err := d.Get(bad.ID)
			wantKind(t, err, c.kind)
			all, err := d.List()
			if len(all) != 1 || all[0].ID != good.ID {
				t.Errorf("List gives %v", all)
			}
			if (err != nil) != (c.kind != cay.NotFound) {
				t.Errorf("List's error is %v", err)
			}
		})
	}
}

func TestVerifyFindsWhatGetDoesNot(t *testing.T) {
	d := open(t, t.TempDir())
	s := commit(t, d, "memory")
	if err := os.WriteFile(filepath.Join(d.path(s.ID), "memory.img"), []byte("mEmory"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get(s.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, d.Verify(t.Context(), s.ID), cay.Internal)
}

// TestAttach: files added to a snapshot are there as a whole or not at all.
func TestAttach(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	s := commit(t, d, "memory")
	layer := func(name string) (string, []cay.SnapFile) {
		tmp, add := begin(t, d, "files")
		f := add.Files[0]
		if err := os.MkdirAll(filepath.Join(tmp, "files"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(tmp, f.Name), filepath.Join(tmp, name)); err != nil {
			t.Fatal(err)
		}
		f.Name = name
		return tmp, []cay.SnapFile{f}
	}
	tmp, files := layer("files/pages.img")
	wantKind(t, d.Attach(tmp, cay.NewSnapshotID(), files), cay.NotFound)
	// A crash between the two names: the files have no owner.
	half := commit(t, d, "memory")
	if err := os.Mkdir(filepath.Join(data, "snapshots", string(half.ID), "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, got, err := d.Get(half.ID); err != nil || len(got.Files) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := d.Attach(tmp, s.ID, files); err != nil {
		t.Fatal(err)
	}
	if err := d.Abort(tmp); err != nil {
		t.Fatal(err)
	}
	if _, got, err := open(t, data).Get(s.ID); err != nil || len(got.Files) != 2 || got.Files[1] != files[0] {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := d.Verify(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	tmp, files = layer("elsewhere")
	wantKind(t, d.Attach(tmp, s.ID, files), cay.Invalid)
	// It is damaged like the rest.
	if err := os.Truncate(filepath.Join(data, "snapshots", string(s.ID), "files/pages.img"), 1); err != nil {
		t.Fatal(err)
	}
	_, _, err := d.Get(s.ID)
	wantKind(t, err, cay.Internal)
}

// TestCheck: the files that a start reads are compared with the quick checksum,
// once in a while and whenever they have changed.
func TestCheck(t *testing.T) {
	data := t.TempDir()
	s := commit(t, open(t, data), "memory")
	d := open(t, data) // one that did not write it
	if s.Files[0].CRC32C != "" {
		t.Fatal("the helper records a quick checksum; the fallback is not tested")
	}
	check := func() error { return d.Check(t.Context(), s, s.Files) }
	if err := check(); err != nil { // by SHA-256
		t.Fatal(err)
	}
	s.Files[0].CRC32C = "00000000"
	if err := check(); err != nil { // not again
		t.Errorf("a file that was just checked is read again: %v", err)
	}
	path := filepath.Join(data, "snapshots", string(s.ID), "memory.img")
	if err := os.WriteFile(path, []byte("memory"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := check()
	wantKind(t, err, cay.Internal)
	var known *cay.Error
	if !errors.As(err, &known) || known.Code != cay.CodeDamaged || !strings.Contains(err.Error(), string(s.ID)) || !strings.Contains(err.Error(), "memory.img") {
		t.Errorf("damage is reported as %v", err)
	}
	s.Files[0].CRC32C = fmt.Sprintf("%08x", crc32.Checksum([]byte("memory"), castagnoli))
	if err := check(); err != nil {
		t.Errorf("a whole file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := os.WriteFile(path, []byte("Memory"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantKind(t, d.Check(ctx, s, s.Files), cay.Unavailable)
	wantKind(t, check(), cay.Internal)
}

func TestRemove(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	s := commit(t, d, "memory")
	for range 2 {
		if err := d.Remove(s.ID); err != nil {
			t.Fatal(err)
		}
		_, _, err := d.Get(s.ID)
		wantKind(t, err, cay.NotFound)
	}
	d.Settle()
	entries, err := os.ReadDir(filepath.Join(data, "snapshots"))
	if err != nil || len(entries) != 0 {
		t.Fatalf("left %v, %v", entries, err)
	}
}

func TestListIsOldestFirst(t *testing.T) {
	d := open(t, t.TempDir())
	var want []cay.SnapshotID
	for i := range 3 {
		tmp, s := begin(t, d, "memory")
		s.CreatedAt = time.Unix(int64(i), 0)
		if err := d.Commit(tmp, s); err != nil {
			t.Fatal(err)
		}
		want = append(want, s.ID)
	}
	got, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range got {
		if s.ID != want[i] {
			t.Fatalf("place %d has %s, want %s", i, s.ID, want[i])
		}
	}
}

func TestImages(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	var digests []string
	for range 2 { // the same content twice is one image
		tmp := filepath.Join(data, "new.img")
		if err := os.WriteFile(tmp, []byte("root"), 0o600); err != nil {
			t.Fatal(err)
		}
		digest, err := d.AddImage(tmp)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(tmp); !os.IsNotExist(err) {
			t.Fatal("the given file is still there")
		}
		digests = append(digests, digest)
	}
	sum := sha256.Sum256([]byte("root"))
	if want := hex.EncodeToString(sum[:]); digests[0] != want || digests[1] != want {
		t.Fatalf("got digests %v, want %s", digests, want)
	}
	path, err := d.Image(digests[0])
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "root" {
		t.Fatalf("got %q, %v", text, err)
	}
	if all, err := d.Images(); err != nil || len(all) != 1 || all[0] != digests[0] {
		t.Fatalf("got %v, %v", all, err)
	}
	for range 2 {
		if err := d.RemoveImage(digests[0]); err != nil {
			t.Fatal(err)
		}
	}
	for _, digest := range []string{digests[0], "", "../cay.db"} {
		_, err := d.Image(digest)
		wantKind(t, err, cay.NotFound)
	}
	if _, err := d.AddImage(filepath.Join(data, "absent")); err == nil {
		t.Fatal("an absent file was added")
	}
}
