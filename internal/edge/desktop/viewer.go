package desktop

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/coder/websocket"

	"github.com/cay-run/cay"
)

const (
	// messageMost bounds one message of a viewer, in bytes.
	messageMost = 512 << 10
	// wordMost bounds what a viewer says of the control.
	wordMost = 1 << 10
	// writeWithin bounds one message to a viewer; one that takes longer is let go.
	writeWithin = 30 * time.Second
	// stillThere is after how long without news a viewer is asked whether it is there,
	// which also keeps proxies on the way from ending the connection.
	stillThere = 25 * time.Second
	// greetWithin bounds the begin of a viewer's conversation.
	greetWithin = 20 * time.Second
)

// viewer is one that looks at a screen. Its fields belong to the screen's lock, but
// for in and the first four, which do not change.
type viewer struct {
	id       int
	who      Person
	recorder bool
	wake     chan struct{} // holds one when there may be something new

	in *reader

	wants   bool        // it asked for what is new
	seen    uint64      // the newest change that it has
	w, h    int         // the size that it knows
	tight   bool        // it reads Tight
	resizes bool        // it takes another size
	format  pixelFormat // of its raw pixels
	version int         // of what it was told of the others
}

func (v *viewer) rouse() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Watch shows a sandbox's screen to a viewer at a websocket, to the end of one of
// them or of ctx. Binary messages are RFB 3.8 with the server at this end; text
// messages are JSON: State to the viewer, Word from it, and End as the last one.
func (d *Desktops) Watch(ctx context.Context, box Box, who Person, c *websocket.Conn) {
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(messageMost)
	// A websocket breaks when the context of a read ends: the last word comes before.
	over, finish := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	context.AfterFunc(over, func() {
		defer close(ended)
		d.end(ctx, c, context.Cause(over))
	})
	finish(d.watch(ctx, over, finish, box, who, c))
	<-ended
}

// watch is Watch but for the last word; it returns why it is over. Others that know
// tell finish.
func (d *Desktops) watch(ctx, over context.Context, finish context.CancelCauseFunc, box Box, who Person, c *websocket.Conn) error {
	s, err := d.enter(over, box)
	if err != nil {
		return err
	}
	defer d.leave(s)
	defer context.AfterFunc(s.ctx, func() { finish(context.Cause(s.ctx)) })()
	v := &viewer{who: who, format: ours}
	if err := s.admit(v); err != nil {
		return err
	}
	defer s.dismiss(v)
	line := &socket{ctx: ctx, c: c, said: func(w Word) { s.hear(v, w) }}
	v.in = &reader{Reader: line}
	greeted := time.AfterFunc(greetWithin, func() { finish(errViewer) })
	err = s.welcome(v, line)
	greeted.Stop()
	if err != nil {
		return err
	}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		finish(s.show(over, v, line))
	}()
	err = s.listen(v)
	finish(err)
	<-shown
	return err
}

var errViewer = cay.Errorf(cay.Invalid, "the viewer does not speak RFB 3.8")

// end says why it is over, where that is of the domain.
func (d *Desktops) end(ctx context.Context, c *websocket.Conn, err error) {
	e := End{Message: "the connection is over"}
	var known *cay.Error
	if errors.As(err, &known) && err != errUnwatched {
		e.Message, e.Code = known.Msg, string(known.Kind)
		if known.Hint != "" {
			e.Message += "; " + known.Hint
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	text, _ := json.Marshal(map[string]End{"end": e}) // it can be
	_ = c.Write(ctx, websocket.MessageText, text)     // the viewer may be gone
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// welcome begins a viewer's conversation, as a server.
func (s *screen) welcome(v *viewer, line io.Writer) error {
	if _, err := io.WriteString(line, versionText); err != nil {
		return err
	}
	if string(v.in.next(len(versionText))) != versionText {
		return errViewer
	}
	if _, err := line.Write([]byte{1, securityNone}); err != nil {
		return err
	}
	if v.in.u8() != securityNone {
		return errViewer
	}
	if _, err := line.Write([]byte{0, 0, 0, 0}); err != nil {
		return err
	}
	v.in.next(1) // others look on, whatever it says
	_, err := line.Write(s.introduce(v))
	return err
}

// introduce tells a viewer of the screen.
func (s *screen) introduce(v *viewer) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.w, v.h = s.frame.w, s.frame.h
	out := binary.BigEndian.AppendUint16(nil, uint16(v.w))
	out = binary.BigEndian.AppendUint16(out, uint16(v.h))
	out = append(out, ours.wire()...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(s.name)))
	return append(out, s.name...)
}

// show sends a viewer what is new, until ctx ends.
func (s *screen) show(ctx context.Context, v *viewer, line *socket) error {
	for {
		s.mu.Lock()
		state, picture, err := s.state(v), []byte(nil), error(nil)
		if v.wants {
			picture, err = s.picture(v)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if state != nil {
			text, err := json.Marshal(state)
			if err == nil {
				err = line.send(websocket.MessageText, text)
			}
			if err != nil {
				return err
			}
		}
		if picture != nil {
			if err := line.send(websocket.MessageBinary, picture); err != nil {
				return err
			}
		}
		if state != nil || picture != nil {
			continue
		}
		select {
		case <-v.wake:
		case <-time.After(stillThere):
			if err := line.ping(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// picture is an update with all that a viewer has not seen, nil for nothing. The
// caller holds s.mu.
func (s *screen) picture(v *viewer) ([]byte, error) {
	f := s.frame
	switch {
	case f.w == 0 || v.seen == f.seq:
		return nil, nil
	case v.w != f.w || v.h != f.h:
		if !v.resizes {
			return nil, cay.Errorf(cay.Conflict, "the screen has another size now, and the viewer cannot follow")
		}
		v.w, v.h, v.seen, v.wants = f.w, f.h, 0, false
		return append([]byte{toClientUpdate, 0, 0, 1}, rect{0, 0, f.w, f.h}.head(encodingSize)...), nil
	}
	out, n := []byte{toClientUpdate, 0, 0, 0}, 0
	for i := range f.tiles {
		if f.tiles[i].at <= v.seen {
			continue
		}
		n++
		if v.tight {
			out = append(out, s.packer.tile(f, i)...)
		} else {
			out = f.raw(i, v.format, out)
		}
	}
	binary.BigEndian.PutUint16(out[2:], uint16(n))
	v.seen, v.wants = f.seq, false
	return out, nil
}

// listen carries out what a viewer sends, to its end.
func (s *screen) listen(v *viewer) error {
	for {
		kind := v.in.u8()
		switch kind {
		case toServerFormat:
			v.in.next(3)
			format, err := formatOf(v.in.next(16))
			if v.in.err == nil && err != nil {
				return err
			}
			s.mu.Lock()
			v.format = format
			s.mu.Unlock()
		case toServerEncodings:
			v.in.next(1)
			tight, resizes := false, false
			for range v.in.u16() {
				e := v.in.s32()
				tight, resizes = tight || e == encodingTight, resizes || e == encodingSize
			}
			s.mu.Lock()
			v.tight, v.resizes = tight, resizes
			s.mu.Unlock()
		case toServerRequest:
			news := v.in.u8() != 0
			v.in.rect() // all of the picture is shown
			s.mu.Lock()
			if v.wants = true; !news {
				v.seen = 0
			}
			s.mu.Unlock()
			v.rouse()
		case toServerKey, toServerPointer, toServerCut:
			if err := s.input(v, kind); err != nil {
				return err
			}
		default:
			if v.in.err == nil {
				return errViewer
			}
		}
		if v.in.err != nil {
			return v.in.err
		}
	}
}

// socket is a viewer's end: binary messages are one stream, text is handed to said.
type socket struct {
	ctx  context.Context
	c    *websocket.Conn
	said func(Word)
	now  io.Reader // the message that is being read
}

func (l *socket) Read(p []byte) (int, error) {
	for {
		if l.now != nil {
			n, err := l.now.Read(p)
			if err == io.EOF {
				l.now, err = nil, nil
			}
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		kind, message, err := l.c.Reader(l.ctx)
		if err != nil {
			return 0, err
		}
		if kind == websocket.MessageBinary {
			l.now = message
			continue
		}
		text, err := io.ReadAll(io.LimitReader(message, wordMost+1))
		var w Word
		if err != nil || len(text) > wordMost || json.Unmarshal(text, &w) != nil {
			return 0, errViewer
		}
		l.said(w)
	}
}

func (l *socket) Write(p []byte) (int, error) { return len(p), l.send(websocket.MessageBinary, p) }

func (l *socket) send(kind websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeout(l.ctx, writeWithin)
	defer cancel()
	return l.c.Write(ctx, kind, p)
}

func (l *socket) ping() error {
	ctx, cancel := context.WithTimeout(l.ctx, writeWithin)
	defer cancel()
	return l.c.Ping(ctx)
}
