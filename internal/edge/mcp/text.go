package mcp

import (
	"fmt"
	"unicode/utf8"
)

// maxText bounds the text of a result, in bytes; a model reads all of it.
const maxText = 25_000

// excerpt keeps the beginning and the end of what is written to it.
type excerpt struct {
	most  int // bytes that are kept
	head  []byte
	tail  []byte // the last bytes, once the head is full
	total int64
}

// Write implements io.Writer.
func (e *excerpt) Write(p []byte) (int, error) {
	n := len(p)
	e.total += int64(n)
	if room := e.most*2/3 - len(e.head); room > 0 {
		take := min(room, len(p))
		e.head, p = append(e.head, p[:take]...), p[take:]
	}
	e.tail = append(e.tail, p...)
	if over := len(e.tail) - e.most/3; over > e.most { // seldom, so that it costs little
		e.tail = append(e.tail[:0], e.tail[over:]...)
	}
	return n, nil
}

// cut reports whether something is left out.
func (e *excerpt) cut() bool { return e.total > int64(len(e.head)+min(len(e.tail), e.most/3)) }

// text is what was kept, as UTF-8, and says what is left out.
func (e *excerpt) text() string {
	tail := e.tail[max(0, len(e.tail)-e.most/3):]
	left := e.total - int64(len(e.head)+len(tail))
	if left == 0 {
		return readable(append(e.head[:len(e.head):len(e.head)], tail...))
	}
	return readable(e.head) + fmt.Sprintf("\n[… %d bytes are left out …]\n", left) + readable(tail)
}

// cut returns text of at most so many bytes, and says what is left out.
func cut(s string, most int) string {
	if len(s) <= most {
		return readable([]byte(s))
	}
	return readable([]byte(s[:most])) + fmt.Sprintf("\n[… %d bytes are left out]", len(s)-most)
}

// readable is bytes as UTF-8, each byte that is none replaced.
func readable(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out := make([]rune, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		out, b = append(out, r), b[n:]
	}
	return string(out)
}
