package oci

import (
	"errors"
	"syscall"

	"github.com/cay-run/cay"
)

// diskError is a failure of the store's own files.
func diskError(err error, format string, args ...any) error {
	kind := cay.Internal
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		kind = cay.NoSpace
	}
	return cay.Wrap(kind, err, format, args...)
}
