package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// TestFilesOnlyPause: what has no memory is never woken by traffic, which
// could not know what was lost; a caller that asks for it gets it.
func TestFilesOnlyPause(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	spec := w.spec(time.Hour)
	spec.AutoResume = true
	s, err := w.c.Create(ctx, w.who(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.c.Pause(ctx, cay.ForTeam(s.Team), s.ID, cay.FilesSnapshot, false); err != nil {
		t.Fatal(err)
	}
	p := w.is(s, cay.Paused)
	if record := w.node.Saved()[0]; record.Kind != cay.FilesSnapshot || p.Saved != cay.FilesSnapshot {
		t.Errorf("saved as %+v, of %+v", record, p)
	}
	w.restart() // the row says it too
	if _, wakes := w.c.Asleep(s.ID); wakes {
		t.Error("traffic wakes a sandbox without memory")
	}
	if err := w.c.Wake(ctx, s.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("Wake = %v", err)
	}
	if _, resumed, err := w.c.Connect(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil || !resumed {
		t.Fatalf("resumed %v, %v", resumed, err)
	}
	if i := w.instance(s); !i.Resume || i.FilesOnly { // the node knows what there is
		t.Errorf("resumed with %+v", i)
	}
	w.pause(s)
	if _, wakes := w.c.Asleep(s.ID); !wakes {
		t.Error("traffic does not wake a sandbox that has its memory again")
	}
	if _, err := w.c.Resume(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, "", false); err != nil {
		t.Fatal(err)
	}
	if i := w.instance(s); !i.FilesOnly {
		t.Errorf("resumed with %+v", i)
	}
}

func TestTimeoutPausesFiles(t *testing.T) {
	w := newWorld(t)
	spec := w.spec(time.Hour)
	spec.OnTimeout = cay.PauseFilesOnTimeout
	s, err := w.c.Create(t.Context(), w.who(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.c.SetTimeout(t.Context(), cay.ForTeam(s.Team), s.ID, 0); err != nil {
		t.Fatal(err)
	}
	if p := w.is(s, cay.Paused); p.Saved != cay.FilesSnapshot {
		t.Errorf("paused as %+v", p)
	}
}

// TestAMonthOnDisk: a paused sandbox has no end.
func TestAMonthOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.pause(w.create(time.Minute))
		time.Sleep(35 * 24 * time.Hour)
		w.restart()
		stop := w.run()
		time.Sleep(2 * time.Hour) // records of the dead are forgotten meanwhile
		synctest.Wait()
		w.is(s, cay.Paused)
		w.saved(s.Snapshot)
		got, resumed, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true)
		if err != nil || !resumed || !got.EndAt.Equal(time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)) {
			t.Errorf("resumed %v as %+v, %v", resumed, got, err)
		}
		stop()
	})
}

// TestNotice: what a start could not give back is recorded, until a start
// that could.
func TestNotice(t *testing.T) {
	w := newWorld(t)
	s := w.pause(w.create(time.Hour))
	for _, notice := range []string{"its memory is gone", ""} {
		w.node.Notice = notice
		if got, _, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil || got.Notice != notice {
			t.Fatalf("resumed as %+v, %v", got, err)
		}
		if row, err := w.store.Sandbox(t.Context(), s.Team, s.ID); err != nil || row.Notice != notice {
			t.Errorf("recorded as %+v, %v", row, err)
		}
		w.pause(s)
	}
}

// A rollback tells it in its answer, the record and the event.
func TestNoticeOfRollback(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	n := w.checkpoint(s, "")
	for _, notice := range []string{"its memory is gone", ""} {
		w.node.Notice = notice
		if got, _, err := w.c.Rollback(t.Context(), cay.ForTeam(s.Team), s.ID, n.ID); err != nil || got.Notice != notice {
			t.Fatalf("rolled back as %+v, %v", got, err)
		}
		if row, err := w.store.Sandbox(t.Context(), s.Team, s.ID); err != nil || row.Notice != notice {
			t.Errorf("recorded as %+v, %v", row, err)
		}
		events, err := w.store.Events(t.Context(), store.EventQuery{Team: s.Team, Sandbox: s.ID, Type: cay.SandboxRolledBack})
		if err != nil || len(events) == 0 {
			t.Fatal(events, err)
		}
		if e := events[len(events)-1]; e.Data["notice"] != notice {
			t.Errorf("the event is %+v", e)
		}
	}
}
