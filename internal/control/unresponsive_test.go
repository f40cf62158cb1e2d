package control_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// silent is the answer of an agent that gives none.
func silent(ctx context.Context, _ cay.InstanceID) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestPauseOfASilentAgent has each way to save a sandbox whose agent does not
// answer. It is asked for five seconds, and what is refused changes nothing.
func TestPauseOfASilentAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(time.Hour)
		w.node.OnResponds = silent
		for name, save := range map[string]func() error{
			"a strict pause":   func() error { return w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, true) },
			"a pause of files": func() error { return w.c.Pause(t.Context(), w.who(), s.ID, cay.FilesSnapshot, false) },
			"a fork":           func() error { _, err := w.c.Fork(t.Context(), w.who(), s.ID, 1, time.Hour); return err },
			"a snapshot": func() error {
				_, err := w.c.Snapshot(t.Context(), w.who(), s.ID, "", cay.MemorySnapshot)
				return err
			},
			"a checkpoint": func() error {
				_, err := w.c.Checkpoint(t.Context(), w.who(), s.ID, cay.MemorySnapshot, "")
				return err
			},
		} {
			begun := time.Now()
			if err := save(); cay.CodeOf(err) != cay.CodeGuestUnresponsive || cay.KindOf(err) != cay.Unavailable || time.Since(begun) != 5*time.Second {
				t.Errorf("%s: %v after %s", name, err, time.Since(begun))
			}
			w.alive(s)
			w.saved()
		}
		client, leave := context.WithCancel(t.Context())
		leave() // a client that leaves is no agent that is silent
		w.node.OnResponds = func(ctx context.Context, _ cay.InstanceID) error { return ctx.Err() }
		if err := w.c.Pause(client, w.who(), s.ID, cay.MemorySnapshot, true); err != nil && cay.CodeOf(err) != "" {
			t.Error(err)
		}
	})
}

// TestResumeOfASilentAgent pauses a sandbox whose agent does not answer: its
// memory is refused at once, its files boot.
func TestResumeOfASilentAgent(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	w.node.OnResponds = func(context.Context, cay.InstanceID) error { return errors.New("connection refused") }
	if err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false); err != nil {
		t.Fatal(err)
	}
	w.node.OnResponds = nil
	w.restart() // it is recorded
	for name, try := range map[string]func() error{
		"connect": func() error { _, _, err := w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); return err },
		"resume":  func() error { _, err := w.c.Resume(t.Context(), w.who(), s.ID, time.Hour, "", true); return err },
	} {
		if err := try(); cay.CodeOf(err) != cay.CodeSavedUnresponsive || cay.KindOf(err) != cay.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := w.c.Get(t.Context(), w.who(), s.ID); err != nil || got.State != cay.Paused || !got.Unresponsive {
		t.Errorf("it is %+v, %v", got, err)
	}
	got, resumed, err := w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, false)
	if err != nil || !resumed || got.Unresponsive {
		t.Fatalf("booted: %+v, %v", got, err)
	}
	if err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, true); err != nil {
		t.Fatal(err)
	}
	if got, _, err = w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); err != nil || got.Unresponsive {
		t.Errorf("after a pause with an agent that answers: %+v, %v", got, err)
	}
}

// TestTimeOutOfASilentAgent has the pause at the end of a sandbox's time: it is
// never refused, and traffic does not wake it.
func TestTimeOutOfASilentAgent(t *testing.T) {
	for _, action := range []cay.TimeoutAction{cay.PauseOnTimeout, cay.PauseFilesOnTimeout} {
		w := newWorld(t)
		spec := w.spec(time.Hour)
		spec.OnTimeout, spec.AutoResume = action, action == cay.PauseOnTimeout
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		w.node.OnResponds = func(context.Context, cay.InstanceID) error { return errors.New("silent") }
		if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, 0); err != nil {
			t.Fatal(err)
		}
		got, err := w.c.Get(t.Context(), w.who(), s.ID)
		if err != nil || got.State != cay.Paused || got.Unresponsive != (action == cay.PauseOnTimeout) {
			t.Errorf("%s: %s, unresponsive %v, %v", action, got.State, got.Unresponsive, err)
		}
		if _, wakes := w.c.Asleep(s.ID); wakes {
			t.Errorf("%s: traffic may wake it", action)
		}
	}
}
