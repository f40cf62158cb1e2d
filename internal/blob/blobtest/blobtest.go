// Package blobtest is the conformance suite of buckets: every kind runs it.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
)

// Place is a bucket that is empty, and what lies in it.
type Place struct {
	// Open opens the bucket once more, as another machine does.
	Open func() *blob.Bucket
	// Stored and Store read and write an object past the bucket.
	Stored func(name string) []byte
	Store  func(name string, stored []byte)
}

// Run runs the suite. Each place is a new one.
func Run(t *testing.T, place func(t *testing.T) Place) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, p Place)
	}{
		{"Contents", contents}, {"Ranges", ranges}, {"Missing", missing}, {"Create", create}, {"List", list}, {"Damage", damage},
		{"Names", names}, {"Whole", whole}, {"Cancelled", cancelled}, {"Probe", probe},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, place(t)) })
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isError(t testing.TB, what string, err, want error, kind cay.Kind) {
	t.Helper()
	if !errors.Is(err, want) || cay.KindOf(err) != kind {
		t.Errorf("%s: %v (%s), want %v (%s)", what, err, cay.KindOf(err), want, kind)
	}
}

func has(t testing.TB, b *blob.Bucket, name string, want []byte) {
	t.Helper()
	got, err := b.Get(t.Context(), name)
	noError(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, want %d", name, len(got), len(want))
	}
}

// pattern are bytes that do not repeat in any range.
func pattern(n int) []byte {
	out := make([]byte, 0, n+8)
	for i := 0; len(out) < n; i++ {
		out = fmt.Appendf(out, "%x.", i)
	}
	return out[:n]
}

func contents(t *testing.T, p Place) {
	one, other := p.Open(), p.Open()
	for _, n := range []int{0, 1, 31, 32, 33, 4096, 1<<20 + 3} {
		name := fmt.Sprintf("a/%d", n)
		noError(t, one.Put(t.Context(), name, pattern(n)))
		has(t, other, name, pattern(n))
	}
	noError(t, other.Put(t.Context(), "a/33", []byte("in its place")))
	has(t, one, "a/33", []byte("in its place"))
	noError(t, one.Remove(t.Context(), "a/33"))
	_, err := other.Get(t.Context(), "a/33")
	isError(t, "what was removed", err, blob.ErrMissing, cay.NotFound)
	if cay.KindOf(one.Put(t.Context(), "large", make([]byte, blob.MaxObject+1))) != cay.Invalid {
		t.Error("an object of too many bytes was written")
	}
}

func ranges(t *testing.T, p Place) {
	b := p.Open()
	content := pattern(10_000)
	noError(t, b.Put(t.Context(), "r", content))
	for _, r := range [][2]int64{{0, 1}, {0, 10_000}, {9_999, 1}, {4_000, 96}, {1, 9_999}} {
		got, err := b.GetRange(t.Context(), "r", r[0], r[1])
		noError(t, err)
		if !bytes.Equal(got, content[r[0]:r[0]+r[1]]) {
			t.Errorf("%d bytes from %d on are others", r[1], r[0])
		}
	}
	for _, r := range [][2]int64{{0, 10_001}, {9_999, 2}, {10_000, 1}, {1 << 40, 1}, {-1, 1}, {0, 0}, {0, -1}} {
		if got, err := b.GetRange(t.Context(), "r", r[0], r[1]); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%d bytes from %d on are %d bytes, %v", r[1], r[0], len(got), err)
		}
	}
}

func missing(t *testing.T, p Place) {
	b := p.Open()
	noError(t, b.Put(t.Context(), "a/b/c", []byte("x")))
	for _, name := range []string{"none", "a", "a/b", "a/b/c/d", "a/b/d"} {
		_, err := b.Get(t.Context(), name)
		isError(t, name, err, blob.ErrMissing, cay.NotFound)
		_, err = b.GetRange(t.Context(), name, 0, 1)
		isError(t, "a range of "+name, err, blob.ErrMissing, cay.NotFound)
		noError(t, b.Remove(t.Context(), name))
	}
	has(t, b, "a/b/c", []byte("x"))
}

// create has one of many succeed, and its content stay.
func create(t *testing.T, p Place) {
	buckets := []*blob.Bucket{p.Open(), p.Open()}
	noError(t, buckets[0].Put(t.Context(), "there", []byte("first")))
	isError(t, "one that is there", buckets[1].Create(t.Context(), "there", []byte("second")), blob.ErrExists, cay.Conflict)
	has(t, buckets[0], "there", []byte("first"))
	for round := range 5 {
		name := fmt.Sprintf("locks/%d", round)
		var won atomic.Int64
		won.Store(-1)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				err := buckets[i%2].Create(t.Context(), name, fmt.Append(nil, i))
				switch {
				case err == nil && !won.CompareAndSwap(-1, int64(i)):
					t.Errorf("%d and %d made %s", won.Load(), i, name)
				case err != nil && !errors.Is(err, blob.ErrExists):
					t.Error(err)
				}
			})
		}
		all.Wait()
		has(t, buckets[0], name, fmt.Append(nil, won.Load()))
		noError(t, buckets[0].Remove(t.Context(), name))
		noError(t, buckets[1].Create(t.Context(), name, []byte("again")))
	}
}

func list(t *testing.T, p Place) {
	b := p.Open()
	all := []string{"a-b", "a.b", "a/b", "a/b-c", "a/c/d", "a0", "ab", "b"} // by their bytes
	for _, name := range slices.Backward(all) {
		noError(t, b.Put(t.Context(), name, []byte(name)))
	}
	found := func(prefix string) (names []string) {
		t.Helper()
		for o, err := range b.List(t.Context(), prefix) {
			noError(t, err)
			if o.Size != int64(len(o.Name)) || o.Changed.IsZero() {
				t.Errorf("%s has %d bytes, of %s", o.Name, o.Size, o.Changed)
			}
			names = append(names, o.Name)
		}
		return names
	}
	for prefix, want := range map[string][]string{"": all, "a/": {"a/b", "a/b-c", "a/c/d"}, "a/b": {"a/b", "a/b-c"}, "c": nil, "b/": nil} {
		if diff := cmp.Diff(want, found(prefix)); diff != "" {
			t.Errorf("below %q: %s", prefix, diff)
		}
	}
	for o, err := range b.List(t.Context(), "a/") { // a reader that has enough
		noError(t, err)
		if o.Name != "a/b" {
			t.Errorf("the list begins with %s", o.Name)
		}
		break
	}
	noError(t, b.Remove(t.Context(), "a/b"))
	if diff := cmp.Diff([]string{"a/b-c", "a/c/d"}, found("a/")); diff != "" {
		t.Error(diff)
	}
}

// damage changes what lies in the bucket.
func damage(t *testing.T, p Place) {
	b := p.Open()
	content := pattern(1000)
	noError(t, b.Put(t.Context(), "d", content))
	stored := p.Stored("d")
	flipped := func(at int) []byte {
		out := slices.Clone(stored)
		out[at] ^= 1
		return out
	}
	for what, bytes := range map[string][]byte{
		"the first byte":         flipped(0),
		"the first of content":   flipped(len(stored) - len(content)),
		"one in the middle":      flipped(len(stored) / 2),
		"the last byte":          flipped(len(stored) - 1),
		"one byte less":          stored[:len(stored)-1],
		"one byte more":          append(slices.Clone(stored), 0),
		"less than its checksum": stored[:20],
		"nothing":                {},
	} {
		p.Store("d", bytes)
		_, err := b.Get(t.Context(), "d")
		isError(t, what, err, blob.ErrDamaged, cay.Internal)
	}
	p.Store("d", stored)
	has(t, b, "d", content)
}

func names(t *testing.T, p Place) {
	b := p.Open()
	for _, name := range []string{"", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", ".", "a/.b", "A", "ü", "a b", "a\x00b", "a\\b", "a?b", string(pattern(513))} {
		for what, err := range map[string]error{
			"put": b.Put(t.Context(), name, nil), "create": b.Create(t.Context(), name, nil), "remove": b.Remove(t.Context(), name),
		} {
			if cay.KindOf(err) != cay.Invalid {
				t.Errorf("%s of %q: %v", what, name, err)
			}
		}
		if _, err := b.Get(t.Context(), name); cay.KindOf(err) != cay.Invalid {
			t.Errorf("get of %q: %v", name, err)
		}
	}
}

// whole has readers see one content or the other while both are written.
func whole(t *testing.T, p Place) {
	one, other := p.Open(), p.Open()
	a, b := bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("b"), 200_000)
	noError(t, one.Put(t.Context(), "w", a))
	var all sync.WaitGroup
	for _, content := range [][]byte{a, b} {
		all.Go(func() {
			for range 10 {
				if err := one.Put(t.Context(), "w", content); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 20 {
				got, err := other.Get(t.Context(), "w")
				if err != nil || !bytes.Equal(got, a) && !bytes.Equal(got, b) {
					t.Errorf("%d bytes are read, %v", len(got), err)
				}
			}
		})
	}
	all.Wait()
}

func cancelled(t *testing.T, p Place) {
	b := p.Open()
	noError(t, b.Put(t.Context(), "c", []byte("x")))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for _, err := range b.List(ctx, "") {
		if err == nil {
			t.Error("a list goes on without its reader")
		}
	}
}

func probe(t *testing.T, p Place) {
	b := p.Open()
	for range 2 {
		noError(t, b.Probe(t.Context()))
	}
	for o, err := range b.List(t.Context(), "") {
		noError(t, err)
		t.Errorf("a probe left %s", o.Name)
	}
}
