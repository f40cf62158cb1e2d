package enginetest

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// A sample is an archive with a root image (root.erofs), a snapshot of an
// instance of sample/guest.c that was asked once, and its record
// (snapshot.json). One of every format is kept for good, because users keep
// theirs as long.

const sampleAnswers = "2 first\n" // of a memory that goes on; files alone answer "1 again\n"

// Samples starts every sample in dir: with its memory where this engine can,
// else from its files, with the reason why in a Conflict.
func Samples(t *testing.T, open func(testing.TB) engine.Engine, dir string) {
	all, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no samples in %s: %v", dir, err)
	}
	s := &suite{Engine: open(t), open: open, dir: t.TempDir(), slots: []*slot{newSlot(t, 0)}}
	for _, path := range all {
		t.Run(filepath.Base(path), func(t *testing.T) { s.sample(t, path) })
	}
}

func (s *suite) sample(t *testing.T, path string) {
	dir, at := t.TempDir(), s.slots[0]
	must(t, unpack(path, dir))
	text, err := os.ReadFile(filepath.Join(dir, "snapshot.json"))
	must(t, err)
	var snap cay.Snapshot
	must(t, json.Unmarshal(text, &snap))
	s.image = filepath.Join(dir, "root.erofs")

	if err := s.CanRestore(snap); err == nil {
		id := s.resume(t, snap, dir, at)
		at.greets(t, sampleAnswers)
		must(t, s.Kill(t.Context(), id))
	} else if cay.KindOf(err) != cay.Conflict {
		t.Errorf("CanRestore of an old snapshot says %v", err)
	} else {
		t.Logf("its memory is of the past: %v", err)
	}

	must(t, s.CanBoot(snap))
	id := cay.NewInstanceID()
	spec := s.bootSpec(id, at)
	spec.From, spec.Args, spec.Docker = dir, nil, snap.Format == cay.DockerFormat
	at.address(t)
	s.endWith(t, id)
	must(t, s.Boot(t.Context(), spec))
	at.greets(t, "1 again\n")
	must(t, s.Kill(t.Context(), id))
}

// MakeSample writes a sample of the present format, or of that with Docker. guest
// is sample/guest.c, compiled.
func MakeSample(t *testing.T, open func(testing.TB) engine.Engine, guest string, docker bool, path string) {
	dir := t.TempDir()
	s := &suite{Engine: open(t), open: open, dir: t.TempDir(), slots: []*slot{newSlot(t, 0)}}
	tree, at := filepath.Join(t.TempDir(), "tree"), s.slots[0]
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "run", ".cay"} {
		must(t, os.MkdirAll(filepath.Join(tree, d), 0o755))
	}
	program, err := os.ReadFile(guest)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(tree, "guest"), program, 0o755))
	must(t, os.WriteFile(filepath.Join(tree, "tmp/.keep"), nil, 0o644))
	s.image = filepath.Join(dir, "root.erofs")
	output(t, exec.Command("mkfs.erofs", "--quiet", "-E", "noinline_data", s.image, tree))

	id := cay.NewInstanceID()
	at.address(t)
	s.endWith(t, id)
	spec := s.bootSpec(id, at)
	spec.Docker = docker
	must(t, s.Boot(t.Context(), spec))
	at.greets(t, "1 first\n")
	saved := t.TempDir()
	snap, err := s.Checkpoint(t.Context(), id, saved, engine.GoesOn)
	must(t, err)
	files, err := s.SnapshotFiles(t.Context(), id, saved)
	must(t, err)
	snap.Files = append(snap.Files, files.Files...)
	snap.ID = cay.NewSnapshotID()
	text, err := json.MarshalIndent(snap, "", "  ")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(saved, "snapshot.json"), text, 0o600))
	must(t, os.Rename(s.image, filepath.Join(saved, "root.erofs")))
	must(t, pack(saved, path))
}

// greets connects to the guest and reads what it says.
func (s *slot) greets(t *testing.T, want string) {
	t.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(s.guest.String(), "8080"), 2*time.Second)
		if err != nil {
			last = err
			continue
		}
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		text, err := io.ReadAll(conn)
		must(t, err)
		if string(text) != want {
			t.Fatalf("the guest says %q, want %q", text, want)
		}
		return
	}
	t.Fatalf("the guest does not answer: %v", last)
}

func pack(dir, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	return errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), z.Close(), f.Sync())
}

func unpack(path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(to, 0o700); err != nil {
				return err
			}
			continue
		}
		text, err := io.ReadAll(in)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o700)
		}
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			return err
		}
	}
}
