package desktop

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zlib"
	"go.uber.org/goleak"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/desktop/desktoptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a guest's VNC server, and desktops that look at it.
type world struct {
	t     *testing.T
	guest *desktoptest.Server
	d     *Desktops
	url   string
}

func newWorld(t *testing.T, w, h int) *world {
	t.Helper()
	x := &world{t: t, guest: desktoptest.New(w, h)}
	x.serve(func(c net.Conn) { x.guest.Serve(c) })
	return x
}

// serve has a guest that answers as it likes.
func (x *world) serve(answer func(net.Conn)) {
	x.d = New(Config{Dial: func(_ context.Context, _ cay.SandboxID, port int) (net.Conn, error) {
		if port != Port {
			return nil, cay.Errorf(cay.Unavailable, "there is no agent")
		}
		ours, theirs := net.Pipe()
		go answer(theirs)
		return ours, nil
	}})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		q := r.URL.Query()
		x.d.Watch(r.Context(), Box{ID: "i1"}, Person{Name: q.Get("name"), MayControl: q.Get("only") == ""}, c)
	}))
	x.t.Cleanup(s.Close)
	x.url = s.URL
}

// eye is a viewer, as a program would be one.
type eye struct {
	t     *testing.T
	c     *websocket.Conn
	state State
	end   *End
	bytes []byte // of RFB, that were not read
	w, h  int
	pix   []byte // red, green, blue
}

// look has a viewer look, over to its first picture.
func (x *world) look(query string, encodings ...int32) *eye {
	x.t.Helper()
	e := x.come(query)
	e.hello(encodings...)
	e.ask(false)
	e.picture()
	return e
}

func (x *world) come(query string) *eye {
	x.t.Helper()
	c, resp, err := websocket.Dial(x.t.Context(), x.url+"?"+query, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	if resp.Body != nil {
		resp.Body.Close()
	}
	c.SetReadLimit(64 << 20)
	x.t.Cleanup(func() { _ = c.CloseNow() })
	return &eye{t: x.t, c: c}
}

func (e *eye) send(b ...byte) {
	e.t.Helper()
	if err := e.c.Write(e.t.Context(), websocket.MessageBinary, b); err != nil {
		e.t.Fatal(err)
	}
}

func (e *eye) say(do string) {
	e.t.Helper()
	if err := e.c.Write(e.t.Context(), websocket.MessageText, fmt.Appendf(nil, `{"do":%q}`, do)); err != nil {
		e.t.Fatal(err)
	}
}

// next reads one message.
func (e *eye) next() error {
	kind, text, err := e.c.Read(e.t.Context())
	if err != nil {
		return err
	}
	if kind == websocket.MessageBinary {
		e.bytes = append(e.bytes, text...)
		return nil
	}
	var word struct {
		State
		End *End `json:"end"`
	}
	if err := json.Unmarshal(text, &word); err != nil {
		e.t.Fatal(err)
	}
	if word.End != nil {
		e.end = word.End
		return nil
	}
	e.state = word.State
	return nil
}

func (e *eye) take(n int) []byte {
	e.t.Helper()
	for len(e.bytes) < n {
		if err := e.next(); err != nil {
			e.t.Fatal(err)
		}
	}
	out := e.bytes[:n]
	e.bytes = e.bytes[n:]
	return out
}

// until reads on until the state is like that.
func (e *eye) until(ok func(State) bool) {
	e.t.Helper()
	for !ok(e.state) {
		if err := e.next(); err != nil {
			e.t.Fatalf("%v; the last state: %+v", err, e.state)
		}
	}
}

func (e *eye) hello(encodings ...int32) {
	e.t.Helper()
	if got := string(e.take(12)); got != versionText {
		e.t.Fatalf("%q", got)
	}
	e.send([]byte(versionText)...)
	if got := e.take(2); !bytes.Equal(got, []byte{1, 1}) {
		e.t.Fatal(got)
	}
	e.send(1)
	e.take(4)
	e.send(1)
	head := e.take(24)
	e.w, e.h = int(binary.BigEndian.Uint16(head)), int(binary.BigEndian.Uint16(head[2:]))
	e.take(int(binary.BigEndian.Uint32(head[20:])))
	e.pix = make([]byte, e.w*e.h*3)
	message := []byte{toServerEncodings, 0, 0, byte(len(encodings))}
	for _, n := range encodings {
		message = binary.BigEndian.AppendUint32(message, uint32(n))
	}
	e.send(message...)
}

func (e *eye) ask(news bool) { e.t.Helper(); e.send(requestOf(news, rect{0, 0, e.w, e.h})...) }

// picture reads an update.
func (e *eye) picture() {
	e.t.Helper()
	head := e.take(4)
	if head[0] != toClientUpdate {
		e.t.Fatalf("message %d", head[0])
	}
	for range binary.BigEndian.Uint16(head[2:]) {
		r := &reader{Reader: bytes.NewReader(e.take(12))}
		at, encoding := r.rect(), r.s32()
		n := at.w * at.h
		switch encoding {
		case encodingRaw:
			raw := e.take(n * 4)
			rgb := make([]byte, 0, n*3)
			for ; len(raw) > 0; raw = raw[4:] {
				rgb = append(rgb, raw[2], raw[1], raw[0])
			}
			e.put(at, rgb)
		case encodingTight:
			e.put(at, e.tight(n*3))
		case encodingSize:
			e.w, e.h = at.w, at.h
			e.pix = make([]byte, e.w*e.h*3)
		default:
			e.t.Fatalf("encoding %d", encoding)
		}
	}
}

func (e *eye) tight(n int) []byte {
	kind := e.take(1)[0]
	if kind == tightFill {
		return bytes.Repeat(slices.Clone(e.take(3)), n/3)
	}
	if kind != tightReset {
		e.t.Fatalf("tight %x", kind)
	}
	if n < tightPlain {
		return e.take(n)
	}
	size := 0
	for shift := 0; ; shift += 7 {
		b := e.take(1)[0]
		size |= int(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	z, err := zlib.NewReader(bytes.NewReader(e.take(size)))
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil || len(out) != n {
		e.t.Fatalf("%d of %d bytes: %v", len(out), n, err)
	}
	return out
}

func (e *eye) put(at rect, rgb []byte) {
	for y := range at.h {
		copy(e.pix[((at.y+y)*e.w+at.x)*3:], rgb[y*at.w*3:(y+1)*at.w*3])
	}
}

func (e *eye) at(x, y int) [3]byte { return [3]byte(e.pix[(y*e.w+x)*3:]) }

// wait asks for news until a pixel has a colour.
func (e *eye) wait(x, y int, colour [3]byte) {
	e.t.Helper()
	for e.at(x, y) != colour {
		e.ask(true)
		e.picture()
	}
}

// The picture is the same in each encoding, at edges that are no multiple of a tile,
// and so are changes of it.
func TestThePictureIsTheSame(t *testing.T) {
	x := newWorld(t, 200, 131)
	x.guest.Paint(10, 10, 100, 100, 255, 0, 0)
	x.guest.Paint(199, 130, 1, 1, 0, 255, 1)
	eyes := []*eye{x.look("", encodingTight, encodingSize), x.look(""), x.look("", encodingRaw, encodingTight)}
	for _, e := range eyes {
		e.wait(199, 130, [3]byte{0, 255, 1})
		if e.at(10, 10) != [3]byte{255, 0, 0} || e.at(9, 10) != [3]byte{0x50, 0x50, 0x50} || e.at(109, 109) != [3]byte{255, 0, 0} || e.at(110, 109) != [3]byte{0x50, 0x50, 0x50} {
			t.Errorf("%v %v", e.at(10, 10), e.at(9, 10))
		}
	}
	x.guest.Paint(60, 60, 10, 10, 1, 2, 3)
	for _, e := range eyes {
		e.wait(69, 69, [3]byte{1, 2, 3})
		if !bytes.Equal(e.pix, eyes[0].pix) {
			t.Error("the viewers see different pictures")
		}
	}
}

// Twenty viewers are one connection to the guest, which sends no more than for two.
func TestManyViewersCostAsTwo(t *testing.T) {
	sent := map[int]int64{}
	for _, n := range []int{2, 20} {
		x := newWorld(t, 640, 480)
		var eyes []*eye
		for range n {
			eyes = append(eyes, x.look("", encodingTight))
		}
		for i := range 10 {
			x.guest.Paint(i*20, i*20, 40, 40, byte(i+1), 0, 0)
			for _, e := range eyes {
				e.wait(i*20+1, i*20+1, [3]byte{byte(i + 1), 0, 0})
			}
		}
		if x.guest.Conns() != 1 {
			t.Errorf("%d viewers are %d connections", n, x.guest.Conns())
		}
		sent[n] = x.guest.Sent()
	}
	if sent[20] > sent[2]*11/10 {
		t.Errorf("the guest sent %d bytes for 20 viewers, %d for two", sent[20], sent[2])
	}
}

var (
	keyDown = []byte{toServerKey, 1, 0, 0, 0, 0, 0, 'a'}
	keyUp   = []byte{toServerKey, 0, 0, 0, 0, 0, 0, 'a'}
	click   = []byte{toServerPointer, 1, 0, 5, 0, 6}
	lift    = []byte{toServerPointer, 0, 0, 5, 0, 6}
	cut     = []byte{toServerCut, 0, 0, 0, 0, 0, 0, 2, 'h', 'i'}
)

// heard waits until the guest has heard so many messages.
func (x *world) heard(n int) [][]byte {
	x.t.Helper()
	for {
		if got := x.guest.Events(); len(got) >= n {
			return got
		}
		select {
		case <-x.guest.Heard():
		case <-x.t.Context().Done():
			x.t.Fatalf("%d of %d messages", len(x.guest.Events()), n)
		}
	}
}

// Raw input of a viewer that has not the control, or may never have it, reaches no
// guest; that of the one who has it does, in order.
func TestInputIsOfTheOneInControl(t *testing.T) {
	x := newWorld(t, 100, 100)
	ann, ben, only := x.look("name=ann"), x.look("name=ben"), x.look("name=eve&only=1")
	only.say("take")
	ann.say("take")
	ann.until(func(s State) bool { return s.Controller == s.You })
	for _, e := range []*eye{ben, only} {
		for _, m := range [][]byte{keyDown, keyUp, click, lift, cut} {
			e.send(m...)
		}
		e.ask(false) // it is read after them
		e.picture()
	}
	// Input and the requests of one viewer in one message, cut anywhere.
	all := slices.Concat(keyDown, click, requestOf(true, rect{}), lift, keyUp, cut)
	for len(all) > 0 {
		n := min(3, len(all))
		ann.send(all[:n]...)
		all = all[n:]
	}
	got := x.heard(5)
	if want := [][]byte{keyDown, click, lift, keyUp, cut}; !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("the guest heard %v", got)
	}
	only.until(func(s State) bool { return s.Controller == ann.state.You })
	if only.state.MayControl || len(only.state.Viewers) != 3 || !only.state.Viewers[2].ViewOnly || only.state.Viewers[0].Name != "ann" {
		t.Errorf("%+v", only.state)
	}
}

// One asks, and the other gives, keeps, or goes; what was held down is let go.
func TestTheControlGoesFromOneToAnother(t *testing.T) {
	x := newWorld(t, 100, 100)
	ann, ben := x.look("name=ann"), x.look("name=ben")
	ann.say("take")
	ann.until(func(s State) bool { return s.Controller == s.You })
	ann.send(slices.Concat(keyDown, click)...)
	x.heard(2)
	ben.say("take")
	ann.until(func(s State) bool { return s.Asking == ben.state.You })
	ann.say("keep")
	ann.until(func(s State) bool { return s.Asking == 0 })
	if ann.state.Controller != ann.state.You {
		t.Errorf("%+v", ann.state)
	}
	ben.say("take")
	ann.until(func(s State) bool { return s.Asking == ben.state.You })
	ann.say("give")
	ben.until(func(s State) bool { return s.Controller == s.You })
	if got := x.heard(4)[2:]; !bytes.Equal(got[0], keyUp) || !bytes.Equal(got[1], lift) {
		t.Errorf("let go: %v", got)
	}
	ann.send(keyDown...) // not any more
	ann.ask(false)
	ann.picture()
	ann.say("take")
	ben.until(func(s State) bool { return s.Asking == ann.state.You })
	_ = ben.c.CloseNow() // the one who asks has it then
	ann.until(func(s State) bool { return s.Controller == s.You })
	ann.say("free")
	ann.until(func(s State) bool { return s.Controller == 0 })
	if got := x.guest.Events(); len(got) != 4 {
		t.Errorf("the guest heard %v", got[4:])
	}
}

// A holder that says nothing yields, and one that is silent for long has nothing to
// say.
func TestTheControlIsYielded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		s := &screen{of: New(Config{}), conn: ours, keys: map[uint32]bool{}, next: 1, frame: newFrame(1, 1, 1)}
		ann, ben := &viewer{who: Person{MayControl: true}}, &viewer{who: Person{MayControl: true}}
		for _, v := range []*viewer{ann, ben} {
			if err := s.admit(v); err != nil {
				t.Fatal(err)
			}
		}
		holder := func() *viewer { s.mu.Lock(); defer s.mu.Unlock(); return s.controller }
		s.hear(ann, Word{"take"})
		s.hear(ben, Word{"take"})
		time.Sleep(askWithin - time.Millisecond)
		if holder() != ann {
			t.Error("the control went before its time")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if holder() != ben {
			t.Error("the control was not yielded")
		}
		time.Sleep(silence)
		s.hear(ann, Word{"take"})
		if holder() != ann {
			t.Error("a silent holder kept the control")
		}
		ours.Close()
		theirs.Close()
	})
}

// Viewers that come and go leave nothing; the last one ends the connection.
func TestTheLastViewerEndsIt(t *testing.T) {
	x := newWorld(t, 64, 64)
	for range 3 {
		a, b := x.look(""), x.look("")
		_ = a.c.CloseNow()
		b.ask(false)
		b.picture()
		_ = b.c.CloseNow()
		for { // it is gone once its handler has returned
			x.d.mu.Lock()
			n, pixels := len(x.d.screens), x.d.pixels.Used()
			x.d.mu.Unlock()
			if n == 0 && pixels == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	if x.guest.Conns() != 3 {
		t.Errorf("%d connections", x.guest.Conns())
	}
}

func TestAViewerThatSpeaksNonsense(t *testing.T) {
	x := newWorld(t, 64, 64)
	for what, said := range map[string][]byte{
		"another protocol": []byte("GET / HTTP/1.1\r\n\r\n"),
		"an old version":   []byte("RFB 003.003\n"),
		"a message":        slices.Concat([]byte(versionText), []byte{1, 1, 99}),
		"a large text":     slices.Concat([]byte(versionText), []byte{1, 1, toServerCut, 0, 0, 0, 255, 255, 255, 255}),
		"a pixel format":   slices.Concat([]byte(versionText), []byte{1, 1, toServerFormat, 0, 0, 0, 8, 8, 0, 1}, make([]byte, 12)),
	} {
		e := x.come("")
		e.send(said...)
		for e.end == nil {
			if err := e.next(); err != nil {
				t.Errorf("%s: %v", what, err)
				break
			}
		}
	}
	e := x.come("")
	_ = e.c.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", wordMost+1)))
	for e.end == nil && e.next() == nil {
	}
	if e.end == nil {
		t.Error("a long word passed")
	}
}

// server makes what a guest says at its begin.
func server(w, h int, more ...byte) []byte {
	out := slices.Concat([]byte(versionText), []byte{1, 1, 0, 0, 0, 0})
	out = binary.BigEndian.AppendUint16(out, uint16(w))
	out = binary.BigEndian.AppendUint16(out, uint16(h))
	out = append(out, make([]byte, 16)...)
	return append(append(out, 0, 0, 0, 0), more...)
}

func update(n int, parts ...[]byte) []byte {
	return append([]byte{toClientUpdate, 0, byte(n >> 8), byte(n)}, slices.Concat(parts...)...)
}

// hostile is what guests may say, each of which ends the screen and nothing else.
func hostile() map[string][]byte {
	return map[string][]byte{
		"no RFB":                []byte("HTTP/1.1 200 OK\r\n\r\n"),
		"nothing":               {},
		"a password":            slices.Concat([]byte(versionText), []byte{1, 2}),
		"no security at all":    slices.Concat([]byte(versionText), []byte{0, 255, 255, 255, 255}),
		"no screen":             server(0, 0),
		"a screen too large":    server(65535, 65535),
		"a long name":           append(server(10, 10)[:len(server(10, 10))-4], 255, 255, 255, 255),
		"an unknown message":    server(10, 10, 77),
		"an unknown encoding":   server(10, 10, update(1, rect{0, 0, 1, 1}.head(5))...),
		"a rectangle outside":   server(10, 10, update(1, rect{5, 5, 6, 1}.head(encodingRaw), make([]byte, 24))...),
		"a far rectangle":       server(10, 10, update(1, rect{65535, 65535, 65535, 65535}.head(encodingRaw))...),
		"a copy from outside":   server(10, 10, update(1, rect{0, 0, 5, 5}.head(encodingCopy), []byte{0, 6, 0, 0})...),
		"a copy to outside":     server(10, 10, update(1, rect{6, 0, 5, 5}.head(encodingCopy), []byte{0, 0, 0, 0})...),
		"a size of nothing":     server(10, 10, update(1, rect{0, 0, 0, 0}.head(encodingSize))...),
		"a size beyond all":     server(10, 10, update(1, rect{0, 0, 8192, 8192}.head(encodingSize))...),
		"a text beyond all":     server(10, 10, toClientCut, 0, 0, 0, 255, 255, 255, 255),
		"an update without end": server(10, 10, update(65535, rect{0, 0, 1, 1}.head(encodingRaw), make([]byte, 4))...),
	}
}

func TestHostileGuests(t *testing.T) {
	for what, said := range hostile() {
		t.Run(what, func(t *testing.T) {
			x := &world{t: t}
			x.serve(func(c net.Conn) {
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_, _ = c.Write(said)
				c.Close()
			})
			e := x.come("")
			e.send(slices.Concat([]byte(versionText), []byte{1, 1}, requestOf(true, rect{}))...)
			for e.end == nil {
				if err := e.next(); err != nil {
					t.Fatal(err)
				}
			}
			if e.end.Code == "" || e.end.Code == string(cay.Internal) {
				t.Errorf("%+v", e.end)
			}
		})
	}
}

// The size of the screen changes under viewers; one that cannot follow is told.
func TestTheSizeChanges(t *testing.T) {
	x := &world{t: t}
	grow := make(chan struct{})
	x.serve(func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		_, _ = c.Write(server(10, 10, update(1, rect{0, 0, 10, 10}.head(encodingRaw), bytes.Repeat([]byte{9}, 400))...))
		<-grow
		_, _ = c.Write(update(1, rect{0, 0, 70, 70}.head(encodingSize)))
		_, _ = c.Write(update(1, rect{69, 69, 1, 1}.head(encodingRaw), []byte{3, 2, 1, 0}))
	})
	e, fixed := x.look("", encodingSize), x.look("")
	e.wait(9, 9, [3]byte{9, 9, 9})
	close(grow)
	for e.w != 70 {
		e.ask(true)
		e.picture()
	}
	e.wait(69, 69, [3]byte{1, 2, 3})
	fixed.ask(true)
	for fixed.end == nil {
		if err := fixed.next(); err != nil {
			t.Fatal(err)
		}
	}
	if fixed.end.Code != string(cay.Conflict) {
		t.Errorf("%+v", fixed.end)
	}
}

// A recording holds what a viewer saw, and has bounds.
func TestRecording(t *testing.T) {
	x := newWorld(t, 100, 100)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := false
	done := make(chan error, 1)
	go func() {
		done <- x.d.Record(ctx, Box{ID: "i1"}, Person{Name: "ann", MayControl: true}, func() { begun = true }, w)
		w.Close()
	}()
	magic := make([]byte, len(recordMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != recordMagic {
		t.Fatalf("%q %v", magic, err)
	}
	e := &eye{t: t}
	part := func() {
		head := make([]byte, 8)
		if _, err := io.ReadFull(r, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(r, body); err != nil {
			t.Fatal(err)
		}
		e.bytes = append(e.bytes, body...)
	}
	part()
	e.take(12 + 2 + 4)
	head := e.take(24)
	e.w, e.h = int(binary.BigEndian.Uint16(head)), int(binary.BigEndian.Uint16(head[2:]))
	e.take(int(binary.BigEndian.Uint32(head[20:])))
	e.pix = make([]byte, e.w*e.h*3)
	part()
	e.picture()
	x.guest.Paint(0, 0, 50, 50, 7, 8, 9)
	for e.at(1, 1) != [3]byte{7, 8, 9} {
		part()
		e.picture()
	}
	viewer := x.look("")
	viewer.until(func(s State) bool { return len(s.Viewers) == 2 && s.Viewers[0].Records && s.Viewers[0].ViewOnly })
	cancel()
	_, _ = io.Copy(io.Discard, r)
	if err := <-done; err != nil || !begun {
		t.Errorf("%v, begun: %v", err, begun)
	}
	full := &recording{out: io.Discard, left: 10}
	if !full.add(make([]byte, 10)) || full.add(make([]byte, 1)) {
		t.Error("a recording is larger than its bound")
	}
	if err := x.d.Record(t.Context(), Box{ID: "i1"}, Person{}, func() {}, broken{}); err != nil {
		t.Errorf("a client that is gone: %v", err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// FuzzGuest has no guest break the server, or a picture.
func FuzzGuest(f *testing.F) {
	for _, said := range hostile() {
		f.Add(said)
	}
	f.Add(server(70, 70, slices.Concat(
		update(2, rect{0, 0, 2, 1}.head(encodingRaw), make([]byte, 8), rect{1, 1, 60, 60}.head(encodingCopy), []byte{0, 0, 0, 0}),
		[]byte{toClientBell, toClientCut, 0, 0, 0, 0, 0, 0, 1, 'x', toClientColours, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6},
		update(1, rect{0, 0, 5, 5}.head(encodingSize)))...))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &screen{of: New(Config{}), keys: map[uint32]bool{}, next: 1, conn: nowhere{}}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		r := &reader{Reader: bytes.NewReader(said)}
		w, h, _, err := greet(r, io.Discard)
		if err != nil {
			return
		}
		if err := s.size(w, h); err != nil {
			return
		}
		v := &viewer{who: Person{}, format: ours, tight: len(said)%2 == 0, resizes: true}
		if err := s.admit(v); err != nil {
			t.Fatal(err)
		}
		p := &pace{since: time.Now()}
		for r.u8() == toClientUpdate && r.err == nil && s.frame.w*s.frame.h < 1<<18 {
			_, err := s.update(r, p)
			s.mu.Lock()
			_, _ = s.picture(v)
			s.mu.Unlock()
			if err != nil {
				break
			}
		}
		s.cancel(nil)
		if w, h := s.frame.w, s.frame.h; w*h > maxPixels || len(s.frame.pix) != w*h*pixelBytes {
			t.Errorf("a picture of %d × %d", w, h)
		}
	})
}

// nowhere takes what is sent to a guest.
type nowhere struct{ net.Conn }

func (nowhere) Write(p []byte) (int, error)      { return len(p), nil }
func (nowhere) SetWriteDeadline(time.Time) error { return nil }
func (nowhere) Close() error                     { return nil }

func BenchmarkPicture(b *testing.B) {
	s := &screen{of: New(Config{}), frame: newFrame(1280, 800, 1)}
	for i := range s.frame.pix {
		s.frame.pix[i] = byte(i / 7 * i / 1013)
	}
	for b.Loop() {
		s.frame.touch(rect{0, 0, 1280, 800})
		if _, err := s.picture(&viewer{w: 1280, h: 800, tight: true}); err != nil {
			b.Fatal(err)
		}
	}
}
