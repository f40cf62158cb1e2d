package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Most requests have a short body or none and ask a guest that speaks HTTP/1.
// They need no transport: the goroutine that wants the answer writes the request
// and reads it. Between net/http's transport and its caller are two other goroutines, and
// each hand-over may wait for a processor.

// direct is a connection to a guest's port that serves one request at a time.
type direct struct {
	net.Conn
	addr  string
	begun time.Time
	calls int           // that it was asked for
	idle  time.Time     // since when
	limit *limitedConn  // what r reads
	r     *bufio.Reader // nil while idle
	until func() bool   // stops the watch over the present request
	quiet func() error  // waits for bytes; nil where the connection cannot tell
}

// shortBody is how long a body may be that a direct connection's request carries: it is sent
// when it is all here, in one packet with its head.
const shortBody = 16 << 10

// isPlain reports whether a request can go by a direct connection.
func isPlain(out *http.Request) bool {
	if out.URL.Scheme != "http" || len(out.Header["Expect"]) > 0 || isGRPC(out) {
		return false
	}
	return out.Body == nil || out.ContentLength > 0 && out.ContentLength <= shortBody && len(out.Trailer) == 0
}

// isRepeatable reports whether a request may reach a guest twice.
func isRepeatable(out *http.Request) bool {
	return out.Body == nil && (out.Method == http.MethodGet || out.Method == http.MethodHead || out.Method == http.MethodOptions)
}

// plain sends a request and reads the head of its answer, on a direct connection that is idle
// or else on a new one. If the guest has dropped the connection at that very moment it
// sends the request again, where it may.
func (l *upstream) plain(out *http.Request, early func(int, textproto.MIMEHeader) error) (*http.Response, error) {
	var request bytes.Buffer
	request.Grow(1<<10 + int(max(out.ContentLength, 0)))
	if err := out.Write(&request); err != nil {
		return nil, err
	}
	for {
		n := l.idle(out.URL.Host)
		reused := n != nil
		if !reused {
			conn, err := l.connect(out.Context(), "tcp", out.URL.Host)
			if err != nil {
				return nil, err
			}
			n = &direct{Conn: conn, addr: out.URL.Host, begun: time.Now(), quiet: readiness(conn)}
		}
		resp, unheard, err := n.exchange(out, request.Bytes(), early)
		if err == nil {
			resp.Body = newDirectBody(resp, n, l)
			return resp, nil
		}
		n.hangUp()
		if !reused || !unheard || out.Context().Err() != nil || l.isCut() {
			return nil, fmt.Errorf("%w, at call %d of a connection made %s ago", err, n.calls, time.Since(n.begun).Round(time.Microsecond))
		}
	}
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 32<<10) }}

// exchange writes a request and reads the head of its answer. On failure it
// tells whether the guest heard nothing of it, as far as that matters.
func (n *direct) exchange(out *http.Request, request []byte, early func(int, textproto.MIMEHeader) error) (*http.Response, bool, error) {
	n.calls++
	n.until = context.AfterFunc(out.Context(), func() { n.Conn.SetDeadline(longAgo) })
	n.limit = &limitedConn{Conn: n.Conn, left: maxHead}
	n.r = readers.Get().(*bufio.Reader)
	n.r.Reset(n.limit)
	if sent, err := n.Conn.Write(request); err != nil {
		return nil, sent == 0 || isRepeatable(out), err
	}
	for {
		resp, err := http.ReadResponse(n.r, out)
		if err != nil {
			return nil, n.limit.left == maxHead && isRepeatable(out), err
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			n.limit.left = -1
			return resp, false, nil
		}
		if resp.StatusCode != http.StatusContinue { // no client waits for that
			_ = early(resp.StatusCode, textproto.MIMEHeader(resp.Header))
		}
	}
}

// longAgo ends every read and write at once.
var longAgo = time.Unix(1, 0)

// hangUp closes a connection in the middle of something.
func (n *direct) hangUp() {
	n.until()
	n.release()
	n.Conn.Close()
}

func (n *direct) release() {
	if n.r != nil {
		n.r.Reset(nil)
		readers.Put(n.r)
		n.r = nil
	}
}

// directBody is the body of an answer. When it has been read to its end the connection
// is free for the next.
type directBody struct {
	io.ReadCloser
	direct   *direct
	upstream *upstream
	resp     *http.Response
	chunked  bool
	over     bool
}

func newDirectBody(resp *http.Response, n *direct, l *upstream) io.ReadCloser {
	b := &directBody{ReadCloser: resp.Body, direct: n, upstream: l, resp: resp}
	b.chunked = len(resp.TransferEncoding) > 0
	if resp.Body == http.NoBody || resp.ContentLength == 0 {
		b.finish(resp.StatusCode != http.StatusSwitchingProtocols)
		return http.NoBody
	}
	return b
}

func (b *directBody) Read(p []byte) (int, error) {
	if b.over {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.finish(err == io.EOF)
	}
	return n, err
}

func (b *directBody) Close() error {
	b.finish(false)
	return nil
}

// finish gives the connection back, if the answer was whole and nothing came after.
func (b *directBody) finish(whole bool) {
	if b.over {
		return
	}
	b.over = true
	if !whole || b.resp.Close || b.direct.r.Buffered() > 0 || !b.direct.until() {
		b.direct.hangUp()
		return
	}
	b.direct.release()
	b.upstream.keepIdle(b.direct)
}

// pending reports whether the next read will not wait for the guest: there are
// bytes, and in a chunked body they are not merely what stands between chunks.
func (b *directBody) pending() bool {
	if b.over {
		return true
	}
	here, _ := b.direct.r.Peek(b.direct.r.Buffered())
	if !b.chunked {
		return len(here) > 0
	}
	return bytes.IndexByte(bytes.TrimPrefix(here, []byte("\r\n")), '\n') >= 0
}

// wait returns when a read would, or why there is nothing more to read, and
// holds nothing meanwhile.
func (b *directBody) wait() error {
	if b.direct.quiet != nil && b.direct.r.Buffered() == 0 {
		return b.direct.quiet()
	}
	return nil
}

// maxIdle bounds the direct connections that are kept to one port.
const maxIdle = 64

// idleTime is how long they are kept.
func idleTime(addr string) time.Duration {
	_, port, _ := net.SplitHostPort(addr)
	if isOwn(port) {
		return idleOwn
	}
	return idleForeign
}

// idle takes an idle connection whose guest has not dropped it, or nil.
func (l *upstream) idle(addr string) *direct {
	for {
		l.mu.Lock()
		idle := l.direct[addr]
		if len(idle) == 0 {
			l.mu.Unlock()
			return nil
		}
		n := idle[len(idle)-1]
		idle[len(idle)-1] = nil
		l.direct[addr] = idle[:len(idle)-1]
		l.mu.Unlock()
		if n.isQuiet() {
			return n
		}
		n.Conn.Close()
	}
}

// keepIdle has a connection wait for the next request.
func (l *upstream) keepIdle(n *direct) {
	n.idle = time.Now()
	l.mu.Lock()
	keep := l.conns != nil && len(l.direct[n.addr]) < maxIdle
	if keep {
		l.direct[n.addr] = append(l.direct[n.addr], n)
		if l.sweep == nil {
			l.sweep = time.AfterFunc(idleForeign, l.expire)
		}
	}
	l.mu.Unlock()
	if !keep {
		n.Conn.Close()
	}
}

// expire closes the connections that were idle for too long, and comes again while
// there are others.
func (l *upstream) expire() {
	var old []*direct
	l.mu.Lock()
	for addr, idle := range l.direct {
		end := time.Now().Add(-idleTime(addr))
		i := 0
		for i < len(idle) && !idle[i].idle.After(end) { // the oldest stand first
			i++
		}
		old = append(old, idle[:i]...)
		if i == len(idle) {
			delete(l.direct, addr)
			continue
		}
		l.direct[addr] = append([]*direct(nil), idle[i:]...)
	}
	l.sweep = nil
	if len(l.direct) > 0 {
		l.sweep = time.AfterFunc(idleForeign, l.expire)
	}
	l.mu.Unlock()
	for _, n := range old {
		n.Conn.Close()
	}
}

// isQuiet reports whether an idle connection is as it was left: open, and nothing has
// come. A connection that cannot be looked at is not used again.
func (n *direct) isQuiet() bool {
	tcp := tcpOf(n.Conn)
	if tcp == nil {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK)
		quiet = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// tcpOf is the socket under a connection of an upstream, nil where there is none.
func tcpOf(c net.Conn) *net.TCPConn {
	switch wrapped := c.(type) {
	case *upstreamConn:
		c = wrapped.Conn
	case *tunnelConn:
		c = wrapped.upstreamConn.Conn
	}
	tcp, _ := c.(*net.TCPConn)
	return tcp
}
