package control_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func (w *world) checkpoint(s cay.Sandbox, label string) cay.Checkpoint {
	w.Helper()
	n, err := w.c.Checkpoint(w.Context(), cay.ForTeam(s.Team), s.ID, "", label)
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// nodes returns the ids of the checkpoints in a sandbox's tree.
func (w *world) nodes(s cay.Sandbox) []cay.SnapshotID {
	w.Helper()
	tree, err := w.c.Tree(w.Context(), cay.ForTeam(s.Team), s.ID)
	if err != nil {
		w.Fatal(err)
	}
	var out []cay.SnapshotID
	for _, n := range tree.Checkpoints {
		out = append(out, n.ID)
	}
	return out
}

// wantNodes compares checkpoints without their order.
func (w *world) wantNodes(s cay.Sandbox, want ...cay.SnapshotID) {
	w.Helper()
	got := w.nodes(s)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("the tree has %v, want %v", got, want)
	}
	w.saved(want...)
}

func TestRollback(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	a := w.checkpoint(s, "first")
	b := w.checkpoint(s, "")
	if a.Parent != "" || b.Parent != a.ID || b.Sandbox != s.ID || b.Tree != s.ID || a.Label != "first" || a.Size != 1000 || a.Kind != cay.MemorySnapshot {
		t.Errorf("checkpoints %+v, %+v", a, b)
	}
	first := w.instance(s)
	got, n, err := w.c.Rollback(ctx, cay.ForTeam(s.Team), s.ID, a.ID)
	if err != nil || n.ID != a.ID || got.ID != s.ID || got.EndAt != s.EndAt {
		t.Fatalf("rolled back as %+v, %v", got, err)
	}
	w.is(s, cay.Running)
	i := w.instance(s)
	if i.Instance == first.Instance || i.Snapshot != a.ID || !i.Resume || i.AccessToken != first.AccessToken || i.Env["SECRET"] != "x" {
		t.Errorf("it runs as %+v", i)
	}
	if routed := w.node.Routed(); len(routed) != 1 || routed[0] != i.Instance {
		t.Errorf("routed %v of %v", routed, w.node.Alive())
	}
	c := w.checkpoint(s, "") // a branch beside b
	if c.Parent != a.ID {
		t.Errorf("the next one comes after %s", c.Parent)
	}
	w.wantNodes(s, a.ID, b.ID, c.ID)

	// A paused one keeps what it can be resumed from where the checkpoint cannot be started.
	p := w.pause(s)
	w.node.OnStarts = func(cay.Snapshot) error { return cay.Errorf(cay.Conflict, "no engine has its memory go on") }
	if _, _, err := w.c.Rollback(ctx, cay.ForTeam(s.Team), s.ID, b.ID); err == nil || !strings.Contains(err.Error(), "no engine has its memory go on") {
		t.Errorf("a rollback to what cannot be started: %v", err)
	}
	if got := w.is(s, cay.Paused); got.Snapshot != p.Snapshot {
		t.Errorf("paused in %s, and before in %s", got.Snapshot, p.Snapshot)
	}
	if _, err := w.node.Snapshot(ctx, p.Snapshot); err != nil {
		t.Errorf("the state before is gone: %v", err)
	}
	w.node.OnStarts = nil

	// It stays paused, and wakes up as it was then.
	if _, _, err := w.c.Rollback(ctx, cay.ForTeam(s.Team), s.ID, b.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.is(s, cay.Paused); got.Snapshot != b.ID {
		t.Errorf("paused in %s", got.Snapshot)
	}
	w.wantNodes(s, a.ID, b.ID, c.ID) // what it was paused in is gone
	if slices.Contains(w.nodes(s), p.Snapshot) {
		t.Error("the state before is kept")
	}
	if _, _, err := w.c.Connect(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, true); err != nil || w.instance(s).Snapshot != b.ID {
		t.Errorf("resumed from %s, %v", w.instance(s).Snapshot, err)
	}
}

// The answer of a rollback does not wait for the end of what it has replaced. The
// next one does, where the machine has no room for one more before that.
func TestARollbackAnswersBeforeTheOldInstanceIsOver(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	a := w.checkpoint(s, "")
	over := make(chan struct{})
	w.node.OnKill = func(cay.InstanceID) error { <-over; return nil }
	back := func() error {
		_, _, err := w.c.Rollback(t.Context(), cay.ForTeam(s.Team), s.ID, a.ID)
		return err
	}
	if err := back(); err != nil {
		t.Fatal(err)
	}
	if n := len(w.node.Alive()); n != 2 {
		t.Errorf("%d instances are alive, want the new one and the old one, which ends", n)
	}
	asked := 0
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		if asked++; asked > 1 {
			return nil
		}
		close(over)
		return cay.Errorf(cay.Unavailable, "too little memory is left").WithCode(cay.CodeCapacity)
	}
	if err := back(); err != nil || asked != 2 {
		t.Errorf("the next rollback asked %d times for room: %v", asked, err)
	}
	w.instance(s)
	w.saved(a.ID)
}

func TestAFailedRollback(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	a := w.checkpoint(s, "")
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return errors.New("no") }
	if _, _, err := w.c.Rollback(t.Context(), cay.ForTeam(s.Team), s.ID, a.ID); cay.KindOf(err) != cay.Internal {
		t.Errorf("Rollback = %v", err)
	}
	if got := w.is(s, cay.Running); got.Instance != s.Instance || got.Snapshot != "s1" {
		t.Errorf("it is %+v", got)
	}
	w.saved(a.ID)
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		return cay.Errorf(cay.Unavailable, "too little memory is left").WithCode(cay.CodeCapacity)
	}
	var full *cay.Error
	_, _, err := w.c.Rollback(t.Context(), cay.ForTeam(s.Team), s.ID, a.ID)
	if !errors.As(err, &full) || full.Kind != cay.Unavailable || full.Code != cay.CodeCapacity ||
		!strings.Contains(full.Msg, "too little memory") || !strings.Contains(full.Hint, "pause it") {
		t.Errorf("Rollback without room = %v", err)
	}
	w.is(s, cay.Running)
	w.node.OnCreate = nil
	// One whose new instance dies before anything reaches it.
	w.node.OnRoute = func(id cay.InstanceID) error {
		w.node.Vanish(id)
		return cay.Errorf(cay.NotFound, "it is over")
	}
	if _, _, err := w.c.Rollback(t.Context(), cay.ForTeam(s.Team), s.ID, a.ID); err == nil {
		t.Error("brought back to something that died")
	}
	if got := w.is(s, cay.Running); got.Instance != s.Instance || got.Snapshot != "s1" {
		t.Errorf("it is %+v", got)
	}
	w.node.OnRoute = nil
	w.restart()
	w.is(s, cay.Running)
}

func TestWrongRollbacks(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s, other := w.create(time.Hour), w.create(time.Hour)
	a, b := w.checkpoint(s, ""), w.checkpoint(other, "")
	forks, err := w.c.ForkCheckpoint(ctx, cay.ForTeam(s.Team), a.ID, 1, time.Hour)
	if err != nil || forks[0].Err != nil {
		t.Fatal(err, forks)
	}
	f := forks[0].Sandbox
	c := w.checkpoint(f, "")
	for name, tt := range map[string]struct {
		team cay.TeamID
		id   cay.SandboxID
		to   cay.SnapshotID
		want cay.Kind
	}{
		"nothing":            {s.Team, s.ID, "snone", cay.NotFound},
		"another tree":       {s.Team, s.ID, b.ID, cay.Conflict},
		"another branch":     {s.Team, s.ID, c.ID, cay.Conflict},
		"another team":       {"stranger", s.ID, a.ID, cay.NotFound},
		"no such sandbox":    {s.Team, "inone", a.ID, cay.NotFound},
		"where it is from":   {s.Team, f.ID, a.ID, ""},
		"its own":            {s.Team, f.ID, c.ID, ""},
		"the source's own":   {s.Team, s.ID, a.ID, ""},
		"not the template's": {s.Team, s.ID, "s1", cay.NotFound},
	} {
		if _, _, err := w.c.Rollback(ctx, cay.ForTeam(tt.team), tt.id, tt.to); cay.KindOf(err) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"label":  func() error { _, err := w.c.Label(ctx, cay.ForTeam("stranger"), a.ID, "x"); return err }(),
		"remove": w.c.RemoveCheckpoint(ctx, cay.ForTeam("stranger"), a.ID),
		"fork": func() error {
			_, err := w.c.ForkCheckpoint(ctx, cay.ForTeam("stranger"), a.ID, 1, time.Hour)
			return err
		}(),
		"tree": func() error { _, err := w.c.Tree(ctx, cay.ForTeam("stranger"), s.ID); return err }(),
	} {
		if cay.KindOf(err) != cay.NotFound {
			t.Errorf("a stranger's %s: %v", name, err)
		}
	}
	w.pause(other)
	if _, err := w.c.Checkpoint(ctx, cay.ForTeam(other.Team), other.ID, "", ""); cay.KindOf(err) != cay.Conflict {
		t.Errorf("checkpoint of a paused sandbox: %v", err)
	}
	for _, label := range []string{"a\nb", string(make([]byte, 3)), "\xff", string(slices.Repeat([]byte("x"), 129))} {
		if _, err := w.c.Checkpoint(ctx, cay.ForTeam(s.Team), s.ID, "", label); cay.KindOf(err) != cay.Invalid {
			t.Errorf("label %q: %v", label, err)
		}
	}
	if _, err := w.c.Checkpoint(ctx, cay.ForTeam(s.Team), s.ID, "odd", ""); cay.KindOf(err) != cay.Invalid {
		t.Errorf("odd kind: %v", err)
	}
}

func TestUndo(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	undo := func(want cay.SnapshotID) {
		t.Helper()
		_, n, err := w.c.Undo(ctx, cay.ForTeam(s.Team), s.ID)
		if want == "" && cay.KindOf(err) != cay.Conflict || want != "" && (err != nil || n.ID != want) {
			t.Errorf("undone to %s, %v, want %s", n.ID, err, want)
		}
	}
	undo("")
	a, b := w.checkpoint(s, ""), w.checkpoint(s, "")
	undo(b.ID)
	undo(a.ID)
	undo("") // there is nothing before
	w.c.Used(ctx, s.ID, true)
	undo(a.ID)
	c := w.checkpoint(s, "")
	undo(c.ID)
	w.is(s, cay.Running)
}

func TestForksOfACheckpoint(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	a := w.checkpoint(s, "")
	forks, err := w.c.ForkCheckpoint(ctx, cay.ForTeam(s.Team), a.ID, 3, time.Minute)
	if err != nil || len(forks) != 3 {
		t.Fatal(err)
	}
	for _, f := range forks {
		i := w.instance(f.Sandbox)
		if f.Err != nil || i.Snapshot != a.ID || i.Resume || i.AccessToken == w.instance(s).AccessToken || i.Env["SECRET"] != "x" {
			t.Errorf("fork %+v runs as %+v", f, i)
		}
	}
	f := forks[0].Sandbox
	if n := w.checkpoint(f, ""); n.Parent != a.ID || n.Tree != s.ID {
		t.Errorf("its checkpoint is %+v", n)
	}
	if err := w.c.RemoveCheckpoint(ctx, cay.ForTeam(s.Team), a.ID); cay.KindOf(err) != cay.Conflict {
		t.Errorf("remove what is in use: %v", err)
	}
	tree, err := w.c.Tree(ctx, cay.ForTeam(s.Team), f.ID)
	if err != nil || tree.Root != s.ID || len(tree.Branches) != 4 || len(tree.Checkpoints) != 2 {
		t.Errorf("tree %+v, %v", tree, err)
	}
	// The source may end; what the forks come from stays.
	if err := w.c.Kill(ctx, cay.ForTeam(s.Team), s.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.nodes(f); len(got) != 2 {
		t.Errorf("kept %v", got)
	}
	for _, f := range forks {
		if err := w.c.Kill(ctx, cay.ForTeam(s.Team), f.Sandbox.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.saved()
	for _, count := range []int{0, 101} {
		if _, err := w.c.ForkCheckpoint(ctx, cay.ForTeam(s.Team), a.ID, count, time.Hour); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%d forks: %v", count, err)
		}
	}
}

func TestLabelsOutliveSandboxes(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	a, b := w.checkpoint(s, ""), w.checkpoint(s, "")
	if n, err := w.c.Label(ctx, cay.ForTeam(s.Team), b.ID, "kept"); err != nil || n.Label != "kept" {
		t.Fatal(n, err)
	}
	if err := w.c.Kill(ctx, cay.ForTeam(s.Team), s.ID); err != nil {
		t.Fatal(err)
	}
	w.wantNodes(s, b.ID)
	w.restart()
	w.wantNodes(s, b.ID)
	forks, err := w.c.ForkCheckpoint(ctx, cay.ForTeam(s.Team), b.ID, 1, time.Hour)
	if err != nil || forks[0].Err != nil || w.instance(forks[0].Sandbox).Env["SECRET"] != "x" {
		t.Fatalf("fork of what is left of a dead sandbox: %+v, %v", forks, err)
	}
	if err := w.c.Kill(ctx, cay.ForTeam(s.Team), forks[0].Sandbox.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.c.RemoveCheckpoint(ctx, cay.ForTeam(s.Team), a.ID); cay.KindOf(err) != cay.NotFound {
		t.Error(err)
	}
	if _, err := w.c.Label(ctx, cay.ForTeam(s.Team), b.ID, ""); err != nil {
		t.Fatal(err)
	}
	w.saved()
}

func TestPromote(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, paused := range []bool{false, true} {
		s := w.create(time.Hour)
		forks, err := w.c.Fork(ctx, cay.ForTeam(s.Team), s.ID, 2, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		f, rest := forks[0].Sandbox, forks[1].Sandbox
		if paused {
			w.pause(f)
		}
		token := w.instance(s).AccessToken
		_, n, err := w.c.Promote(ctx, cay.ForTeam(s.Team), s.ID, f.ID)
		if err != nil || n.Sandbox != s.ID {
			t.Fatalf("promoted %+v, %v", n, err)
		}
		i := w.instance(s)
		if i.Snapshot != n.ID || !i.Resume || i.AccessToken != token {
			t.Errorf("it runs as %+v", i)
		}
		w.gone(f, cay.CauseAsked)
		w.alive(rest)
		if err := w.c.Kill(ctx, cay.ForTeam(s.Team), rest.ID); err != nil {
			t.Error(err)
		}
		w.wantNodes(s, n.ID)
		if next := w.checkpoint(s, ""); next.Parent != n.ID {
			t.Errorf("the next checkpoint comes after %s", next.Parent)
		}
		if err := w.c.Kill(ctx, cay.ForTeam(s.Team), s.ID); err != nil {
			t.Error(err)
		}
		w.saved()
	}
}

func TestAFailedPromotion(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s, stranger := w.create(time.Hour), w.create(time.Hour)
	forks, err := w.c.Fork(ctx, cay.ForTeam(s.Team), s.ID, 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := forks[0].Sandbox
	for branch, want := range map[cay.SandboxID]cay.Kind{s.ID: cay.Invalid, stranger.ID: cay.Conflict, "inone": cay.NotFound} {
		if _, _, err := w.c.Promote(ctx, cay.ForTeam(s.Team), s.ID, branch); cay.KindOf(err) != want {
			t.Errorf("promote %s: %v", branch, err)
		}
	}
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		if spec.Sandbox == s.ID {
			return cay.Errorf(cay.Exhausted, "no more")
		}
		return nil
	}
	if _, _, err := w.c.Promote(ctx, cay.ForTeam(s.Team), s.ID, f.ID); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("Promote = %v", err)
	}
	if got := w.alive(s); got.Instance != s.Instance {
		t.Errorf("the sandbox is %+v", got)
	}
	w.alive(f)
}

// Two who promote each other's branch at once get an order.
func TestPromotionsThatCross(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	forks, err := w.c.Fork(t.Context(), cay.ForTeam(s.Team), s.ID, 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := forks[0].Sandbox
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { _, _, errs[0] = w.c.Promote(t.Context(), cay.ForTeam(s.Team), s.ID, f.ID) })
	wg.Go(func() { _, _, errs[1] = w.c.Promote(t.Context(), cay.ForTeam(s.Team), f.ID, s.ID) })
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("both: %v", errs)
	}
	w.until("one instance is left", func() bool { return len(w.node.Alive()) == 1 })
}

// A server that was killed in the middle of a rollback leaves two instances;
// the record says which one the sandbox is.
func TestACrashDuringARollback(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		w := newWorld(t)
		s := w.create(time.Hour)
		a := w.checkpoint(s, "")
		next := s
		next.Instance, next.Snapshot = cay.NewInstanceID(), a.ID
		spec := w.instance(s)
		spec.Instance, spec.Snapshot, spec.Resume = next.Instance, a.ID, true
		if _, err := w.node.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		want := s.Instance
		if recorded {
			want = next.Instance
			err := w.store.Tx(t.Context(), func(tx store.Store) error {
				at := cay.Branch{Sandbox: s.ID, Team: s.Team, Tree: s.ID, Checkpoint: a.ID, Rewound: true}
				return errors.Join(tx.UpdateSandbox(t.Context(), next), tx.PutBranch(t.Context(), at))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		w.restart()
		w.is(s, cay.Running)
		if i := w.node.Alive(); len(i) != 1 || i[0].Spec.Instance != want || !slices.Contains(w.node.Routed(), want) {
			t.Errorf("recorded %v: instances %+v, routed %v", recorded, i, w.node.Routed())
		}
		w.wantNodes(s, a.ID)
	}
}

func TestCheckpointsByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		ctx := t.Context()
		s, plain := w.create(2*time.Hour), w.create(2*time.Hour)
		if _, err := w.c.SetAuto(ctx, cay.ForTeam(s.Team), s.ID, cay.AutoCheckpoint{Every: 10 * time.Second, Keep: 3}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(35 * time.Second)
		synctest.Wait()
		if n := len(w.nodes(s)); n != 3 {
			t.Errorf("%d checkpoints after 35 s", n)
		}
		mine := w.nodes(s)[2]
		if _, err := w.c.Label(ctx, cay.ForTeam(s.Team), mine, "mine"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.nodes(s); len(got) != 4 || !slices.Contains(got, mine) {
			t.Errorf("kept %v, want 3 and %v", got, mine)
		}
		w.restart() // it is remembered
		if auto, err := w.c.Auto(ctx, cay.ForTeam(s.Team), s.ID); err != nil || auto.Every != 10*time.Second || auto.Keep != 3 {
			t.Errorf("auto %+v, %v", auto, err)
		}
		if len(w.nodes(plain)) != 0 {
			t.Error("one has checkpoints that asked for none")
		}
	})
}

// A checkpoint that takes longer than the time between two does not delay the
// next beyond that time after its end.
func TestCheckpointsByTimeThatTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		s := w.create(2 * time.Hour)
		w.node.OnSave = func(cay.InstanceID) error { time.Sleep(15 * time.Second); return nil }
		if _, err := w.c.SetAuto(t.Context(), cay.ForTeam(s.Team), s.ID, cay.AutoCheckpoint{Every: 10 * time.Second, Keep: 9}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(101 * time.Second) // taken after 25, 50, 75 and 100 s
		synctest.Wait()
		if n := len(w.nodes(s)); n != 4 {
			t.Errorf("%d checkpoints, want 4", n)
		}
	})
}

func TestCheckpointsBeforeCommands(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	s := w.create(time.Hour)
	w.c.Used(ctx, s.ID, true)
	if n := len(w.nodes(s)); n != 0 {
		t.Errorf("%d checkpoints that no client asked for", n)
	}
	if _, err := w.c.SetAuto(ctx, cay.ForTeam(s.Team), s.ID, cay.AutoCheckpoint{Before: true, Keep: 2}); err != nil {
		t.Fatal(err)
	}
	for n, command := range []bool{false, true, true} {
		w.c.Used(ctx, s.ID, command)
		if got := len(w.nodes(s)); got != n {
			t.Errorf("%d checkpoints after %d commands", got, n)
		}
	}
	if _, _, err := w.c.Undo(ctx, cay.ForTeam(s.Team), s.ID); err != nil {
		t.Fatal(err)
	}
	w.c.Used(ctx, s.ID, true) // its checkpoint is what it is
	if got := len(w.nodes(s)); got != 2 {
		t.Errorf("%d checkpoints after an undo", got)
	}
	if _, err := w.c.SetAuto(ctx, cay.ForTeam(s.Team), s.ID, cay.AutoCheckpoint{}); err != nil {
		t.Fatal(err)
	}
	w.c.Used(ctx, s.ID, true)
	if got := len(w.nodes(s)); got != 2 {
		t.Errorf("%d checkpoints after they were turned off", got)
	}
	for _, auto := range []cay.AutoCheckpoint{{Every: time.Millisecond}, {Every: 25 * time.Hour}, {Before: true, Keep: 101}, {Before: true, Kind: "odd"}} {
		if _, err := w.c.SetAuto(ctx, cay.ForTeam(s.Team), s.ID, auto); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%+v: %v", auto, err)
		}
	}
}
