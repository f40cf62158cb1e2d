package control_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/store"
)

// limit changes limits of the world's team as an administrator does.
func (w *world) limit(pairs ...any) {
	w.Helper()
	change := fleet.LimitChange{}
	for i := 0; i < len(pairs); i += 2 {
		value := int64(pairs[i+1].(int))
		change[pairs[i].(cay.Limit)] = &value
	}
	if _, err := w.c.ChangeLimits(w.Context(), w.who(), change, true); err != nil {
		w.Fatal(err)
	}
}

// full is a world whose team has two sandboxes that run, one that is paused and
// wakes, a checkpoint, a snapshot and a template.
type full struct {
	*world
	one, two, asleep cay.Sandbox
	saved            cay.Checkpoint
	snapshot         string
}

func newFull(t *testing.T) *full {
	t.Helper()
	w := &full{world: withBuilder(t, &builder{})}
	w.node.Keep(cay.Snapshot{ID: "s1", Kind: cay.MemorySnapshot})
	spec := w.spec(time.Hour)
	spec.AutoResume = true
	var err error
	if w.asleep, err = w.c.Create(t.Context(), w.who(), spec); err != nil {
		t.Fatal(err)
	}
	w.pause(w.asleep)
	w.one, w.two = w.create(time.Hour), w.create(time.Hour)
	w.saved = w.checkpoint(w.one, "here")
	snap, err := w.c.Snapshot(t.Context(), w.who(), w.two.ID, "snap", cay.MemorySnapshot)
	if err != nil {
		t.Fatal(err)
	}
	w.snapshot = string(snap.ID)
	w.request("mine")
	return w
}

// verbs are what takes from a limit, or may seem to. Those that change what the
// next ones find come last.
var verbs = []struct {
	name    string
	refused []cay.Limit // when nothing is left of these
	do      func(w *full) error
}{
	{"create", running, func(w *full) error {
		_, err := w.c.Create(w.Context(), w.who(), w.spec(time.Hour))
		return err
	}},
	{"create from snapshot", running, func(w *full) error {
		spec := w.spec(time.Hour)
		spec.Template = w.snapshot
		_, err := w.c.Create(w.Context(), w.who(), spec)
		return err
	}},
	{"fork", slices.Concat(running, saving), func(w *full) error {
		return forked(w.c.Fork(w.Context(), w.who(), w.one.ID, 1, time.Hour))
	}},
	{"fork of a checkpoint", running, func(w *full) error {
		return forked(w.c.ForkCheckpoint(w.Context(), w.who(), w.saved.ID, 1, time.Hour))
	}},
	{"checkpoint", saving, func(w *full) error {
		_, err := w.c.Checkpoint(w.Context(), w.who(), w.one.ID, "", "")
		return err
	}},
	{"snapshot", saving, func(w *full) error {
		_, err := w.c.Snapshot(w.Context(), w.who(), w.one.ID, "", cay.MemorySnapshot)
		return err
	}},
	{"pause", saving, func(w *full) error {
		return w.c.Pause(w.Context(), w.who(), w.one.ID, cay.MemorySnapshot, false)
	}},
	{"template", []cay.Limit{cay.LimitTemplates}, func(w *full) error {
		_, _, err := w.c.RequestBuild(w.Context(), w.who(), builds.BuildRequest{Name: "another"})
		return err
	}},
	{"build of a template that is there", nil, func(w *full) error {
		_, _, err := w.c.RequestBuild(w.Context(), w.who(), builds.BuildRequest{Name: "mine"})
		return err
	}},
	{"connect to one that runs", nil, func(w *full) error {
		_, _, err := w.c.Connect(w.Context(), w.who(), w.two.ID, time.Hour, true)
		return err
	}},
	{"rollback", nil, func(w *full) error {
		_, _, err := w.c.Rollback(w.Context(), w.who(), w.one.ID, w.saved.ID)
		return err
	}},
	{"undo", nil, func(w *full) error {
		_, _, err := w.c.Undo(w.Context(), w.who(), w.one.ID)
		return err
	}},
	{"connect", running, func(w *full) error {
		_, _, err := w.c.Connect(w.Context(), w.who(), w.asleep.ID, time.Hour, true)
		return err
	}},
	{"wake", running, func(w *full) error { return w.c.Wake(w.Context(), w.asleep.ID) }},
	{"resume", running, func(w *full) error {
		_, err := w.c.Resume(w.Context(), w.who(), w.asleep.ID, time.Hour, "", true)
		return err
	}},
	{"pause at a time limit", nil, func(w *full) error {
		return w.c.SetTimeout(w.Context(), w.who(), w.two.ID, 0)
	}},
	{"kill", nil, func(w *full) error { return w.c.Kill(w.Context(), w.who(), w.one.ID) }},
}

var (
	running = []cay.Limit{cay.LimitSandboxes, cay.LimitCPUs, cay.LimitMemory, cay.LimitDisk}
	saving  = []cay.Limit{cay.LimitSnapshots}
)

func forked(list []lifecycle.Forked, err error) error {
	for _, f := range list {
		err = errors.Join(err, f.Err)
	}
	return err
}

// TestLimitsOfVerbs has a team use each limit up, and do everything: what would
// take more of it is refused and changes nothing, all else works.
func TestLimitsOfVerbs(t *testing.T) {
	for limit, most := range map[cay.Limit]int{
		cay.LimitSandboxes: 2, cay.LimitCPUs: 4, cay.LimitMemory: 1024, cay.LimitDisk: 2048,
		cay.LimitSnapshots: 3000, cay.LimitTemplates: 1,
	} {
		t.Run(string(limit), func(t *testing.T) {
			w := newFull(t)
			used, err := w.c.Limits(t.Context(), w.who())
			if err != nil || used[limit].Used != int64(most) {
				t.Fatalf("the team uses %d of %s, %v: this test counts on %d", used[limit].Used, limit, err, most)
			}
			for _, v := range verbs {
				refused := slices.Contains(v.refused, limit)
				other := slices.Contains(running[1:], limit) || limit == cay.LimitTemplates && !strings.Contains(v.name, "template")
				if !refused && other { // as with the first of them
					continue
				}
				w.limit(limit, most)
				before := w.possessions()
				err := v.do(w)
				switch {
				case refused && (cay.KindOf(err) != cay.Exhausted || cay.CodeOf(err) != cay.CodeTeamLimit || cay.RetryOf(err).May):
					t.Errorf("%s: %v, want a refusal for good", v.name, err)
				case refused && !reflect.DeepEqual(w.possessions(), before):
					t.Errorf("%s was refused and changed\n%v\nto\n%v", v.name, before, w.possessions())
				case !refused && cay.CodeOf(err) == cay.CodeTeamLimit:
					t.Errorf("%s: %v", v.name, err)
				}
				if !refused {
					if err != nil {
						t.Errorf("%s: %v", v.name, err)
					}
					w = newFull(t)
				}
			}
		})
	}
}

// possessions is what the team has, by its lists.
func (w *full) possessions() (out []string) {
	w.Helper()
	for _, s := range []cay.Sandbox{w.one, w.two, w.asleep} {
		out = append(out, fmt.Sprint(s.ID, w.state(s), w.instanceOf(s)))
	}
	out = append(out, fmt.Sprint(len(w.node.Alive()), " instances"), fmt.Sprint(len(w.node.Saved()), " snapshots"))
	rows, err := w.store.Sandboxes(w.Context(), store.SandboxQuery{Team: w.team.ID})
	templates, err2 := w.store.Templates(w.Context(), w.team.ID)
	if err != nil || err2 != nil {
		w.Fatal(err, err2)
	}
	return append(out, fmt.Sprint(len(rows), " records"), fmt.Sprint(len(templates), " templates"))
}

func (w *full) instanceOf(s cay.Sandbox) cay.InstanceID {
	got, err := w.c.Get(w.Context(), w.who(), s.ID)
	if err != nil {
		w.Fatal(err)
	}
	return got.Instance
}

// A fork that no place is left for saves nothing; one of several gets the places
// that there are.
func TestForksAtALimit(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	n := w.checkpoint(s, "here")
	w.limit(cay.LimitSandboxes, 1)
	saves := 0
	w.node.OnSave = func(cay.InstanceID) error { saves++; return nil }
	if _, err := w.c.Fork(t.Context(), w.who(), s.ID, 1, time.Hour); cay.CodeOf(err) != cay.CodeTeamLimit || saves != 0 {
		t.Errorf("a fork: %v, %d saves", err, saves)
	}
	if _, err := w.c.ForkCheckpoint(t.Context(), w.who(), n.ID, 1, time.Hour); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("a fork of a checkpoint: %v", err)
	}
	w.limit(cay.LimitSandboxes, 4)
	forks, err := w.c.Fork(t.Context(), w.who(), s.ID, 10, time.Hour)
	ran := 0
	for _, f := range forks {
		if f.Err == nil {
			ran++
		} else if cay.CodeOf(f.Err) != cay.CodeTeamLimit {
			t.Error(f.Err)
		}
	}
	if err != nil || ran != 3 {
		t.Errorf("%d of 10 forks run, 3 may: %v", ran, err)
	}
}

// TestLimitsAreExact has 50 callers at once take from each limit.
func TestLimitsAreExact(t *testing.T) {
	const callers, most = 50, 7 // and the template that each world has
	for _, tc := range []struct {
		limit cay.Limit
		value int
		do    func(w *world, boxes []cay.Sandbox, i int) error
	}{
		{cay.LimitSandboxes, most + 1, startAny},
		{cay.LimitCPUs, 2 * (most + 1), startAny},
		{cay.LimitMemory, 512 * (most + 1), startAny},
		{cay.LimitDisk, 1024 * (most + 1), startAny},
		{cay.LimitTemplates, most + 1, func(w *world, _ []cay.Sandbox, i int) error {
			_, _, err := w.c.RequestBuild(context.Background(), w.who(), builds.BuildRequest{Name: fmt.Sprint("app", i)})
			return err
		}},
	} {
		t.Run(string(tc.limit), func(t *testing.T) {
			w := newWorld(t)
			var boxes []cay.Sandbox
			for range callers / 2 {
				spec := w.spec(time.Hour)
				spec.AutoResume = true
				made, err := w.c.Create(t.Context(), w.who(), spec)
				if err != nil {
					t.Fatal(err)
				}
				boxes = append(boxes, w.pause(made))
			}
			if tc.limit != cay.LimitTemplates { // one that is forked, which takes a place itself
				boxes = append(boxes, w.create(time.Hour))
			}
			w.limit(tc.limit, tc.value)
			if n := atOnce(t, callers, func(i int) error { return tc.do(w, boxes, i) }); n != most {
				t.Errorf("%d passed, %d may", n, most)
			}
		})
	}
	t.Run(string(cay.LimitSnapshots), func(t *testing.T) {
		w := newWorld(t)
		w.node.Keep(cay.Snapshot{ID: "s1", Kind: cay.MemorySnapshot})
		var boxes []cay.Sandbox
		for range callers {
			boxes = append(boxes, w.create(time.Hour))
		}
		w.limit(cay.LimitSnapshots, 1000*most)
		n := atOnce(t, callers, func(i int) error {
			if i%2 == 0 {
				return w.c.Pause(context.Background(), w.who(), boxes[i].ID, cay.MemorySnapshot, false)
			}
			_, err := w.c.Checkpoint(context.Background(), w.who(), boxes[i].ID, "", "")
			return err
		})
		if n != most || len(w.node.Saved()) != most+1 { // the template's does not count
			t.Errorf("%d passed, %d may; %d snapshots are there", n, most, len(w.node.Saved()))
		}
	})
	t.Run(string(cay.LimitBuilds), func(t *testing.T) {
		w := withBuilder(t, &builder{})
		var waiting []cay.Build
		for i := range callers {
			_, b := w.request(fmt.Sprint("app", i))
			waiting = append(waiting, b)
		}
		w.limit(cay.LimitBuilds, most)
		n := atOnce(t, callers, func(i int) error {
			b := waiting[i]
			return w.c.StartBuild(context.Background(), w.who(), string(b.Template), b.ID, builds.BuildStart{FromTemplate: "base"})
		})
		if n != most {
			t.Errorf("%d passed, %d may", n, most)
		}
	})
}

// startAny starts a sandbox in each of the ways there are, by turns: of those that
// are paused, and by creates and forks of the last.
func startAny(w *world, boxes []cay.Sandbox, i int) (err error) {
	ctx, source := context.Background(), boxes[len(boxes)-1]
	switch {
	case i < len(boxes)-1 && i%3 == 0:
		_, err = w.c.Resume(ctx, w.who(), boxes[i].ID, time.Hour, "", true)
	case i < len(boxes)-1 && i%3 == 1:
		err = w.c.Wake(ctx, boxes[i].ID)
	case i < len(boxes)-1:
		_, _, err = w.c.Connect(ctx, w.who(), boxes[i].ID, time.Hour, true)
	case i%2 == 0:
		err = forked(w.c.Fork(ctx, w.who(), source.ID, 1, time.Hour))
	default:
		_, err = w.c.Create(ctx, w.who(), w.spec(time.Hour))
	}
	return err
}

// atOnce has callers do something at once and returns how many could. All
// others must be refused for a limit.
func atOnce(t *testing.T, callers int, do func(i int) error) int {
	var passed atomic.Int32
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			err := do(i)
			switch {
			case err == nil:
				passed.Add(1)
			case cay.KindOf(err) != cay.Exhausted:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return int(passed.Load())
}

// A sandbox whose time is over is saved, whatever its team may save: it would be
// lost. One whose team asks for a save again is told no, and so is an automatic
// checkpoint, which changes nothing for the command that it comes before.
func TestAPauseByTimeIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		w.node.Keep(cay.Snapshot{ID: "s1", Kind: cay.MemorySnapshot})
		spec := w.spec(time.Minute)
		spec.OnTimeout = cay.PauseOnTimeout
		spec.Auto = cay.AutoCheckpoint{Before: true}
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		w.limit(cay.LimitSnapshots, 1)
		w.c.Used(t.Context(), s.ID, true)
		w.alive(s)
		if n := w.nodes(s); len(n) != 0 {
			t.Errorf("it has checkpoints %v", n)
		}
		time.Sleep(time.Until(s.EndAt))
		synctest.Wait()
		w.is(s, cay.Paused)
		used, err := w.c.Limits(t.Context(), w.who())
		if u := used[cay.LimitSnapshots]; err != nil || u.Used != 1000 {
			t.Errorf("%+v, %v", u, err)
		}
	})
}

// A sandbox that is paused again takes the place of what it was saved in.
func TestAPauseReplacesTheOneBefore(t *testing.T) {
	w := newWorld(t)
	w.node.Keep(cay.Snapshot{ID: "s1", Kind: cay.MemorySnapshot})
	s := w.create(time.Hour)
	w.limit(cay.LimitSnapshots, 1000)
	for range 3 {
		w.pause(s)
		if _, err := w.c.Resume(t.Context(), w.who(), s.ID, time.Hour, "", true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.c.Checkpoint(t.Context(), w.who(), s.ID, "", ""); cay.CodeOf(err) != cay.CodeTeamLimit {
		t.Errorf("a checkpoint beside it: %v", err)
	}
}

// Limits are recorded, hold from the next request on, and end nothing that is
// there.
func TestChangedLimits(t *testing.T) {
	w := newWorld(t)
	w.create(time.Hour)
	w.create(time.Hour)
	w.limit(cay.LimitSandboxes, 1, cay.LimitReads, 5)
	if n := len(w.node.Alive()); n != 2 {
		t.Errorf("%d run after the limit was lowered", n)
	}
	refused := func() bool {
		t.Helper()
		_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
		if err != nil && cay.CodeOf(err) != cay.CodeTeamLimit {
			t.Fatal(err)
		}
		return err != nil
	}
	if !refused() {
		t.Error("a third one, of one")
	}
	w.restart()
	if !refused() {
		t.Error("a restart forgets limits")
	}
	none := fleet.LimitChange{cay.LimitSandboxes: nil}
	all, err := w.c.ChangeLimits(t.Context(), w.who(), none, false)
	if err != nil || refused() {
		t.Errorf("the server's default is none: %v", err)
	}
	if got := all[cay.LimitReads]; got.Value != 5 || !got.Own || got.Used != -1 {
		t.Errorf("a limit that was not named is %+v", got)
	}
	if got := all[cay.LimitSandboxes]; got.Value != 0 || got.Own || got.Used != 2 {
		t.Errorf("a limit that is not set is %+v", got)
	}
	events, err := w.store.Events(t.Context(), store.EventQuery{Team: w.team.ID, Type: cay.TeamLimitsChanged})
	if err != nil || len(events) != 2 || events[1].Data["limits"] != "readsPerSecond=5" || events[1].Data["before"] != "sandboxes=1 readsPerSecond=5" {
		t.Errorf("the events are %+v, %v", events, err)
	}
}

func TestBadLimits(t *testing.T) {
	w := newWorld(t)
	w.limit(cay.LimitSandboxes, 3)
	for name, change := range map[string]fleet.LimitChange{
		"below zero":      {cay.LimitSandboxes: new(int64(-1)), cay.LimitReads: new(int64(1))},
		"too large":       {cay.LimitSnapshots: new(int64(cay.MaxLimit + 1))},
		"unknown":         {"sandboxen": new(int64(1))},
		"unknown default": {"sandboxen": nil},
	} {
		for _, whole := range []bool{true, false} {
			if _, err := w.c.ChangeLimits(t.Context(), w.who(), change, whole); cay.KindOf(err) != cay.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	stranger := w.who()
	stranger.Team = cay.NewTeamID()
	if _, err := w.c.ChangeLimits(t.Context(), stranger, nil, true); cay.KindOf(err) != cay.NotFound {
		t.Errorf("of a team that is not there: %v", err)
	}
	member := w.who()
	member.Scopes = cay.TeamScopes
	if _, err := w.c.ChangeLimits(t.Context(), member, nil, true); cay.KindOf(err) != cay.Denied {
		t.Errorf("by the team itself: %v", err)
	}
	if got := w.c.LimitsOf(w.team.ID); !reflect.DeepEqual(got, cay.TeamLimits{cay.LimitSandboxes: 3}) {
		t.Errorf("the limits are %v", got)
	}
}
