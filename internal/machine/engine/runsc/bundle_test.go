package runsc

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// TestPut shows that a restore changes its place in a bundle and nothing else,
// also what this build knows nothing of.
func TestPut(t *testing.T) {
	first := place{root: "/a/root", cgroup: "/a/x", namespace: "/run/netns/a", reserved: "/a/reserved", store: "/a/store", limits: cay.Limits{CPUs: 1, MemoryMB: 128}}
	second := place{root: "/b/root", cgroup: "/b/y", namespace: "/run/netns/b", reserved: "/b/reserved", store: "/b/store", limits: cay.Limits{CPUs: 2, MemoryMB: 256}}
	d := newDocument([]string{"/init"}, 64, true, first)
	d["later"] = map[string]any{"number": json.Number("18446744073709551615")}
	dir := t.TempDir()
	if err := writeBundle(dir, d); err != nil {
		t.Fatal(err)
	}
	got, err := readDocument(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.put(second); err != nil {
		t.Fatal(err)
	}
	text := show(t, got)
	for _, old := range []string{"/a/", "netns/a"} {
		if strings.Contains(text, old) {
			t.Errorf("%s is still in %s", old, text)
		}
	}
	if err := got.put(first); err != nil {
		t.Fatal(err)
	}
	if show(t, got) != show(t, d) {
		t.Errorf("there and back again:\n%s\nwant\n%s", show(t, got), show(t, d))
	}
}

func TestPutRefuses(t *testing.T) {
	for _, text := range []string{`{}`, `{"root":1,"linux":{},"mounts":[]}`, `{"root":{},"linux":{}}`} {
		d, err := decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if d.put(place{}) == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func show(t *testing.T, d document) string {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
