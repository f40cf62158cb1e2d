package agent_test

import (
	"os"
	"path/filepath"
	"regexp"
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
	const bootID = "proc/sys/kernel/random/boot_id"
	must(t, os.MkdirAll(filepath.Join(w.root, filepath.Dir(bootID)), 0o755))
	w.write(bootID, strings.Repeat(" ", 37))
	clone := func(mode guest.Mode, entropy string) string {
		w.mustInit("", guest.Init{Mode: mode, Entropy: []byte(entropy), EnvVars: map[string]string{"A": "given"}})
		return w.read("run/cay/generation")
	}
	first := clone(guest.ModeCreate, "one")
	if len(first) != 33 || strings.Contains(first, "one") {
		t.Errorf("generation %q", first)
	}
	boot := w.read(bootID)
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n$`).MatchString(boot) {
		t.Errorf("boot id %q", boot)
	}
	if again := clone(guest.ModeResume, "two"); again != first || w.read(bootID) != boot {
		t.Errorf("the generation of a sandbox that goes on was %q, is %q", first, again)
	}
	second := clone(guest.ModeCreate, "three")
	if second == first || w.read(bootID) == boot {
		t.Error("two clones have one generation")
	}
	if got, want := w.read("ran"), "given "+first+"given "+second; got != want {
		t.Errorf("the command wrote %q, want %q", got, want)
	}
	must(t, os.Chmod(filepath.Join(w.root, "etc/cay/on-clone"), 0o644))
	clone(guest.ModeCreate, "four") // not a command: that is no reason to have no sandbox
}
