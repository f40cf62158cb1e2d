package desktop

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cay-run/cay"
)

const (
	// frameTime is the shortest time between two requests for what is new.
	frameTime = 33 * time.Millisecond
	// shakeWithin bounds the begin of a conversation, and sendWithin one message to
	// a guest that may not read.
	shakeWithin = 10 * time.Second
	sendWithin  = 5 * time.Second
	// budget is how much of a guest's picture is worked through in budgetTime, in
	// bytes: a guest that sends without end costs the host no more.
	budget     = 8 << 20
	budgetTime = 100 * time.Millisecond
	// chunk is how many bytes of pixels are read before they are put into the
	// picture.
	chunk = 64 << 10
)

var errNonsense = cay.Errorf(cay.Unavailable, "the VNC server of the sandbox sends what is not RFB")

// follow connects to the guest's VNC server, has one start where there is none, and
// keeps the picture up to date until the connection ends.
func (s *screen) follow() error {
	conn, err := s.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()
	r := &reader{Reader: bufio.NewReaderSize(conn, chunk)}
	_ = conn.SetDeadline(time.Now().Add(shakeWithin))
	w, h, name, err := greet(r, conn)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	s.mu.Lock()
	s.name, err = name, s.size(w, h)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.conn = conn
	wants := []int32{encodingCopy, encodingRaw, encodingSize}
	ask := append([]byte{toServerFormat, 0, 0, 0}, ours.wire()...)
	ask = append(ask, toServerEncodings, 0, 0, byte(len(wants)))
	for _, e := range wants {
		ask = binary.BigEndian.AppendUint32(ask, uint32(e))
	}
	s.send(ask)
	s.request(false)
	close(s.ready)
	return s.read(r)
}

func (s *screen) connect() (net.Conn, error) {
	conn, err := s.of.cfg.Dial(s.ctx, s.box.ID, Port)
	if err == nil {
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, beginWithin)
	defer cancel()
	if err := s.of.begin(ctx, s.box); err != nil {
		return nil, err
	}
	return s.of.cfg.Dial(ctx, s.box.ID, Port)
}

// greet begins a conversation with a VNC server, as a client that shares it.
func greet(r *reader, w io.Writer) (width, height int, name string, err error) {
	version := string(r.next(len(versionText)))
	if r.err != nil || version[:8] != "RFB 003." || version[11] != '\n' {
		return 0, 0, "", errNonsense
	}
	minor := 8
	switch version[8:11] {
	case "003":
		minor = 3
	case "007":
		minor = 7
	}
	if _, err := io.WriteString(w, version[:8]+"00"+string(rune('0'+minor))+"\n"); err != nil {
		return 0, 0, "", err
	}
	if err := secure(r, w, minor); err != nil {
		return 0, 0, "", err
	}
	if _, err := w.Write([]byte{1}); err != nil { // with other clients
		return 0, 0, "", err
	}
	width, height = r.u16(), r.u16()
	r.next(16) // its format: ours is asked for
	text := r.text()
	if r.err != nil {
		return 0, 0, "", errNonsense
	}
	if err := fits(width, height); err != nil {
		return 0, 0, "", err
	}
	return width, height, cay.Fit(string(text), 200), nil
}

// secure agrees that there is no security: the way here is closed to others.
func secure(r *reader, w io.Writer, minor int) error {
	if minor == 3 {
		if r.u32() != securityNone || r.err != nil {
			return errSecured
		}
		return nil
	}
	n := r.u8()
	kinds := make([]byte, 0, n)
	for range n {
		kinds = append(kinds, byte(r.u8()))
	}
	if r.err != nil {
		return errNonsense
	}
	if !slices.Contains(kinds, securityNone) {
		return errSecured
	}
	if _, err := w.Write([]byte{securityNone}); err != nil {
		return err
	}
	if minor == 8 && r.u32() != 0 || r.err != nil {
		return errNonsense
	}
	return nil
}

var errSecured = cay.Errorf(cay.Conflict, "the VNC server of the sandbox asks for a password, or refuses").
	WithHint("start it without one: only the server reaches it")

// fits bounds the size of a screen.
func fits(w, h int) error {
	if w < 1 || h < 1 || w > maxSide || h > maxSide || w*h > maxPixels {
		return cay.Errorf(cay.Unavailable, "a screen of %d × %d pixels cannot be shown: it has at most %d", w, h, maxPixels)
	}
	return nil
}

// send passes a message to the guest, after one on its way. A guest that does not
// read loses its viewers.
func (s *screen) send(message []byte) {
	if len(message) == 0 {
		return
	}
	s.out.Lock()
	defer s.out.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(sendWithin))
	if _, err := s.conn.Write(message); err != nil {
		s.conn.Close() // what reads there tells
	}
}

// request asks for what is new, or for all.
func (s *screen) request(news bool) {
	s.mu.Lock()
	w, h := s.frame.w, s.frame.h
	s.mu.Unlock()
	s.send(requestOf(news, rect{0, 0, w, h}))
}

func requestOf(news bool, r rect) []byte {
	out := []byte{toServerRequest, 0}
	if news {
		out[1] = 1
	}
	return append(out, r.head(0)[:8]...)
}

// pace bounds what is done for a guest.
type pace struct {
	spent int
	since time.Time
}

func (p *pace) spend(n int) {
	if p.spent += n; p.spent < budget {
		return
	}
	if left := budgetTime*time.Duration(p.spent/budget) - time.Since(p.since); left > 0 {
		time.Sleep(left)
	}
	p.spent, p.since = 0, time.Now()
}

// read keeps the picture up to date.
func (s *screen) read(r *reader) error {
	p := &pace{since: time.Now()}
	for {
		kind := r.u8()
		if r.err != nil {
			return r.err
		}
		p.spend(1 << 10)
		switch kind {
		case toClientUpdate:
			begun := time.Now()
			full, err := s.update(r, p)
			if err != nil {
				return err
			}
			select {
			case <-time.After(frameTime - time.Since(begun)):
			case <-s.ctx.Done():
				return nil
			}
			s.request(!full)
		case toClientColours:
			r.next(3)
			r.skip(6 * r.u16())
		case toClientBell:
		case toClientCut: // what a guest copies stays there
			r.next(3)
			n := r.u32()
			if n > maxText {
				return errNonsense
			}
			r.skip(n)
		default:
			return errNonsense
		}
		if r.err != nil {
			return r.err
		}
	}
}

// update takes what has changed, and reports whether the whole picture is to be asked
// for.
func (s *screen) update(r *reader, p *pace) (full bool, err error) {
	r.next(1)
	for range r.u16() {
		at, encoding := r.rect(), r.s32()
		if r.err != nil {
			return full, r.err
		}
		p.spend(1 << 10)
		switch encoding {
		case encodingRaw:
			err = s.pixels(r, at)
		case encodingCopy:
			err = s.copied(r, at)
		case encodingSize:
			full, err = true, s.resized(at.w, at.h)
		default:
			err = errNonsense
		}
		if err != nil {
			return full, err
		}
		p.spend(at.w * at.h * pixelBytes)
	}
	s.mu.Lock()
	s.wakeAll()
	s.mu.Unlock()
	return full, r.err
}

// pixels reads a rectangle of pixels. The guest may let the bytes wait: the picture
// is not held meanwhile.
func (s *screen) pixels(r *reader, at rect) error {
	s.mu.Lock()
	holds := s.frame.holds(at)
	s.mu.Unlock()
	if !holds {
		return errNonsense
	}
	if at.w == 0 || at.h == 0 {
		return nil
	}
	n := at.w * pixelBytes
	rows := make([]byte, max(1, min(at.h, chunk/n))*n)
	for y := at.y; y < at.y+at.h; {
		part := rows[:min(len(rows), (at.y+at.h-y)*n)]
		if _, err := io.ReadFull(r.Reader, part); err != nil {
			return err
		}
		s.mu.Lock()
		s.frame.write(at.x, y, at.w, part)
		s.frame.touch(rect{at.x, y, at.w, len(part) / n})
		s.mu.Unlock()
		y += len(part) / n
	}
	return nil
}

func (s *screen) copied(r *reader, at rect) error {
	x, y := r.u16(), r.u16()
	if r.err != nil {
		return r.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.frame.holds(at) || !s.frame.holds(rect{x, y, at.w, at.h}) {
		return errNonsense
	}
	s.frame.move(at, x, y)
	s.frame.touch(at)
	return nil
}

func (s *screen) resized(w, h int) error {
	if err := fits(w, h); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.size(w, h); err != nil {
		return err
	}
	s.told()
	return nil
}
