package interp

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// TestChartGoldens draws testdata/charts/*.py and compares the charts that are
// read back with the .json beside them. go test -run ChartGoldens -update
// writes them.
func TestChartGoldens(t *testing.T) {
	w := newWorld(t, false)
	cases, err := filepath.Glob("testdata/charts/*.py")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no charts: %v", err)
	}
	for _, path := range cases {
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		x := w.run(t, "import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()\n"+string(code)+"\nplt.close(figure)\nfigure")
		if x.err != nil || len(x.results) != 1 {
			t.Errorf("%s: %v", path, x.events)
			continue
		}
		got, err := json.MarshalIndent(x.results[0]["chart"], "", " ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		golden := strings.TrimSuffix(path, ".py") + ".json"
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
		}
	}
}
