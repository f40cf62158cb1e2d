package runsc

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/cay-run/cay/internal/machine/engine"
)

func TestWidened(t *testing.T) {
	for _, tc := range []struct {
		name       string
		near       uint64
		parts, out []part
	}{
		{"nothing", 4, nil, nil},
		{"one", 4, []part{{7, 9}}, []part{{7, 9}}},
		{"neighbours", 0, []part{{0, 1}, {1, 2}}, []part{{0, 2}}},
		{"a gap that is just near", 4, []part{{0, 1}, {5, 6}}, []part{{0, 6}}},
		{"a gap that is not", 4, []part{{0, 1}, {6, 7}}, []part{{0, 1}, {6, 7}}},
		{"several, of which some are near", 2, []part{{10, 11}, {12, 13}, {15, 20}, {23, 24}, {1000, 1001}}, []part{{10, 20}, {23, 24}, {1000, 1001}}},
		{"none is near", 0, []part{{1, 2}, {3, 4}}, []part{{1, 2}, {3, 4}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := decodeSet(widened(encodeSet(tc.parts), tc.near))
			if !ok || !slices.Equal(got, tc.out) {
				t.Errorf("%v, %v, want %v", got, ok, tc.out)
			}
		})
	}
	set := encodeSet([]part{{1, 2}, {3, 4}})
	damaged := bytes.Clone(set)
	damaged[len(damaged)/2] ^= 1
	for name, text := range map[string][]byte{
		"empty": {}, "damaged": damaged, "cut off": set[:len(set)-1], "another form": []byte("something else\n"),
		"large": make([]byte, engine.MaxWorkingSet+1),
	} {
		if got := widened(text, 4); !bytes.Equal(got, text) {
			t.Errorf("%s: changed to %d bytes", name, len(got))
		}
	}
}

// TestFormOfSets: the bytes are those of patch 0020.
func TestFormOfSets(t *testing.T) {
	text, err := hex.DecodeString("63617977730031" + "0a" + "0001" + "0202" + "8001" + "03")
	if err != nil {
		t.Fatal(err)
	}
	want := encodeSet([]part{{0, 1}, {3, 5}, {133, 136}})
	if !bytes.Equal(want[:len(want)-4], text) {
		t.Errorf("encoded as %x, want %x and a checksum", want, text)
	}
}

func FuzzWidened(f *testing.F) {
	f.Add([]byte{}, uint64(0))
	f.Add(encodeSet([]part{{1, 2}, {4, 9}, {1 << 20, 1<<20 + 5}}), uint64(16))
	f.Add([]byte(setMagic+"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01aaaa"), uint64(3))
	f.Fuzz(func(t *testing.T, text []byte, near uint64) {
		near %= 1 << 16
		before, ok := decodeSet(text)
		after, still := decodeSet(widened(text, near))
		if ok != still {
			t.Fatalf("%v before and %v after", ok, still)
		}
		var last uint64
		for i, p := range after {
			if i > 0 && p.start-last <= near || p.end <= p.start {
				t.Errorf("part %v after one that ends at %d", p, last)
			}
			last = p.end
		}
		for _, b := range before {
			if !slices.ContainsFunc(after, func(a part) bool { return a.start <= b.start && b.end <= a.end }) {
				t.Errorf("%v is lost", b)
			}
		}
	})
}
