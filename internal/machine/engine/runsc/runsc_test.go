package runsc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/engine/enginetest"
	"github.com/cay-run/cay/internal/machine/engine/runsc"
)

func TestConformance(t *testing.T) {
	var hook enginetest.Hook
	open := openerOf(t, "cay-enginetest", hook.Begun)
	_, hash := enginetest.Built(t)
	enginetest.Run(t, &hook, func(t testing.TB, limit time.Duration) engine.Engine { return open(t, hash, limit) })
}

// TestSoakMemory is short; CAY_SOAK_MEMORY is the number of rounds of make soak-memory.
func TestSoakMemory(t *testing.T) {
	enginetest.SoakMemory(t, rounds(t, "CAY_SOAK_MEMORY", 2), opener(t, "cay-enginesoak", nil))
}

// TestSoakStorms is short; CAY_SOAK_STORMS is the number of rounds of make soak-storms.
func TestSoakStorms(t *testing.T) {
	enginetest.SoakStorms(t, rounds(t, "CAY_SOAK_STORMS", 2), opener(t, "cay-enginestorms", nil))
}

// rounds is how many rounds a soak has: few, unless a variable says otherwise.
func rounds(t *testing.T, name string, few int) int {
	text := os.Getenv(name)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number of rounds", name, text)
	}
	return n
}

// TestSamples starts the snapshots of every format that were kept. A change of
// the format keeps one more before it is made:
//
//	CAY_SAMPLE_GUEST=/path/of/compiled/guest.c go test -run TestSamples ./internal/machine/engine/runsc
func TestSamples(t *testing.T) {
	open := opener(t, "cay-enginesamples", nil)
	if guest := os.Getenv("CAY_SAMPLE_GUEST"); guest != "" {
		for _, format := range []int{cay.SnapshotFormat, cay.DockerFormat} {
			path := filepath.Join("testdata", "samples", fmt.Sprintf("format-%d.tar.gz", format))
			if _, err := os.Stat(path); err != nil {
				enginetest.MakeSample(t, open, guest, format == cay.DockerFormat, path)
			}
		}
	}
	enginetest.Samples(t, open, filepath.Join("testdata", "samples"))
}

// TestOtherBuilds is make other-builds, which names the builds.
func TestOtherBuilds(t *testing.T) {
	others := strings.Fields(os.Getenv("CAY_OTHER_BUILDS"))
	if len(others) == 0 {
		t.Skip("NOT TESTED HERE: make other-builds names other builds of the engine and runs this")
	}
	open := openerOf(t, "cay-enginebuilds", nil)
	_, this := enginetest.Built(t)
	for _, other := range others {
		enginetest.Builds(t, func(t testing.TB, hash string) engine.Engine { return open(t, hash, enginetest.RestoreLimit) }, this, other)
	}
}

// opener returns what opens the engine that was built last, with state of its
// own, and tells begun of its commands.
func opener(t *testing.T, cgroup string, begun enginetest.Begun) func(testing.TB) engine.Engine {
	t.Helper()
	open := openerOf(t, cgroup, begun)
	_, hash := enginetest.Built(t)
	return func(t testing.TB) engine.Engine { return open(t, hash, enginetest.RestoreLimit) }
}

// openerOf is opener for the build of a hash, and a limit of restores.
func openerOf(t *testing.T, cgroup string, begun enginetest.Begun) func(t testing.TB, hash string, limit time.Duration) engine.Engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the engine needs root")
	}
	engines, _ := enginetest.Built(t)
	t.Cleanup(func() { // not while another run uses it
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
		for _, dir := range append(dirs, "/sys/fs/cgroup/"+cgroup) {
			_ = os.Remove(dir)
		}
	})
	cfg := runsc.Config{
		Engines: engines,
		Run:     t.TempDir(),
		Cgroup:  cgroup,
		Begun:   begun,
	}
	return func(t testing.TB, hash string, limit time.Duration) engine.Engine {
		cfg := cfg
		cfg.Hash, cfg.RestoreLimit, cfg.BackgroundLimit = hash, limit, limit
		e, err := runsc.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}
