package control_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/controltest"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// world is a control over a real store and a node in memory.
type world struct {
	*testing.T
	store  *store.DB
	logs   *logbook.Book
	node   *controltest.Node
	team   cay.Team
	c      *control.Control
	path   string // of the database
	audit  *audit.Log
	files  *files // of volumes; nil for a server without
	member bool   // of a cluster

	lost *storetest.Lost // answers of the store; nil for a store that answers
	stop func()          // of its server, where a test ends that by hand

	copies  bool     // to a bucket
	lossy   bool     // volumes may lose their files
	builder *builder // of templates; nil for a server that builds none
}

func newWorld(t *testing.T) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cay.db")
	return worldOver(t, storetest.Open(t, path), path)
}

// worldOver is newWorld over a store without records.
func worldOver(t *testing.T, s *store.DB, path string) *world {
	t.Helper()
	var err error
	w := &world{T: t, store: s, path: path, node: controltest.NewNode()}
	if w.logs, err = logbook.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if w.team, _, err = auth.FirstStart(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.audit = audit.New(audit.Config{Store: s, Key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))})
	w.restart()
	_, err = w.c.Publish(t.Context(), fleet.Publication{
		Team: w.team.ID, Names: []string{"base", "alias"}, Snapshot: "s1", RecipeDigest: "d1",
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// restart opens a new control over the same store and node.
func (w *world) restart() {
	w.Helper()
	w.c = w.open(w.store)
}

// open opens a control over a store.
func (w *world) open(s store.Store) *control.Control {
	w.Helper()
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		w.Fatal(err)
	}
	cfg := control.Config{Store: s, Node: w.node, NodeID: "n", Member: w.member, Tokens: tokens, Logs: w.logs, Audit: w.audit}
	if w.files != nil {
		cfg.Volumes = w.files
	}
	cfg.Copies = w.copies
	if w.builder != nil {
		cfg.Builder, cfg.Sealer = w.builder, sealer(w.T)
	}
	c, err := control.Open(w.Context(), cfg)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// run runs the control until the test or the returned function ends it.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.c.Run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	w.Cleanup(stop)
	return stop
}

// who is the world's team.
func (w *world) who() cay.Caller { return cay.ForTeam(w.team.ID) }

func (w *world) spec(timeout time.Duration) cay.CreateSpec {
	return cay.CreateSpec{
		Template: "base", Timeout: timeout, Secure: true,
		Env: map[string]string{"SECRET": "x"}, Network: cay.DefaultNetwork(),
	}
}

func (w *world) create(timeout time.Duration) cay.Sandbox {
	w.Helper()
	s, err := w.c.Create(w.Context(), w.who(), w.spec(timeout))
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// gone checks that a sandbox is killed everywhere, and why.
func (w *world) gone(s cay.Sandbox, cause cay.Cause) {
	w.Helper()
	if _, err := w.c.Get(w.Context(), cay.ForTeam(s.Team), s.ID); cay.KindOf(err) != cay.NotFound {
		w.Errorf("Get of a killed sandbox: %v", err)
	}
	row, err := w.store.Sandbox(w.Context(), s.Team, s.ID)
	if err != nil || row.State != cay.Killed || row.Cause != cause || row.EndedAt.IsZero() || len(row.Env) > 0 {
		w.Errorf("recorded as %s, cause %q, want %q, ended %v, env %v, %v", row.State, row.Cause, cause, row.EndedAt, row.Env, err)
	}
	for _, i := range w.node.Alive() {
		if i.Spec.Instance == s.Instance {
			w.Errorf("its instance is alive")
		}
	}
}

func (w *world) alive(s cay.Sandbox) cay.Sandbox {
	w.Helper()
	got, err := w.c.Get(w.Context(), cay.ForTeam(s.Team), s.ID)
	if err != nil || got.State != cay.Running {
		w.Fatalf("sandbox is %q, %v", got.State, err)
	}
	return got
}

func TestTimeoutEndsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		long, short := w.create(time.Hour), w.create(10*time.Second)
		if d := short.EndAt.Sub(short.StartedAt); d != 10*time.Second || short.EndAt.Nanosecond()%1e6 != 0 {
			t.Errorf("lives %v, until %v", d, short.EndAt)
		}
		time.Sleep(time.Until(short.EndAt) - time.Millisecond)
		synctest.Wait()
		w.alive(short)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		w.gone(short, cay.CauseTimeout)
		if cause, _ := w.node.Ended(short.Instance); cause != cay.CauseTimeout {
			t.Errorf("the node was told %q", cause)
		}
		w.alive(long)
	})
}

func TestTimeoutMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		longer, shorter := w.create(10*time.Second), w.create(time.Hour)
		time.Sleep(5 * time.Second)
		if _, _, err := w.c.Connect(t.Context(), w.who(), longer.ID, time.Minute, true); err != nil {
			t.Fatal(err)
		}
		if err := w.c.SetTimeout(t.Context(), w.who(), shorter.ID, 3*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		w.gone(shorter, cay.CauseTimeout)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		before := w.alive(longer)
		got, resumed, err := w.c.Connect(t.Context(), w.who(), longer.ID, time.Second, true)
		if err != nil || resumed || got.EndAt != before.EndAt {
			t.Errorf("a shorter connect: %v, %v, %v, was %v", got.EndAt, resumed, err, before.EndAt)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.gone(longer, cay.CauseTimeout)
	})
}

func TestTimeoutWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.run()
		over, going := w.create(time.Minute), w.create(time.Hour)
		stop()
		time.Sleep(10 * time.Minute)
		w.restart()
		if got := w.alive(going); got.EndAt != going.EndAt {
			t.Errorf("a restart moved endAt from %v to %v", going.EndAt, got.EndAt)
		}
		w.run()
		synctest.Wait()
		w.gone(over, cay.CauseTimeout)
		w.alive(going)
	})
}

func TestDeathIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		s, other := w.create(time.Hour), w.create(time.Hour)
		w.node.Die(s.Instance, cay.CauseOutOfMemory, "oom_kill 1")
		synctest.Wait()
		w.gone(s, cay.CauseOutOfMemory)
		w.alive(other)
	})
}

func TestHalfMadeIsInvisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		var spec cay.InstanceSpec
		w.node.OnCreate = func(_ context.Context, s cay.InstanceSpec) error {
			spec = s
			time.Sleep(10 * time.Second)
			return nil
		}
		done := make(chan error, 1)
		go func() {
			_, err := w.c.Create(context.Background(), w.who(), w.spec(time.Hour))
			done <- err
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := w.c.Get(t.Context(), w.who(), spec.Sandbox); cay.KindOf(err) != cay.NotFound {
			t.Errorf("half made and visible: %v", err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.node.Die(spec.Instance, cay.CauseEngine, "")
		synctest.Wait()
		w.gone(cay.Sandbox{ID: spec.Sandbox, Team: w.team.ID, Instance: spec.Instance}, cay.CauseEngine)
	})
}

func TestSweepPutsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var busy atomic.Bool
		w.node.OnKill = func(cay.InstanceID) error {
			if busy.Load() {
				return errors.New("busy")
			}
			return nil
		}
		w.run()
		lost, stubborn := w.create(time.Hour), w.create(time.Hour)
		w.node.Vanish(lost.Instance)
		busy.Store(true)
		if err := w.c.Kill(t.Context(), w.who(), stubborn.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.Get(t.Context(), w.who(), stubborn.ID); cay.KindOf(err) != cay.NotFound {
			t.Errorf("killed and visible: %v", err)
		}
		busy.Store(false)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.gone(lost, cay.CauseHostLost)
		w.gone(stubborn, cay.CauseAsked)
	})
}

func TestMetricsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		begun := time.Now()
		w.node.OnUsage = func(cay.InstanceID) time.Duration { // a third of one of two CPUs
			return 200*time.Millisecond + time.Since(begun)/3
		}
		s := w.create(4 * time.Hour)
		time.Sleep(31 * time.Second)
		synctest.Wait()
		list, err := w.c.Metrics(t.Context(), w.who(), s.ID, time.Time{}, time.Time{})
		if err != nil || len(list) != 5 {
			t.Fatalf("%d samples, %v", len(list), err)
		}
		for _, m := range list { // the first one too
			if m.CPUPercent != 16.67 || m.MemoryMax != 512<<20 || m.CPUs != 2 {
				t.Errorf("a third of one of two CPUs is %+v", m)
			}
		}
		last := list[len(list)-1]
		if old, _ := w.c.Metrics(t.Context(), w.who(), s.ID, time.Time{}, s.StartedAt); len(old) != 0 {
			t.Errorf("samples from before the start: %v", old)
		}
		if got, err := w.c.LatestMetrics(t.Context(), w.who(), []cay.SandboxID{s.ID, "inone"}); err != nil || len(got) != 1 || got[s.ID] != last {
			t.Errorf("the newest is %v", got)
		}
		if got, err := w.c.LatestMetrics(t.Context(), cay.ForTeam("other"), []cay.SandboxID{s.ID}); err != nil || len(got) != 0 {
			t.Errorf("another team sees %v", got)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if list, _ := w.c.Metrics(t.Context(), w.who(), s.ID, time.Time{}, time.Time{}); len(list) != 720 {
			t.Errorf("%d samples are kept", len(list))
		}
	})
}
