package replica

import (
	"bytes"
	"testing"
)

// pieces cuts what is in an image.
func pieces(t testing.TB, k keys, content []byte) (out [][]byte) {
	t.Helper()
	noError(t, k.cutter(testCuts).cut(bytes.NewReader(content), func(plain []byte) error {
		out = append(out, plain)
		return nil
	}))
	return out
}

// Content that is moved by any number of blocks is cut where it was, but for its ends.
func TestCuts(t *testing.T) {
	common := noise(1, 512<<10)
	known := map[string]bool{}
	for _, piece := range pieces(t, newKey(), common) {
		known[string(piece)] = true
	}
	for name, content := range map[string][]byte{
		"behind another file":   append(noise(2, 5*blockSize), common...),
		"behind large ones":     append(noise(3, 100<<10), common...),
		"before one":            append(bytes.Clone(common), noise(4, 30<<10)...),
		"a block of it removed": append(bytes.Clone(common[:256<<10]), common[256<<10+blockSize:]...),
	} {
		alike, least, most := 0, len(content), 0
		all := pieces(t, newKey(), content)
		for i, piece := range all {
			if known[string(piece)] {
				alike += len(piece)
			}
			if most = max(most, len(piece)); i < len(all)-1 {
				least = min(least, len(piece))
			}
		}
		if alike < len(common)*8/10 || least < testCuts.least*blockSize || most > testCuts.most*blockSize {
			t.Errorf("%s: %d of %d bytes are in pieces of before, of %d to %d bytes", name, alike, len(common), least, most)
		}
		if !bytes.Equal(bytes.Join(all, nil), content) {
			t.Errorf("%s: the pieces are not the whole", name)
		}
	}
	other := 0
	for _, piece := range pieces(t, bytes.Repeat([]byte("o"), 32), common) {
		if known[string(piece)] {
			other++
		}
	}
	if other > len(known)/2 {
		t.Errorf("with another key %d of %d pieces are the same", other, len(known))
	}
}

// Files of any size are cut whole.
func TestCutsOfAnySize(t *testing.T) {
	least, most := testCuts.least*blockSize, testCuts.most*blockSize
	for _, size := range []int{0, 1, blockSize - 1, blockSize, blockSize + 1, least, most - 1, most, most + 1, 2*most + 5} {
		for name, content := range map[string][]byte{"zeros": make([]byte, size), "noise": noise(uint64(size), size)} {
			all := pieces(t, newKey(), content)
			if !bytes.Equal(bytes.Join(all, nil), content) {
				t.Errorf("%d bytes of %s: the pieces are not the whole", size, name)
			}
			for _, piece := range all {
				if len(piece) == 0 || len(piece) > most {
					t.Errorf("%d bytes of %s: a piece has %d bytes", size, name, len(piece))
				}
			}
		}
	}
}
