package cay

import "context"

type elsewhereKey struct{}

// WithElsewhere says that another node may be asked for what a request asks for: this one
// refuses where it could do it worse.
func WithElsewhere(ctx context.Context) context.Context {
	return context.WithValue(ctx, elsewhereKey{}, true)
}

// MayGoElsewhere reports whether another node may be asked.
func MayGoElsewhere(ctx context.Context) bool { return ctx.Value(elsewhereKey{}) != nil }
