package interp

import (
	"errors"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// output is our end of a kernel's standard output or error.
type output struct {
	name string
	fd   int    // -1 after the end
	half []byte // of a character
}

// newOutput makes a pipe and returns also its other end.
func newOutput(name string) (*output, *os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	o, theirs := &output{name: name, fd: p[0]}, os.NewFile(uintptr(p[1]), name)
	if err := unix.SetNonblock(o.fd, true); err != nil {
		o.close()
		_ = theirs.Close()
		return nil, nil, err
	}
	return o, theirs, nil
}

// read returns the text that is there now. A character that is not whole yet
// is kept for the next time.
func (o *output) read(buf []byte) string {
	if o.fd < 0 {
		return ""
	}
	n, err := readSome(o.fd, buf)
	if err != nil { // the other end is closed
		o.close()
	}
	data := append(o.half, buf[:n]...)
	whole := len(data)
	if err == nil {
		whole -= incomplete(data)
	}
	o.half = append([]byte(nil), data[whole:]...)
	return strings.ToValidUTF8(string(data[:whole]), "\uFFFD")
}

func (o *output) close() {
	if o.fd >= 0 {
		_ = unix.Close(o.fd)
		o.fd = -1
	}
}

// incomplete is the length of a character's beginning at the end of data.
func incomplete(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// errEnd says that a pipe has no writer left.
var errEnd = errors.New("end of the pipe")

// readSome reads what is there, which may be nothing.
func readSome(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		case err != nil:
			return 0, err
		case n == 0:
			return 0, errEnd
		default:
			return n, nil
		}
	}
}
