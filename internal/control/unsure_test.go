package control_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// away is a store whose records of sandboxes cannot be read while its answers are lost.
type away struct {
	*store.DB
	lost *storetest.Lost
}

func (a away) Sandbox(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	if err := a.lost.Read(); err != nil {
		return cay.Sandbox{}, err
	}
	return a.DB.Sandbox(ctx, team, id)
}

// losses are what becomes of a commit without an answer.
var losses = map[string]storetest.Loss{
	"seen":           {Lost: 1, Count: true},
	"seen, and away": {Lost: 1, Count: true, Away: 3},
	"not seen":       {Lost: 2, Away: 3},
	"seen later":     {Lost: 1, Count: true, Later: 20 * time.Second},
}

// afters are what comes next, before anything has put the record right.
var afters = []struct {
	name string
	do   func(w *world, s cay.Sandbox)
}{
	{"nothing", func(*world, cay.Sandbox) {}},
	{"a kill", func(w *world, s cay.Sandbox) { _ = w.c.Kill(w.Context(), w.who(), s.ID) }},
	{"a pause", func(w *world, s cay.Sandbox) {
		_ = w.c.Pause(w.Context(), w.who(), s.ID, cay.MemorySnapshot, false)
	}},
	{"the end of its time", func(w *world, s cay.Sandbox) {
		_ = w.c.SetTimeout(w.Context(), w.who(), s.ID, time.Second)
	}},
	{"a crash", func(w *world, _ cay.Sandbox) { w.crashes() }},
}

// most is how many commits of one call are lost one by one.
const most = 12

// A change whose answer never comes leaves no sandbox that can never be changed again, no
// record without an instance, a snapshot or a volume, and nothing of these that no record
// names and garbage collection does not remove.
func TestUnconfirmed(t *testing.T) {
	for what, row := range changes {
		t.Run(what, func(t *testing.T) {
			i := len(what)
			for how, loss := range losses {
				for loss.Skip = 0; ; loss.Skip++ {
					lost := false
					after := afters[i%len(afters)]
					synctest.Test(t, func(t *testing.T) {
						lost = row.unconfirmed(t, fmt.Sprintf("commit %d %s, then %s", loss.Skip+1, how, after.name), loss, after.do)
					})
					i++
					if loss.Skip == 0 && !lost {
						t.Error("it writes nothing")
					}
					if !lost || t.Failed() {
						break
					}
					if loss.Skip == most {
						t.Fatalf("it makes more than %d commits", most)
					}
				}
			}
		})
	}
}

// change is a use case that changes a sandbox. Its preparation is confirmed.
type change struct {
	prepare func(w *world, s cay.Sandbox) (call func() error)
	again   func(w *world, s cay.Sandbox) error // is to succeed when all is settled; nil for none
	lossy   bool                                // a volume may have lost its files though its record is there
}

// calls is a change that needs nothing prepared.
func calls(call func(w *world, s cay.Sandbox) error) change {
	return change{prepare: func(w *world, s cay.Sandbox) func() error {
		return func() error { return call(w, s) }
	}}
}

// resize gives a volume a size, which its record and its files have then.
func resize(w *world, _ cay.Sandbox) error {
	_, err := w.c.Vols.Resize(w.Context(), w.who(), "data", 3<<10)
	return err
}

var changes = map[string]change{
	"create": calls(func(w *world, _ cay.Sandbox) error {
		_, err := w.c.Create(w.Context(), w.who(), w.spec(time.Hour))
		return err
	}),
	"create once": {
		prepare: func(w *world, _ cay.Sandbox) func() error {
			return func() error {
				_, err := w.c.Create(w.Context(), w.who(), w.once("k"))
				return err
			}
		},
		again: func(w *world, _ cay.Sandbox) error {
			s, err := w.c.Create(w.Context(), w.who(), w.once("k"))
			if err == nil && s.State != cay.Running {
				err = fmt.Errorf("it is %s", s.State)
			}
			return err
		},
	},
	"timeout": calls(func(w *world, s cay.Sandbox) error {
		return w.c.SetTimeout(w.Context(), w.who(), s.ID, 2*time.Hour)
	}),
	"pause": calls(func(w *world, s cay.Sandbox) error {
		return w.c.Pause(w.Context(), w.who(), s.ID, cay.MemorySnapshot, false)
	}),
	"resume": {prepare: func(w *world, s cay.Sandbox) func() error {
		w.pause(s)
		return func() error {
			_, _, err := w.c.Connect(w.Context(), w.who(), s.ID, time.Hour, true)
			return err
		}
	}},
	"kill": calls(func(w *world, s cay.Sandbox) error { return w.c.Kill(w.Context(), w.who(), s.ID) }),
	"network": calls(func(w *world, s cay.Sandbox) error {
		return w.c.AllowOut(w.Context(), w.who(), s.ID, []string{"192.88.99.0/24"})
	}),
	"checkpoint": calls(func(w *world, s cay.Sandbox) error {
		_, err := w.c.Checkpoint(w.Context(), w.who(), s.ID, "", "")
		return err
	}),
	"automatic checkpoints": calls(func(w *world, s cay.Sandbox) error {
		_, err := w.c.SetAuto(w.Context(), w.who(), s.ID, cay.AutoCheckpoint{Every: time.Hour})
		return err
	}),
	"rollback": {prepare: func(w *world, s cay.Sandbox) func() error {
		to := w.checkpoint(s, "")
		w.checkpoint(s, "")
		return func() error {
			_, _, err := w.c.Rollback(w.Context(), w.who(), s.ID, to.ID)
			return err
		}
	}},
	"rollback while paused": {prepare: func(w *world, s cay.Sandbox) func() error {
		to := w.checkpoint(s, "")
		w.pause(s)
		return func() error {
			_, _, err := w.c.Rollback(w.Context(), w.who(), s.ID, to.ID)
			return err
		}
	}},
	"undo": {prepare: func(w *world, s cay.Sandbox) func() error {
		w.checkpoint(s, "")
		return func() error {
			_, _, err := w.c.Undo(w.Context(), w.who(), s.ID)
			return err
		}
	}},
	"snapshot": {
		prepare: func(w *world, s cay.Sandbox) func() error {
			return func() error {
				_, err := w.c.Snapshot(w.Context(), w.who(), s.ID, "saved", cay.MemorySnapshot)
				return err
			}
		},
		again: func(w *world, _ cay.Sandbox) error { // its name is not taken by nothing
			s := w.create(time.Hour)
			_, err := w.c.Snapshot(w.Context(), w.who(), s.ID, "saved", cay.MemorySnapshot)
			return err
		},
	},
	"fork": calls(func(w *world, s cay.Sandbox) error {
		forks, err := w.c.Fork(w.Context(), w.who(), s.ID, 1, time.Hour)
		if err == nil {
			err = forks[0].Err
		}
		return err
	}),
	"fork of a checkpoint": {prepare: func(w *world, s cay.Sandbox) func() error {
		n := w.checkpoint(s, "")
		return func() error {
			forks, err := w.c.ForkCheckpoint(w.Context(), w.who(), n.ID, 1, time.Hour)
			if err == nil {
				err = forks[0].Err
			}
			return err
		}
	}},
	"removal of a checkpoint": {prepare: func(w *world, s cay.Sandbox) func() error {
		n := w.checkpoint(s, "")
		return func() error { return w.c.RemoveCheckpoint(w.Context(), w.who(), n.ID) }
	}},
	"label": {prepare: func(w *world, s cay.Sandbox) func() error {
		n := w.checkpoint(s, "")
		return func() error {
			_, err := w.c.Label(w.Context(), w.who(), n.ID, "a")
			return err
		}
	}},
	"volume": {
		prepare: func(w *world, _ cay.Sandbox) func() error {
			return func() error {
				_, err := w.c.Vols.Create(w.Context(), w.who(), "data", 0)
				return err
			}
		},
	},
	"snapshot of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		return func() error {
			_, err := w.c.Vols.Snapshot(w.Context(), w.who(), "data", "a")
			return err
		}
	}},
	"wake": {prepare: func(w *world, _ cay.Sandbox) func() error {
		spec := w.spec(time.Hour)
		spec.AutoResume, spec.OnTimeout = true, cay.PauseOnTimeout
		s, err := w.c.Create(w.Context(), w.who(), spec)
		if err != nil {
			w.Fatal(err)
		}
		w.pause(s)
		return func() error { return w.c.Wake(w.Context(), s.ID) }
	}},
	"use after a rollback": {prepare: func(w *world, s cay.Sandbox) func() error {
		n := w.checkpoint(s, "")
		if _, _, err := w.c.Rollback(w.Context(), w.who(), s.ID, n.ID); err != nil {
			w.Fatal(err)
		}
		return func() error {
			w.c.Used(w.Context(), s.ID, true)
			return nil
		}
	}},
	"build": {prepare: func(w *world, _ cay.Sandbox) func() error {
		_, b := w.request("app")
		return func() error {
			err := w.c.StartBuild(w.Context(), w.who(), string(b.Template), b.ID, builds.BuildStart{FromTemplate: "base"})
			time.Sleep(time.Second) // it is carried out
			return err
		}
	}, again: func(w *world, _ cay.Sandbox) error {
		_, b := w.request("app")
		w.start(b)
		if b = w.await(b); b.State != cay.BuildReady {
			return fmt.Errorf("it is %s: %+v", b.State, b.Reason)
		}
		return nil
	}},
	"give": {prepare: func(w *world, s cay.Sandbox) func() error {
		w.pause(s)
		synctest.Wait() // Copied leaves out a sandbox that something else holds
		w.c.Copied(w.Context(), func(cay.SnapshotID) bool { return true }, false)
		refuses := func(context.Context, cay.Sandbox, []byte) error {
			return cay.Errorf(cay.Unavailable, "it does not answer")
		}
		return func() error { return w.c.Give(w.Context(), s.ID, refuses) }
	}},
	"removal of a template": {prepare: func(w *world, s cay.Sandbox) func() error {
		if _, err := w.c.Snapshot(w.Context(), w.who(), s.ID, "saved", cay.MemorySnapshot); err != nil {
			w.Fatal(err)
		}
		return func() error { return w.c.RemoveTemplate(w.Context(), w.who(), "saved") }
	}},
	"publish": calls(func(w *world, _ cay.Sandbox) error {
		_, err := w.c.Publish(w.Context(), fleet.Publication{
			Team: w.team.ID, Names: []string{"new"}, Snapshot: "s1", RecipeDigest: "d", Limits: cay.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 1024},
		})
		return err
	}),
	"copy of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		return func() error {
			_, err := w.c.Vols.Clone(w.Context(), w.who(), "data", "", "other")
			return err
		}
	}},
	"removal of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		return func() error { return w.c.Vols.Delete(w.Context(), w.who(), "data") }
	}, again: func(w *world, _ cay.Sandbox) error { // its record may be there without its files
		if err := w.c.Vols.Delete(w.Context(), w.who(), "data"); cay.KindOf(err) != cay.NotFound {
			return err
		}
		return nil
	}, lossy: true},
	"removal of a snapshot of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		if _, err := w.c.Vols.Snapshot(w.Context(), w.who(), "data", "a"); err != nil {
			w.Fatal(err)
		}
		return func() error { return w.c.Vols.RemoveSnapshot(w.Context(), w.who(), "data", "a") }
	}},
	"size of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		return func() error {
			_, err := w.c.Vols.Resize(w.Context(), w.who(), "data", 2<<10)
			return err
		}
	}, again: resize},
	"restore of a volume": {prepare: func(w *world, _ cay.Sandbox) func() error {
		w.volume("data")
		if _, err := w.c.Vols.Snapshot(w.Context(), w.who(), "data", "a"); err != nil {
			w.Fatal(err)
		}
		return func() error {
			_, err := w.c.Vols.Restore(w.Context(), w.who(), "data", "a")
			return err
		}
	}, again: resize},
	"promote": {prepare: func(w *world, s cay.Sandbox) func() error {
		n := w.checkpoint(s, "")
		forks, err := w.c.ForkCheckpoint(w.Context(), w.who(), n.ID, 1, time.Hour)
		if err != nil || forks[0].Err != nil {
			w.Fatal(err, forks)
		}
		return func() error {
			_, _, err := w.c.Promote(w.Context(), w.who(), s.ID, forks[0].Sandbox.ID)
			return err
		}
	}},
}

// unconfirmed reports whether the call made as many commits as lose the answer.
func (row change) unconfirmed(t *testing.T, what string, loss storetest.Loss, after func(*world, cay.Sandbox)) bool {
	w := withVolumes(t)
	w.lost, w.lossy = &storetest.Lost{}, row.lossy
	w.builder = &builder{build: func(_ context.Context, spec cay.BuildSpec, _ func(cay.BuildLog)) (cay.BuildResult, error) {
		made := cay.Snapshot{ID: cay.NewSnapshotID(), Team: spec.Team}
		w.node.Keep(made)
		return cay.BuildResult{Snapshot: made.ID}, nil
	}}
	w.store.Answer(w.lost)
	w.c = w.open(away{w.store, w.lost})
	w.stop = w.run()
	s := w.create(time.Hour)
	call := row.prepare(w, s)
	synctest.Wait()
	w.lost.Plan(loss)
	first := call()
	synctest.Wait()
	if w.lost.Left().Lost == loss.Lost { // it makes fewer commits
		w.lost.Plan(storetest.Loss{})
		return false
	}
	after(w, s)
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	w.lost.Plan(storetest.Loss{})
	w.agrees(what)
	if row.again != nil {
		if err := row.again(w, s); err != nil {
			t.Errorf("%s: again: %v", what, err)
		}
	}
	if err := w.c.Kill(t.Context(), w.who(), s.ID); err != nil && cay.KindOf(err) != cay.NotFound {
		t.Errorf("%s, which answered %v: it cannot be ended: %v", what, first, err)
	}
	w.agrees(what)
	return true
}

// crashes has the server die, and another one begin when no change is open.
func (w *world) crashes() {
	w.Helper()
	w.stop()
	for w.store.Settled(w.Context()) != nil {
		time.Sleep(time.Second)
	}
	w.lost.Plan(storetest.Loss{})
	w.c = w.open(away{w.store, w.lost})
	w.stop = w.run()
}

// agrees checks that records, instances, snapshots and volumes match.
func (w *world) agrees(what string) {
	w.Helper()
	rows, err := w.store.Sandboxes(w.Context(), store.SandboxQuery{Team: w.team.ID})
	if err != nil {
		w.Fatal(err)
	}
	running, named := map[cay.InstanceID]cay.Sandbox{}, map[cay.SnapshotID]bool{}
	for _, row := range rows {
		known, err := w.c.Get(w.Context(), w.who(), row.ID)
		known.Reading, known.Once = row.Reading, row.Once
		if err == nil && !reflect.DeepEqual(known, row) {
			w.Errorf("%s: the record is\n%+v, and what is known\n%+v", what, row, known)
		} else if err != nil && row.State != cay.Killed {
			w.Errorf("%s: a sandbox that is recorded as %s: %v", what, row.State, err)
		}
		switch row.State {
		case cay.Running:
			running[row.Instance] = row
		case cay.Paused, cay.Killed:
		default:
			w.Errorf("%s: a sandbox is recorded as %s", what, row.State)
		}
		if row.State == cay.Killed {
			continue
		}
		named[row.Snapshot] = true
		at, err := w.store.Branch(w.Context(), w.team.ID, row.ID)
		if err != nil {
			w.Fatal(err)
		}
		if _, err := w.store.Checkpoint(w.Context(), w.team.ID, row.Snapshot); err == nil && at.Checkpoint != row.Snapshot || at.Rewound && row.Snapshot == "s1" {
			w.Errorf("%s: a sandbox that was started from %s is recorded at %s of its tree", what, row.Snapshot, at.Checkpoint)
		}
	}
	alive := slices.DeleteFunc(w.node.Alive(), func(i cay.Instance) bool { return i.Spec.Team != w.team.ID })
	for _, i := range alive {
		if row, ok := running[i.Spec.Instance]; !ok {
			w.Errorf("%s: an instance lives of which no record says so", what)
		} else if row.Snapshot != i.Spec.Snapshot || !reflect.DeepEqual(row.Network, i.Spec.Network) {
			w.Errorf("%s: an instance is of %s, and its record of %s; or another network is in force than recorded", what, i.Spec.Snapshot, row.Snapshot)
		}
	}
	if len(alive) != len(running) {
		w.Errorf("%s: %d run by the records, %d instances live", what, len(running), len(alive))
	}
	w.keepsWhatIsNamed(what, named)
}

// keepsWhatIsNamed checks that what records name is there, and after a collection nothing else.
func (w *world) keepsWhatIsNamed(what string, named map[cay.SnapshotID]bool) {
	w.Helper()
	nodes, err := w.store.Checkpoints(w.Context(), store.CheckpointQuery{Team: w.team.ID})
	if err != nil {
		w.Fatal(err)
	}
	for _, n := range nodes {
		named[n.ID] = true
	}
	w.namedByTemplates(what, named)
	delete(named, "s1") // the node made it by no call
	delete(named, "")
	saved := func() []cay.Snapshot {
		return slices.DeleteFunc(w.node.Saved(), func(s cay.Snapshot) bool { return s.Team != w.team.ID })
	}
	for _, one := range saved() {
		if _, err := w.c.Discard(w.Context(), one.ID); err != nil {
			w.Error(err)
		}
	}
	for _, one := range saved() {
		if !named[one.ID] {
			w.Errorf("%s: snapshot %s is kept for nothing", what, one.ID)
		}
		delete(named, one.ID)
	}
	for id := range named {
		w.Errorf("%s: snapshot %s is gone, which a record names", what, id)
	}
	if w.files == nil {
		return
	}
	if _, err := w.c.Vols.Sweep(w.Context(), false); err != nil {
		w.Error(err)
	}
	files, err := w.files.List(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	volumes, err := w.store.Volumes(w.Context(), w.team.ID)
	if err != nil {
		w.Fatal(err)
	}
	copies, err := w.store.VolumeSnapshots(w.Context(), w.team.ID, "")
	if err != nil {
		w.Fatal(err)
	}
	for _, one := range volumes {
		if !slices.Contains(files, one.ID) && !w.lossy {
			w.Errorf("%s: the files of volume %s are gone", what, one.Name)
		}
	}
	if len(files) > len(volumes)+len(copies) {
		w.Errorf("%s: %d volumes have files, %d have records", what, len(files), len(volumes)+len(copies))
	}
}

// namedByTemplates adds the snapshots that sandboxes may be made of.
func (w *world) namedByTemplates(what string, named map[cay.SnapshotID]bool) {
	w.Helper()
	templates, err := w.store.Templates(w.Context(), w.team.ID)
	if err != nil {
		w.Fatal(err)
	}
	superseded, err := w.store.SupersededBuilds(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for _, b := range superseded { // sandboxes start from them for a while
		if slices.ContainsFunc(templates, func(t cay.Template) bool { return t.ID == b.Template && t.Team == w.team.ID }) {
			named[b.Snapshot] = true
		}
	}
	for _, one := range templates {
		if one.Build == "" && one.Source != "" {
			w.Errorf("%s: template %v has no build", what, one.Names)
		}
		named[one.Snapshot] = true
		made, err := w.store.Builds(w.Context(), w.team.ID, one.ID)
		if err != nil {
			w.Fatal(err)
		}
		for _, b := range made {
			if b.State == cay.BuildBuilding {
				w.Errorf("%s: a build of %v never ends", what, one.Names)
			}
		}
	}
}

// The same with a PostgreSQL whose synchronous standby goes away, and comes back: each use case in
// a team of its own, all at once.
func TestUnconfirmedInPostgres(t *testing.T) {
	server := pgtest.Start(t)
	standby := server.Standby(t)
	w := worldOver(t, storetest.OpenPostgres(t, server.URL(server.Database(t, ""))), "")
	w.run()
	base, err := w.c.Template(t.Context(), w.who(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.SetPublic(t.Context(), w.team.ID, base.ID, true); err != nil { // for the other teams
		t.Fatal(err)
	}
	type call struct {
		what string
		w    *world
		s    cay.Sandbox
		do   func() error
	}
	var all []call
	for _, what := range []string{
		"create once", "timeout", "pause", "resume", "wake", "kill", "network", "checkpoint", "rollback", "rollback while paused",
		"undo", "snapshot", "fork", "removal of a checkpoint", "removal of a template", "promote",
	} {
		own := *w
		own.team = cay.Team{ID: cay.NewTeamID(), Name: strings.ReplaceAll(what, " ", "-"), CreatedAt: time.Now()}
		if err := w.store.AddTeam(t.Context(), own.team); err != nil {
			t.Fatal(err)
		}
		s := own.create(time.Hour)
		all = append(all, call{what, &own, s, changes[what].prepare(&own, s)})
	}
	standby.Stop(syscall.SIGQUIT)
	var calls sync.WaitGroup
	for _, one := range all {
		calls.Go(func() {
			born := one.what == "create once" || one.what == "fork" // which find out that they count
			if err := one.do(); cay.KindOf(err) != cay.Unavailable && (err != nil || !born) {
				t.Errorf("%s without the standby: %v", one.what, err)
			}
		})
	}
	calls.Wait()
	standby.Run()
	w.until("all changes are settled", func() bool { return w.store.Settled(t.Context()) == nil })
	for _, one := range all {
		one.w.until(one.what+" is settled", func() bool { return one.w.same() })
		one.w.agrees(one.what)
		if again := changes[one.what].again; again != nil {
			if err := again(one.w, one.s); err != nil {
				t.Errorf("%s: again: %v", one.what, err)
			}
		}
		if err := w.c.Kill(t.Context(), one.w.who(), one.s.ID); err != nil && cay.KindOf(err) != cay.NotFound {
			t.Errorf("%s: it cannot be ended: %v", one.what, err)
		}
		one.w.agrees(one.what)
	}
}

// same reports whether what is known of all sandboxes of the team is what is recorded, and what
// lives is what runs.
func (w *world) same() bool {
	rows, err := w.store.Sandboxes(w.Context(), store.SandboxQuery{Team: w.team.ID})
	if err != nil {
		w.Fatal(err)
	}
	running := 0
	for _, row := range rows {
		known, err := w.c.Get(w.Context(), w.who(), row.ID)
		if err == nil && known.Version != row.Version || (err != nil) != (row.State == cay.Killed) {
			return false
		}
		if row.State == cay.Running {
			running++
		}
	}
	alive := slices.DeleteFunc(w.node.Alive(), func(i cay.Instance) bool { return i.Spec.Team != w.team.ID })
	return running == len(alive)
}
