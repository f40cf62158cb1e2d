package build

import (
	"strconv"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/layer"
)

// A step that sees volumes runs in each build, and so does what comes after it;
// what it leaves never stands for the step of a build without them.
func TestStepsWithVolumesAreNotKept(t *testing.T) {
	layers, err := layer.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mounted := []cay.VolumeMount{{Volume: "v", Path: "/mnt"}}
	b := &Builder{layers: layers}
	with := func(volumes []cay.VolumeMount, types ...string) *run {
		r := &run{Builder: b, spec: cay.BuildSpec{Volumes: volumes}}
		key := ""
		for _, one := range types {
			s := cay.BuildStep{Type: one, Args: []string{"x"}}
			key = stepKey(key, s)
			r.keys, r.spec.Steps = append(r.keys, key), append(r.spec.Steps, s)
		}
		r.fresh = r.firstWithVolumes()
		return r
	}
	steps := []string{"ENV", "COPY", "RUN", "ENV", "RUN"}
	runAll := func(r *run) {
		for i := range r.spec.Steps {
			r.state.User = "after " + strconv.Itoa(i)
			if err := r.remember(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	runAll(with(mounted, steps...))
	if n := with(nil, steps...).known(); n != 2 {
		t.Errorf("a build without volumes goes on after %d steps of one with them", n)
	}
	runAll(with(nil, steps...))
	if n := with(nil, steps...).known(); n != len(steps) {
		t.Errorf("a build without volumes knows %d steps of another", n)
	}
	r := with(mounted, steps...)
	if n := r.known(); n != 2 || r.state.User != "after 1" {
		t.Errorf("a build with volumes goes on after %d steps, %q", n, r.state.User)
	}
	if n := with(mounted, "ENV", "COPY").known(); n != 2 {
		t.Errorf("steps that see no volumes: %d are known", n)
	}
	if r := with(mounted, "RUN"); r.known() != 0 || r.state.User != "" {
		t.Errorf("a RUN alone is known: %+v", r.state)
	}
	for kind, want := range map[string]int{"RUN": 1, "COPY": 0, "ENV": 0, "WORKDIR": 0, "USER": 0} {
		if got := r.volumesOf(cay.BuildStep{Type: kind}); len(got) != want {
			t.Errorf("%s sees %+v", kind, got)
		}
	}
}
