package operator

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// bucketOf is a bucket that notes what it is prepared for, and when.
type bucketOf struct {
	Replica
	begun    time.Time
	prepared []string
	fails    map[cay.SnapshotID]error
	taken    int
}

func (b *bucketOf) Take(context.Context) error { b.taken++; return nil }

func (b *bucketOf) Prepare(_ context.Context, id cay.SnapshotID) error {
	b.prepared = append(b.prepared, string(id)+" "+time.Since(b.begun).String())
	return b.fails[id]
}

// The node that leads prepares the bucket at once, others minutes later, each again in an hour.
func TestPrepareAlways(t *testing.T) {
	none := cay.Errorf(cay.NotFound, "no such snapshot")
	after := func(wait time.Duration) func() bool {
		var begun time.Time // by the clock of the test's bubble
		return func() bool {
			if begun.IsZero() {
				begun = time.Now()
			}
			return time.Since(begun) >= wait
		}
	}
	for name, tt := range map[string]struct {
		leads  func() bool
		fails  map[cay.SnapshotID]error
		during time.Duration
		want   []string
	}{
		"alone":          {nil, nil, 119 * time.Minute, []string{"a 0s", "b 0s", "c 1m0s", "a 1h0m0s", "b 1h0m0s", "c 1h1m0s"}},
		"leads":          {func() bool { return true }, nil, 119 * time.Second, []string{"a 0s", "b 0s", "c 1m0s"}},
		"follows":        {func() bool { return false }, nil, 6 * time.Minute, []string{"a 5m0s", "b 5m0s", "c 5m0s"}},
		"begins to lead": {after(2 * time.Minute), nil, 3 * time.Minute, []string{"a 2m0s", "b 2m0s", "c 2m0s"}},
		"an error": {nil, map[cay.SnapshotID]error{"a": errors.New("away")}, 70 * time.Second,
			[]string{"a 0s", "b 0s", "a 30s", "a 1m0s", "c 1m0s"}},
		"removed": {nil, map[cay.SnapshotID]error{"a": none}, 119 * time.Second, []string{"a 0s", "b 0s", "c 1m0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := &bucketOf{begun: time.Now(), fails: tt.fails}
				d := New(Config{Replica: bucket, Leads: tt.leads, Log: slog.New(slog.DiscardHandler)})
				d.Offer("base", "a")
				d.Offer("desktop", "b")
				ctx, cancel := context.WithTimeout(t.Context(), tt.during)
				defer cancel()
				time.AfterFunc(time.Minute-time.Second, func() { d.Offer("late", "c") })
				d.PrepareAlways(ctx)
				if !slices.Equal(bucket.prepared, tt.want) {
					t.Errorf("prepared %q, and not %q", bucket.prepared, tt.want)
				}
				if bucket.taken != 1 {
					t.Errorf("the bucket was taken %d times", bucket.taken)
				}
			})
		})
	}
}

// The log has each template's error once, though other templates are copied meanwhile.
func TestPrepareTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("the bucket is full")
		var lines bytes.Buffer
		bucket := &bucketOf{begun: time.Now(), fails: map[cay.SnapshotID]error{"a": full}}
		d := New(Config{Replica: bucket, Log: slog.New(slog.NewTextHandler(&lines, nil))})
		d.Offer("base", "a")
		d.Offer("desktop", "b")
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Minute)
		defer cancel()
		d.PrepareAlways(ctx)
		if n := strings.Count(lines.String(), full.Error()); n != 1 {
			t.Errorf("the log has it %d times: %s", n, lines.String())
		}
	})
}
