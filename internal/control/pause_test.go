package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func (w *world) pause(s cay.Sandbox) cay.Sandbox {
	w.Helper()
	if err := w.c.Pause(w.Context(), cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false); err != nil {
		w.Fatal(err)
	}
	return w.is(s, cay.Paused)
}

// is checks a sandbox's state, in memory and on disk.
func (w *world) is(s cay.Sandbox, state cay.State) cay.Sandbox {
	w.Helper()
	got, err := w.c.Get(w.Context(), cay.ForTeam(s.Team), s.ID)
	if err != nil || got.State != state {
		w.Fatalf("sandbox is %q, want %q, %v", got.State, state, err)
	}
	if row, err := w.store.Sandbox(w.Context(), s.Team, s.ID); err != nil || row.State != state || row.Snapshot != got.Snapshot {
		w.Errorf("recorded as %q in %s, want %q in %s, %v", row.State, row.Snapshot, state, got.Snapshot, err)
	}
	return got
}

// saved waits until the node has these snapshots and no others: what a rollback
// has replaced goes after its answer.
func (w *world) saved(want ...cay.SnapshotID) {
	w.Helper()
	slices.Sort(want)
	w.until(fmt.Sprintf("the node keeps the snapshots %v alone", want), func() bool {
		var got []cay.SnapshotID
		for _, s := range w.node.Saved() {
			got = append(got, s.ID)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// instance waits until a sandbox has one instance, and returns it: the one that a
// rollback has replaced ends after its answer.
func (w *world) instance(s cay.Sandbox) cay.InstanceSpec {
	w.Helper()
	var of []cay.InstanceSpec
	w.until("the sandbox has one instance", func() bool {
		of = nil
		for _, i := range w.node.Alive() {
			if i.Spec.Sandbox == s.ID {
				of = append(of, i.Spec)
			}
		}
		return len(of) == 1
	})
	return of[0]
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	first := w.instance(s)
	p := w.pause(s)
	w.saved(p.Snapshot)
	if p.EndedAt.IsZero() || p.Instance != "" || !p.StartedAt.Equal(s.StartedAt) || len(w.node.Alive()) != 0 {
		t.Errorf("paused as %+v", p)
	}
	if record := w.node.Saved()[0]; record.Sandbox != s.ID || record.Parent != "s1" || !record.Secure || record.Team != s.Team {
		t.Errorf("saved as %+v", record)
	}
	for name, err := range map[string]error{
		"pause":   w.c.Pause(ctx, cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false),
		"timeout": w.c.SetTimeout(ctx, cay.ForTeam(s.Team), s.ID, time.Hour),
		"refresh": w.c.Refresh(ctx, cay.ForTeam(s.Team), s.ID, time.Hour),
	} {
		if cay.KindOf(err) != cay.Conflict {
			t.Errorf("%s of a paused sandbox: %v", name, err)
		}
	}
	got, resumed, err := w.c.Connect(ctx, cay.ForTeam(s.Team), s.ID, 2*time.Hour, true)
	if err != nil || !resumed || !got.EndedAt.IsZero() || got.EndAt.Before(s.EndAt) || !got.StartedAt.Equal(s.StartedAt) {
		t.Errorf("resumed %v as %+v, %v", resumed, got, err)
	}
	again := w.instance(s)
	if !again.Resume || again.Snapshot != p.Snapshot || again.Instance == first.Instance ||
		again.AccessToken != first.AccessToken || again.Env["SECRET"] != "x" || first.Resume {
		t.Errorf("resumed with %+v", again)
	}
	w.is(s, cay.Running)
	if _, err := w.c.Resume(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, "", true); cay.KindOf(err) != cay.Conflict {
		t.Errorf("resume of a running sandbox: %v", err)
	}
	// The snapshot that it was resumed from goes when there is a newer one.
	p2 := w.pause(s)
	w.saved(p2.Snapshot)
	if got, err := w.c.Resume(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, cay.PauseOnTimeout, true); err != nil || got.OnTimeout != cay.PauseOnTimeout {
		t.Errorf("resumed as %+v, %v", got, err)
	}
	if err := w.c.Kill(ctx, cay.ForTeam(s.Team), s.ID); err != nil {
		t.Error(err)
	}
	w.saved()
}

func TestKillOfAPausedSandbox(t *testing.T) {
	w := newWorld(t)
	s := w.pause(w.create(time.Hour))
	if err := w.c.Kill(t.Context(), cay.ForTeam(s.Team), s.ID); err != nil {
		t.Fatal(err)
	}
	w.gone(s, cay.CauseAsked)
	w.saved()
}

func TestAFailedPause(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	w.node.OnSave = func(cay.InstanceID) error {
		return cay.Wrap(cay.NoSpace, syscall.ENOSPC, "the disk is full")
	}
	if err := w.c.Pause(t.Context(), cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("Pause = %v", err)
	}
	if got := w.is(s, cay.Running); got.Snapshot != "s1" || got.Instance != s.Instance {
		t.Errorf("it is %+v", got)
	}
	w.node.OnSave = nil
	w.pause(s)
}

// A host has several disks and each guest has one: a refusal names the one that
// is full, whichever verb meets it.
func TestARefusalNamesTheFullDisk(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	full := cay.Errorf(cay.NoSpace, "its own disk is full")
	w.node.OnSave = func(cay.InstanceID) error { return full }
	paused := w.c.Pause(t.Context(), cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false)
	w.node.OnSave = nil
	w.pause(s)
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return full.WithHint("remove files in it") }
	_, _, resumed := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true)
	for _, c := range []struct {
		err        error
		text, hint string
	}{
		{paused, "the sandbox could not be paused: its own disk is full", "free space on it and try again; nothing was lost"},
		{resumed, "the sandbox could not be resumed: its own disk is full", "remove files in it"},
	} {
		var known *cay.Error
		if !errors.As(c.err, &known) || known.Kind != cay.NoSpace || known.Msg != c.text || known.Hint != c.hint {
			t.Errorf("got %#v, want %q with the hint %q", c.err, c.text, c.hint)
		}
	}
}

func hintOf(err error) string {
	var known *cay.Error
	if errors.As(err, &known) {
		return known.Hint
	}
	return ""
}

func TestAFailedResume(t *testing.T) {
	w := newWorld(t)
	s := w.pause(w.create(time.Hour))
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return errors.New("no") }
	_, _, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true)
	if cay.KindOf(err) != cay.Internal || !strings.Contains(hintOf(err), "memory set to false") {
		t.Errorf("Connect = %v, with the hint %q", err, hintOf(err))
	}
	_, _, err = w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, false)
	if cay.KindOf(err) != cay.Internal || strings.Contains(hintOf(err), "memory") {
		t.Errorf("Connect to its files = %v, with the hint %q", err, hintOf(err))
	}
	if got := w.is(s, cay.Paused); !got.EndedAt.Equal(s.EndedAt) {
		t.Errorf("it is %+v", got)
	}
	w.saved(s.Snapshot)
	w.node.OnCreate = nil
	if _, resumed, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil || !resumed {
		t.Error(err)
	}
}

func TestTimeoutPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var full atomic.Bool
		full.Store(true)
		w.node.OnSave = func(cay.InstanceID) error {
			if full.Load() {
				return cay.Errorf(cay.NoSpace, "full")
			}
			return nil
		}
		w.run()
		spec := w.spec(time.Minute)
		spec.OnTimeout = cay.PauseOnTimeout
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		w.is(s, cay.Running) // better late than lost
		full.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.is(s, cay.Paused)
		time.Sleep(time.Hour) // it is not ended twice, nor swept away
		synctest.Wait()
		w.is(s, cay.Paused)
		if _, _, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil {
			t.Fatal(err)
		}
		if err := w.c.SetTimeout(t.Context(), cay.ForTeam(s.Team), s.ID, 0); err != nil {
			t.Fatal(err)
		}
		w.is(s, cay.Paused)
	})
}

func TestTrafficWakes(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct{ given, lives time.Duration }{{time.Second, 300 * time.Second}, {420 * time.Second, 420 * time.Second}} {
		spec := w.spec(tt.given)
		spec.AutoResume = true
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.c.SetTimeout(t.Context(), cay.ForTeam(s.Team), s.ID, 2*time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.c.Asleep(s.ID); ok {
			t.Error("a running sandbox is asleep")
		}
		w.pause(s)
		if box, ok := w.c.Asleep(s.ID); !ok || box.ID != s.ID {
			t.Errorf("asleep: %v, %+v", ok, box)
		}
		if all := w.c.Sleepers(); len(all) != 1 || all[0].ID != s.ID {
			t.Errorf("sleepers: %+v", all)
		}
		before := len(w.node.Alive())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := w.c.Wake(t.Context(), s.ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := len(w.node.Alive()); n != before+1 {
			t.Errorf("%d instances came of it", n-before)
		}
		got := w.is(s, cay.Running)
		if left := time.Until(got.EndAt); left > tt.lives || left < tt.lives-time.Minute {
			t.Errorf("it lives for %v, want %v", left, tt.lives)
		}
	}
	s := w.pause(w.create(time.Hour))
	if _, ok := w.c.Asleep(s.ID); ok || cay.KindOf(w.c.Wake(t.Context(), s.ID)) != cay.NotFound {
		t.Error("a sandbox was woken that traffic may not wake")
	}
	if all := w.c.Sleepers(); len(all) != 0 {
		t.Errorf("sleepers: %+v", all)
	}
}

// A server that was killed at any moment leaves a state that the next one
// names and finishes.
func TestCrashesBetween(t *testing.T) {
	for _, tt := range []struct {
		state        cay.State
		lives, saved bool
		want         cay.State
	}{
		{cay.Pausing, true, false, cay.Running},
		{cay.Pausing, true, true, cay.Running},
		{cay.Pausing, false, true, cay.Paused},
		{cay.Pausing, false, false, cay.Killed},
		{cay.Resuming, true, true, cay.Paused},
		{cay.Resuming, false, true, cay.Paused},
		{cay.Paused, false, true, cay.Paused},
	} {
		t.Run(fmt.Sprintf("%s lives %v saved %v", tt.state, tt.lives, tt.saved), func(t *testing.T) {
			w := newWorld(t)
			s := w.create(time.Hour)
			s.State, s.Snapshot = tt.state, cay.NewSnapshotID()
			if tt.state == cay.Paused {
				w.node.Vanish(s.Instance)
				s.Instance = ""
			}
			if err := w.store.UpdateSandbox(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			other := w.create(time.Hour)
			for _, id := range []cay.SnapshotID{s.Snapshot, "sofnobody"} {
				if id != s.Snapshot || tt.saved {
					if err := w.node.Checkpoint(t.Context(), other.Instance, cay.Snapshot{ID: id, Sandbox: s.ID}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !tt.lives {
				w.node.Vanish(s.Instance)
			}
			w.restart()
			if tt.want == cay.Killed {
				w.gone(s, cay.CauseHostLost)
				w.saved()
				return
			}
			got := w.is(s, tt.want)
			if tt.want == cay.Running {
				w.saved() // the pause did not happen
				if got.Snapshot != "s1" {
					t.Errorf("it was made of %s", got.Snapshot)
				}
				return
			}
			w.saved(s.Snapshot)
			if len(w.node.Alive()) != 1 || got.Instance != "" || got.EndedAt.IsZero() && tt.state != cay.Paused {
				t.Errorf("instances %v, row %+v", w.node.Alive(), got)
			}
			if _, resumed, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil || !resumed {
				t.Errorf("resume: %v, %v", resumed, err)
			}
		})
	}
}

// mute is a store that records no sandbox in a state.
type mute struct {
	store.Store
	state cay.State
}

func (m mute) UpdateSandbox(ctx context.Context, s cay.Sandbox, events ...cay.Event) error {
	if s.State == m.state {
		return errors.New("the disk is gone")
	}
	return m.Store.UpdateSandbox(ctx, s, events...)
}

func (m mute) Tx(ctx context.Context, f func(store.Store) error) error {
	return m.Store.Tx(ctx, func(tx store.Store) error { return f(mute{tx, m.state}) })
}

// TestNoRequestComesBeforeTheRecord has a resumed sandbox reached once its record says
// that it runs. One that cannot be recorded was never reached, and is what was paused.
func TestNoRequestComesBeforeTheRecord(t *testing.T) {
	w := newWorld(t)
	s := w.pause(w.create(time.Hour))
	routes := 0
	w.node.OnRoute = func(cay.InstanceID) error {
		routes++
		got, err := w.store.Sandbox(t.Context(), s.Team, s.ID)
		if err != nil || got.State != cay.Running {
			t.Errorf("when requests reach it, its record is %s, %v", got.State, err)
		}
		return nil
	}
	w.c = w.open(mute{w.store, cay.Running})
	if _, _, err := w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); err == nil || routes != 0 {
		t.Errorf("resumed without a record: %v, %d routes", err, routes)
	}
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances are left", n)
	}
	w.is(s, cay.Paused)
	w.restart()
	if _, _, err := w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); err != nil || routes != 1 {
		t.Errorf("when the disk is back: %v, %d routes", err, routes)
	}
	w.is(s, cay.Running)
}

// TestPauseIsNotRecorded has a caller count on a pause that cannot be recorded where the next start
// of its machine finds it, and not in a cluster, whose other nodes may end the sandbox before.
func TestPauseIsNotRecorded(t *testing.T) {
	for _, member := range []bool{false, true} {
		w := newWorld(t)
		w.member = member
		s := w.create(time.Hour)
		w.c = w.open(mute{w.store, cay.Paused})
		err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false)
		if member != (cay.KindOf(err) == cay.Unavailable) || !member && err != nil {
			t.Errorf("a node of a cluster %t: %v", member, err)
		}
		if other := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false); cay.KindOf(other) != cay.Conflict {
			t.Errorf("another one: %v", other)
		}
		if got, err := w.c.Get(t.Context(), w.who(), s.ID); err != nil || got.State != cay.Paused {
			t.Errorf("it is %s, %v", got.State, err)
		}
		w.restart() // with a store that records it
		w.is(s, cay.Paused)
	}
}
