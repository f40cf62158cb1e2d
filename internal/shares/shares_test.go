package shares

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// fill takes as much as a party gets.
func fill(b *Bound[string], party string) (n int64) {
	for b.Take(party, 1) {
		n++
	}
	return n
}

func TestNoPartyUsesUpABound(t *testing.T) {
	b := New[string](100, 0)
	for _, c := range []struct {
		party string
		want  int64
	}{{"a", 50}, {"b", 25}, {"c", 12}, {"a", 0}} {
		if got := fill(b, c.party); got != c.want {
			t.Errorf("%s got %d, want %d", c.party, got, c.want)
		}
	}
	if !b.Take("calm", 5) {
		t.Error("a party that has nothing gets nothing")
	}
	b.Give("a", 50)
	b.Give("b", 25)
	b.Give("c", 12)
	b.Give("calm", 5)
	if b.Used() != 0 || len(b.held) != 0 {
		t.Errorf("%d are used by %v after all were given back", b.Used(), b.held)
	}
}

func TestAPartHasABoundOfItsOwn(t *testing.T) {
	b := New[string](100, 10)
	if got := fill(b, "a"); got != 10 {
		t.Errorf("got %d, want 10", got)
	}
	if b.Take("b", 11) {
		t.Error("a party got more than its part at once")
	}
}

func TestTheOnlyPlaceIsForOne(t *testing.T) {
	b := New[string](1, 0)
	if !b.Take("a", 1) || b.Take("b", 1) {
		t.Error("the only place went to none, or to two")
	}
}

// A long queue of one party does not delay another party.
func TestWaitsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New[string](4, 0)
		got := make(chan string, 100)
		enter := func(party string) {
			go func() {
				if b.Wait(t.Context(), party, 1) == nil {
					got <- party
				}
			}()
			synctest.Wait()
		}
		for range 50 {
			enter("hostile")
		}
		enter("calm")
		count := map[string]int{}
		for range len(got) {
			count[<-got]++
		}
		if count["hostile"] != 2 || count["calm"] != 1 {
			t.Fatalf("at first: %v", count)
		}
		b.Give("calm", 1)
		enter("calm")
		b.Give("hostile", 2)
		synctest.Wait()
		for range len(got) {
			count[<-got]++
		}
		if count["hostile"] != 3 || count["calm"] != 2 {
			t.Errorf("later: %v", count)
		}
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New[string](1, 0)
		b.Take("a", 1)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := b.Wait(ctx, "b", 1); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		b.Give("a", 1)
		if b.Used() != 0 || len(b.waiting) != 0 {
			t.Errorf("%d are used, %d wait", b.Used(), len(b.waiting))
		}
	})
}
