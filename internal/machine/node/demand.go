package node

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/cay-run/cay"
)

const (
	// lookBack bounds the time over which creates are counted: as many can
	// come before the pool is full again. It is a number of times what one
	// takes to make.
	shortLookBack, longLookBack = 5 * time.Second, time.Minute
	lookBackTimes               = 20
	// remember is when half of the busiest moment is forgotten.
	remember = 5 * time.Minute
	// enoughOf is the least demand that keeps an instance ready.
	enoughOf = 0.5
)

// demand tells how many instances of one template to keep ready: as many as
// were asked for at its busiest, of late. It is two fading counts.
type demand struct {
	recent float64 // creates within the look-back
	peak   float64 // the most that recent has been
	at     time.Time
	making time.Duration // what one takes to make, smoothed
}

// ask counts a create.
func (d *demand) ask(now time.Time) {
	d.fade(now)
	d.recent++
	d.peak = max(d.peak, d.recent)
}

// made tells what one took to make.
func (d *demand) made(took time.Duration) {
	if d.making == 0 {
		d.making = took
	}
	d.making += (took - d.making) / 4
}

// want is how many to have ready.
func (d *demand) want(now time.Time) int {
	d.fade(now)
	if d.peak < enoughOf {
		return 0
	}
	return int(math.Ceil(d.peak - 0.01)) // one create is one, a moment later too
}

func (d *demand) fade(now time.Time) {
	past := now.Sub(d.at).Seconds()
	d.at = now
	back := min(max(lookBackTimes*d.making, shortLookBack), longLookBack)
	d.recent *= math.Exp(-past / back.Seconds())
	d.peak = max(d.recent, d.peak*math.Exp2(-past/remember.Seconds()))
}

// claimant is a template that competes for the pool's memory.
type claimant struct {
	snapshot cay.SnapshotID
	want     int
	each     int64 // bytes
}

// share divides the pool's memory: each template gets one instance before any
// gets another, and the template with the largest demand comes first.
func share(all []claimant, budget int64) map[cay.SnapshotID]int {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b claimant) int {
		return cmp.Or(cmp.Compare(b.want, a.want), cmp.Compare(a.snapshot, b.snapshot))
	})
	out := make(map[cay.SnapshotID]int)
	for more := true; more; {
		more = false
		for _, c := range all {
			if out[c.snapshot] < c.want && c.each <= budget {
				out[c.snapshot]++
				budget -= c.each
				more = true
			}
		}
	}
	return out
}
