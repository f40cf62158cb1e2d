package fs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/internal/inside/agent/user"
)

// fault is an error with its place on both wires.
type fault struct {
	status int
	code   connect.Code
	msg    string
	err    error // the cause, for errors.Is
}

func (f *fault) Error() string { return f.msg }
func (f *fault) Unwrap() error { return f.err }

func invalid(format string, args ...any) error {
	return &fault{status: http.StatusBadRequest, code: connect.CodeInvalidArgument, msg: fmt.Sprintf(format, args...)}
}

func unauthorized(msg string) error {
	return &fault{status: http.StatusUnauthorized, code: connect.CodeUnauthenticated, msg: msg}
}

// missing says that a path does not exist. SDK tests compare the plain HTTP
// text; other integrations look for "not found", which RPC texts add.
func missing(path string) error {
	return &fault{
		status: http.StatusNotFound, code: connect.CodeNotFound,
		msg: fmt.Sprintf("path '%s' does not exist", path), err: fs.ErrNotExist,
	}
}

func noSpace(msg string) error {
	return &fault{status: http.StatusInsufficientStorage, code: connect.CodeResourceExhausted, msg: msg, err: syscall.ENOSPC}
}

func tooMany(format string, args ...any) error {
	return &fault{status: http.StatusTooManyRequests, code: connect.CodeResourceExhausted, msg: fmt.Sprintf(format, args...)}
}

// accountError places the failure of an account's lookup.
func accountError(err error) error {
	var unknown *user.UnknownError
	if errors.As(err, &unknown) {
		return unauthorized(unknown.Error())
	}
	return &fault{status: http.StatusInternalServerError, code: connect.CodeInternal, msg: "accounts cannot be read: " + err.Error(), err: err}
}

// pathFault places the failure of an operation on path.
func pathFault(path string, err error) error {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return &fault{status: http.StatusInternalServerError, code: connect.CodeInternal, msg: err.Error(), err: err}
	}
	at := func(status int, code connect.Code) error {
		return &fault{status: status, code: code, msg: fmt.Sprintf("path '%s': %s", path, errno.Error()), err: err}
	}
	switch errno {
	case syscall.ENOENT:
		return missing(path)
	case syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL,
		syscall.EEXIST, syscall.ENOTEMPTY, syscall.ENXIO, syscall.EOPNOTSUPP, syscall.ETXTBSY,
		syscall.EFBIG, syscall.EMLINK, syscall.EXDEV:
		return at(http.StatusBadRequest, connect.CodeInvalidArgument)
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return at(http.StatusForbidden, connect.CodePermissionDenied)
	case syscall.ENOSPC, syscall.EDQUOT:
		return noSpace(fmt.Sprintf("not enough disk space for '%s'", path))
	case syscall.EBUSY:
		return at(http.StatusConflict, connect.CodeFailedPrecondition)
	}
	return at(http.StatusInternalServerError, connect.CodeInternal)
}

// rpcError turns an error into one of the Connect service.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	var f *fault
	if !errors.As(pathFault("", err), &f) {
		return connect.NewError(connect.CodeInternal, err)
	}
	msg := f.msg
	if f.code == connect.CodeNotFound && !strings.Contains(msg, "not found") {
		msg = "not found: " + msg
	}
	return connect.NewError(f.code, errors.New(msg))
}
