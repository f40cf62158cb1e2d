package store

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// A clock that goes back counts nothing until it is where it was, and nothing
// twice; a reading that goes back neither.
func TestAClockThatGoesBack(t *testing.T) {
	begun := time.UnixMilli(1_800_000_000_000)
	b := cay.Sandbox{Team: "t", Reading: cay.Reading{Instance: "n", Last: cay.Taken{CPU: time.Second, Sent: 10}}}
	o := openUsage{account: 1, since: begun.UnixMilli(), cpus: 1, memoryMB: 1}
	all := func(sum tally) (out cay.Amounts) {
		for _, a := range sum {
			out.Add(a)
		}
		return out
	}
	sum := tally{}
	for _, at := range []time.Duration{time.Hour, -time.Hour, 30 * time.Minute, 2 * time.Hour, 0} {
		o.count(sum, b, begun.Add(at))
		b.Reading.Last.CPU -= 100 * time.Millisecond
	}
	want := cay.Amounts{VCPU: 2 * time.Hour.Milliseconds(), Memory: 2 * time.Hour.Milliseconds(), CPU: 1_000_000, Sent: 10}
	if got := all(sum); got != want {
		t.Errorf("%+v is counted, want %+v", got, want)
	}
	for k, a := range sum {
		if a.VCPU < 0 || a.VCPU > time.Hour.Milliseconds() {
			t.Errorf("the hour %v has %+v", time.UnixMilli(k.at), a)
		}
	}
}
