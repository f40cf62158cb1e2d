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
		clear(one.needed.at)
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

// A node that has the root image starts from a copy before that is in the bucket, and one that lacks
// it is told to try again.
func TestFilesComeFirst(t *testing.T) {
	w := newWorld(t)
	one, has, lacks := w.machine("one"), w.machine("has"), w.machine("lacks")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	image, err := one.dir.Image(s.Root)
	noError(t, err)
	content, err := os.ReadFile(image)
	noError(t, err)
	noError(t, os.WriteFile(filepath.Join(has.data, "image"), content, 0o600))
	_, err = has.dir.AddImage(filepath.Join(has.data, "image"))
	noError(t, err)
	for _, m := range []machine{has, lacks} {
		m.made(Maker{Node: "one"}) // gone
		m.Await(time.Millisecond)
	}

	done, err := one.alone(t.Context(), prefix(s.Root))
	noError(t, err)
	pushed := make(chan error, 1)
	go func() { pushed <- one.Push(t.Context(), s.ID) }()
	for { // until the copy waits for the image
		if _, err := one.record(t.Context(), snapshots+string(s.ID)+"/"); err == nil {
			break
		}
		select {
		case err := <-pushed:
			t.Fatalf("the copy does not wait for the image: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	noError(t, has.Fetch(t.Context(), s.ID))
	same(t, one, has, s)
	if _, err := lacks.Record(t.Context(), s.ID); cay.CodeOf(err) != cay.CodeNotReplicated {
		t.Errorf("a node without the image is told %v", err)
	}
	if err := lacks.Fetch(t.Context(), s.ID); err == nil {
		t.Error("a node without the image has it")
	}
	lacks.left(t)
	select {
	case err := <-pushed:
		t.Errorf("the copy is said to be whole: %v", err)
	default:
	}
	done()
	noError(t, <-pushed)
	noError(t, lacks.Fetch(t.Context(), s.ID))
	same(t, one, lacks, s)

	// A copy that a crash broke off before the image is completed.
	noError(t, os.RemoveAll(filepath.Join(w.bucket, images)))
	clear(one.needed.at)
	noError(t, one.Push(t.Context(), s.ID))
	w.arrives(t, one, s)
}
