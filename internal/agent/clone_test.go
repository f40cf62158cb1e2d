package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/guest"
)

// TestClones: each clone has a generation of its own and runs its template's
// command, a sandbox that goes on does neither.
func TestClones(t *testing.T) {
	w := newWorld(t)
	must(t, os.MkdirAll(filepath.Join(w.root, "etc/cay"), 0o755))
	ran := filepath.Join(w.root, "ran")
	script := "#!/bin/sh\necho $A $(cat \"$1\") >> " + ran + "\nexit 3\n"
	must(t, os.WriteFile(filepath.Join(w.root, "etc/cay/on-clone"), []byte(script), 0o755))
	clone := func(mode guest.Mode, entropy string) string {
		w.mustInit("", guest.Init{Mode: mode, Entropy: []byte(entropy), EnvVars: map[string]string{"A": "given"}})
		return w.read("run/cay/generation")
	}
	first := clone(guest.ModeCreate, "one")
	if len(first) != 33 || strings.Contains(first, "one") {
		t.Errorf("generation %q", first)
	}
	if again := clone(guest.ModeResume, "two"); again != first {
		t.Errorf("the generation of a sandbox that goes on was %q, is %q", first, again)
	}
	second := clone(guest.ModeCreate, "three")
	if second == first {
		t.Error("two clones have one generation")
	}
	if got, want := w.read("ran"), "given "+first+"given "+second; got != want {
		t.Errorf("the command wrote %q, want %q", got, want)
	}
	must(t, os.Chmod(filepath.Join(w.root, "etc/cay/on-clone"), 0o644))
	clone(guest.ModeCreate, "four") // not a command: that is no reason to have no sandbox
}
