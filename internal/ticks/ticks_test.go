package ticks

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestTicks(t *testing.T) {
	for _, tt := range []struct {
		name          string
		ends          time.Duration // of the context
		takes         time.Duration // of what is done at each tick
		most          int           // ticks after which the reader has enough
		every, atOnce []time.Duration
	}{
		{"until the context ends", 3500 * time.Millisecond, 0, 9, at(1000, 2000, 3000), at(0, 1000, 2000, 3000)},
		{"until the reader has enough", time.Minute, 0, 2, at(1000, 2000), at(0, 1000)},
		{"a slow reader", 8 * time.Second, 2500 * time.Millisecond, 9, at(1000, 3500, 6000), at(0, 2500, 5000, 7500)},
		{"a context that has ended", 0, 0, 9, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for kind, want := range map[string][]time.Duration{"every": tt.every, "at once": tt.atOnce} {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), tt.ends)
					defer cancel()
					ticks := Every(ctx, time.Second)
					if kind == "at once" {
						ticks = AtOnce(ctx, time.Second)
					}
					var got []time.Duration
					begun := time.Now()
					for range ticks {
						got = append(got, time.Since(begun))
						if len(got) == tt.most {
							break
						}
						time.Sleep(tt.takes)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s: ticks after %v, want %v", kind, got, want)
					}
				})
			}
		})
	}
}

func at(ms ...int) (out []time.Duration) {
	for _, n := range ms {
		out = append(out, time.Duration(n)*time.Millisecond)
	}
	return out
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		if !Wait(ctx, 59*time.Second) || time.Since(begun) != 59*time.Second {
			t.Errorf("it waited for %v", time.Since(begun))
		}
		if Wait(ctx, time.Hour) || time.Since(begun) != time.Minute {
			t.Errorf("it waited on for %v after the context", time.Since(begun)-time.Minute)
		}
	})
}
