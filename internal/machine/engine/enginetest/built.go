package enginetest

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Built is the directory of the engines that were built from these sources, and the
// hash of the last.
func Built(t testing.TB) (engines, hash string) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	build := filepath.Join(filepath.Dir(here), "../../../../build")
	f, err := os.Open(filepath.Join(build, "manifest"))
	if err != nil {
		t.Fatalf("no engine is built, run scripts/build-engine first: %v", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	hash, ok := strings.CutPrefix(lines.Text(), "engine ")
	if !ok {
		t.Fatalf("%s starts with %q", f.Name(), lines.Text())
	}
	return filepath.Join(build, "engines"), hash
}
