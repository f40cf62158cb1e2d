package disk

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Shares says what counting block by block says.
func TestShares(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		all := make([][]Extent, dice.IntN(5))
		has := map[int64]map[int]bool{}
		for who := range all {
			for range dice.IntN(6) {
				e := Extent{dice.Int64N(40), dice.Int64N(15)}
				all[who] = append(all[who], e)
				for at := e.Start; at < e.Start+e.Bytes; at++ {
					if has[at] == nil {
						has[at] = map[int]bool{}
					}
					has[at][who] = true
				}
			}
		}
		wantOwn, wantShared := make([]int64, len(all)), make([]int64, len(all))
		for _, users := range has {
			for who := range users {
				if len(users) == 1 {
					wantOwn[who]++
				} else {
					wantShared[who]++
				}
			}
		}
		own, shared := Shares(all)
		if !slices.Equal(own, wantOwn) || !slices.Equal(shared, wantShared) {
			t.Fatalf("%v: own %v, want %v; shared %v, want %v", all, own, wantOwn, shared, wantShared)
		}
	}
}

// Where the file system tells, a file has all of its blocks at places of its
// own, and a hole has none.
func TestExtents(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const piece, pieces, apart = 8 << 10, fiemapAtOnce + 50, 64 << 10
	for i := range int64(pieces) {
		if _, err := f.WriteAt([]byte{1: 1, piece - 1: 1}, i*apart); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	got, err := Extents(name)
	if err != nil {
		t.Skipf("this file system does not tell: %v", err)
	}
	own, _ := Shares([][]Extent{got})
	if own[0] < piece*pieces || own[0] > Use(name) {
		t.Errorf("%d extents have %d bytes, the file %d", len(got), own[0], Use(name))
	}
	if _, err := Extents(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("what is not there is somewhere")
	}
}
