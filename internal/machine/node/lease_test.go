package node

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

func bootable() BootSpec {
	return BootSpec{
		Root: "/images/new.erofs", Digest: "new", Team: cay.NewTeamID(),
		Boot:    cay.Boot{Env: map[string]string{"A": "1"}, User: "root", Dir: "/srv", Start: "serve", Ports: []int{80}, Docker: true},
		Limits:  cay.Limits{CPUs: 2, MemoryMB: 1024, DiskMB: 2048},
		Network: cay.DefaultNetwork(),
	}
}

func borrow(t *testing.T, n *Node) *Lease {
	t.Helper()
	l, err := n.Borrow(t.Context(), bootable())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// An instance of a build has the life of a sandbox's, and no record knows it.
func TestBorrow(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	l := borrow(t, n)
	id := l.inst.spec.Instance
	steps := slices.DeleteFunc(m.happened(), func(step string) bool { return step == "check" }) // beside the others
	if want := []string{"acquire", "apply", "boot", "restore", "watch", "ready", "init"}; !slices.Equal(steps, want) {
		t.Errorf("it came to be by %v, want %v", steps, want)
	}
	c := m.containers[id]
	if c.spec.Root != "/images/new.erofs" || c.spec.Reserved != n.reserved(id) || c.spec.Limits.DiskMB != 2048 ||
		!slices.Equal(c.args, []string{guest.AgentPath}) || !c.docker || m.policies[l.inst.slot.Index].AllowInternet != true {
		t.Errorf("container %+v, policy %+v", c, m.policies)
	}
	in := m.inits[0]
	if in.Mode != guest.ModeBuild || in.TemplateEnv["A"] != "1" || in.DefaultUser != "root" || in.DefaultDir != "/srv" ||
		in.MemoryMB != 1024 || in.AccessToken != "" || in.SandboxID != "" || !slices.Equal(m.ready, []int{guest.AgentPort}) {
		t.Errorf("settings: %+v; waited for %v", in, m.ready)
	}
	if r, mark := readJournal(n.journal(id)); mark != "" || r.Spec.Instance != id {
		t.Errorf("journal: %+v, %q", r, mark)
	}
	if got := n.Instances(); len(got) != 0 {
		t.Errorf("the node lists %v", got)
	}
	if _, ok := n.Lookup(""); ok {
		t.Error("Lookup finds it")
	}
	changes, err := l.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(changes); err != nil || string(text) != "changes of "+string(id) {
		t.Errorf("changes: %q, %v", text, err)
	}
	l.Return()
	l.Return()
	nothingLeft(t, m, n)
	<-l.Died()
	noDeath(t, n)
	if slices.Contains(m.happened(), "gone") {
		t.Error("connections were cut that none could have")
	}
}

// lending are the steps of a loan that can fail, and the text of the error.
var lending = map[string]string{
	"acquire": "network slot", "apply": "network policy", "boot": "boot it", "watch": "watch it",
	"ready": "identity", "init": "identity",
}

func TestAFailedLoanLeavesNothing(t *testing.T) {
	for step, says := range lending {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			n := m.open(t)
			m.on(step, func() error { return cay.Errorf(cay.NoSpace, "no room").WithHint("make room") })
			_, err := n.Borrow(t.Context(), bootable())
			var e *cay.Error
			if !errors.As(err, &e) || !strings.Contains(e.Msg, says) || e.Code != "" {
				t.Errorf("Borrow = %#v, want the step %q in it", err, says)
			}
			if step != "ready" && (e.Kind != cay.NoSpace || e.Hint != "make room") { // a wait has an error of its own
				t.Errorf("Borrow = %#v", err)
			}
			nothingLeft(t, m, n)
			m.on(step, nil)
			borrow(t, n).Return()
		})
	}
}

// A server that is killed in the middle of a build leaves nothing.
func TestACrashAtEachStepOfALoan(t *testing.T) {
	loans := map[string]func(*Node){
		"checkpoint": func(n *Node) {
			l, err := n.Borrow(context.Background(), bootable())
			if err == nil {
				_, _ = l.Save(context.Background(), cay.Snapshot{ID: cay.NewSnapshotID()}, nil)
			}
		},
		"kill": func(n *Node) {
			l, err := n.Borrow(context.Background(), bootable())
			if err == nil {
				l.Return()
			}
		},
	}
	for step, work := range loans {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			second := stall(t, m, first, step, func() error { work(first); return nil })
			nothingLeft(t, m, second)
			if got := second.Snapshots(); len(got) != 0 {
				t.Errorf("snapshots: %v", got)
			}
		})
	}
	for step := range lending {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			m.on(step, func() error { runtime.Goexit(); return nil }) // no clean-up runs
			died := make(chan struct{})
			go func() {
				defer close(died)
				_, _ = first.Borrow(context.Background(), bootable())
			}()
			<-died
			m.crash()
			nothingLeft(t, m, m.open(t))
		})
	}
	t.Run("while it is held", func(t *testing.T) {
		m := newMachine(t)
		first := m.open(t)
		borrow(t, first)
		first.Close()
		m.crash()
		second := m.open(t)
		nothingLeft(t, m, second)
		noDeath(t, second)
	})
}

func TestABorrowedInstanceDies(t *testing.T) {
	for cause, kind := range map[cay.Cause]cay.Kind{cay.CauseOutOfMemory: cay.Exhausted, cay.CauseEngine: cay.Internal} {
		t.Run(string(cause), func(t *testing.T) {
			m := newMachine(t)
			n := m.open(t)
			check := func(err error) {
				t.Helper()
				var e *cay.Error
				if !errors.As(err, &e) || e.Kind != kind || strings.Contains(e.Hint, "memory") != (cause == cay.CauseOutOfMemory) {
					t.Errorf("got %#v", err)
				}
				if cause == cay.CauseEngine && !strings.Contains(e.Msg, "SIGSEGV") {
					t.Errorf("the evidence is not in %q", e.Msg)
				}
			}
			die := func() {
				for _, id := range listed(t, m) {
					m.die(id, cay.Death{Cause: cause, Detail: "SIGSEGV"})
				}
			}
			l := borrow(t, n)
			m.on("ready", func() error { die(); return errors.New("connection reset") })
			check(l.Ready(t.Context(), 80, time.Minute))
			<-l.inst.gone
			l.Return()
			nothingLeft(t, m, n)
			_, err := l.Save(t.Context(), cay.Snapshot{ID: cay.NewSnapshotID()}, nil)
			if cay.KindOf(err) != cay.NotFound {
				t.Errorf("a snapshot of what is over: %v", err)
			}

			m.on("ready", nil)
			m.on("init", func() error { die(); return errors.New("connection reset") })
			_, err = n.Borrow(t.Context(), bootable())
			check(err)
			nothingLeft(t, m, n)
		})
	}
}

func TestSaveOfALoan(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	l := borrow(t, n)
	record := cay.Snapshot{ID: cay.NewSnapshotID(), Team: cay.NewTeamID()}
	got, err := l.Save(t.Context(), record, func() error { return m.step("image is kept") })
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != record.ID || got.Team != record.Team || got.Agent != guest.Protocol || got.Boot.Start != "serve" || got.Sandbox != "" {
		t.Errorf("saved %+v", got)
	}
	events := m.happened()
	kept, committed := slices.Index(events, "image is kept"), slices.Index(events, "commit")
	if kept < slices.Index(events, "checkpoint") || committed < kept {
		t.Errorf("the order was %v", events)
	}
	l.Return()
	nothingLeft(t, m, n)

	for step, do := range map[string]func(*Lease) error{
		"begin":      func(l *Lease) error { _, err := l.Save(t.Context(), record, nil); return err },
		"checkpoint": func(l *Lease) error { _, err := l.Save(t.Context(), record, nil); return err },
		"commit":     func(l *Lease) error { _, err := l.Save(t.Context(), record, nil); return err },
		"image": func(l *Lease) error {
			_, err := l.Save(t.Context(), record, func() error { return cay.Errorf(cay.NoSpace, "no room") })
			return err
		},
	} {
		l := borrow(t, n)
		m.on(step, func() error { return cay.Errorf(cay.NoSpace, "no room") })
		if err := do(l); cay.KindOf(err) != cay.NoSpace || m.unfinished != 0 {
			t.Errorf("%s: %v, %d unfinished", step, err, m.unfinished)
		}
		m.on(step, nil)
		l.Return()
		nothingLeft(t, m, n)
	}
}

// A build waits for its turn as a create does.
func TestALoanTakesATurn(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	var loans sync.WaitGroup
	for range 6 {
		loans.Go(func() {
			l, err := n.Borrow(t.Context(), bootable())
			if err != nil {
				t.Error(err)
				return
			}
			l.Return()
		})
	}
	loans.Wait()
	if m.most > 2 {
		t.Errorf("%d were made at once", m.most)
	}
}

// A build waits for room: it has come a long way.
func TestALoanWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		n := m.open(t)
		defer n.Close()
		full := Room{Memory: 16 << 30, MemoryFree: 100 << 20}
		m.has(full)
		begun := time.Now()
		if _, err := n.Borrow(t.Context(), bootable()); cay.KindOf(err) != cay.Unavailable || time.Since(begun) < roomPatience {
			t.Errorf("Borrow = %v after %s", err, time.Since(begun))
		}
		go func() {
			time.Sleep(roomPatience / 2)
			m.has(Room{})
		}()
		l, err := n.Borrow(t.Context(), bootable())
		if err != nil {
			t.Fatal(err)
		}
		l.Return()
		nothingLeft(t, m, n)
		ctx, cancel := context.WithCancel(t.Context())
		m.has(full)
		cancel()
		begun = time.Now()
		if _, err := n.Borrow(ctx, bootable()); err == nil || time.Since(begun) > roomPause {
			t.Errorf("called off: %v after %s", err, time.Since(begun))
		}
	})
}
