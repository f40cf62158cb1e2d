package control_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/usage"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

// used is what the world's team used until now.
func (w *world) used(by ...string) usage.Report {
	w.Helper()
	time.Sleep(time.Second) // reports are a second old at most
	r, err := w.c.Usage(w.Context(), w.who(), usage.Query{From: time.Now().Add(-30 * 24 * time.Hour), By: by})
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// seconds is an amount of VCPUSeconds of the templates' two processors, as the
// time that one sandbox ran.
func seconds(a cay.Amounts) time.Duration {
	return time.Duration(a.VCPU/2) * time.Millisecond
}

// near checks a time to the seconds that looking at it takes.
func (w *world) near(what string, got, want, within time.Duration) {
	w.Helper()
	if (got - want).Abs() > within {
		w.Errorf("%s: %v is counted, want %v", what, got, want)
	}
}

func (w *world) budget(spec usage.Spec) usage.State {
	w.Helper()
	b, err := w.c.AddBudget(w.Context(), w.who(), spec)
	if err != nil {
		w.Fatal(err)
	}
	return b
}

// refused checks that an error is a budget's.
func (w *world) refused(what string, err error) {
	w.Helper()
	var ours *cay.Error
	if !errors.As(err, &ours) || ours.Code != cay.CodeBudget || cay.StatusOf(err) != 429 || cay.RetryOf(err).May {
		w.Errorf("%s: %v", what, err)
	}
}

func TestUsageIsSplitAtHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		time.Sleep(10 * time.Minute)
		s := w.create(5 * time.Hour)
		time.Sleep(100 * time.Minute) // no server counts meanwhile
		if err := w.c.Kill(t.Context(), w.who(), s.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		r := w.used(usage.ByHour)
		if len(r.Sums) != 2 {
			t.Fatalf("the hours are %+v", r.Sums)
		}
		for i, want := range []time.Duration{50 * time.Minute, 50 * time.Minute} {
			w.near("an hour", seconds(r.Sums[i].Amounts), want, 0)
		}
		a := r.Total
		if a.Creates != 1 || a.Memory != 512*100*60*1000 || a.CPU != (50*time.Minute).Microseconds() {
			t.Errorf("the total is %+v", a)
		}
	})
}

// A paused sandbox is not counted, nor what a failed pause left running twice.
func TestPausedIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(24 * time.Hour)
		time.Sleep(10 * time.Minute)
		w.node.OnSave = func(cay.InstanceID) error { return errors.New("full") }
		if err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false); err == nil {
			t.Fatal("it was paused")
		}
		w.node.OnSave = nil
		time.Sleep(10 * time.Minute)
		w.pause(s)
		time.Sleep(10 * time.Hour)
		w.near("a paused sandbox", seconds(w.used().Total), 20*time.Minute, 0)
		if _, err := w.c.Resume(t.Context(), w.who(), s.ID, time.Hour, "", true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r := w.used()
		w.near("a resumed sandbox", seconds(r.Total), 21*time.Minute, time.Second)
		if r.Total.Creates != 1 {
			t.Errorf("%d creates", r.Total.Creates)
		}
	})
}

// crash copies the database at this moment, as a server that is killed leaves
// it, and opens a control over the copy. The old one must not run any more.
func (w *world) crash(name string) {
	w.Helper()
	synctest.Wait() // what writes at this moment has written
	dir := filepath.Join(w.TempDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.Fatal(err)
	}
	for _, end := range []string{"", "-wal"} {
		text, err := os.ReadFile(w.path + end)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cay.db"+end), text, 0o600)
		}
		if err != nil {
			w.Fatal(err)
		}
	}
	w.path = filepath.Join(dir, "cay.db")
	w.store = storetest.Open(w, w.path)
}

func TestUsageAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lives, dies := w.create(24*time.Hour), w.create(24*time.Hour)
		stop := w.run()
		time.Sleep(10*time.Minute + 30*time.Second)
		w.crash("killed")
		stop() // what it counts now is not in the copy
		time.Sleep(2 * time.Hour)
		w.node.Vanish(dies.Instance)
		w.restart()
		w.run()
		time.Sleep(30 * time.Second)
		// The one counts on; the other to the last checkpoint before the crash.
		got := seconds(w.used().Total)
		w.near("both", got, 2*time.Hour+11*time.Minute+10*time.Minute+30*time.Second, time.Minute)
		w.gone(dies, cay.CauseHostLost)
		if err := w.c.Kill(t.Context(), w.who(), lives.ID); err != nil {
			t.Fatal(err)
		}
		total := w.used().Total
		time.Sleep(time.Hour)
		if again := w.used().Total; again != total {
			t.Errorf("%+v is counted after both ended, and %+v before", again, total)
		}
	})
}

// Many servers that count, and count again, count each moment once.
func TestUsageIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(24 * time.Hour)
		w.run()
		other := w.open(w.store)
		go other.Meter.Run(t.Context())
		time.Sleep(30 * time.Minute)
		for range 5 {
			if err := w.store.CountUsage(t.Context(), []cay.Sandbox{s, s}); err != nil {
				t.Fatal(err)
			}
		}
		r := w.used()
		w.near("one sandbox", seconds(r.Total), 30*time.Minute, time.Second)
		if r.Total.Creates != 1 {
			t.Errorf("%d creates", r.Total.Creates)
		}
	})
}

// The sums are those of a model, whatever happens to sandboxes.
func TestUsageIsTheSumOfIntervals(t *testing.T) {
	if err := flag.Set("rapid.checks", "20"); err != nil { // each opens a database
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 25).Draw(rt, "steps")
		sleeps := rapid.SliceOfN(rapid.IntRange(0, 100*60*1000), len(steps), len(steps)).Draw(rt, "sleeps")
		var got, want time.Duration
		var creates, made int64
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			var runs, sleeping []cay.Sandbox
			for i, step := range steps {
				switch {
				case step == 0 || len(runs)+len(sleeping) == 0:
					runs = append(runs, w.create(300*time.Hour))
					made++
				case step == 1 && len(runs) > 0:
					w.pause(runs[0])
					sleeping, runs = append(sleeping, runs[0]), runs[1:]
				case step == 2 && len(sleeping) > 0:
					s, err := w.c.Resume(t.Context(), w.who(), sleeping[0].ID, 300*time.Hour, "", true)
					if err != nil {
						t.Fatal(err)
					}
					runs, sleeping = append(runs, s), sleeping[1:]
				case step == 3 && len(runs) > 0:
					if err := w.c.Kill(t.Context(), w.who(), runs[0].ID); err != nil {
						t.Fatal(err)
					}
					runs = runs[1:]
				case step == 4:
					w.restart() // nothing is told to the old one
				default:
					if err := w.store.CountUsage(t.Context(), w.c.Metered()); err != nil {
						t.Fatal(err)
					}
				}
				d := time.Duration(sleeps[i]) * time.Millisecond
				time.Sleep(d)
				want += d * time.Duration(len(runs))
			}
			want += time.Second * time.Duration(len(runs)) // used sleeps
			total := w.used().Total
			got, creates = seconds(total), total.Creates
		})
		if got != want || creates != made {
			rt.Fatalf("%v and %d creates are counted, want %v and %d", got, creates, want, made)
		}
	})
}

// A budget of creates is exact, however many ask at once; so is the first minute
// of each.
func TestBudgetsAreExactAtOnce(t *testing.T) {
	for what, spec := range map[string]usage.Spec{
		"creates": {Meter: cay.Creates, Limit: "3", Period: cay.Daily},
		"minutes": {Meter: cay.VCPUSeconds, Limit: "400", Period: cay.Daily},
		"money":   {Meter: cay.Money, Limit: "0.0036", Period: cay.OneTime},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if err := w.c.SetPrices(t.Context(), w.who(), cay.Prices{Currency: "EUR", Units: map[cay.Meter]int64{cay.VCPUSeconds: 10_000_000}}); err != nil {
					t.Fatal(err)
				}
				w.budget(spec)
				w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { time.Sleep(time.Second); return nil }
				var mu sync.Mutex
				var made int
				var wg sync.WaitGroup
				for range 40 {
					wg.Go(func() {
						_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							made++
							return
						}
						w.refused("a create", err)
					})
				}
				wg.Wait()
				if made != 3 {
					t.Errorf("%d of 40 creates succeed", made)
				}
			})
		})
	}
}

// A create that fails leaves nothing set aside.
func TestAFailedCreateSpendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.budget(usage.Spec{Meter: cay.Creates, Limit: "1", Period: cay.Daily})
		w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return errors.New("no") }
		for range 3 {
			if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); err == nil || cay.CodeOf(err) == cay.CodeBudget {
				t.Fatal(err)
			}
		}
		w.node.OnCreate = nil
		raised := "2"
		if _, err := w.c.ChangeBudget(t.Context(), w.who(), b.Budget.ID, usage.Change{Limit: &raised}); err != nil {
			t.Fatal(err)
		}
		w.create(time.Hour)
		time.Sleep(2 * time.Second)
		if all, err := w.c.Budgets(t.Context(), w.who()); err != nil || all[0].UsedText != "1" || all[0].Percent != 50 {
			t.Errorf("the budget is %+v, %v", all, err)
		}
		w.create(time.Hour) // the first one is counted, and set aside no more
		_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
		w.refused("the third create", err)
	})
}

// A budget that is made below what is used already is told of as that, refuses
// and pauses at once, and is no error.
func TestABudgetBelowWhatIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(48 * time.Hour)
		w.run()
		time.Sleep(30*time.Minute + 30*time.Second)
		w.alive(s)
		b := w.budget(usage.Spec{Meter: cay.VCPUSeconds, Limit: "60", Period: cay.Daily})
		if b.Percent != 100 {
			t.Errorf("it is at %d %%", b.Percent)
		}
		synctest.Wait()
		w.is(s, cay.Paused)
		_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
		w.refused("a create", err)
	})
}

// thresholds are those that were told.
func (w *world) thresholds() (out []string) {
	w.Helper()
	events, err := w.store.Events(w.Context(), store.EventQuery{Team: w.team.ID, Type: cay.BudgetThreshold})
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range events {
		out = append(out, e.Data["percent"])
	}
	return out
}

func TestABudgetPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(48 * time.Hour)
		w.run()
		b := w.budget(usage.Spec{Name: "mine", Meter: cay.VCPUSeconds, Limit: "1230", Period: cay.Daily})
		time.Sleep(6*time.Minute + 30*time.Second)
		if got := w.thresholds(); !slices.Equal(got, []string{"50"}) {
			t.Errorf("told %v after half of it", got)
		}
		w.alive(s)
		time.Sleep(5 * time.Minute)
		w.is(s, cay.Paused)
		w.near("what ran", seconds(w.used().Total), 10*time.Minute+15*time.Second, 2*time.Second)
		if got := w.thresholds(); !slices.Equal(got, []string{"50", "80", "100"}) {
			t.Errorf("told %v", got)
		}
		events, err := w.store.Events(t.Context(), store.EventQuery{Team: w.team.ID, Sandbox: s.ID, Type: cay.SandboxPaused})
		if err != nil || len(events) != 1 || events[0].Reason != cay.ReasonBudget || events[0].Data["kind"] != string(cay.MemorySnapshot) {
			t.Errorf("paused with %+v, %v", events, err)
		}
		_, err = w.c.Resume(t.Context(), w.who(), s.ID, time.Hour, "", true)
		w.refused("a resume", err)
		if !strings.Contains(err.Error(), `"mine"`) || !strings.Contains(err.Error(), "2000-01-02T00:00:00Z") {
			t.Errorf("it is refused by %v", err)
		}
		_, _, err = w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true)
		w.refused("a connect", err)
		_, err = w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
		w.refused("a create", err)

		// More of it lets all go on, and is told anew.
		limit := "1000000"
		if _, err := w.c.ChangeBudget(t.Context(), w.who(), b.Budget.ID, usage.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
		if _, _, err = w.c.Connect(t.Context(), w.who(), s.ID, 48*time.Hour, true); err != nil {
			t.Fatal(err)
		}
		// Less than is used acts at once.
		limit = "10"
		if _, err := w.c.ChangeBudget(t.Context(), w.who(), b.Budget.ID, usage.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.is(s, cay.Paused)
		if got := w.thresholds(); !slices.Equal(got[3:], []string{"50", "80", "100"}) {
			t.Errorf("told %v of the new limit", got)
		}
		// The next day begins anew.
		limit = "7200"
		if _, err := w.c.ChangeBudget(t.Context(), w.who(), b.Budget.ID, usage.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Date(2000, 1, 2, 0, 0, 1, 0, time.UTC)))
		if _, _, err = w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); err != nil {
			t.Errorf("the next day: %v", err)
		}
		if err := w.c.RemoveBudget(t.Context(), w.who(), b.Budget.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		w.alive(s)
	})
}

func TestBudgetsKillOrRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		kept, ended := w.create(time.Hour), w.create(time.Hour)
		spec := w.spec(time.Hour)
		spec.Metadata = map[string]string{"user": "ann"}
		anns, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		time.Sleep(time.Minute)
		w.budget(usage.Spec{Meter: cay.VCPUSeconds, Limit: "1", Period: cay.Weekly, Action: cay.RefuseAtLimit})
		// A label is metered from now on, also of what runs.
		w.budget(usage.Spec{Meter: cay.VCPUSeconds, Limit: "120", Period: cay.Monthly, Label: "user", Value: "ann", Action: cay.KillAtLimit})
		time.Sleep(30 * time.Second)
		w.alive(anns)
		time.Sleep(40 * time.Second)
		w.gone(anns, cay.CauseBudget)
		w.alive(kept)
		w.refused("a longer time", w.c.SetTimeout(t.Context(), w.who(), kept.ID, 2*time.Hour))
		if err := w.c.SetTimeout(t.Context(), w.who(), kept.ID, 10*time.Minute); err != nil {
			t.Errorf("a shorter time: %v", err)
		}
		_, err = w.c.Fork(t.Context(), w.who(), kept.ID, 2, time.Hour)
		w.refused("a fork", err)
		w.pause(kept)
		if err := w.c.Kill(t.Context(), w.who(), ended.ID); err != nil {
			t.Error(err)
		}
		by := w.used("label:user").Sums
		if len(by) != 2 || by[0].Labels["user"] != "" || by[1].Labels["user"] != "ann" || by[1].Amounts.VCPU == 0 {
			t.Errorf("by user: %+v", by)
		}
	})
}

func TestAKeysOwnBudget(t *testing.T) {
	w := newWorld(t)
	keys, err := w.store.Keys(t.Context(), w.team.ID)
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	key := keys[0].Caller()
	b := w.budget(usage.Spec{Meter: cay.Creates, Limit: "1", Period: cay.OneTime, Key: keys[0].ID})
	if _, err := w.c.Create(t.Context(), key, w.spec(time.Hour)); err != nil {
		t.Fatal(err)
	}
	_, err = w.c.Create(t.Context(), key, w.spec(time.Hour))
	w.refused("the key's second create", err)
	w.create(time.Hour) // of no key
	limit := "5"
	if _, err := w.c.ChangeBudget(t.Context(), key, b.Budget.ID, usage.Change{Limit: &limit}); cay.KindOf(err) != cay.Denied {
		t.Errorf("a key raises its own budget: %v", err)
	}
	if err := w.c.RemoveBudget(t.Context(), key, b.Budget.ID); cay.KindOf(err) != cay.Denied {
		t.Errorf("a key removes its own budget: %v", err)
	}
	other := cay.ForTeam(cay.NewTeamID())
	if _, err := w.c.ChangeBudget(t.Context(), other, b.Budget.ID, usage.Change{Limit: &limit}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("another team's: %v", err)
	}
	if _, err := w.c.ChangeBudget(t.Context(), w.who(), b.Budget.ID, usage.Change{Limit: &limit}); err != nil {
		t.Error(err)
	}
	if _, err := w.c.Create(t.Context(), key, w.spec(time.Hour)); err != nil {
		t.Errorf("a create in a raised budget: %v", err)
	}
}

func TestBadBudgets(t *testing.T) {
	w := newWorld(t)
	good := usage.Spec{Meter: cay.Creates, Limit: "1", Period: cay.Daily}
	for what, change := range map[string]func(*usage.Spec){
		"meter":  func(s *usage.Spec) { s.Meter = "electricity" },
		"period": func(s *usage.Spec) { s.Period = "year" },
		"action": func(s *usage.Spec) { s.Action = "explode" },
		"limit":  func(s *usage.Spec) { s.Limit = "-1" },
		"zero":   func(s *usage.Spec) { s.Limit = "0.0" },
		"words":  func(s *usage.Spec) { s.Limit = "1e400000000" },
		"huge":   func(s *usage.Spec) { s.Limit = strings.Repeat("9", 30) },
		"money":  func(s *usage.Spec) { s.Meter = cay.Money },
		"value":  func(s *usage.Spec) { s.Value = "x" },
		"long":   func(s *usage.Spec) { s.Label, s.Value = "x", strings.Repeat("x", 1000) },
		"name":   func(s *usage.Spec) { s.Name = "a\nb" },
	} {
		spec := good
		change(&spec)
		if _, err := w.c.AddBudget(t.Context(), w.who(), spec); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	spec := good
	spec.Key = cay.NewKeyID()
	if _, err := w.c.AddBudget(t.Context(), w.who(), spec); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a key of no team: %v", err)
	}
	if all, err := w.c.Budgets(t.Context(), w.who()); err != nil || len(all) != 0 {
		t.Errorf("there are %+v, %v", all, err)
	}
}

// The time of a build is counted when it ends, well or not.
func TestBuildsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &builder{}
		w := withBuilder(t, b)
		stop := w.run()
		var fails bool
		b.build = func(context.Context, cay.BuildSpec, func(cay.BuildLog)) (cay.BuildResult, error) {
			time.Sleep(90 * time.Second)
			if fails {
				return cay.BuildResult{}, errors.New("no")
			}
			return cay.BuildResult{Snapshot: "s2", Digest: "d"}, nil
		}
		for want := 90 * time.Second; want <= 180*time.Second; want += 90 * time.Second {
			tmpl, build := w.request("app")
			w.start(build)
			time.Sleep(2 * time.Minute)
			w.await(build)
			r := w.used(usage.ByTemplate)
			if r.Total.Build != want.Milliseconds() || r.Sums[0].Template != tmpl.ID {
				t.Errorf("%+v is counted, want %v", r, want)
			}
			fails = true
		}
		stop()
	})
}

// Traffic wakes no sandbox whose budget is used up.
func TestABudgetKeepsSandboxesAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		spec := w.spec(time.Hour)
		spec.AutoResume, spec.OnTimeout = true, cay.PauseOnTimeout
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.run()
		b := w.budget(usage.Spec{Meter: cay.VCPUSeconds, Limit: "1", Period: cay.Monthly})
		synctest.Wait()
		w.is(s, cay.Paused)
		w.refused("a wake", w.c.Wake(t.Context(), s.ID))
		if err := w.c.RemoveBudget(t.Context(), w.who(), b.Budget.ID); err != nil {
			t.Fatal(err)
		}
		if err := w.c.Wake(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	})
}

// Budgets of the team, of a key and of metadata stack: the first that is used up
// refuses, and a create that one of them refuses is set aside in none.
func TestBudgetsStack(t *testing.T) {
	w := newWorld(t)
	keys, err := w.store.Keys(t.Context(), w.team.ID)
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	budget := func(name, limit string, spec usage.Spec) {
		spec.Name, spec.Meter, spec.Limit, spec.Period = name, cay.Creates, limit, cay.Monthly
		w.budget(spec)
	}
	budget("all", "6", usage.Spec{})
	budget("the key's", "3", usage.Spec{Key: keys[0].ID})
	budget("ann's", "1", usage.Spec{Label: "user", Value: "ann"})
	create := func(by cay.Caller, user string) error {
		spec := w.spec(time.Hour)
		spec.Metadata = map[string]string{"user": user}
		_, err := w.c.Create(context.Background(), by, spec)
		return err
	}
	// All three are used up then, and of those that were made in one millisecond
	// either is the first.
	const anyBudget = "any"
	key, other := keys[0].Caller(), w.who()
	var made atomic.Int32
	var all sync.WaitGroup
	for range 10 { // at once: one passes all three, nine are refused by the last
		all.Go(func() {
			switch err := create(key, "ann"); {
			case err == nil:
				made.Add(1)
			case !strings.Contains(err.Error(), `"ann's"`):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d of ann's were made, 1 may", made.Load())
	}
	for i, one := range []struct {
		by      cay.Caller
		user    string
		refused string
	}{
		{key, "bob", ""}, {key, "bob", ""}, {key, "bob", "the key's"}, {other, "ann", "ann's"},
		{other, "bob", ""}, {other, "bob", ""}, {other, "", ""}, {other, "bob", "all"}, {key, "ann", anyBudget},
	} {
		err := create(one.by, one.user)
		if one.refused == "" && err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if one.refused != "" {
			w.refused(fmt.Sprint(i), err)
			if err != nil && one.refused != anyBudget && !strings.Contains(err.Error(), `"`+one.refused+`"`) {
				t.Errorf("%d is refused by %v", i, err)
			}
		}
	}
}
