package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Connections that became something else, websockets mostly, live long and are
// silent. They are served without what a request has, and hold no buffer while
// nothing comes: thousands of them are kept open by pages and agents.

// isUpgrade reports whether a request asks for another protocol.
func isUpgrade(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Header.Get("Upgrade") != "" && listed(r.Header, "Connection", "upgrade")
}

// listed reports whether a header that is a list has a token.
func listed(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for item := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}

// upgrade asks a guest for another protocol and joins the connections when it
// agrees.
func (p *Proxy) upgrade(w http.ResponseWriter, r *http.Request, t *trip) {
	out := t.outgoing()
	protocol := r.Header.Get("Upgrade")
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", protocol)
	if !p.begun(w, t) {
		return
	}
	conn, reader, resp, err := t.upstream.upgrade(out)
	t.upstream.settle()
	if err != nil {
		p.failed(w, t, err)
		return
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get("Upgrade"), protocol) {
		defer conn.Close()
		defer resp.Body.Close()
		relay(w, t, resp)
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		conn.Close()
		p.failed(w, t, err)
		return
	}
	dress(t, resp)
	j := &joined{client: client, guest: conn, proxy: p, websocket: strings.EqualFold(protocol, "websocket")}
	if err := j.begin(resp, buffered.Reader, reader); err != nil {
		j.end(false)
		return
	}
	p.join(j)
}

// relay passes on what a guest answered instead of agreeing.
func relay(w http.ResponseWriter, t *trip, resp *http.Response) {
	dress(t, resp)
	dropHopByHop(resp.Header)
	t.unmark(w)
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	if resp.StatusCode < 200 { // a switch without a request for it
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// answerTime bounds how long a guest may think about an upgrade.
const answerTime = time.Minute

// upgrade makes a connection for one request and reads the head of its answer.
func (l *upstream) upgrade(out *http.Request) (net.Conn, *bufio.Reader, *http.Response, error) {
	conn, err := l.connect(out.Context(), "tcp", out.URL.Host)
	if err != nil {
		return nil, nil, nil, err
	}
	if out.URL.Scheme == "https" {
		conn = tls.Client(conn, guestTLS())
	}
	conn.SetDeadline(time.Now().Add(answerTime))
	limit := &limitedConn{Conn: conn, left: maxHead}
	reader := bufio.NewReaderSize(limit, 4<<10)
	err = out.Write(conn)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(reader, out)
	}
	if err != nil {
		conn.Close()
		return nil, nil, nil, err
	}
	limit.left = -1
	conn.SetDeadline(time.Time{})
	return conn, reader, resp, nil
}

// joined are two connections whose bytes go from one to the other.
type joined struct {
	client, guest net.Conn
	proxy         *Proxy
	websocket     bool

	mu     sync.Mutex // held while bytes go to the client
	frames frames
	ended  atomic.Int32 // sides that sent their last byte
	once   sync.Once
}

// begin tells the client that the guest agreed, and moves what came early.
func (j *joined) begin(resp *http.Response, client, guest *bufio.Reader) error {
	j.client.SetDeadline(time.Time{})
	var head strings.Builder
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	if err := resp.Header.Write(&head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	if _, err := io.WriteString(j.client, head.String()); err != nil {
		return err
	}
	if _, err := io.CopyN(j.guest, client, int64(client.Buffered())); err != nil {
		return err
	}
	early, err := guest.Peek(guest.Buffered())
	if err != nil {
		return err
	}
	return j.toClient(early)
}

func (j *joined) toClient(b []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.websocket {
		j.frames.observe(b)
	}
	_, err := j.client.Write(b)
	return err
}

func (j *joined) toGuest(b []byte) error {
	_, err := j.guest.Write(b)
	return err
}

// join serves two connections until one of them ends. The request is over for
// net/http, so that all it held is free.
func (p *Proxy) join(j *joined) {
	p.mu.Lock()
	over := p.joints == nil
	if !over {
		p.joints[j] = struct{}{}
	}
	p.mu.Unlock()
	if over {
		j.end(true)
		return
	}
	go j.pump(j.client, j.guest, j.toGuest)
	go j.pump(j.guest, j.client, j.toClient)
}

// halfOpen bounds how long one side may go on when the other has ended.
const halfOpen = 10 * time.Minute

// pump moves one side's bytes. Its end is passed on as what it is; when both
// sides have ended, or one broke, all is over.
func (j *joined) pump(from, to net.Conn, move func([]byte) error) {
	if !copySilently(from, move) {
		j.end(false)
		return
	}
	half, ok := to.(interface{ CloseWrite() error })
	if j.ended.Add(1) == 2 || !ok || half.CloseWrite() != nil {
		j.end(true)
		return
	}
	to.SetReadDeadline(time.Now().Add(halfOpen))
}

// copySilently moves what comes from one connection until it ends, and reports
// whether it ended as it should. It holds no buffer while nothing comes.
func copySilently(from net.Conn, to func([]byte) error) bool {
	ready := readiness(from)
	for {
		if ready != nil && ready() != nil {
			return false
		}
		b := small.Get().(*[smallSize]byte)
		n, err := from.Read(b[:])
		if n > 0 {
			if e := to(b[:n]); e != nil {
				err = e
			}
		}
		small.Put(b)
		if err != nil {
			return err == io.EOF
		}
	}
}

const smallSize = 16 << 10

var small = sync.Pool{New: func() any { return new([smallSize]byte) }}

// readiness returns what waits until a read would not, without a buffer; nil
// where that cannot be known because bytes are read ahead, as TLS does. Its
// error is how the connection broke: the kernel tells that once, and the next
// read would take it for an end.
func readiness(c net.Conn) func() error {
	switch wrapped := c.(type) {
	case *upstreamConn:
		c = wrapped.Conn
	case *tunnelConn:
		inner := readiness(wrapped.upstreamConn)
		return func() error {
			if inner == nil || wrapped.r.Buffered() > 0 {
				return nil
			}
			return inner()
		}
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return func() error {
		var one [1]byte
		var broken error
		err := raw.Read(func(fd uintptr) bool {
			for broken = unix.EINTR; broken == unix.EINTR; {
				_, _, broken = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK)
			}
			return broken != unix.EAGAIN
		})
		if err != nil {
			return err
		}
		return broken
	}
}

// end closes both. A guest that ended as it should has its client see the end;
// else the client sees a broken connection.
func (j *joined) end(clean bool) {
	j.once.Do(func() {
		j.proxy.mu.Lock()
		delete(j.proxy.joints, j) // a nil map is fine
		j.proxy.mu.Unlock()
		j.guest.Close()
		if !clean {
			reset(j.client)
		}
		j.client.Close()
	})
}

// reset breaks a connection, so that its other end cannot take that for a clean
// end.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// goingAway is the frame by which a server says that it ends.
var goingAway = []byte{0x88, 2, 1001 >> 8, 1001 & 0xff}

// leave ends a connection because the server does: websockets are told, where
// they are not in the middle of a frame.
func (j *joined) leave() {
	j.client.SetWriteDeadline(time.Now().Add(time.Second)) // also ends a write that holds mu
	j.mu.Lock()
	if j.websocket && j.frames.between() {
		_, _ = j.client.Write(goingAway)
	}
	j.mu.Unlock()
	j.end(true)
}

// Drain ends what would else never end: websockets and the like.
func (p *Proxy) Drain() {
	p.mu.Lock()
	joints := p.joints
	p.joints = nil
	p.mu.Unlock()
	var all sync.WaitGroup
	for j := range joints {
		all.Go(j.leave)
	}
	all.Wait()
}

// frames follows a websocket's frames, to know where one ends.
type frames struct {
	head []byte // of a frame whose head is not whole
	left uint64 // of the payload
}

func (f *frames) between() bool { return f.left == 0 && len(f.head) == 0 }

// observe follows the frames of bytes on their way.
func (f *frames) observe(b []byte) {
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, uint64(len(b)))
			f.left -= n
			b = b[n:]
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if size, whole := headOf(f.head); whole {
			f.left, f.head = size, f.head[:0]
		}
	}
}

// headOf reads the size of a frame's payload, once its head is whole.
func headOf(head []byte) (size uint64, whole bool) {
	if len(head) < 2 {
		return 0, false
	}
	wide, size := 0, uint64(head[1]&0x7f)
	switch size {
	case 126:
		wide = 2
	case 127:
		wide = 8
	}
	if head[1]&0x80 != 0 { // masked, which servers are not to do
		wide += 4
	}
	if len(head) < 2+wide {
		return 0, false
	}
	if n := head[1] & 0x7f; n >= 126 {
		size = 0
		for _, b := range head[2 : 2+map[byte]int{126: 2, 127: 8}[n]] {
			size = size<<8 | uint64(b)
		}
	}
	return size, true
}

// hostLabel is the label by which hosts name a route.
func hostLabel(rt route) string { return strconv.Itoa(rt.port) + "-" + string(rt.id) }

// guestTLS is the client side of guests' own TLS: they have no certificate that
// a client could verify, and the way to them is this machine's memory.
func guestTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
}

// speaksTLS reports whether a sandbox said that a port of it does.
func (t *trip) speaksTLS() bool { return slices.Contains(t.target.HTTPSPorts, t.port) }
