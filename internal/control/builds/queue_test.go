package builds_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/controltest"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// builder is the part of a server that builds.
type builder func(ctx context.Context, spec cay.BuildSpec) error

func (b builder) Build(ctx context.Context, spec cay.BuildSpec, _ func(cay.BuildLog)) (cay.BuildResult, error) {
	return cay.BuildResult{Snapshot: "of " + cay.SnapshotID(spec.Build)}, b(ctx, spec)
}

func (builder) Has(cay.SnapshotID) bool                                            { return true }
func (builder) Tidy() error                                                        { return nil }
func (builder) Uploaded(cay.TeamID, string) bool                                   { return false }
func (builder) Upload(context.Context, cay.TeamID, string, io.Reader, int64) error { return nil }

func (builder) Export(context.Context, string, cay.Limits, cay.Setup, cay.SnapshotID) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

// ends is a builder that builds until it is cancelled.
func ends(ctx context.Context, _ cay.BuildSpec) error {
	<-ctx.Done()
	return ctx.Err()
}

// world is a store that servers share.
type world struct {
	*testing.T
	dir   string
	store *store.DB
	key   *seal.Key
	team  cay.TeamID
	full  func() bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	w.store = storetest.Open(t, filepath.Join(w.dir, "cay.db"))
	var err error
	if w.key, err = seal.NewKey(make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	w.team = w.newTeam("us")
	base := cay.Template{ID: cay.NewTemplateID(), Team: w.team, Names: []string{"base"}, Public: true, CreatedAt: time.Now()}
	if err := w.store.AddTemplate(t.Context(), base); err != nil {
		t.Fatal(err)
	}
	ready := cay.Build{ID: cay.NewBuildID(), Template: base.ID, Team: w.team, State: cay.BuildReady, Snapshot: "s1"}
	if err := w.store.PutBuild(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) newTeam(name string) cay.TeamID {
	w.Helper()
	team := cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: time.Now()}
	if err := w.store.AddTeam(w.Context(), team); err != nil {
		w.Fatal(err)
	}
	return team.ID
}

// server is what a server has of builds.
type server struct {
	*builds.Queue
	fleet *fleet.Catalogue
}

// open starts a server on a node, but not its workers.
func (w *world) open(node cay.NodeID, b builder) server {
	w.Helper()
	machine := controltest.NewNode()
	shared := ledger.New(ledger.Config{Store: w.store, Snapshots: machine, TeamLimits: cay.TeamLimits{cay.LimitBuilds: 20}})
	q, err := builds.Open(w.Context(), builds.Config{
		Ledger: shared, Store: w.store, Node: machine, NodeID: node, Builder: b, Sealer: w.key, Full: w.full,
	})
	if err != nil {
		w.Fatal(err)
	}
	return server{q, fleet.New(fleet.Config{Ledger: shared, Store: w.store, Node: machine, Builds: q, Sealer: w.key})}
}

// run runs the workers of a server until the test or the returned function
// ends them.
func (w *world) run(s server) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	w.Cleanup(stop)
	return stop
}

// request records a build that waits to be started.
func (w *world) request(s server, team cay.TeamID, name string) cay.Build {
	w.Helper()
	_, b, err := s.RequestBuild(w.Context(), cay.ForTeam(team), builds.BuildRequest{Name: name})
	if err != nil {
		w.Fatal(err)
	}
	return b
}

// start has a build of a template wait.
func (w *world) start(s server, name string) cay.Build {
	w.Helper()
	b := w.request(s, w.team, name)
	if err := s.StartBuild(w.Context(), cay.ForTeam(w.team), name, b.ID, builds.BuildStart{FromTemplate: "base"}); err != nil {
		w.Fatal(err)
	}
	return b
}

// is checks the state of a build.
func (w *world) is(b cay.Build, state cay.BuildState, reason string) {
	w.Helper()
	got, err := w.store.Build(w.Context(), b.Team, b.ID)
	if err != nil || got.State != state || !strings.Contains(got.Reason.Message, reason) || (reason == "") != (got.Reason.Message == "") {
		w.Errorf("the build is %s (%q), %v; want %s (%q)", got.State, got.Reason.Message, err, state, reason)
	}
}

const stopped = "the server stopped while the template was built"

// TestAWaitingBuildSurvivesItsServer stops a server at work on two builds, while
// a third one waits: the next server fails the two and builds the third, with
// the password and the secret that the database does not show.
func TestAWaitingBuildSurvivesItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.open("n", ends)
		stop := w.run(first)
		one, two := w.start(first, "one"), w.start(first, "two")
		synctest.Wait()
		three := w.request(first, w.team, "three")
		asked := builds.BuildStart{
			FromImage: "registry.example/app", StartCmd: "serve", ReadyCmd: "true", Force: true,
			Registry: &cay.RegistryAuth{Type: "registry", Username: "me", Password: "pass-in-clear"},
			Steps:    []cay.BuildStep{{Type: "RUN", Args: []string{"make"}, Secrets: []cay.SecretMount{{ID: "token", Env: "TOKEN"}}}},
			Secrets:  map[string][]byte{"token": []byte("secret-in-clear")},
		}
		if err := first.StartBuild(t.Context(), cay.ForTeam(w.team), "three", three.ID, asked); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		w.is(one, cay.BuildError, stopped)
		w.is(two, cay.BuildError, stopped)
		w.is(three, cay.BuildBuilding, "")
		w.hides("pass-in-clear", "secret-in-clear")

		var got cay.BuildSpec
		w.run(w.open("n", func(_ context.Context, spec cay.BuildSpec) error { got = spec; return nil }))
		synctest.Wait()
		w.is(three, cay.BuildReady, "")
		want := cay.BuildSpec{
			Build: three.ID, Template: three.Template, Team: w.team, Limits: three.Limits, From: "s1", Image: asked.FromImage,
			Registry: asked.Registry, Steps: asked.Steps, StartCmd: "serve", ReadyCmd: "true", Force: true, Secrets: asked.Secrets,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("it was built as %+v, want %+v", got, want)
		}
		if rows, err := w.store.QueuedBuilds(t.Context()); err != nil || len(rows) != 0 {
			t.Errorf("the queue has %+v, %v", rows, err)
		}
	})
}

// hides checks that no file of the database has a text.
func (w *world) hides(texts ...string) {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "*"))
	if err != nil || len(files) == 0 {
		w.Fatalf("the files are %v, %v", files, err)
	}
	for _, name := range files {
		all, err := os.ReadFile(name)
		if err != nil {
			w.Fatal(err)
		}
		for _, text := range texts {
			if bytes.Contains(all, []byte(text)) {
				w.Errorf("%s shows %q", filepath.Base(name), text)
			}
		}
	}
}

// TestTheBuildsOfADeadServerFail takes a build as a server does that is killed
// then: the next one of its node fails it at once, that of another node when
// the lease is over.
func TestTheBuildsOfADeadServerFail(t *testing.T) {
	for what, c := range map[string]struct {
		owner cay.NodeID
		after time.Duration
	}{
		"of this node":    {"n", 0},
		"of another node": {"other", 70 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				b := w.start(w.open("n", ends), "app")
				if _, _, err := w.store.TakeBuild(t.Context(), c.owner, 1, 35*time.Second); err != nil {
					t.Fatal(err)
				}
				w.run(w.open("n", ends))
				if c.after > 0 {
					time.Sleep(31 * time.Second) // the server has looked, and the lease holds
					synctest.Wait()
					w.is(b, cay.BuildBuilding, "")
				}
				time.Sleep(c.after)
				synctest.Wait()
				w.is(b, cay.BuildError, stopped)
			})
		})
	}
}

// TestALongBuildKeepsItsLease has a second server look at the queue for as long
// as the first one builds.
func TestALongBuildKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.open("n", func(context.Context, cay.BuildSpec) error { time.Sleep(10 * time.Minute); return nil })
		w.run(first)
		b := w.start(first, "app")
		synctest.Wait()
		w.run(w.open("other", ends))
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		w.is(b, cay.BuildBuilding, "")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.is(b, cay.BuildReady, "")
	})
}

// TestALostLeaseEndsTheBuild has another server fail a build in the middle:
// what the first one still finds out is not recorded.
func TestALostLeaseEndsTheBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cancelled := false
		first := w.open("n", func(ctx context.Context, _ cay.BuildSpec) error {
			<-ctx.Done()
			cancelled = true
			return nil // it was ready all the same
		})
		w.run(first)
		b := w.start(first, "app")
		synctest.Wait()
		if err := w.store.EndBuild(t.Context(), b.ID, "n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if !cancelled {
			t.Error("the build goes on without a lease")
		}
		w.is(b, cay.BuildBuilding, "")
	})
}

// TestServersShareTheQueue has two servers carry out each build once.
func TestServersShareTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		built := map[cay.BuildID]int{}
		build := func(_ context.Context, spec cay.BuildSpec) error {
			mu.Lock()
			built[spec.Build]++
			mu.Unlock()
			time.Sleep(time.Second)
			return nil
		}
		first, second := w.open("n", build), w.open("other", build)
		var all []cay.Build
		for i := range 8 {
			all = append(all, w.start(first, "app"+strconv.Itoa(i)))
		}
		w.run(first)
		w.run(second)
		time.Sleep(2*time.Second + time.Millisecond) // four at once, twice
		synctest.Wait()
		for _, b := range all {
			w.is(b, cay.BuildReady, "")
			if built[b.ID] != 1 {
				t.Errorf("a build was carried out %d times", built[b.ID])
			}
		}
	})
}

// TestARemovedTemplateEndsItsBuilds removes templates whose builds wait, run,
// or are just done.
func TestARemovedTemplateEndsItsBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var began atomic.Int32
		s := w.open("n", func(ctx context.Context, spec cay.BuildSpec) error {
			began.Add(1)
			<-ctx.Done()
			if spec.StartCmd == "done" {
				return nil
			}
			return ctx.Err()
		})
		w.run(s)
		w.start(s, "runs")
		done := w.request(s, w.team, "done")
		start := builds.BuildStart{FromTemplate: "base", StartCmd: "done"}
		if err := s.StartBuild(t.Context(), cay.ForTeam(w.team), "done", done.ID, start); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.start(s, "waits")
		for _, name := range []string{"waits", "done", "runs"} {
			if err := s.fleet.RemoveTemplate(t.Context(), cay.ForTeam(w.team), name); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := began.Load(); n != 2 {
			t.Errorf("%d builds began", n)
		}
		if rows, err := w.store.QueuedBuilds(t.Context()); err != nil || len(rows) != 0 {
			t.Errorf("the queue has %+v, %v", rows, err)
		}
		if _, err := w.store.Build(t.Context(), w.team, done.ID); cay.KindOf(err) != cay.NotFound {
			t.Errorf("a build without a template: %v", err)
		}
		w.start(s, "next") // the workers have gone on
		synctest.Wait()
		if began.Load() != 3 {
			t.Error("nothing is built any more")
		}
	})
}

// TestABuildStartsOnce has many requests start one build.
func TestABuildStartsOnce(t *testing.T) {
	w := newWorld(t)
	s := w.open("n", ends)
	b := w.request(s, w.team, "app")
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = s.StartBuild(t.Context(), cay.ForTeam(w.team), "app", b.ID, builds.BuildStart{FromTemplate: "base"})
		})
	}
	wg.Wait()
	started := 0
	for _, err := range errs {
		switch {
		case err == nil:
			started++
		case cay.KindOf(err) != cay.Conflict:
			t.Errorf("started again: %v", err)
		}
	}
	if started != 1 {
		t.Errorf("%d requests started it", started)
	}
}

// TestTheSameBuildWaits starts one build of a template twice, beside another one of
// that template and one that is forced: the second of the same waits for the first.
func TestTheSameBuildWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		running, ended := map[cay.BuildID]bool{}, map[cay.BuildID]time.Time{}
		var twice []cay.BuildID
		build := func(_ context.Context, spec cay.BuildSpec) error {
			mu.Lock()
			for _, same := range running {
				if same && spec.StartCmd == "same" && !spec.Force {
					twice = append(twice, spec.Build)
				}
			}
			running[spec.Build] = spec.StartCmd == "same" && !spec.Force
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			delete(running, spec.Build)
			ended[spec.Build] = time.Now()
			mu.Unlock()
			return nil
		}
		one, other := w.open("n", build), w.open("other", build)
		start := func(command string, force bool) cay.Build {
			b := w.request(one, w.team, "app")
			err := one.StartBuild(t.Context(), cay.ForTeam(w.team), "app", b.ID, builds.BuildStart{FromTemplate: "base", StartCmd: command, Force: force})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // the order of the queue
			return b
		}
		first, second := start("same", false), start("same", false)
		w.run(one)
		w.run(other)
		time.Sleep(time.Second)
		different, forced := start("different", false), start("same", true)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, b := range []cay.Build{first, second, different, forced} {
			w.is(b, cay.BuildReady, "")
		}
		mu.Lock()
		defer mu.Unlock()
		if ended[second.ID].Sub(ended[first.ID]) < time.Minute {
			t.Error("the second build did not wait for the same one before it")
		}
		for _, b := range []cay.Build{different, forced} {
			if !ended[b.ID].Before(ended[second.ID]) {
				t.Error("a build that is not the same waited")
			}
		}
		if slices.Contains(twice, second.ID) {
			t.Error("two of the same ran at once")
		}
	})
}

// TestASupersededBuildIsKept builds one template under one tag again and again: what
// was ready is found by its id for a day, while the template has few of them and
// the disk has room, and its tag says which build is under way.
func TestASupersededBuildIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var full atomic.Bool
		w.full = full.Load
		slow := func(context.Context, cay.BuildSpec) error { time.Sleep(time.Second); return nil }
		s := w.open("n", slow)
		w.run(s)
		who := cay.ForTeam(w.team)
		find := func(ref string) error { _, err := s.fleet.Template(t.Context(), who, ref); return err }
		build := func() cay.Build {
			b := w.start(s, "app")
			if tags, err := s.fleet.Tags(t.Context(), who, "app"); err != nil || len(tags) != 1 || tags[0].Build != b.ID {
				t.Errorf("while a build is under way the tags are %+v, %v", tags, err)
			}
			if err := find("app:" + string(b.ID)); cay.KindOf(err) != cay.NotFound || !strings.Contains(err.Error(), "does not exist") {
				t.Errorf("a build that is under way is found: %v", err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			return b
		}
		first := build()
		second := build()
		for _, b := range []cay.Build{first, second} {
			if err := find("app:" + string(b.ID)); err != nil {
				t.Errorf("a ready build is not found: %v", err)
			}
		}
		if used, err := w.store.SnapshotUsed(t.Context(), "of "+cay.SnapshotID(first.ID)); err != nil || !used {
			t.Errorf("the snapshot of a superseded build is used: %v, %v", used, err)
		}
		time.Sleep(builds.KeepSuperseded - time.Minute)
		synctest.Wait()
		if err := find("app:" + string(first.ID)); err != nil {
			t.Errorf("within a day: %v", err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if err := find("app:" + string(first.ID)); cay.KindOf(err) != cay.NotFound {
			t.Errorf("after a day: %v", err)
		}
		for range 9 {
			build()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := find("app:" + string(second.ID)); cay.KindOf(err) != cay.NotFound {
			t.Errorf("with eight newer ones: %v", err)
		}
		kept, err := w.store.SupersededBuilds(t.Context())
		if err != nil || len(kept) != 8 {
			t.Errorf("%d superseded builds are kept, %v", len(kept), err)
		}
		full.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if kept, err = w.store.SupersededBuilds(t.Context()); err != nil || len(kept) != 0 {
			t.Errorf("on a full disk %d superseded builds are kept, %v", len(kept), err)
		}
		if err := find("app"); err != nil {
			t.Error(err)
		}
	})
}

// TestTheRoomOfTeams counts each team's builds apart, whichever server has them.
func TestTheRoomOfTeams(t *testing.T) {
	w := newWorld(t)
	s := w.open("n", ends)
	them := w.newTeam("them")
	asked := map[cay.TeamID]cay.Build{w.team: w.request(s, w.team, "more"), them: w.request(s, them, "more")}
	for i := range 20 {
		w.start(s, "app"+strconv.Itoa(i))
	}
	s = w.open("n", ends) // another server counts them too
	if _, _, err := s.RequestBuild(t.Context(), cay.ForTeam(w.team), builds.BuildRequest{Name: "another"}); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("one more may be requested: %v", err)
	}
	if _, err := s.fleet.Template(t.Context(), cay.ForTeam(w.team), "another"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a refused request made a template: %v", err)
	}
	for team, kind := range map[cay.TeamID]cay.Kind{w.team: cay.Exhausted, them: ""} {
		err := s.StartBuild(t.Context(), cay.ForTeam(team), "more", asked[team].ID, builds.BuildStart{FromTemplate: "base"})
		if cay.KindOf(err) != kind {
			t.Errorf("one more of team %s: %v", team, err)
		}
		b := asked[team]
		if err := s.StartBuild(t.Context(), cay.ForTeam(cay.NewTeamID()), "more", b.ID, builds.BuildStart{FromTemplate: "base"}); cay.KindOf(err) != cay.NotFound {
			t.Errorf("started by another team: %v", err)
		}
	}
}

// TestAnUnreadableBuildFails has a server with another key.
func TestAnUnreadableBuildFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.start(w.open("n", ends), "app")
		var err error
		if w.key, err = seal.NewKey(bytes.Repeat([]byte{1}, 32)); err != nil {
			t.Fatal(err)
		}
		w.run(w.open("n", ends))
		synctest.Wait()
		w.is(b, cay.BuildError, "cannot be read any more; build it again")
	})
}

// TestCancelBuilds ends a team's builds, those that run and those that wait, and
// no other team's.
func TestCancelBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.open("n", ends)
		first, second := w.start(s, "app"), w.start(s, "more") // no worker looks yet
		stop := cay.ForTeam(w.team)
		if n, failed, err := s.CancelBuilds(t.Context(), cay.ForTeam(w.newTeam("they"))); n != 0 || failed != 0 || err != nil {
			t.Errorf("another team's: %d, %d, %v", n, failed, err)
		}
		w.is(second, cay.BuildBuilding, "")
		if n, failed, err := s.CancelBuilds(t.Context(), stop); n != 2 || failed != 0 || err != nil {
			t.Errorf("those that wait: %d, %d, %v", n, failed, err)
		}
		w.is(second, cay.BuildError, "cancelled")
		w.is(first, cay.BuildError, "cancelled")
		w.run(s)
		b := w.start(s, "third")
		synctest.Wait()
		if n, failed, err := s.CancelBuilds(t.Context(), stop); n != 1 || failed != 0 || err != nil {
			t.Errorf("one that runs: %d, %d, %v", n, failed, err)
		}
		synctest.Wait()
		w.is(b, cay.BuildError, "cancelled")
	})
}
