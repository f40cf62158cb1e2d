package replica

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
)

// words are bytes that can be packed.
func words(size int) []byte {
	return bytes.Repeat([]byte("a part of a snapshot "), size/21+1)[:size]
}

// TestPacked: a part comes packed where that is asked for and makes it smaller, and as it is for a
// node of before, which does not ask.
func TestPacked(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	s := one.savesOn(t, 1, "t", slices.Concat(words(testPiece), noise(1, testPiece)))
	content := slices.Concat(words(testPiece), noise(1, testPiece))
	at := "/images/" + s.Root
	for _, tt := range []struct {
		from   int
		query  string
		packed bool
	}{
		{0, "", false}, {0, "&as=", false}, {0, "&as=zip", false}, {0, "&as=s2", true}, {testPiece, "&as=s2", false},
	} {
		a := answerOf(t, one, at+fmt.Sprintf("?from=%d&size=%d", tt.from, testPiece)+tt.query)
		as := a.Header().Get("Content-Encoding")
		if a.Code != http.StatusOK || (as == packing) != tt.packed || a.Body.Len() < testPiece != tt.packed {
			t.Errorf("from %d%s: %d, %d bytes as %q", tt.from, tt.query, a.Code, a.Body.Len(), as)
		}
		got := make([]byte, testPiece)
		if err := readPart(got, a.Body, int64(a.Body.Len()), as); err != nil || !bytes.Equal(got, content[tt.from:tt.from+testPiece]) {
			t.Errorf("from %d%s: other bytes, %v", tt.from, tt.query, err)
		}
	}
}

// TestReadPart: what is not the part that was asked for is refused.
func TestReadPart(t *testing.T) {
	part := words(1000)
	packed := s2.Encode(nil, part)
	for name, tt := range map[string]struct {
		body []byte
		size int64
		as   string
	}{
		"as it is":                  {part, 1000, ""},
		"packed":                    {packed, int64(len(packed)), packing},
		"bad: fewer bytes":          {part[:999], 999, ""},
		"bad: more bytes":           {words(1001), 1001, ""},
		"bad: it ends":              {part[:500], 1000, ""},
		"bad: packed, it ends":      {packed[:len(packed)-1], int64(len(packed)), packing},
		"bad: packed, cut":          {packed[:len(packed)-1], int64(len(packed) - 1), packing},
		"bad: packed as it is":      {part, 1000, packing},
		"bad: packed, and larger":   {s2.Encode(nil, noise(1, 1000)), 1006, packing},
		"bad: packed to fewer":      {s2.Encode(nil, part[:999]), int64(len(s2.Encode(nil, part[:999]))), packing},
		"bad: packed to far more":   {s2.Encode(nil, words(8<<20))[:900], 900, packing},
		"bad: packed to 4 GiB":      {[]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}, 6, packing},
		"bad: nothing":              {nil, 0, packing},
		"bad: of no size":           {packed, -1, packing},
		"bad: packed as other":      {packed, int64(len(packed)), "zip"},
		"bad: packed, and not said": {packed, int64(len(packed)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			into := make([]byte, 1000, 2000)
			err := readPart(into, bytes.NewReader(tt.body), tt.size, tt.as)
			if good := !strings.HasPrefix(name, "bad"); good != (err == nil) || good && !bytes.Equal(into, part) {
				t.Error(err)
			}
			if !zero(into[1000:2000]) {
				t.Error("it writes beyond the part")
			}
		})
	}
}

// FuzzUnpack: whatever a node sends as a part writes that part, or is refused.
func FuzzUnpack(f *testing.F) {
	for _, part := range [][]byte{words(5000), noise(1, 300), make([]byte, 70000), nil} {
		f.Add(len(part), s2.Encode(nil, part))
	}
	f.Add(10, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Fuzz(func(t *testing.T, size int, packed []byte) {
		if size < 0 || size > servedMost {
			return
		}
		into := make([]byte, size, size+64)
		if err := unpack(into, packed); err != nil {
			return
		}
		if !zero(into[size : size+64]) {
			t.Error("it writes beyond the part")
		}
		if again := make([]byte, size); unpack(again, s2.Encode(nil, into)) != nil || !bytes.Equal(again, into) {
			t.Error("what was unpacked is another when it was packed")
		}
	})
}

// TestPace: parts are asked for in the way in which they come quicker, also when that changes.
func TestPace(t *testing.T) {
	var p pace
	ask := func(n int, plain, packed time.Duration) (asPacked int) {
		for range n {
			packs := p.packs()
			took := plain
			if packs {
				took = packed
				asPacked++
			}
			p.took(packs, snapshotPiece, took)
		}
		return asPacked
	}
	if n := ask(2, 10*time.Millisecond, 5*time.Millisecond); n != 1 {
		t.Errorf("of the first two %d are packed, not one", n)
	}
	for _, tt := range []struct {
		name          string
		plain, packed time.Duration
		packs         bool
	}{
		{"a slow link", 10 * time.Millisecond, 5 * time.Millisecond, true},
		{"a fast one", time.Millisecond, 5 * time.Millisecond, false},
		{"what packs badly over a slow one", 10 * time.Millisecond, 11 * time.Millisecond, false},
		{"what packs well again", 10 * time.Millisecond, 2 * time.Millisecond, true},
	} {
		ask(4*retry, tt.plain, tt.packed) // it finds out
		want := retry
		if tt.packs {
			want = 9 * retry
		}
		if n := ask(10*retry, tt.plain, tt.packed); n < want-retry || n > want+retry {
			t.Errorf("%s: of %d parts %d are packed", tt.name, 10*retry, n)
		}
	}
}
