package cay

import "context"

type durableKey struct{}

// WithDurable says that what is saved is waited for until it has a copy.
func WithDurable(ctx context.Context) context.Context {
	return context.WithValue(ctx, durableKey{}, true)
}

// Durable reports whether a copy of what is saved is waited for.
func Durable(ctx context.Context) bool { return ctx.Value(durableKey{}) != nil }
