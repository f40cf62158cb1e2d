package main

import (
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/cay-run/cay"
)

// rawTerminal is a terminal that sends every key to a sandbox.
type rawTerminal struct {
	// restore gives it its old ways back, once.
	restore func()
}

func makeRaw(f *os.File) (*rawTerminal, error) {
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the terminal cannot be made raw")
	}
	return &rawTerminal{restore: sync.OnceFunc(func() {
		_ = term.Restore(int(f.Fd()), before) // fails where the terminal is gone
	})}, nil
}

// background runs f beside its caller. A panic there would end the program
// without the deferred calls of other goroutines, and leave the terminal raw.
func (t *rawTerminal) background(f func()) {
	go func() {
		defer func() {
			if r := recover(); r != nil {
				t.restore()
				panic(r)
			}
		}()
		f()
	}()
}
