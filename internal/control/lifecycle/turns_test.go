package lifecycle

import (
	"context"
	"testing"

	"github.com/cay-run/cay"
)

func TestTurns(t *testing.T) {
	var all turns
	done, err := all.take(t.Context(), "one", "comparison")
	if err != nil {
		t.Fatal(err)
	}
	other, err := all.take(t.Context(), "other", "comparison") // does not wait
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.take(ctx, "one", "comparison"); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a second turn of one team: %v", err)
	}
	next := make(chan func())
	go func() {
		done, err := all.take(t.Context(), "one", "comparison")
		if err != nil {
			t.Error(err)
		}
		next <- done
	}()
	done()
	(<-next)()
	if len(all.teams) != 0 {
		t.Errorf("%d teams are kept", len(all.teams))
	}
}
