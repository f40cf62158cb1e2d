package blob_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/blob/blobtest"
)

func TestDir(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blobtest.Place { return inDir(t, t.TempDir()) })
}

func inDir(t *testing.T, root string) blobtest.Place {
	return blobtest.Place{
		Open: func() *blob.Bucket {
			b, err := blob.Open(root, os.Getenv)
			noError(t, err)
			return b
		},
		Stored: func(name string) []byte {
			out, err := os.ReadFile(filepath.Join(root, name))
			noError(t, err)
			return out
		},
		Store: func(name string, stored []byte) { noError(t, os.WriteFile(filepath.Join(root, name), stored, 0o600)) },
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A writer that was killed leaves a part, which goes when it is old.
func TestPartsOfADirectory(t *testing.T) {
	root := t.TempDir()
	noError(t, os.Mkdir(filepath.Join(root, ".parts"), 0o700))
	old, young := filepath.Join(root, ".parts", "old"), filepath.Join(root, ".parts", "young")
	for _, path := range []string{old, young} {
		noError(t, os.WriteFile(path, nil, 0o600))
	}
	noError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-25*time.Hour)))
	b := inDir(t, root).Open()
	noError(t, b.Put(t.Context(), "a", nil))
	entries, err := os.ReadDir(filepath.Join(root, ".parts"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "young" {
		t.Errorf("%v, %v", entries, err)
	}
	for o, err := range b.List(t.Context(), "") {
		if err != nil || o.Name != "a" {
			t.Errorf("%s, %v", o.Name, err)
		}
	}
	if _, err := blob.OpenDir("not/absolute"); cay.KindOf(err) != cay.Invalid {
		t.Error(err)
	}
}

// On a full disk an object is there whole or not at all, and the error says so.
func TestDirectoryOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED HERE: a mount needs root")
	}
	root := t.TempDir()
	noError(t, syscall.Mount("cay-test", root, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { noError(t, syscall.Unmount(root, 0)) })
	b := inDir(t, root).Open()
	noError(t, b.Put(t.Context(), "a", make([]byte, 100_000)))
	for _, name := range []string{"a", "b"} {
		err := b.Put(t.Context(), name, make([]byte, 200_000))
		if !errors.Is(err, blob.ErrFull) || cay.KindOf(err) != cay.NoSpace {
			t.Errorf("%s on a full disk: %v", name, err)
		}
	}
	if got, err := b.Get(t.Context(), "a"); err != nil || len(got) != 100_000 {
		t.Errorf("it has %d bytes, %v", len(got), err)
	}
	noError(t, b.Remove(t.Context(), "a"))
	noError(t, b.Put(t.Context(), "b", make([]byte, 200_000))) // nothing else takes room
}
