package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/lifecycle"
)

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	kept, lost := w.create(time.Hour), w.create(time.Hour)
	half := lost
	half.ID, half.Instance, half.State = cay.NewSandboxID(), cay.NewInstanceID(), cay.Creating
	paused := lost
	paused.ID, paused.Instance, paused.State = cay.NewSandboxID(), "", cay.Paused
	for _, s := range []cay.Sandbox{half, paused} {
		if err := w.store.AddSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	w.node.Vanish(lost.Instance)
	for _, spec := range []cay.InstanceSpec{
		{Instance: half.Instance, Sandbox: half.ID},                     // created, never told
		{Instance: cay.NewInstanceID(), Sandbox: "iunknown"},            // of no record
		{Instance: cay.NewInstanceID(), Sandbox: kept.ID, Snapshot: ""}, // a second one of a sandbox
	} {
		if _, err := w.node.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	w.restart()
	if got := w.alive(kept); got.EndAt != kept.EndAt || got.Env["SECRET"] != "x" {
		t.Errorf("kept as %+v", got)
	}
	w.gone(lost, cay.CauseHostLost)
	w.gone(half, cay.CauseFailedStart)
	if got, err := w.c.Get(t.Context(), w.who(), paused.ID); err != nil || got.State != cay.Paused {
		t.Errorf("the paused one is %q, %v", got.State, err)
	}
	if list := w.node.Alive(); len(list) != 1 || list[0].Spec.Instance != kept.Instance {
		t.Errorf("the node runs %v", list)
	}
}

func TestFailedStart(t *testing.T) {
	w := newWorld(t)
	var spec cay.InstanceSpec
	cause := errors.New("runsc said no")
	w.node.OnCreate = func(_ context.Context, s cay.InstanceSpec) error { spec = s; return cause }
	_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
	var ours *cay.Error
	if !errors.As(err, &ours) || ours.Kind != cay.Internal || ours.Code != "sandbox_create_failed" || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	w.gone(cay.Sandbox{ID: spec.Sandbox, Team: w.team.ID}, cay.CauseFailedStart)

	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		return cay.Errorf(cay.Internal, "no slot").WithHint("wait")
	}
	_, err = w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
	if !errors.As(err, &ours) || ours.Msg != "the sandbox could not be started: no slot" || ours.Hint != "wait" {
		t.Errorf("got %v", err)
	}

	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return cay.Errorf(cay.NoSpace, "disk full") }
	if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("a full disk is %v", err)
	}
}

func TestClientThatLeaves(t *testing.T) {
	w := newWorld(t)
	var spec cay.InstanceSpec
	ctx, cancel := context.WithCancel(t.Context())
	w.node.OnCreate = func(_ context.Context, s cay.InstanceSpec) error {
		spec = s
		cancel()
		return nil
	}
	if _, err := w.c.Create(ctx, w.who(), w.spec(time.Hour)); err == nil {
		t.Error("a sandbox was made without a client")
	}
	w.gone(cay.Sandbox{ID: spec.Sandbox, Team: w.team.ID, Instance: spec.Instance}, cay.CauseFailedStart)
}

func TestKillOnce(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	var wg sync.WaitGroup
	var killed, absent atomic.Int32
	for range 16 {
		wg.Go(func() {
			switch err := w.c.Kill(context.Background(), w.who(), s.ID); cay.KindOf(err) {
			case "":
				killed.Add(1)
			case cay.NotFound:
				absent.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if killed.Load() != 1 || absent.Load() != 15 {
		t.Errorf("%d kills worked, %d found nothing", killed.Load(), absent.Load())
	}
	w.gone(s, cay.CauseAsked)
}

func TestParallelLife(t *testing.T) {
	w := newWorld(t)
	stop := w.run()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			s, err := w.c.Create(context.Background(), w.who(), w.spec(time.Hour))
			if err != nil {
				t.Error(err)
				return
			}
			for range 4 {
				if _, err := w.c.Extend(context.Background(), w.who(), s.ID, 2*time.Hour); err != nil {
					t.Error(err)
				}
				if _, err := w.c.List(context.Background(), w.who(), fleet.Query{Limit: 5}); err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := w.c.Kill(context.Background(), w.who(), s.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	if n := len(w.node.Alive()); n != 6 {
		t.Errorf("%d instances are left, want 6", n)
	}
}

func TestWrongTimeouts(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	for _, d := range []time.Duration{-1, lifecycle.MaxTimeout + 1} {
		if _, err := w.c.Create(t.Context(), w.who(), w.spec(d)); cay.KindOf(err) != cay.Invalid {
			t.Errorf("create with %v: %v", d, err)
		}
		if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, d); cay.KindOf(err) != cay.Invalid {
			t.Errorf("timeout %v: %v", d, err)
		}
		if _, _, err := w.c.Connect(t.Context(), w.who(), s.ID, d, true); cay.KindOf(err) != cay.Invalid {
			t.Errorf("connect with %v: %v", d, err)
		}
	}
	if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, 0); err != nil {
		t.Fatal(err)
	}
	w.gone(s, cay.CauseTimeout)
}

func TestTemplateReferences(t *testing.T) {
	w := newWorld(t)
	other := cay.Team{ID: cay.NewTeamID(), Name: "other", CreatedAt: time.Now()}
	if err := w.store.AddTeam(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	base, err := w.c.Template(t.Context(), w.who(), "base")
	if err != nil {
		t.Fatal(err)
	}
	for ref, kind := range map[string]cay.Kind{
		"Base": "", "alias": "", "base:default": "", "default/base": "", "DEFAULT/base:Default": "", string(base.ID): "",
		"base:v1": cay.NotFound, "nope": cay.NotFound, "other/base": cay.NotFound, "no-team/base": cay.NotFound,
		"": cay.Invalid, "a/b/c": cay.Invalid, "base:": cay.Invalid, ":x": cay.Invalid, "a b": cay.Invalid,
	} {
		got, err := w.c.Template(t.Context(), w.who(), ref)
		if cay.KindOf(err) != kind || (kind == "" && got.ID != base.ID) {
			t.Errorf("%q is %q, %v", ref, got.ID, err)
		}
	}
	for _, ref := range []string{"base", "default/base", string(base.ID)} { // not public
		if _, err := w.c.Template(t.Context(), cay.ForTeam(other.ID), ref); cay.KindOf(err) != cay.NotFound {
			t.Errorf("another team finds %q: %v", ref, err)
		}
	}
}

func TestPublish(t *testing.T) {
	w := newWorld(t)
	p := fleet.Publication{
		Team: w.team.ID, Names: []string{"base"}, Snapshot: "s1", RecipeDigest: "d1",
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
	}
	first, err := w.c.Template(t.Context(), w.who(), "base")
	if err != nil {
		t.Fatal(err)
	}
	same, err := w.c.Publish(t.Context(), p)
	if err != nil || same.Build != first.Build {
		t.Errorf("the same again is build %q, was %q, %v", same.Build, first.Build, err)
	}
	p.Snapshot, p.RecipeDigest = "s2", "d2"
	next, err := w.c.Publish(t.Context(), p)
	if err != nil || next.ID != first.ID || next.Snapshot != "s2" || next.Build == first.Build || next.BuildCount != 2 {
		t.Errorf("the next is %+v, %v", next, err)
	}
	if s := w.create(time.Hour); s.Snapshot != "s2" || s.Build != next.Build {
		t.Errorf("a sandbox starts from %s", s.Snapshot)
	}
}

func TestListPages(t *testing.T) {
	w := newWorld(t)
	var made []cay.SandboxID
	for i := range 5 {
		spec := w.spec(time.Hour)
		spec.Metadata = map[string]string{"n": fmt.Sprint(i)}
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, s.ID)
	}
	if err := w.c.Kill(t.Context(), w.who(), made[0]); err != nil {
		t.Fatal(err)
	}
	var seen []cay.SandboxID
	q := fleet.Query{States: []cay.State{cay.Running}, Limit: 2}
	for {
		page, err := w.c.List(t.Context(), w.who(), q)
		if err != nil || page.Total[cay.Running] != 4 {
			t.Fatalf("%+v, %v", page, err)
		}
		for _, s := range page.Sandboxes {
			seen = append(seen, s.ID)
		}
		if q.After = page.Next; q.After == nil {
			break
		}
	}
	slices.Sort(seen)
	want := slices.Sorted(slices.Values(made[1:]))
	if !slices.Equal(seen, want) {
		t.Errorf("the pages hold %v, want %v", seen, want)
	}
}
