package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// slow holds back all objects of a snapshot but its record, until each is let
// through.
type slow struct {
	*world
	aside string
}

func (w *world) holdBack(s cay.Snapshot) slow {
	w.Helper()
	out := slow{w, w.TempDir()}
	for _, path := range w.objects(filepath.Join("snapshots", string(s.ID))) {
		if filepath.Base(path) != recordName {
			noError(w, os.Rename(path, filepath.Join(out.aside, filepath.Base(path))))
		}
	}
	return out
}

func readAll(t *testing.T, a engine.Arrival, name string) []byte {
	t.Helper()
	f, err := a.Open(name)
	noError(t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	noError(t, err)
	return text
}

// TestArrive: parts are there when they were waited for, with the bytes that they
// had, and all of it is a snapshot in the end, for callers at once.
func TestArrive(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	want, err := os.ReadFile(filepath.Join(one.data, "snapshots", string(s.ID), "pages"))
	noError(t, err)

	other := w.machine("other")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			a, err := other.Arrive(t.Context(), s.ID)
			if err != nil {
				t.Error(err)
				return
			}
			if a.Snapshot().ID != s.ID {
				t.Errorf("it is snapshot %s", a.Snapshot().ID)
			}
			from := int64(i) * testPiece / 2
			length := min(testPiece, int64(len(want))-from)
			if _, err := a.Await(t.Context(), "pages", from, length); err != nil {
				t.Error(err)
				return
			}
			f, err := a.Open("pages")
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			got := make([]byte, length)
			if _, err := f.ReadAt(got, from); err != nil || !bytes.Equal(got, want[from:from+length]) {
				t.Errorf("part %d differs, %v", i, err)
			}
			dir, err := a.Whole(t.Context())
			if err != nil || filepath.Base(dir) != string(s.ID) {
				t.Errorf("whole in %q, %v", dir, err)
			}
			// An open descriptor stays good when the snapshot gets its name.
			if _, err := f.ReadAt(got, from); err != nil || !bytes.Equal(got, want[from:from+length]) {
				t.Errorf("part %d differs then, %v", i, err)
			}
		})
	}
	all.Wait()
	same(t, one, other, s)

	// One that is there needs no bucket.
	noError(t, os.RemoveAll(w.bucket))
	a, err := other.Arrive(t.Context(), s.ID)
	noError(t, err)
	if all, err := a.Await(t.Context(), "pages", 0, 1); !all || err != nil {
		t.Errorf("of a snapshot that is here: %v, %v", all, err)
	}
	if got := readAll(t, a, "pages"); !bytes.Equal(got, want) {
		t.Error("its pages differ")
	}
	for _, a := range []engine.Arrival{a, local{}} {
		if _, err := a.Open("../secret"); cay.KindOf(err) != cay.NotFound {
			t.Errorf("a file that is none of it: %v", err)
		}
	}
}

// TestAwaitCopies: a snapshot that another node copies at this moment is waited for; one that
// none does is told from one that is nowhere.
func TestAwaitCopies(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	if _, err := other.Record(t.Context(), s.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("on a machine that has all that it made: %v", err)
	}
	other.Await(time.Millisecond)
	if _, err := other.Record(t.Context(), s.ID); cay.CodeOf(err) != cay.CodeNotReplicated || cay.KindOf(err) != cay.Unavailable {
		t.Errorf("of a node that does not copy it: %v", err)
	}
	if err := other.Fetch(t.Context(), s.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a fetch waits for none: %v", err)
	}
	other.Await(time.Minute)
	soon, stop := context.WithCancel(t.Context())
	stop()
	if _, err := other.Record(soon, s.ID); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a wait that is called off: %v", err)
	}
	var waits sync.WaitGroup
	for range 3 {
		waits.Go(func() {
			if got, err := other.Record(t.Context(), s.ID); err != nil || got.ID != s.ID || got.Size() != s.Size() {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	noError(t, one.Push(t.Context(), s.ID))
	waits.Wait()
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
}

// TestBoundsOfAwait: whatever a reader asks for, it gets an answer.
func TestBoundsOfAwait(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	other := w.machine("other")
	a, err := other.arrive(t.Context(), s.ID)
	noError(t, err)
	defer a.end("", errors.New("over"))
	const most = int64(^uint64(0) >> 1)
	for _, part := range [][2]int64{{0, 0}, {-1, 5}, {5, -1}, {most, 1}, {1 << 40, most}} {
		if _, err := a.Await(t.Context(), "pages", part[0], part[1]); err != nil {
			t.Errorf("%v: %v", part, err)
		}
	}
	if _, err := a.Await(t.Context(), "empty", 0, 10); err != nil {
		t.Errorf("of an empty file: %v", err)
	}
	if _, err := a.Await(t.Context(), "nothing", 0, 10); cay.KindOf(err) != cay.NotFound {
		t.Errorf("of no file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Await(ctx, "pages", 0, most); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that is called off: %v", err)
	}
}

// TestOrderOfArrival: what is waited for comes before everything else, what was
// asked for last first; small files come before large ones, and those that only a
// boot reads last.
func TestOrderOfArrival(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	other := w.machine("other")
	a, err := other.arrive(t.Context(), s.ID)
	noError(t, err)
	defer a.end("", errors.New("over"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // asked for all the same
	_, _ = a.Await(ctx, "pages", 1*testPiece, 1)
	_, _ = a.Await(ctx, "pages", 3*testPiece, testPiece+1)
	var got []string
	for {
		of, i, wanted := a.take()
		if of == nil {
			break
		}
		got = append(got, of.from.Name+" "+string(rune('0'+i)))
		if inTime := len(got) <= 3; isClosed(wanted) != inTime {
			t.Errorf("%s is waited for: %t, want %t", got[len(got)-1], !inTime, inTime)
		}
		// One that is under way is not waited for until it is.
		_, _ = a.Await(ctx, of.from.Name, int64(i)*testPiece, 1)
		if !isClosed(wanted) {
			t.Errorf("%s takes its turn though it is waited for", got[len(got)-1])
		}
	}
	want := []string{"pages 3", "pages 4", "pages 1", "pages 0", "pages 2", "files/tar 0"}
	if len(got) != len(want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestArrivalThatFails: who waits is told, nothing is left, and the next one begins
// anew.
func TestArrivalThatFails(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	held := w.holdBack(s)
	other := w.machine("other")
	a, err := other.Arrive(t.Context(), s.ID)
	if err == nil {
		_, err = a.Await(t.Context(), "pages", 0, 1)
	}
	if cay.CodeOf(err) != cay.CodeDamaged {
		t.Errorf("pieces that are missing: %v", err)
	}
	if a != nil {
		if _, err := a.Whole(t.Context()); cay.CodeOf(err) != cay.CodeDamaged {
			t.Errorf("all of it: %v", err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	other.left(t)

	held.release(s)
	again := w.machine("again")
	if _, err := again.Arrive(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	noError(t, again.Fetch(t.Context(), s.ID))
	same(t, one, again, s)
}

func (h slow) release(s cay.Snapshot) {
	h.Helper()
	entries, err := os.ReadDir(h.aside)
	noError(h, err)
	for _, e := range entries {
		noError(h, os.Rename(filepath.Join(h.aside, e.Name()), filepath.Join(h.bucket, "snapshots", string(s.ID), e.Name())))
	}
}

// TestArrivalOfAServerThatEnds: a reader is not told that parts are lost.
func TestArrivalOfAServerThatEnds(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	other := w.machine("other")
	other.stop() // nothing is copied any more
	a, err := other.Arrive(t.Context(), s.ID)
	if err == nil {
		_, err = a.Await(t.Context(), "pages", 0, 1)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	noError(t, other.Close())
	other.left(t)
}

// TestHurriedPieces: a piece that is waited for comes though as many as are under way at once are held
// up.
func TestHurriedPieces(t *testing.T) {
	const last = 2*mostAtOnce - 1
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	s := one.savesOf(t, 1, "t", noise(1, testPiece), noise(5, (last+1)*testPiece))
	release := make(chan struct{})
	other.asks(t, one, func(_ int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		if asked := q.URL.Query(); asked.Get("file") == "pages" && asked.Get("from") != fmt.Sprint(last*testPiece) {
			<-release
		}
		next(w, q)
	})
	other.silence = time.Minute
	begun, err := other.Arrive(t.Context(), s.ID)
	noError(t, err)
	a := begun.(*arrival)
	for held := 0; held < mostAtOnce; runtime.Gosched() {
		a.mu.Lock()
		held = len(a.find("pages").ahead)
		a.mu.Unlock()
	}
	_, err = a.Await(t.Context(), "pages", last*testPiece, 1)
	close(release)
	noError(t, err)
	_, err = a.Whole(t.Context())
	noError(t, err)
	same(t, one, other, s)
}
