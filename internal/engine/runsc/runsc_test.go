package runsc_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/engine"
	"github.com/cay-run/cay/internal/engine/enginetest"
	"github.com/cay-run/cay/internal/engine/runsc"
)

func TestConformance(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	const cgroup = "cay-enginetest"
	t.Cleanup(func() { // not while another run uses it
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
		for _, dir := range append(dirs, "/sys/fs/cgroup/"+cgroup) {
			_ = os.Remove(dir)
		}
	})
	cfg := runsc.Config{
		Engines: filepath.Join(root, "build/engines"),
		Hash:    builtHash(t, filepath.Join(root, "build/manifest")),
		Run:     t.TempDir(),
		Cgroup:  cgroup,
	}
	enginetest.Run(t, func(t testing.TB) engine.Engine {
		e, err := runsc.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e
	})
}

// builtHash reads which engine scripts/build-engine has built last.
func builtHash(t *testing.T, manifest string) string {
	t.Helper()
	f, err := os.Open(manifest)
	if err != nil {
		t.Fatalf("no engine is built, run scripts/build-engine first: %v", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	hash, ok := strings.CutPrefix(lines.Text(), "engine ")
	if !ok {
		t.Fatalf("%s starts with %q", manifest, lines.Text())
	}
	return hash
}
