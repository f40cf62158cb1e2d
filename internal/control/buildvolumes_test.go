package control_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/builds"
)

// withVolumesAndBuilder is a world whose server keeps volumes and builds.
func withVolumesAndBuilder(t *testing.T, build func(ctx context.Context, spec cay.BuildSpec) error) *world {
	t.Helper()
	w := newWorld(t)
	w.files = &files{w: w, size: map[cay.VolumeID]int{}}
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{build: func(ctx context.Context, spec cay.BuildSpec, _ func(cay.BuildLog)) (cay.BuildResult, error) {
		return cay.BuildResult{Snapshot: "snapshot"}, build(ctx, spec)
	}}
	w.c, err = control.Open(t.Context(), control.Config{
		Store: w.store, Node: w.node, NodeID: "n", Tokens: tokens, Logs: w.logs, Builder: b, Sealer: sealer(t), Volumes: w.files,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// startWith starts a build that mounts volumes.
func (w *world) startWith(who cay.Caller, b cay.Build, mounts ...cay.MountSpec) error {
	return w.c.StartBuild(w.Context(), who, string(b.Template), b.ID, builds.BuildStart{FromTemplate: "base", Mounts: mounts})
}

// names checks that an error is a conflict of the code, and names what is in the
// way.
func (w *world) names(err error, code, text string) {
	w.Helper()
	if cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		w.Errorf("got %v (%s), want %s that names %s", err, cay.CodeOf(err), code, text)
	}
}

// TestABuildKeepsItsVolumes has a build get what it mounts, in the order that was
// asked, and nothing takes that away until it is done.
func TestABuildKeepsItsVolumes(t *testing.T) {
	began, goOn := make(chan cay.BuildSpec), make(chan struct{})
	w := withVolumesAndBuilder(t, func(ctx context.Context, spec cay.BuildSpec) error {
		select {
		case began <- spec:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	one, two := w.volume("one"), w.volume("two")
	if _, err := w.c.Vols.Snapshot(t.Context(), w.who(), "one", "then"); err != nil {
		t.Fatal(err)
	}
	w.run()
	_, b := w.request("app")
	err := w.startWith(w.who(), b,
		cay.MountSpec{Volume: string(two.ID), Path: "/b", ReadOnly: true}, cay.MountSpec{Volume: "one", Path: "/a", SubPath: "x/y"})
	if err != nil {
		t.Fatal(err)
	}
	var spec cay.BuildSpec
	select {
	case spec = <-began:
	case <-time.After(time.Minute):
		t.Fatalf("it does not begin: %+v", w.await(b))
	}
	want := []cay.VolumeMount{
		{Volume: two.ID, Name: "two", Path: "/b", ReadOnly: true}, {Volume: one.ID, Name: "one", Path: "/a", SubPath: "x/y"},
	}
	if !slices.Equal(spec.Volumes, want) {
		t.Errorf("it mounts %+v", spec.Volumes)
	}
	for _, name := range []string{"one", "two"} {
		w.names(w.c.Vols.Delete(t.Context(), w.who(), name), cay.CodeVolumeInUse, string(b.ID))
	}
	_, err = w.c.Vols.Restore(t.Context(), w.who(), "one", "then")
	w.names(err, cay.CodeVolumeInUse, string(b.ID))
	close(goOn)
	if got := w.await(b); got.State != cay.BuildReady {
		t.Fatalf("it is %s: %+v", got.State, got.Reason)
	}
	if _, err := w.c.Vols.Restore(t.Context(), w.who(), "one", "then"); err != nil {
		t.Error(err)
	}
	if err := w.c.Vols.Delete(t.Context(), w.who(), "two"); err != nil {
		t.Error(err)
	}
}

// TestAVolumeGoesBeforeItsBuild deletes a volume while the build waits: the build
// fails and names it, also when another one has its name.
func TestAVolumeGoesBeforeItsBuild(t *testing.T) {
	w := withVolumesAndBuilder(t, func(context.Context, cay.BuildSpec) error {
		t.Error("it was built")
		return nil
	})
	gone := w.volume("data")
	_, b := w.request("app")
	if err := w.startWith(w.who(), b, cay.MountSpec{Volume: "data", Path: "/mnt"}); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Vols.Delete(t.Context(), w.who(), "data"); err != nil {
		t.Fatal(err)
	}
	w.volume("data")
	w.run()
	got := w.await(b)
	if got.State != cay.BuildError || !strings.Contains(got.Reason.Message, "data ("+string(gone.ID)+")") || !strings.Contains(got.Reason.Message, "deleted") {
		t.Errorf("it is %s: %+v", got.State, got.Reason)
	}
}

// TestMountsOfBuildsThatCannotBe lists each by its index, and the build waits as
// before.
func TestMountsOfBuildsThatCannotBe(t *testing.T) {
	w := withVolumesAndBuilder(t, func(context.Context, cay.BuildSpec) error { return nil })
	w.volume("data")
	_, b := w.request("app")
	err := w.startWith(w.who(), b,
		cay.MountSpec{Volume: "data", Path: "/mnt"}, cay.MountSpec{Volume: "none", Path: "/opt"},
		cay.MountSpec{Volume: "data", Path: "mnt"}, cay.MountSpec{Volume: "data", Path: "/mnt/x"}, cay.MountSpec{Volume: "data", Path: "/proc"})
	for _, text := range []string{"volumeMounts[1].name", "volumeMounts[2].path", "volumeMounts[3].path", "volumeMounts[4].path"} {
		if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), text) {
			t.Errorf("without %s: %v", text, err)
		}
	}
	if strings.HasPrefix(err.Error(), "volumeMounts[0]") {
		t.Errorf("the one that can be is listed: %v", err)
	}
	secret := builds.BuildStart{
		FromTemplate: "base", Mounts: []cay.MountSpec{{Volume: "data", Path: "/mnt"}},
		Steps: []cay.BuildStep{{Type: "RUN", Args: []string{"x"}, Secrets: []cay.SecretMount{{ID: "key", Target: "/mnt/key"}}}},
	}
	err = w.c.StartBuild(t.Context(), w.who(), "app", b.ID, secret)
	if cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), "steps[0]") {
		t.Errorf("a secret on a volume: %v", err)
	}
	who := w.who()
	for readOnly, scopes := range map[bool]cay.Scopes{true: cay.WriteTemplates, false: cay.WriteTemplates | cay.ReadVolumes} {
		who.Scopes = scopes
		if err := w.startWith(who, b, cay.MountSpec{Volume: "data", Path: "/mnt", ReadOnly: readOnly}); cay.KindOf(err) != cay.Denied {
			t.Errorf("with %s: %v", scopes, err)
		}
	}
	if got, err := w.store.Build(t.Context(), w.team.ID, b.ID); err != nil || got.State != cay.BuildWaiting {
		t.Errorf("it is %s, %v", got.State, err)
	}
	who.Scopes = cay.WriteTemplates | cay.ReadVolumes
	if err := w.startWith(who, b, cay.MountSpec{Volume: "data", Path: "/mnt", ReadOnly: true}); err != nil {
		t.Errorf("to read, read: %v", err)
	}
}
