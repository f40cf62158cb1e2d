package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cay-run/cay"
)

// Error is the error of work with files, with the name of the work. The
// error of a full disk names the disk: a host has several.
func Error(err error, format string, args ...any) *cay.Error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return cay.Wrap(cay.Internal, err, format, args...)
	}
	out := cay.Wrap(cay.NoSpace, err, format, args...)
	if path := pathIn(err); path != "" {
		out.Msg += ": the disk at " + mountOf(path) + " is full"
	} else {
		out.Msg += ": the server's disk is full"
	}
	return out.WithHint("%s", Cure)
}

// pathIn is the absolute path that an error names, or nothing.
func pathIn(err error) string {
	var one *fs.PathError
	var two *os.LinkError
	path := ""
	switch {
	case errors.As(err, &one):
		path = one.Path
	case errors.As(err, &two):
		path = two.New
	}
	if !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// mountOf is the topmost directory on the disk of a path, which may be gone.
func mountOf(path string) string {
	device := func(path string) (uint64, bool) {
		var st syscall.Stat_t
		err := syscall.Stat(path, &st)
		return uint64(st.Dev), err == nil
	}
	path = filepath.Clean(path)
	here, ok := device(path)
	for ; !ok && path != "/"; here, ok = device(path) {
		path = filepath.Dir(path)
	}
	for path != "/" {
		above := filepath.Dir(path)
		if there, ok := device(above); !ok || there != here {
			break
		}
		path = above
	}
	return path
}
