package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

// maxLine bounds a message of a server. Nothing longer is kept.
const maxLine = 8 << 20

// lines reads the messages of a server, one a line.
type lines struct {
	in   *bufio.Reader
	most int
	buf  []byte
}

func newLines(r io.Reader, most int) *lines {
	return &lines{in: bufio.NewReaderSize(r, 64<<10), most: most}
}

// next returns a line without its end, which is good until the next call. Of one
// that is too long it returns nothing but its length and, where there is one,
// the id of the request that it answers.
func (l *lines) next() (line []byte, long *tooLong, err error) {
	l.buf = l.buf[:0]
	var id idScanner
	length := 0
	for {
		part, err := l.in.ReadSlice('\n')
		length += len(part)
		if length > l.most {
			if len(l.buf) > 0 {
				id.write(l.buf)
				l.buf = nil // a large one is not kept for what comes next
			}
			id.write(part)
		} else {
			l.buf = append(l.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && length == 0:
			return nil, nil, err
		case length > l.most:
			return nil, &tooLong{length: length, id: id.number()}, nil
		}
		return bytes.TrimSpace(l.buf), nil, nil // the end of the stream ends a line, too
	}
}

// tooLong is a message that was not kept.
type tooLong struct {
	length int
	id     int64 // of the request that it answers; 0 for none
}

// idScanner finds the id of a JSON-RPC message that is too long to be kept: the
// number under "id" in the outermost object. It keeps a few bytes.
type idScanner struct {
	depth  int
	str    bool   // within a string
	escape bool   // after a backslash in it
	text   []byte // of the string or number at the outermost level
	key    string // whose value is read
	id     string
	found  bool
}

// maxText is the longest key or id that is looked at.
const maxText = 24

func (s *idScanner) write(p []byte) {
	for _, b := range p {
		if s.str {
			s.inString(b)
			continue
		}
		switch b {
		case '"':
			s.str, s.text = true, s.text[:0]
		case '{', '[':
			s.depth++
			s.text = s.text[:0]
		case '}', ']':
			s.value()
			s.depth--
		case ',':
			s.value()
		case ':':
			if s.depth == 1 {
				s.key, s.text = string(s.text), s.text[:0]
			}
		case ' ', '\t', '\r', '\n':
		default:
			s.keep(b)
		}
	}
}

func (s *idScanner) inString(b byte) {
	switch {
	case s.escape:
		s.escape = false
		s.keep(b)
	case b == '\\':
		s.escape = true
		s.keep(b)
	case b == '"':
		s.str = false
		if s.depth == 1 && s.key != "" {
			s.text = s.text[:0] // the value is a string: no id of ours
		}
	default:
		s.keep(b)
	}
}

func (s *idScanner) keep(b byte) {
	if s.depth == 1 && len(s.text) <= maxText {
		s.text = append(s.text, b)
	}
}

// value ends a value of the outermost object.
func (s *idScanner) value() {
	if s.depth != 1 {
		return
	}
	if s.key == "id" && !s.found {
		s.id, s.found = string(s.text), true
	}
	s.key, s.text = "", s.text[:0]
}

func (s *idScanner) number() int64 {
	n, err := strconv.ParseInt(s.id, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
