package control_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// builder builds what it is told to.
type builder struct {
	build func(ctx context.Context, spec cay.BuildSpec, log func(cay.BuildLog)) (cay.BuildResult, error)
}

func (b *builder) Build(ctx context.Context, spec cay.BuildSpec, log func(cay.BuildLog)) (cay.BuildResult, error) {
	return b.build(ctx, spec, log)
}

func (*builder) Has(cay.SnapshotID) bool                                            { return true }
func (*builder) Tidy() error                                                        { return nil }
func (*builder) Uploaded(cay.TeamID, string) bool                                   { return false }
func (*builder) Upload(context.Context, cay.TeamID, string, io.Reader, int64) error { return nil }

func (*builder) Export(_ context.Context, name string, _ cay.Limits, _ cay.Setup, id cay.SnapshotID) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(name + " " + string(id))), nil
}

func TestExportKeepsTheSnapshot(t *testing.T) {
	w := withBuilder(t, &builder{build: func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
		return cay.BuildResult{Snapshot: "snapshot"}, nil
	}})
	_, b := w.request("app")
	if _, _, err := w.c.ExportTemplate(t.Context(), w.who(), "app"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("one without a build: %v", err)
	}
	stop := w.run()
	w.start(b)
	w.await(b)
	stop() // the build itself has let go of the snapshot then
	file, name, err := w.c.ExportTemplate(t.Context(), w.who(), "app")
	if err != nil || name != "app" {
		t.Fatalf("got %q, %v", name, err)
	}
	if err := w.c.RemoveTemplate(t.Context(), w.who(), "app"); err != nil {
		t.Fatal(err)
	}
	if !w.c.Needs(t.Context(), "snapshot") {
		t.Error("the snapshot may go while it is read")
	}
	if err := errors.Join(file.Close(), file.Close()); err != nil || w.c.Needs(t.Context(), "snapshot") {
		t.Errorf("the snapshot must stay when it was read: %v", err)
	}
	if _, _, err := w.c.ExportTemplate(t.Context(), cay.ForTeam("another"), "app"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("another team's: %v", err)
	}
}

// withBuilder gives a world a control that builds.
func withBuilder(t *testing.T, b *builder) *world {
	t.Helper()
	w := newWorld(t)
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	w.c, err = control.Open(t.Context(), control.Config{
		Store: w.store, Node: w.node, NodeID: "n", Tokens: tokens, Logs: w.logs, Builder: b, Sealer: sealer(t), Reserved: []string{"base"}, Extras: []string{"desktop"},
		TeamLimits: cay.TeamLimits{cay.LimitBuilds: 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func sealer(t *testing.T) *seal.Key {
	t.Helper()
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) request(name string, tags ...string) (cay.Template, cay.Build) {
	w.Helper()
	t, b, err := w.c.RequestBuild(w.Context(), w.who(), builds.BuildRequest{Name: name, Tags: tags})
	if err != nil {
		w.Fatal(err)
	}
	return t, b
}

func (w *world) start(b cay.Build) {
	w.Helper()
	err := w.c.StartBuild(w.Context(), w.who(), string(b.Template), b.ID, builds.BuildStart{FromTemplate: "base"})
	if err != nil {
		w.Fatal(err)
	}
}

// await waits for the end of a build.
func (w *world) await(b cay.Build) cay.Build {
	w.Helper()
	var row cay.Build
	w.until("the build ends", func() bool {
		var err error
		if row, err = w.store.Build(w.Context(), w.team.ID, b.ID); err != nil {
			w.Fatal(err)
		}
		return row.State != cay.BuildBuilding
	})
	return row
}

// until polls for a change that comes without a signal.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("never: %s", what)
		}
	}
}

func TestBuildsAreRecorded(t *testing.T) {
	var spec cay.BuildSpec
	b := &builder{}
	w := withBuilder(t, b)
	w.run()
	b.build = func(_ context.Context, s cay.BuildSpec, log func(cay.BuildLog)) (cay.BuildResult, error) {
		spec = s
		log(cay.BuildLog{Level: cay.LogInfo, Step: "1", Message: "hello"})
		return cay.BuildResult{Snapshot: "s2", Setup: cay.Setup{User: "me"}, Digest: "d"}, nil
	}
	tmpl, build := w.request("app:v1", "latest")
	if build.State != cay.BuildWaiting || !slices.Equal(build.Tags, []string{"latest", "v1"}) {
		t.Fatalf("requested %+v", build)
	}
	if err := w.c.StartBuild(t.Context(), w.who(), string(build.Template), build.ID, builds.BuildStart{FromTemplate: "base", Docker: true}); err != nil {
		t.Fatal(err)
	}
	got := w.await(build)
	if !spec.Docker {
		t.Error("the flag docker is lost on its way to the builder")
	}
	if got.State != cay.BuildReady || got.Snapshot != "s2" || got.Setup.User != "me" || spec.From != "s1" || spec.Limits.CPUs != 2 {
		t.Fatalf("built %+v of %+v", got, spec)
	}
	_, lines, err := w.c.Build(t.Context(), w.who(), "app:v1", store.BuildLogQuery{Build: build.ID, Limit: 10})
	if err != nil || len(lines) != 1 || lines[0].Message != "hello" {
		t.Errorf("log %+v, %v", lines, err)
	}
	if _, err := w.c.Create(t.Context(), w.who(), cay.CreateSpec{Template: "app", Timeout: time.Hour}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a name without its default tag: %v", err)
	}
	found, err := w.c.Template(t.Context(), w.who(), "app:latest")
	if err != nil || found.Snapshot != "s2" || found.ID != tmpl.ID {
		t.Errorf("by tag: %+v, %v", found, err)
	}
	err = w.c.StartBuild(t.Context(), w.who(), "app:v1", build.ID, builds.BuildStart{FromTemplate: "base"})
	if cay.KindOf(err) != cay.Invalid {
		t.Errorf("started again: %v", err)
	}
}

// A template whose builds have named tags only is listed as its newest build,
// and starts nothing by its bare name.
func TestATemplateWithNamedTagsOnly(t *testing.T) {
	b := &builder{}
	w := withBuilder(t, b)
	w.run()
	b.build = func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
		return cay.BuildResult{Snapshot: "s2", Digest: "d"}, nil
	}
	listed := func() cay.Template {
		t.Helper()
		all, err := w.c.Templates(t.Context(), w.who())
		i := slices.IndexFunc(all, func(t cay.Template) bool { return slices.Contains(t.Names, "app") })
		if err != nil || i < 0 {
			t.Fatalf("listed %v, %v", all, err)
		}
		return all[i]
	}
	_, build := w.request("app:v1")
	if got := listed(); got.Build != build.ID || got.BuildState != cay.BuildWaiting || got.Limits != build.Limits {
		t.Errorf("waiting: %+v", got)
	}
	w.start(build)
	w.await(build)
	if got := listed(); got.Build != build.ID || got.BuildState != cay.BuildReady || got.Limits.MemoryMB == 0 || got.EnvdVersion == "" {
		t.Errorf("ready: %+v", got)
	}
	_, failed := w.request("app:v2")
	if got := listed(); got.Build != build.ID || got.BuildState != cay.BuildReady {
		t.Errorf("beside one that waits (%s): %+v", failed.ID, got)
	}
	if found, err := w.c.Template(t.Context(), w.who(), "app"); err != nil || found.Snapshot != "" {
		t.Errorf("by its bare name: %+v, %v", found, err)
	}
}

func TestAFailedBuildSaysWhy(t *testing.T) {
	b := &builder{build: func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
		return cay.BuildResult{}, &cay.StepError{Step: "2", Err: cay.Errorf(cay.Invalid, "no").WithHint("do")}
	}}
	w := withBuilder(t, b)
	w.run()
	_, build := w.request("app")
	w.start(build)
	if got := w.await(build); got.State != cay.BuildError || got.Reason != (cay.BuildReason{Step: "2", Message: "no; do"}) {
		t.Errorf("recorded %+v", got)
	}
}

func TestBuildsEndWithTheirTemplateAndTheServer(t *testing.T) {
	entered := make(chan struct{}, 2)
	b := &builder{build: func(ctx context.Context, _ cay.BuildSpec, _ func(cay.BuildLog)) (cay.BuildResult, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return cay.BuildResult{}, ctx.Err()
	}}
	w := withBuilder(t, b)
	stop := w.run()
	_, one := w.request("one")
	_, two := w.request("two")
	w.start(one)
	w.start(two)
	<-entered
	<-entered
	if err := w.c.RemoveTemplate(t.Context(), w.who(), "one"); err != nil {
		t.Fatal(err)
	}
	stop() // and with it, the other
	if got := w.await(two); got.State != cay.BuildError || got.Reason.Message == "" {
		t.Errorf("recorded %+v", got)
	}
}

func TestBuildsWaitForEachOther(t *testing.T) {
	var now, most atomic.Int32
	full, goOn := make(chan struct{}, 20), make(chan struct{})
	b := &builder{build: func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}
		full <- struct{}{}
		<-goOn
		return cay.BuildResult{Snapshot: "s2", Digest: "d"}, nil
	}}
	w := withBuilder(t, b)
	w.run()
	carryOn := sync.OnceFunc(func() { close(goOn) })
	defer carryOn() // the end of the test waits for the builds
	_, one := w.request("more")
	var all []cay.Build
	for i := range 20 {
		_, build := w.request("app" + strconv.Itoa(i))
		w.start(build)
		all = append(all, build)
	}
	<-full
	<-full // two at once
	if _, _, err := w.c.RequestBuild(t.Context(), w.who(), builds.BuildRequest{Name: "another"}); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("a request for one more than a team may have: %v", err)
	}
	start := builds.BuildStart{FromTemplate: "base"}
	if err := w.c.StartBuild(t.Context(), w.who(), string(one.Template), one.ID, start); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("one more than a team may have: %v", err)
	}
	carryOn()
	for _, build := range all {
		if got := w.await(build); got.State != cay.BuildReady {
			t.Errorf("recorded %+v", got)
		}
	}
	if most.Load() != 2 {
		t.Errorf("%d builds ran at once, want 2", most.Load())
	}
	w.start(one) // a build gives its place back with its record
	if got := w.await(one); got.State != cay.BuildReady {
		t.Errorf("after the others: %+v", got)
	}
}

func TestWhatCannotBeBuilt(t *testing.T) {
	w := withBuilder(t, &builder{})
	for what, c := range map[string]struct {
		r    builds.BuildRequest
		kind cay.Kind
	}{
		"a template of Cay's":   {builds.BuildRequest{Name: "base"}, cay.Denied},
		"another team's name":   {builds.BuildRequest{Name: "them/app"}, cay.Denied},
		"an id for a name":      {builds.BuildRequest{Name: string(cay.NewBuildID())}, cay.Invalid},
		"three CPUs":            {builds.BuildRequest{Name: "app", CPUs: 3}, cay.Invalid},
		"no memory to speak of": {builds.BuildRequest{Name: "app", MemoryMB: 2}, cay.Invalid},
		"a tag with a slash":    {builds.BuildRequest{Name: "app", Tags: []string{"a/b"}}, cay.Invalid},
	} {
		if _, _, err := w.c.RequestBuild(t.Context(), w.who(), c.r); cay.KindOf(err) != c.kind {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, b := w.request("app")
	for what, s := range map[string]builds.BuildStart{
		"nothing to begin with": {},
		"two to begin with":     {FromTemplate: "a", FromImage: "b"},
		"half an ENV":           {FromTemplate: "a", Steps: []cay.BuildStep{{Type: "ENV", Args: []string{"A"}}}},
		"a COPY of nothing":     {FromTemplate: "a", Steps: []cay.BuildStep{{Type: "COPY", Args: []string{"a", "b"}}}},
	} {
		if err := w.c.StartBuild(t.Context(), w.who(), "app", b.ID, s); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.c.RemoveTags(t.Context(), w.who(), "app", []string{"default"}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("the default tag was removed: %v", err)
	}
}

// A template that Cay brings only when it is asked for says so, whatever asks
// for it.
func TestExtrasSayHowTheyCome(t *testing.T) {
	b := &builder{build: func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
		return cay.BuildResult{Snapshot: "s2", Digest: "d"}, nil
	}}
	w := withBuilder(t, b)
	go w.c.Run(t.Context())
	for _, ref := range []string{"desktop", "Desktop", "desktop:default"} {
		_, err := w.c.Template(t.Context(), w.who(), ref)
		var ours *cay.Error
		if !errors.As(err, &ours) || ours.Kind != cay.NotFound || !strings.Contains(ours.Hint, "cay template add desktop") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, _, err := w.c.RequestBuild(t.Context(), w.who(), builds.BuildRequest{Name: "desktop"}); cay.KindOf(err) != cay.Denied {
		t.Errorf("a build takes its name: %v", err)
	}
	build := func(image string) cay.Build {
		_, b := w.request("app")
		if err := w.c.StartBuild(t.Context(), w.who(), string(b.Template), b.ID, builds.BuildStart{FromImage: image}); err != nil {
			t.Fatal(err)
		}
		return w.await(b)
	}
	for _, image := range []string{"e2bdev/desktop", "docker.io/e2bdev/desktop:latest"} {
		if got := build(image); got.State != cay.BuildError || !strings.Contains(got.Reason.Message, "cay template add desktop") {
			t.Errorf("FROM %s: %+v", image, got)
		}
	}
	if _, err := w.c.Publish(t.Context(), fleet.Publication{Team: w.team.ID, Names: []string{"desktop"}, Public: true, Snapshot: "s1"}); err != nil {
		t.Fatal(err)
	}
	if got := build("e2bdev/desktop"); got.State != cay.BuildReady {
		t.Errorf("when it is there: %+v", got)
	}
}
