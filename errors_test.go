package cay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cay-run/cay"
)

func TestErrorsKeepTheirCause(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{cay.Errorf(cay.Internal, "read it: %w", io.ErrUnexpectedEOF), "read it: unexpected EOF"},
		{cay.Errorf(cay.Internal, "%w while it was read", io.ErrUnexpectedEOF), "unexpected EOF while it was read: unexpected EOF"},
		{cay.Wrap(cay.Internal, io.ErrUnexpectedEOF, "read it"), "read it: unexpected EOF"},
		{fmt.Errorf("outer: %w", cay.Errorf(cay.Conflict, "inner: %w", io.ErrUnexpectedEOF)), "outer: inner: unexpected EOF"},
	} {
		if !errors.Is(tt.err, io.ErrUnexpectedEOF) || tt.err.Error() != tt.want {
			t.Errorf("%q, want %q; its cause is lost: %v", tt.err, tt.want, !errors.Is(tt.err, io.ErrUnexpectedEOF))
		}
	}
	if err := cay.Errorf(cay.Internal, "read it: %v", context.Canceled); errors.Is(err, context.Canceled) {
		t.Error("a text became a cause")
	}
}
