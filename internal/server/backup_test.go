package server_test

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// unkept are the entries of a data directory that a backup leaves out, with the
// reason.
var unkept = map[string]string{
	"cay.db": "it is in the archive as one moment of it", "cay.db-wal": "the same", "cay.db-shm": "the same",
	"lock": "of the process", "machine.id": "another machine is another one",
	"audit-heads.jsonl": "a witness is of use elsewhere alone",
	"agents":            "of the program", "engines": "of the program",
	"snapshots": "files", "images": "files", "oci": "files", "volumes": "files", "uploads": "files", "layers": "files",
	"builds": "of the templates that Cay brings, whose files are not kept", "agent": "of the program",
	"packages": "a cache", "logs": "files", "instances": "of this machine", "bundles": "of this machine",
}

// TestBackupHasAllKeys compares the data directory of a server that has done a bit
// of everything with a backup of it: what is not in the archive is named here, with
// the reason.
func TestBackupHasAllKeys(t *testing.T) {
	w := servertest.New(t)
	w.Config.SSHListen, w.Config.TLS, w.Config.Domain = "127.0.0.1:0", "local", "cay.example"
	w.Start()
	if _, err := w.Client().Create(t.Context(), client.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Operator().AdminToken(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, text := call(t, w, "", "GET", "/.well-known/jwks.json", ""); code != 200 { // makes the key
		t.Fatal(code, text)
	}
	path := filepath.Join(t.TempDir(), "backup.tar")
	if err := w.Operator().Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var kept []string
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, h.Name)
	}
	err = filepath.WalkDir(w.Config.Data, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == w.Config.Data {
			return err
		}
		name, err := filepath.Rel(w.Config.Data, path)
		if err != nil {
			return err
		}
		if unkept[name] != "" {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.Type().IsRegular() && !slices.Contains(kept, name) {
			t.Errorf("%s is in no backup: add it to kept of internal/operator/backup.go, or name here why not", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"seal.key", "secret.key", "ssh_host.key", "audit.key", "admin.token", "identity/", "authority/", "tls/"} {
		if !slices.ContainsFunc(kept, func(k string) bool { return strings.HasPrefix(k, name) }) {
			t.Errorf("a backup has no %s", name)
		}
	}
}
