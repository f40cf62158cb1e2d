package runsc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// An instance that is restored in the background does not keep its small share.
func TestShares(t *testing.T) {
	id := cay.NewInstanceID()
	h := findHierarchy("cay-shares-" + string(id))
	dir := h.dir("cpu", id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no cgroups here: %v", err)
	}
	t.Cleanup(func() {
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		}
	})
	files := map[string][2]string{ // low and full
		"cpu.shares": {"64", "2048"}, "cpu.cfs_quota_us": {"5000", "200000"}, "cpu.cfs_period_us": {"10000", "100000"},
	}
	if h.v2 {
		files = map[string][2]string{"cpu.weight": {"3", "79"}, "cpu.max": {"5000 10000", "200000 100000"}}
	}
	for i, s := range []share{lowShare, fullShare(cay.Limits{CPUs: 2}), lowShare} {
		if _, err := os.Stat(filepath.Join(dir, "cpu.max")); h.v2 && err != nil {
			t.Skip("the processor is not handed down to new cgroups here")
		}
		if err := h.setShare(id, s); err != nil {
			t.Fatal(err)
		}
		for name, want := range files {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || strings.TrimSpace(string(text)) != want[i%2] {
				t.Errorf("%s of share %d: %q, %v, not %s", name, i, text, err, want[i%2])
			}
		}
	}
}
