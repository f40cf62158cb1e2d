// Package tty is the terminal that the program runs on.
package tty

import (
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// Raw is a terminal that sends every key to a sandbox.
type Raw struct {
	// Restore gives it its old ways back, once.
	Restore func()
}

// MakeRaw makes a terminal raw until Restore.
func MakeRaw(f *os.File) (*Raw, error) {
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the terminal cannot be made raw")
	}
	return &Raw{Restore: sync.OnceFunc(func() {
		_ = term.Restore(int(f.Fd()), before) // fails where the terminal is gone
	})}, nil
}

// Background runs f beside its caller. A panic there would end the program
// without the deferred calls of other goroutines, and leave the terminal raw.
func (t *Raw) Background(f func()) {
	go func() {
		defer func() {
			if r := recover(); r != nil {
				t.Restore()
				panic(r)
			}
		}()
		f()
	}()
}

// Size is a terminal's, in characters.
func Size(f *os.File) (client.Size, error) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	return client.Size{Columns: uint32(columns), Rows: uint32(rows)}, err
}
