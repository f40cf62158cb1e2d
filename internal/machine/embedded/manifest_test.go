package embedded

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheEngineOfTheSources: a bare `go test` or `go build` after a change of the
// engine's pins, sources or patches takes the engine that was built last.
func TestTheEngineOfTheSources(t *testing.T) {
	m, err := readManifest(bin)
	if err != nil {
		t.Skip("no engine is built: ", err)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	hash := exec.Command(filepath.Join(root, "scripts/build-engine"), "--print-hash")
	hash.Dir = root
	out, err := hash.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := strings.TrimSpace(string(out)); m.engine != want {
		t.Errorf("the engine that is here is %s, and the sources are those of %s: run scripts/build", m.engine, want)
	}
}
