package engine

import "context"

type writtenKey struct{}

// WithWritten has Checkpoint call written when it has written a memory, before the disk has it and
// Checkpoint returns: its files do not change any more, and others may follow. An engine may leave
// it out.
func WithWritten(ctx context.Context, written func()) context.Context {
	return context.WithValue(ctx, writtenKey{}, written)
}

// Written calls what WithWritten was given.
func Written(ctx context.Context) {
	if written, ok := ctx.Value(writtenKey{}).(func()); ok {
		written()
	}
}
