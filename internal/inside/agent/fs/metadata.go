package fs

import (
	"errors"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a file's metadata, which lives in extended attributes.
const (
	metadataHeader   = "X-Metadata-"
	metadataPrefix   = "user.e2b."
	maxMetadataKey   = 246 // with the prefix, the longest name of an attribute
	maxMetadataTotal = 4096
)

// headerMetadata returns the metadata that a request carries.
func headerMetadata(h http.Header) (map[string]string, error) {
	var m map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if key == "" || len(key) > maxMetadataKey || !printable(key) {
			return nil, invalid("metadata key '%.64s' is empty, longer than %d bytes or not printable ASCII", key, maxMetadataKey)
		}
		value := values[0]
		if !printable(value) {
			return nil, invalid("the metadata value of '%.64s' is not printable ASCII", key)
		}
		if total += len(key) + len(value); total > maxMetadataTotal {
			return nil, invalid("the metadata is larger than %d bytes", maxMetadataTotal)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
	}
	return m, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// replaceMetadata makes m all the metadata of a file. A new file has none to
// clear, so it is not touched where m is empty: each attribute that changes
// makes an event for watchers.
func replaceMetadata(f *os.File, m map[string]string, isNew bool) error {
	fd := int(f.Fd())
	if !isNew {
		for _, name := range attributes(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) }) {
			if _, keep := m[strings.TrimPrefix(name, metadataPrefix)]; keep || !strings.HasPrefix(name, metadataPrefix) {
				continue
			}
			if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
				return &os.PathError{Op: "removexattr", Path: f.Name(), Err: err}
			}
		}
	}
	for key, value := range m {
		if err := unix.Fsetxattr(fd, metadataPrefix+key, []byte(value), 0); err != nil {
			return &os.PathError{Op: "setxattr", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// readMetadata returns the metadata of the file at path, nil for none.
func readMetadata(path string) map[string]string {
	var m map[string]string
	for _, name := range attributes(func(b []byte) (int, error) { return unix.Llistxattr(path, b) }) {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		value := make([]byte, maxMetadataTotal)
		n, err := unix.Lgetxattr(path, name, value)
		// Others may have set what the wire cannot carry.
		if err != nil || !printable(key) || !printable(string(value[:n])) {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = string(value[:n])
	}
	return m
}

// attributes lists the names that a listxattr call gives. Most files have
// none, so the first try costs one system call.
func attributes(list func([]byte) (int, error)) []string {
	var small [256]byte
	buf := small[:]
	n, err := list(buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // the kernel's own limit
		n, err = list(buf)
	}
	if err != nil || n == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
}
