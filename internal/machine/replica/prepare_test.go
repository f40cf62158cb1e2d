package replica

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// The bucket has all that snapshots of a template need before there is one, and the template's own
// files it has not.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	template := one.savesOn(t, 1, "", noise(1, 100<<10))
	var all sync.WaitGroup
	for range 5 { // one sends, others find it there
		all.Go(func() {
			if err := one.Prepare(t.Context(), template.ID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	kept, err := one.KeptImage(t.Context(), template.Root)
	if err != nil || !kept {
		t.Fatalf("the bucket has the image: %v, %v", kept, err)
	}
	if _, err := os.Stat(filepath.Join(w.bucket, snapshots)); err == nil {
		t.Error("the template itself is in the bucket")
	}

	pieces := func() (out map[string]time.Time) {
		out = map[string]time.Time{}
		for o, err := range one.bucket.List(t.Context(), prefix(template.Root)) {
			noError(t, err)
			if filepath.Base(o.Name) != recordName {
				out[o.Name] = o.Changed
			}
		}
		return out
	}
	before := pieces()
	s := one.push(t, 2, "t", noise(1, 100<<10))
	for name, changed := range pieces() {
		if was, ok := before[name]; !ok || was != changed {
			t.Errorf("a snapshot has %s copied again", name)
		}
	}
	w.arrives(t, one, s)

	// It is noted to be needed each time, and goes a day after the last.
	one.keepFor, one.condemnedFor = time.Hour, -1
	old := time.Now().Add(-2 * time.Hour)
	age := func() {
		for o, err := range one.bucket.List(t.Context(), "") {
			noError(t, err)
			noError(t, os.Chtimes(filepath.Join(w.bucket, o.Name), old, old))
		}
	}
	collect := func() (kept bool) {
		for range 2 {
			_, err := one.Collect(t.Context(), func(cay.SnapshotID) (bool, error) { return false, nil })
			noError(t, err)
		}
		kept, err := one.KeptImage(t.Context(), template.Root)
		noError(t, err)
		return kept
	}
	age()
	noError(t, one.Prepare(t.Context(), template.ID))
	if !collect() {
		t.Error("an image that was prepared again is gone")
	}
	age()
	if collect() {
		t.Error("an image that nothing needs stays")
	}
}

// A copy of an image waits for another one of it, for as long as its caller does.
func TestCopiesOfOneImageTakeTurns(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	template := one.savesOn(t, 1, "", noise(1, 100<<10))
	done, err := one.alone(t.Context(), prefix(template.Root))
	noError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := one.Prepare(ctx, template.ID); err == nil {
		t.Error("it waits for none")
	}
	if _, err := one.record(t.Context(), prefix(template.Root)); err == nil {
		t.Error("two copy an image at once")
	}
	done()
	noError(t, one.Prepare(t.Context(), template.ID))
}
