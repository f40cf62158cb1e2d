package builtin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cay-run/cay"
)

func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBacklog()
		if err := b.Wait(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		b.Begin([]string{"a", "b"})
		b.Progress("a: installing", 20)
		for name, want := range map[string]string{"a": "a: installing (20%)", "b": "it waits for a", "c": ""} {
			if told, building := b.Of(name); told != want || building != (want != "") {
				t.Errorf("%s: %q, %v", name, told, building)
			}
		}
		var steps []string
		over := make(chan error, 2)
		go func() {
			over <- b.Wait(t.Context(), []string{"a"}, func(step string, _ int) { steps = append(steps, step) })
		}()
		synctest.Wait()
		b.Progress("a: booting", -1)
		synctest.Wait()
		b.Done("a")
		if err := <-over; err != nil || len(steps) != 2 || steps[1] != "a: booting" {
			t.Errorf("%v, steps %q", err, steps)
		}
		b.Fail(cay.Errorf(cay.Unavailable, "no network"))
		if err := b.Wait(t.Context(), nil, nil); cay.KindOf(err) != cay.Unavailable {
			t.Errorf("a failed try: %v", err)
		}
		if told, building := b.Of("b"); !building || told != "the last try failed: no network" {
			t.Errorf("%q, %v", told, building)
		}
		b.Begin([]string{"b"}) // the next try
		ctx, cancel := context.WithCancel(t.Context())
		go func() { over <- b.Wait(ctx, nil, func(string, int) {}) }()
		synctest.Wait()
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	})
}
