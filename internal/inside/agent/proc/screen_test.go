package proc

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
)

func screenOf(room int64) (*screen, *atomic.Int64) {
	var left atomic.Int64
	left.Store(room)
	return newScreen(&left), &left
}

// A screen keeps the newest bytes, whatever sizes they come in.
func TestScreenKeepsTheNewest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, room := screenOf(screensMax)
	var all strings.Builder
	for i := 0; all.Len() < 3*screenMax; i++ {
		var part strings.Builder
		for part.Len() < r.IntN(20<<10) {
			fmt.Fprintf(&part, "line %d of many\r\n", i)
		}
		if i == 40 { // more at once than is kept
			part.WriteString(strings.Repeat("0123456789\r\n", screenMax/10))
		}
		all.WriteString(part.String())
		s.write([]byte(part.String()))
		if i%5 != 0 {
			continue // what is wrong stays so until it is overwritten, many writes later
		}
		want := all.String()
		want = want[max(0, len(want)-len(s.ring)):]
		if got := string(s.replay()); got != want {
			t.Fatalf("after %d writes: %d bytes, want the newest %d", i, len(got), len(want))
		}
	}
	if len(s.ring) != screenMax || room.Load() != screensMax-screenMax {
		t.Errorf("it has %d bytes, and %d are left", len(s.ring), room.Load())
	}
	s.free()
	s.write([]byte("late"))
	if room.Load() != screensMax || len(s.replay()) != 0 {
		t.Errorf("after its end %d bytes are left of %d, and it shows %q", room.Load(), screensMax, s.replay())
	}
}

// Older output is known by the modes that it set, and no half of a sequence or
// of a character is shown.
func TestScreenBeginsWhole(t *testing.T) {
	for first, before := range map[string]string{
		"漢": "", "\u00e9": "", "\x1b[31m": "", "\x1b]2;title\x07": "", "\u009b31m": "", "\x1b(0": "", "\x1b[?1049h": "\x1b[?1049h",
	} {
		s, _ := screenOf(screenMin)
		s.write([]byte(first + strings.Repeat("x", screenMin-len(first))))
		for k := range len(first) {
			s.write([]byte("x"))
			if got, want := string(s.replay()), before+strings.Repeat("x", screenMin-len(first)+k+1); got != want {
				t.Errorf("%q without its first %d bytes: %.20q…, %d bytes, want %d", first, k+1, got, len(got), len(want))
			}
		}
	}
	// Without room, nothing is kept but the modes.
	s, room := screenOf(screenMin - 1)
	s.write([]byte("a\x1b[?2004hb"))
	if got := string(s.replay()); got != "\x1b[?2004h" || room.Load() != screenMin-1 {
		t.Errorf("without room: %q, %d left", got, room.Load())
	}
}

func BenchmarkScreen(b *testing.B) {
	part := []byte(strings.Repeat("\x1b[32mok\x1b[0m a line of a build that says what it does\r\n", 300))
	s, _ := screenOf(screensMax)
	b.SetBytes(int64(len(part)))
	for b.Loop() {
		s.write(part)
	}
}
