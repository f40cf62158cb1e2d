// Package nettest lets tests that lay routes on this machine keep out of each
// other's way, within a process and between processes.
package nettest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// numbers is how many there are: 192.88.99.0/24, which 6to4 relays had and
// which is unused now, holds four addresses for each.
const numbers = 16

// Claim returns a number n that no other test on this machine has until t is
// over, so that 192.88.99.n, n|0x40, n|0x80 and n|0xc0 are t's own. It is odd
// and below 64. When all are taken it waits for one.
func Claim(t testing.TB) byte {
	t.Helper()
	first := rand.IntN(numbers)
	for i := range numbers {
		k := (first + i) % numbers
		if lock(t, k, unix.LOCK_EX|unix.LOCK_NB) {
			return number(k)
		}
	}
	lock(t, first, unix.LOCK_EX)
	return number(first)
}

func number(k int) byte { return byte(4*k + 1) }

// lock takes a number by a lock on a file, which ends with the process at the
// latest. The files stay: removing one would race with a process that opens it.
func lock(t testing.TB, k int, how int) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("cay-nettest-%d", k)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			break
		}
	}
	switch err {
	case nil:
		t.Cleanup(func() { f.Close() })
		return true
	case unix.EWOULDBLOCK:
		f.Close()
		return false
	default:
		f.Close()
		t.Fatalf("lock %s: %v", f.Name(), err)
		return false
	}
}
