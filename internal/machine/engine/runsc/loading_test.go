package runsc

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// TestDemandOfOldBuilds asks builds whether they load by demand. One from before
// it, or one that is gone, restores eagerly.
func TestDemandOfOldBuilds(t *testing.T) {
	dir := t.TempDir()
	e := &Engine{cfg: Config{Engines: dir, Run: t.TempDir(), Hash: "own"}, demands: make(map[string]bool)}
	for hash, script := range map[string]string{
		"own": "#!/bin/sh\n[ \"$*\" = \"help loading\" ]\n",
		"new": "#!/bin/sh\n[ \"$*\" = \"help loading\" ]\n",
		"old": "#!/bin/sh\nexit 128\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, hash), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, hash, "cay-runsc"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, pagesName), make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		hash    string
		loading engine.Loading
		flags   int
		pages   int64
	}{
		{"own", engine.Demand, 5, 8192},
		{"own", engine.Eager, 0, 0},
		{"new", engine.Demand, 4, 8192}, // it may not know --trace
		{"old", engine.Demand, 0, 0},
		{"gone", engine.Demand, 0, 0},
		{"new", engine.Demand, 4, 8192}, // as remembered
	} {
		r := &record{ID: cay.NewInstanceID(), EngineHash: c.hash}
		flags := e.demand(r, engine.RestoreSpec{Loading: c.loading, From: from, Share: true, WorkingSet: "/some/file", Trace: true})
		if len(flags) != c.flags || r.Pages != c.pages {
			t.Errorf("build %s, loading %d: flags %q, %d bytes of pages", c.hash, c.loading, flags, r.Pages)
		}
	}
}

// TestLoadStatus reads what a sentry says of its loading, and what one may say
// that lies.
func TestLoadStatus(t *testing.T) {
	e := &Engine{cfg: Config{Run: t.TempDir()}}
	const pages, magic = 1 << 20, 0x6361796c6f616431
	says := func(words ...uint64) []byte {
		var b bytes.Buffer
		if err := binary.Write(&b, binary.NativeEndian, words); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		pages int64
		text  []byte
		want  loadStatus
	}{
		"eager":              {0, nil, loadStatus{}},
		"none yet":           {pages, nil, loadStatus{}},
		"not begun":          {pages, make([]byte, 4096), loadStatus{left: pages}},
		"cut off":            {pages, says(magic), loadStatus{left: pages}},
		"half":               {pages, says(magic, pages, pages/2, 0), loadStatus{left: pages / 2}},
		"done":               {pages, says(magic, pages, 0, 0), loadStatus{}},
		"failed":             {pages, says(magic, pages, 5, 1), loadStatus{left: 5, failed: true}},
		"more than there is": {pages, says(magic, 1<<63, 1<<63, 0), loadStatus{left: pages}},
	} {
		r := &record{ID: cay.NewInstanceID(), Pages: c.pages}
		path := e.recordFile(r.ID, statusName)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if c.text != nil {
			if err := os.WriteFile(path, c.text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := e.loadStatus(r); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
