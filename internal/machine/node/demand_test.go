package node

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

func TestDemandFollowsCreates(t *testing.T) {
	for _, tc := range []struct {
		name          string
		creates       int
		every, making time.Duration
		now, later    int // wanted at once, and after ten idle minutes
	}{
		{name: "nobody", now: 0, later: 0},
		{name: "one", creates: 1, now: 1, later: 0},
		{name: "a burst", creates: 8, now: 8, later: 2},
		{name: "one a minute", creates: 10, every: time.Minute, now: 1, later: 0},
		{name: "one a second", creates: 60, every: time.Second, now: 6, later: 2},
		{name: "one a second of what is slow to make", creates: 200, every: time.Second, making: 3 * time.Second, now: 59, later: 15},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d demand
				if tc.making > 0 {
					d.made(tc.making)
				}
				for i := range tc.creates {
					if i > 0 {
						time.Sleep(tc.every)
					}
					d.ask(time.Now())
				}
				if got := d.want(time.Now()); got != tc.now {
					t.Errorf("at once it wants %d, not %d", got, tc.now)
				}
				time.Sleep(10 * time.Minute)
				if got := d.want(time.Now()); got != tc.later {
					t.Errorf("ten minutes later it wants %d, not %d", got, tc.later)
				}
				time.Sleep(2 * time.Hour)
				if got := d.want(time.Now()); got != 0 {
					t.Errorf("two hours later it wants %d", got)
				}
			})
		})
	}
}

func TestShareIsFair(t *testing.T) {
	type counts = map[cay.SnapshotID]int
	for _, tc := range []struct {
		name   string
		all    []claimant
		budget int64
		want   counts
	}{
		{"nobody", nil, 100, counts{}},
		{"enough for all", []claimant{{"a", 3, 10}, {"b", 1, 20}}, 100, counts{"a": 3, "b": 1}},
		{"each gets one first", []claimant{{"a", 50, 10}, {"b", 1, 40}}, 100, counts{"a": 6, "b": 1}},
		{"who is too large gets none", []claimant{{"a", 2, 10}, {"b", 9, 200}}, 100, counts{"a": 2}},
		{"who wants most comes first", []claimant{{"a", 1, 60}, {"b", 2, 60}}, 100, counts{"b": 1}},
		{"nothing to share", []claimant{{"a", 1, 60}}, 0, counts{}},
	} {
		if got := share(tc.all, tc.budget); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
