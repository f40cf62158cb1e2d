package rates_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rates"
)

// teams are limits of teams that a test changes.
type teams map[cay.TeamID]cay.TeamLimits

func (t teams) of(team cay.TeamID) cay.TeamLimits { return t[team] }

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := teams{"a": {cay.LimitReads: 2, cay.LimitReadBurst: 4}, "b": {cay.LimitReads: 1}}
		l := rates.New(limits.of)
		take := func(team cay.TeamID, class rates.Class, want rates.State) {
			t.Helper()
			if got := l.Take(team, class); got != want {
				t.Errorf("%s of %s: %+v, want %+v", class, team, got, want)
			}
		}
		bounded := func(burst, left int, reset time.Duration) rates.State {
			return rates.State{Bounded: true, Allowed: true, Burst: burst, Remaining: left, Reset: reset}
		}
		for left := 3; left >= 0; left-- {
			take("a", rates.Read, bounded(4, left, time.Duration(4-left)*time.Second/2))
		}
		refused := rates.State{Bounded: true, Burst: 4, Reset: 2 * time.Second, Wait: time.Second / 2}
		take("a", rates.Read, refused)
		take("a", rates.Read, refused) // a refusal costs nothing
		take("b", rates.Read, bounded(1, 0, time.Second))
		take("a", rates.Write, rates.State{Allowed: true})
		take("a", rates.Free, rates.State{Allowed: true})
		take("none", rates.Create, rates.State{Allowed: true})
		time.Sleep(refused.Wait - time.Nanosecond)
		if l.Take("a", rates.Read).Allowed {
			t.Error("allowed before the time that was told")
		}
		time.Sleep(time.Nanosecond)
		take("a", rates.Read, bounded(4, 0, 2*time.Second))
		time.Sleep(time.Hour)
		take("a", rates.Read, bounded(4, 3, time.Second/2))

		// A limit that is changed holds at once, with a full bucket.
		for range 3 {
			l.Take("a", rates.Read)
		}
		limits["a"] = cay.TeamLimits{cay.LimitReads: 10}
		take("a", rates.Read, bounded(10, 9, time.Second/10))
		limits["a"] = cay.TeamLimits{cay.LimitReads: 1}
		take("a", rates.Read, bounded(1, 0, time.Second))
		delete(limits, "a")
		take("a", rates.Read, rates.State{Allowed: true})
	})
}

// A request that makes many sandboxes makes the next ones wait.
func TestOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := rates.New(teams{"a": {cay.LimitCreates: 1, cay.LimitCreateBurst: 3}}.of)
		l.Owe("none", rates.Create, 5)
		if !l.Take("a", rates.Create).Allowed {
			t.Fatal("the first is refused")
		}
		l.Owe("a", rates.Create, 99) // counts as three
		got := l.Take("a", rates.Create)
		if got.Allowed || got.Wait != 2*time.Second || got.Remaining != 0 || got.Reset != 4*time.Second {
			t.Errorf("%+v", got)
		}
		time.Sleep(got.Wait)
		if !l.Take("a", rates.Create).Allowed {
			t.Error("refused after the wait")
		}
	})
}

// Over any time, a team that never stops gets its rate and one burst.
func TestRatesUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst, seconds = 50, 20, 10
		l := rates.New(teams{"a": {cay.LimitWrites: perSecond, cay.LimitWriteBurst: burst}}.of)
		var allowed atomic.Int32
		end := time.Now().Add(seconds * time.Second)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if s := l.Take("a", rates.Write); s.Allowed {
						allowed.Add(1)
					} else {
						time.Sleep(min(s.Wait, time.Until(end)))
					}
				}
			})
		}
		wg.Wait()
		if n := allowed.Load(); n != burst+perSecond*seconds-1 && n != burst+perSecond*seconds {
			t.Errorf("%d requests in %d seconds", n, seconds)
		}
	})
}

// TestIdleTeamsAreForgotten has many teams come once.
func TestIdleTeamsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := rates.New(func(cay.TeamID) cay.TeamLimits { return cay.TeamLimits{cay.LimitReads: 1, cay.LimitReadBurst: 600} })
		for i := range 1000 {
			l.Take(cay.TeamID(fmt.Sprint(i)), rates.Read)
		}
		for range 200 {
			l.Take("busy", rates.Read)
		}
		if n := l.Len(); n != 1001 {
			t.Errorf("%d buckets", n)
		}
		time.Sleep(time.Minute)
		l.Take("another", rates.Read)
		if n := l.Len(); n != 2 { // busy's is not full
			t.Errorf("%d buckets after a minute", n)
		}
		if s := l.Take("busy", rates.Read); s.Remaining != 600-200+60-1 {
			t.Errorf("busy has %d left", s.Remaining)
		}
	})
}

// BenchmarkTake is what a rate costs a request.
func BenchmarkTake(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n, " teams"), func(b *testing.B) {
			limits := teams{}
			var ids []cay.TeamID
			for range n {
				id := cay.NewTeamID()
				ids, limits[id] = append(ids, id), cay.TeamLimits{cay.LimitReads: 1e6}
			}
			l := rates.New(limits.of)
			for i := 0; b.Loop(); i++ {
				l.Take(ids[i%n], rates.Read)
			}
		})
	}
}
