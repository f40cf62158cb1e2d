package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/store"
)

// speaker is a guest that keeps a diary.
type speaker struct {
	mu      sync.Mutex
	epoch   string
	entries []guest.DiaryEntry
	asked   int
	err     error
}

func (s *speaker) say(e guest.DiaryEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Seq = int64(len(s.entries) + 1)
	e.At = time.Now()
	s.entries = append(s.entries, e)
}

func (s *speaker) begin(epoch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.entries = epoch, nil
}

func (s *speaker) diary(_ cay.InstanceID, after int64) (guest.Diary, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	out := guest.Diary{Epoch: s.epoch}
	for _, e := range s.entries {
		if e.Seq > after {
			out.Entries = append(out.Entries, e)
		}
	}
	return out, s.err
}

func (w *world) messages(id cay.SandboxID) string {
	w.Helper()
	lines, err := w.c.Logs(w.Context(), w.who(), lifecycle.LogQuery{Sandbox: id})
	if err != nil {
		w.Fatal(err)
	}
	var out []string
	for _, l := range lines {
		if l.Logger != "cay" || strings.Contains(l.Message, "lost") {
			out = append(out, l.Message)
		}
	}
	return strings.Join(out, " ")
}

func TestDiaryIsReadOnce(t *testing.T) {
	w := newWorld(t)
	s := &speaker{epoch: "e1"}
	w.node.OnDiary = s.diary
	box := w.create(time.Hour)
	s.say(guest.DiaryEntry{Message: "a"})
	if got := w.messages(box.ID); got != "a" {
		t.Fatalf("got %q", got)
	}
	s.say(guest.DiaryEntry{Message: "b"})
	w.restart()
	if got := w.messages(box.ID); got != "a b" {
		t.Fatalf("after a restart %q", got)
	}
	s.say(guest.DiaryEntry{Message: "c"})
	w.pause(box)
	s.begin("e2")
	s.say(guest.DiaryEntry{Message: "d"})
	s.say(guest.DiaryEntry{Message: "e"})
	if _, _, err := w.c.Connect(t.Context(), w.who(), box.ID, time.Hour, true); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Kill(t.Context(), w.who(), box.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.messages(box.ID); got != "a b c d e" {
		t.Fatalf("after its end %q", got)
	}
	for _, tt := range []struct {
		q    lifecycle.LogQuery
		want string
	}{
		{lifecycle.LogQuery{Limit: 1}, "sandbox created"},
		{lifecycle.LogQuery{Limit: 1, Newest: true}, "sandbox killed"},
		{lifecycle.LogQuery{Search: "c"}, "c"},
		{lifecycle.LogQuery{Level: "error"}, ""},
		{lifecycle.LogQuery{From: time.Now().Add(time.Minute)}, ""},
		{lifecycle.LogQuery{To: time.Now().Add(-time.Minute)}, ""},
	} {
		tt.q.Sandbox = box.ID
		lines, err := w.c.Logs(t.Context(), w.who(), tt.q)
		got := ""
		for _, l := range lines {
			if tt.q.Search == "" || l.Message == tt.q.Search {
				got += l.Message
			}
		}
		if err != nil || got != tt.want {
			t.Errorf("%+v: %q, %v", tt.q, got, err)
		}
	}
}

func TestDiaryOfAHostileGuest(t *testing.T) {
	w := newWorld(t)
	s := &speaker{epoch: strings.Repeat("e", 9999)}
	w.node.OnDiary = s.diary
	box := w.create(time.Hour)
	for range 100 {
		s.say(guest.DiaryEntry{
			Event: "process.killed", Level: "fatal", Logger: "\x1b[2J", Message: strings.Repeat("\x07", 100_000),
			Fields: map[string]string{"name": "\x00" + strings.Repeat("n", 9999), "pid": "1"},
		})
	}
	s.say(guest.DiaryEntry{Event: "sandbox.killed", Message: "fake"})
	lines, err := w.c.Logs(t.Context(), w.who(), lifecycle.LogQuery{Sandbox: box.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if text := fmt.Sprintf("%s %s %v", l.Logger, l.Message, l.Fields); len(text) > 2000 || strings.ContainsAny(text, "\x00\x07\x1b") {
			t.Fatalf("a line is %.200q", text)
		}
	}
	events, err := w.c.Events(t.Context(), w.who(), fleet.EventQuery{Team: w.team.ID, Sandbox: box.ID})
	if err != nil || len(events) >= 100 || len(events) < 20 {
		t.Errorf("%d events, %v", len(events), err)
	}
	for _, e := range events {
		if e.Type == cay.SandboxKilled {
			t.Error("a guest can say that it is dead")
		}
	}
	before := s.asked
	s.begin("1")
	w.node.OnDiary = func(id cay.InstanceID, after int64) (guest.Diary, error) { // never the same
		page, err := s.diary(id, after)
		page.Epoch, page.More = fmt.Sprint(s.asked), true
		return page, err
	}
	w.restart()
	w.messages(box.ID)
	if n := s.asked - before; n > 8 {
		t.Errorf("it was asked %d times at once", n)
	}
}

func TestDiaryOfTheBusyIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := &speaker{epoch: "e1"}
		w.node.OnDiary = s.diary
		var used atomic.Int64
		w.node.OnUsage = func(cay.InstanceID) time.Duration { return time.Duration(used.Load()) }
		stop := w.run()
		defer stop()
		box := w.create(time.Hour)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		first := s.asked
		s.say(guest.DiaryEntry{Event: "process.killed", Level: "warn", Logger: "guard", Message: "out of memory", Fields: map[string]string{"pid": "7", "name": "python3"}})
		time.Sleep(time.Minute) // idle: no client asks
		synctest.Wait()
		if s.asked != first {
			t.Errorf("an idle sandbox was asked %d times", s.asked-first)
		}
		used.Store(int64(time.Second))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		killed, err := w.c.Events(t.Context(), w.who(), fleet.EventQuery{Team: w.team.ID, Sandbox: box.ID, Type: cay.ProcessKilled})
		if err != nil || len(killed) != 1 || killed[0].Reason != cay.ReasonMemory || killed[0].Data["pid"] != "7" || killed[0].Data["name"] != "python3" {
			t.Errorf("told %+v, %v", killed, err)
		}
		s.err = errors.New("silent")
		asked := s.asked
		for i := range 60 {
			used.Store(int64(i+2) * int64(time.Second))
			time.Sleep(5 * time.Second)
		}
		synctest.Wait()
		if n := s.asked - asked; n > 12 {
			t.Errorf("a silent sandbox was asked %d times in five minutes", n)
		}
	})
}

func TestAnOldAgentIsAskedOnce(t *testing.T) {
	w := newWorld(t)
	asked := 0
	w.node.OnDiary = func(cay.InstanceID, int64) (guest.Diary, error) { asked++; return guest.Diary{}, toagent.ErrNoDiary }
	box := w.create(time.Hour)
	for range 3 {
		if got := w.messages(box.ID); got != "" {
			t.Errorf("got %q", got)
		}
	}
	if err := w.c.Kill(context.Background(), w.who(), box.ID); err != nil || asked != 1 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}

// Programs that start and end inside are counted for the audit log, and not
// told twice.
func TestProcessesAreAudited(t *testing.T) {
	w := newWorld(t)
	s := &speaker{epoch: "e1"}
	w.node.OnDiary = s.diary
	box := w.create(time.Hour)
	s.say(guest.DiaryEntry{Logger: "process", Message: "process started", Fields: map[string]string{"pid": "7", "command": "ls"}})
	s.say(guest.DiaryEntry{Logger: "process", Message: "process ended", Fields: map[string]string{"pid": "7", "command": "ls", "status": "exit status 1"}})
	s.say(guest.DiaryEntry{Logger: "other", Message: "process started", Fields: map[string]string{"command": "no"}})
	w.messages(box.ID)
	w.messages(box.ID)
	if err := w.audit.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := w.store.Audit(t.Context(), store.AuditQuery{Actor: string(box.ID)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r.Action+" "+r.Target+" "+r.Details["status"]+r.Details["times"])
	}
	slices.Sort(got)
	if want := []string{"process.ended ls exit status 1", "process.started ls "}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
