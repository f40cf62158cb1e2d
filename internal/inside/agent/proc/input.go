package proc

import (
	"context"
	"errors"
	"os"
	"time"
)

// errNoInput answers a write to an input that is not open.
var errNoInput = errors.New("stdin not enabled or closed")

// input is what a process reads: its standard input or its terminal. Writes
// wait for the process to take them, one writer at a time.
type input struct {
	file *os.File
	turn chan struct{}
}

func newInput(file *os.File) *input { return &input{file: file, turn: make(chan struct{}, 1)} }

// write writes all of b, unless ctx ends first.
func (i *input) write(ctx context.Context, b []byte) error {
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-i.turn }()

	// A deadline that has passed wakes the write.
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = i.file.SetWriteDeadline(time.Unix(1, 0)) // fails only where the file is closed, which wakes it too
		close(interrupted)
	})
	_, err := i.file.Write(b)
	if !stop() {
		<-interrupted
		_ = i.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case errors.Is(err, os.ErrClosed):
		return errNoInput
	}
	return err
}

// close ends the input. Closing again is no error.
func (i *input) close() error {
	if err := i.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
