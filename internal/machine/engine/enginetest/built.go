package enginetest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Built is the directory of the engines that were built from these sources, and the
// hash of the last.
func Built(t testing.TB) (engines, hash string) {
	t.Helper()
	build := filepath.Join(root(t), "build")
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

// root is the repository's root. It is found from the package's directory, which is
// the working directory of a test, because -trimpath removes it from the binary.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "ARCHITECTURE.md")); err == nil {
			return dir
		}
	}
	t.Fatal("the working directory is not in the repository")
	return ""
}
