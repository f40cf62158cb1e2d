package nettest

import "testing"

// TestClaimIsExclusive takes every number at once, and one more that waits for
// the first to be given back.
func TestClaimIsExclusive(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	seen := map[byte]bool{}
	waited := make(chan byte)
	t.Run("all", func(sub *testing.T) {
		for range numbers {
			n := Claim(sub)
			if seen[n] || n%2 == 0 || n >= 64 {
				t.Errorf("claimed %d, having %v", n, seen)
			}
			seen[n] = true
		}
		go func() { waited <- Claim(t) }()
		select {
		case n := <-waited:
			t.Errorf("claimed %d while all were taken", n)
		default:
		}
	})
	if n := <-waited; !seen[n] {
		t.Errorf("got %d, which was not given back", n)
	}
}
