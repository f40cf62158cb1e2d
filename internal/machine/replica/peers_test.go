package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/cay-run/cay"
)

// asks has a machine ask another one, whose answers to questions for parts of snapshots go through a fault,
// if there is one: it gets how many came before.
func (m machine) asks(t testing.TB, other machine, fault func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request)) (parts *atomic.Int64) {
	t.Helper()
	parts = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		of := q.URL.RawQuery != "" && strings.HasPrefix(q.URL.Path, "/snapshots/")
		if of {
			n := parts.Add(1) - 1
			if fault != nil {
				fault(n, w, other.ServeHTTP, q)
				return
			}
		}
		other.ServeHTTP(w, q)
	}))
	t.Cleanup(s.Close)
	m.made(Maker{Node: "one", Ask: func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, http.NoBody)
		noError(t, err)
		return http.DefaultTransport.RoundTrip(r)
	}})
	return parts
}

// made has the records say which nodes made all snapshots.
func (m machine) made(makers ...Maker) {
	m.Ask(func(context.Context, cay.SnapshotID) ([]Maker, error) { return makers, nil }, slog.New(slog.DiscardHandler))
}

const stops = "it stops in the middle of a part"

// The ways in which a node fails that has a snapshot.
var faults = map[string]func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request){
	"none": nil,
	"it dies midway": func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		if n >= 2 {
			panic(http.ErrAbortHandler)
		}
		next(w, q)
	},
	stops: func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		if n == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(testPiece))
			_, _ = w.Write(make([]byte, 100))
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done()
			return
		}
		next(w, q)
	},
	"it sends other bytes": func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		if n <= 2 { // of which one is zero
			w = flips{w}
		}
		next(w, q)
	},
	"it says all are zero": func(_ int64, w http.ResponseWriter, _ http.HandlerFunc, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	},
	"it is of before": func(_ int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		asked := q.URL.Query()
		asked.Del(asParam)
		q.URL.RawQuery = asked.Encode()
		next(w, q)
	},
	"it packs more than it should": func(_ int64, w http.ResponseWriter, _ http.HandlerFunc, _ *http.Request) {
		w.Header().Set("Content-Encoding", packing)
		_, _ = w.Write(s2.Encode(nil, make([]byte, 16<<20)))
	},
	"it packs by an unknown codec": func(_ int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		next(w, q)
	},
	"it has it no more": func(n int64, w http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
		if n >= 1 {
			http.NotFound(w, q)
			return
		}
		next(w, q)
	},
}

// flips changes a bit of what is sent.
type flips struct{ http.ResponseWriter }

func (f flips) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if len(b) > 0 {
		b[len(b)/2] ^= 4
	}
	return f.ResponseWriter.Write(b)
}

// TestFromThePeer: a snapshot comes from the node that made it, and what that node does not give, or
// gives damaged, from the bucket, whether the copy there has sums or is of an older Cay.
func TestFromThePeer(t *testing.T) {
	for name, fault := range faults {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, old %t", name, old), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				one, other := w.machine("one"), w.machine("other")
				noError(t, one.Take(t.Context()))
				s := one.saves(t, 1)
				noError(t, one.Push(t.Context(), s.ID))
				if old {
					at := snapshots + string(s.ID) + "/"
					in, err := one.record(t.Context(), at)
					noError(t, err)
					for i := range in.Files {
						in.Files[i].Sums = nil
					}
					noError(t, one.putRecord(t.Context(), at, in))
				}
				other.silence, other.grace = time.Minute, time.Minute
				if name == stops {
					other.silence = time.Second
				}
				parts := other.asks(t, one, fault)
				if fault == nil { // all pieces: those of the bucket are gone
					w.holdBack(s)
				}
				noError(t, other.Fetch(t.Context(), s.ID))
				same(t, one, other, s)
				if parts.Load() == 0 {
					t.Error("the node was asked for nothing")
				}
			})
		}
	}
}

// TestNotCopiedYet: a snapshot, its image and its engine come from the node that made them while the
// bucket has none of them, or is away; what that node does not give comes once the bucket has it.
func TestNotCopiedYet(t *testing.T) {
	for name, fault := range faults {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bucket away %t", name, away), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				one, other := w.machine("one"), w.machine("other")
				noError(t, one.Take(t.Context()))
				s := one.saves(t, 1)
				other.silence = time.Minute
				if name == stops {
					other.silence = time.Second
				}
				begun := make(chan struct{})
				var once sync.Once
				of := func(n int64, rw http.ResponseWriter, next http.HandlerFunc, q *http.Request) {
					once.Do(func() { close(begun) })
					if fault == nil {
						next(rw, q)
						return
					}
					fault(n, rw, next, q)
				}
				other.asks(t, one, of)
				back := func() {}
				if away {
					back = w.hide()
				}
				var pushed sync.WaitGroup
				pushed.Go(func() {
					if fault == nil {
						return
					}
					<-begun
					back()
					noError(t, one.Push(t.Context(), s.ID))
				})
				err := other.Fetch(t.Context(), s.ID)
				pushed.Wait()
				if cay.CodeOf(err) == cay.CodeDamaged { // what was not compared piece by piece is in the end
					other.left(t)
					err = other.Fetch(t.Context(), s.ID)
				}
				noError(t, err)
				same(t, one, other, s)
			})
		}
	}
}

// TestNowhere: a start is told whether a snapshot is lost, or may be found a little later.
func TestNowhere(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	empty := w.machine("empty")
	gone := Maker{Node: "gone"}
	away := Maker{Node: "away", Ask: func(context.Context, string) (*http.Response, error) { return nil, errors.New("away") }}
	lacks := Maker{Node: "lacks", Ask: func(ctx context.Context, path string) (*http.Response, error) {
		a := httptest.NewRecorder()
		empty.ServeHTTP(a, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		return a.Result(), nil
	}}
	maybe := func(m Maker) Maker { m.Maybe = true; return m }
	for _, tt := range []struct {
		name   string
		makers []Maker
		code   string
	}{
		{"nothing is known", nil, cay.CodeNotReplicated},
		{"its node is gone", []Maker{gone}, cay.CodeLost},
		{"its node lacks it", []Maker{lacks}, cay.CodeLost},
		{"both", []Maker{gone, lacks}, cay.CodeLost},
		{"its node is away", []Maker{away}, cay.CodeNotReplicated},
		{"one of two is away", []Maker{gone, away, lacks}, cay.CodeNotReplicated},
		{"none of all has it", []Maker{maybe(gone), maybe(lacks)}, cay.CodeLost},
		{"one of all is away", []Maker{maybe(lacks), maybe(away), maybe(gone)}, cay.CodeNotReplicated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other.Await(time.Millisecond)
			other.made(tt.makers...)
			_, err := other.Record(t.Context(), s.ID)
			if cay.CodeOf(err) != tt.code || (cay.KindOf(err) == cay.Unavailable) != (tt.code != cay.CodeLost) {
				t.Errorf("%v (%s)", err, cay.CodeOf(err))
			}
			if err := other.Fetch(t.Context(), s.ID); err == nil || tt.code == cay.CodeLost && cay.CodeOf(err) != tt.code {
				t.Errorf("a fetch: %v", err)
			}
			other.left(t)
		})
	}
}

// TestNowhereKnown: a snapshot of which it is not known whether the bucket has it is not lost.
func TestNowhereKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.machine("other")
	other.made(Maker{Node: "gone"})
	w.hide()
	if _, err := other.Record(t.Context(), cay.NewSnapshotID()); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("%v", err)
	}
}

// hide has the bucket away until back.
func (w *world) hide() (back func()) {
	w.Helper()
	hidden := w.bucket + ".away"
	noError(w, os.Rename(w.bucket, hidden))
	noError(w, os.WriteFile(w.bucket, nil, 0o600))
	return func() {
		noError(w, os.Remove(w.bucket))
		noError(w, os.Rename(hidden, w.bucket))
	}
}

// TestWholeInTheEnd: what came from a damaged disk while the bucket had nothing to compare it with is no
// snapshot here.
func TestWholeInTheEnd(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	s := one.saves(t, 1)
	other.asks(t, one, faults["it sends other bytes"])
	if err := other.Fetch(t.Context(), s.ID); cay.CodeOf(err) != cay.CodeDamaged {
		t.Errorf("%v", err)
	}
	other.left(t)
	// The node itself looks, as for a start of its own.
	path := filepath.Join(one.data, "snapshots", string(s.ID), "pages")
	text, err := os.ReadFile(path)
	noError(t, err)
	text[100] ^= 1
	noError(t, os.WriteFile(path, text, 0o600))
	if a := answerOf(t, one, "/snapshots/"+string(s.ID)+"?file=pages&from=0&size=10"); a.Code != http.StatusInternalServerError || a.Body.Len() < 20 {
		t.Errorf("a part of a damaged file: %d %s", a.Code, a.Body)
	}
}

func answerOf(t testing.TB, m machine, path string) *httptest.ResponseRecorder {
	t.Helper()
	a := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodGet, "http://node/", nil)
	before, query, _ := strings.Cut(path, "?")
	q.URL.Path, q.URL.RawQuery = before, query
	m.ServeHTTP(a, q)
	return a
}

// TestServe: a node gives the files that records name, and nothing else.
func TestServe(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	s := one.saves(t, 1)
	noError(t, os.WriteFile(filepath.Join(one.data, "secret"), []byte("secret"), 0o600))
	at, image, engine := "/snapshots/"+string(s.ID), "/images/"+s.Root, "/engines/"+s.EngineHash
	for _, tt := range []struct {
		path string
		code int
	}{
		{at, 200}, {image, 200}, {engine, 200},
		{at + "?file=pages&from=0&size=100", 200},
		{at + fmt.Sprintf("?file=pages&from=%d&size=%d", testPiece, testPiece), 204},
		{at + fmt.Sprintf("?file=pages&from=%d&size=100", 4*testPiece), 200},
		{at + "?file=files/tar&from=1&size=2", 200},
		{image + "?from=0&size=5", 200},
		{engine + "?file=gvisor-bin/gvisor_sentry&from=0&size=5", 200},
		{at + fmt.Sprintf("?file=pages&from=%d&size=101", 4*testPiece), 400},
		{at + "?file=pages&from=-1&size=5", 400},
		{at + "?file=pages&from=0&size=0", 400},
		{at + "?file=pages&from=9223372036854775807&size=5", 400},
		{at + "?file=pages&from=0&size=9223372036854775807", 400},
		{at + "?file=pages&from=0&size=4194305", 400},
		{at + "?file=pages&from=x&size=1", 400},
		{at + "?file=pages", 400},
		{at + "?file=%zz&from=0&size=1", 400},
		{at + "?file=empty&from=0&size=1", 400},
		{at + "?file=../../secret&from=0&size=1", 404},
		{at + "?file=snapshot.json&from=0&size=1", 404},
		{at + "?from=0&size=1", 404},
		{image + "?file=../secret&from=0&size=1", 404},
		{engine + "?file=../../secret&from=0&size=1", 404},
		{"/snapshots/../secret", 404}, {"/snapshots/", 404}, {"/snapshots", 404}, {"/", 404}, {"", 404},
		{"/snapshots/.tmp-1", 404}, {"/snapshots/inone", 404}, {"/images/../secret", 404}, {"/images/" + strings.Repeat("0", 64), 404},
		{"/engines/..", 404}, {"/engines/none", 404}, {"/engines/" + s.EngineHash + "/gvisor-bin", 404}, {"/secret", 404},
	} {
		a := answerOf(t, one, tt.path)
		if a.Code != tt.code || strings.Contains(a.Body.String(), "secret") && tt.code == 200 {
			t.Errorf("%s: %d, want %d: %s", tt.path, a.Code, tt.code, a.Body)
		}
	}
	a := httptest.NewRecorder()
	one.ServeHTTP(a, httptest.NewRequest(http.MethodPost, at, nil))
	if a.Code != 400 {
		t.Errorf("a POST: %d", a.Code)
	}
	// One that was removed is not here, though its record was just read.
	noError(t, one.dir.Remove(s.ID))
	if a := answerOf(t, one, at+"?file=pages&from=0&size=100"); a.Code != 404 {
		t.Errorf("a part of what was removed: %d", a.Code)
	}
}

// TestServeAtOnce: more questions than are answered at once wait for a while, and no longer.
func TestServeAtOnce(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	s := one.saves(t, 1)
	at := "/snapshots/" + string(s.ID)
	if a := answerOf(t, one, at); a.Code != 200 {
		t.Fatalf("%d", a.Code)
	}
	for range servedAtOnce {
		one.serving.turns <- struct{}{}
	}
	if a := answerOf(t, one, at); a.Code != http.StatusServiceUnavailable {
		t.Errorf("while others are answered: %d", a.Code)
	}
	<-one.serving.turns
	if a := answerOf(t, one, at); a.Code != 200 {
		t.Errorf("after them: %d", a.Code)
	}
}

func TestZero(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, 12288, 20000} {
		b := make([]byte, n)
		if !zero(b) {
			t.Errorf("%d zeros are not all zero", n)
		}
		for _, i := range []int{0, n / 2, n - 1} {
			if n > 0 {
				b[i] = 1
				if zero(b) {
					t.Errorf("of %d bytes the one at %d is not seen", n, i)
				}
				b[i] = 0
			}
		}
	}
}

// TestTwoCopy: a node that has got a snapshot before its copy was there copies it at the same time as
// the one that made it, and a third has it whole.
func TestTwoCopy(t *testing.T) {
	w := newWorld(t)
	one, other, third := w.machine("all"), w.machine("all"), w.machine("all")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	other.asks(t, one, nil)
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
	var both sync.WaitGroup
	for _, m := range []machine{one, other} {
		both.Go(func() {
			if err := m.Push(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	noError(t, third.Fetch(t.Context(), s.ID))
	same(t, one, third, s)
}
