// Package archive packs trees of files into tar streams and unpacks them. It
// never writes outside the directory that it unpacks into, whatever the
// archive says.
package archive

import (
	"context"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	bufSize = 256 << 10
	// maxEntries bounds what is remembered of one archive.
	maxEntries = 1 << 20
	// maxName and maxLevels bound a path, in bytes and in names; each directory that is
	// open on the way costs a descriptor.
	maxName   = 4096
	maxLevels = 256
	// xattrPrefix marks extended attributes in PAX records.
	xattrPrefix = "SCHILY.xattr."
	// maxXattr is what the kernel lets a list or a value measure.
	maxXattr = 64 << 10
)

// FormatError says what is wrong with an archive.
type FormatError struct{ Reason string }

func (e *FormatError) Error() string { return e.Reason }

// Copy makes a copy of what is at path, under its own name, in the directory
// dir: owners, modes, times, links and user attributes stay. It fails where a
// tree has what a tar cannot carry.
func Copy(path, dir string) error {
	r, w := io.Pipe()
	go func() {
		p := Packer{Strict: true}
		w.CloseWithError(p.Pack(w, path, base(path)))
	}()
	_, err := Unpack(context.Background(), r, dir, nil)
	_ = r.CloseWithError(err) // lets the packer go
	return err
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// userXattrs returns the user.* attributes of what is at a path.
func userXattrs(path string) map[string]string {
	return attributes(
		func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) },
		func(name string, buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) })
}

// xattrsOf returns those of an open file.
func xattrsOf(f *os.File) map[string]string {
	return attributes(
		func(buf []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buf) },
		func(name string, buf []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buf) })
}

func attributes(list func([]byte) (int, error), get func(string, []byte) (int, error)) map[string]string {
	buf := make([]byte, 256)
	n, err := list(buf)
	if err == syscall.ERANGE {
		buf = make([]byte, maxXattr)
		n, err = list(buf)
	}
	if err != nil || n == 0 {
		return nil
	}
	var m map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		// PAX keys cannot hold "=".
		if !strings.HasPrefix(name, "user.") || strings.Contains(name, "=") {
			continue
		}
		value := make([]byte, maxXattr)
		n, err := get(name, value)
		if err != nil {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[xattrPrefix+name] = string(value[:n])
	}
	return m
}
