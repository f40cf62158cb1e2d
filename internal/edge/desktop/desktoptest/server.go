// Package desktoptest has a VNC server for tests: a picture that they paint, and the
// input that it was sent.
package desktoptest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
)

// Server is a VNC server, of RFB 3.8, without security. Its methods are safe for
// concurrent use.
type Server struct {
	mu     sync.Mutex
	w, h   int
	pix    []byte // blue, green, red and nothing
	conns  int
	sent   int64
	events [][]byte
	heard  chan struct{}
	lines  map[*line]bool
}

// line is one connection.
type line struct {
	wants  bool
	dirty  [4]int // from x, y to x, y
	poke   chan struct{}
	closed chan struct{}
}

// New returns a server whose screen is grey.
func New(w, h int) *Server {
	s := &Server{w: w, h: h, pix: make([]byte, w*h*4), heard: make(chan struct{}, 1), lines: map[*line]bool{}}
	for i := range s.pix {
		s.pix[i] = 0x50
	}
	return s
}

// Paint fills a rectangle, and shows it.
func (s *Server) Paint(x, y, w, h int, red, green, blue byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, y = max(x, 0), max(y, 0)
	x2, y2 := min(x+w, s.w), min(y+h, s.h)
	for row := y; row < y2; row++ {
		for column := x; column < x2; column++ {
			copy(s.pix[(row*s.w+column)*4:], []byte{blue, green, red})
		}
	}
	for l := range s.lines {
		if l.dirty == [4]int{} {
			l.dirty = [4]int{x, y, x2, y2}
		} else {
			l.dirty = [4]int{min(l.dirty[0], x), min(l.dirty[1], y), max(l.dirty[2], x2), max(l.dirty[3], y2)}
		}
		l.rouse()
	}
}

func (l *line) rouse() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// Conns is how many connections there were.
func (s *Server) Conns() int { s.mu.Lock(); defer s.mu.Unlock(); return s.conns }

// Sent is how many bytes of pictures were sent.
func (s *Server) Sent() int64 { s.mu.Lock(); defer s.mu.Unlock(); return s.sent }

// Events are the keys, movements and texts that came, as RFB has them.
func (s *Server) Events() [][]byte { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.events) }

// Heard holds one when there may be new events.
func (s *Server) Heard() <-chan struct{} { return s.heard }

// Serve serves a connection to its end.
func (s *Server) Serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	if !s.greet(r, c) {
		return
	}
	l := &line{poke: make(chan struct{}, 1), closed: make(chan struct{})}
	s.mu.Lock()
	s.conns++
	s.lines[l] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.lines, l)
		s.mu.Unlock()
		close(l.closed)
	}()
	go s.send(c, l)
	s.read(r, l)
}

func (s *Server) greet(r io.Reader, c io.Writer) bool {
	var b [12]byte
	_, _ = io.WriteString(c, "RFB 003.008\n")
	if _, err := io.ReadFull(r, b[:12]); err != nil {
		return false
	}
	_, _ = c.Write([]byte{1, 1})
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return false
	}
	_, _ = c.Write([]byte{0, 0, 0, 0})
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return false
	}
	head := binary.BigEndian.AppendUint16(nil, uint16(s.w))
	head = binary.BigEndian.AppendUint16(head, uint16(s.h))
	head = append(head, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0, 0, 0, 0, 4)
	_, err := c.Write(append(head, "test"...))
	return err == nil
}

func (s *Server) send(c net.Conn, l *line) {
	for {
		select {
		case <-l.poke:
		case <-l.closed:
			return
		}
		s.mu.Lock()
		d := l.dirty
		if !l.wants || d == [4]int{} {
			s.mu.Unlock()
			continue
		}
		l.wants, l.dirty = false, [4]int{}
		out := []byte{0, 0, 0, 1}
		for _, n := range []int{d[0], d[1], d[2] - d[0], d[3] - d[1]} {
			out = binary.BigEndian.AppendUint16(out, uint16(n))
		}
		out = append(out, 0, 0, 0, 0)
		for y := d[1]; y < d[3]; y++ {
			out = append(out, s.pix[(y*s.w+d[0])*4:(y*s.w+d[2])*4]...)
		}
		s.sent += int64(len(out))
		s.mu.Unlock()
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// sizes are those of clients' messages, after the first byte.
var sizes = map[byte]int{0: 19, 3: 9, 4: 7, 5: 5}

func (s *Server) read(r *bufio.Reader, l *line) {
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return
		}
		n := sizes[kind]
		switch kind {
		case 2:
			head, err := r.Peek(3)
			if err != nil {
				return
			}
			n = 3 + 4*int(binary.BigEndian.Uint16(head[1:]))
		case 6:
			head, err := r.Peek(7)
			if err != nil {
				return
			}
			n = 7 + int(binary.BigEndian.Uint32(head[3:]))
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil || n == 0 {
			return
		}
		s.mu.Lock()
		switch kind {
		case 3:
			if l.wants = true; body[0] == 0 {
				l.dirty = [4]int{0, 0, s.w, s.h}
			}
			l.rouse()
		case 4, 5, 6:
			s.events = append(s.events, append([]byte{kind}, body...))
			select {
			case s.heard <- struct{}{}:
			default:
			}
		}
		s.mu.Unlock()
	}
}
