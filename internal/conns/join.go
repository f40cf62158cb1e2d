package conns

import (
	"io"
	"net"
	"sync"
	"time"
)

// ReadOn is a connection some of which was read already: R has that, and then the rest.
type ReadOn struct {
	net.Conn
	R io.Reader
}

func (c *ReadOn) Read(p []byte) (int, error) { return c.R.Read(p) }

// CloseWrite ends what is sent.
func (c *ReadOn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Join copies both ways until both ends ended. A break ends both.
func Join(a, b net.Conn) {
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil || closeWrite(to) != nil {
			a.Close()
			b.Close()
		}
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
	a.Close()
	b.Close()
}

// Stream is a connection over a stream whose addresses and deadlines are of no interest.
type Stream struct{ io.ReadWriteCloser }

func (Stream) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (Stream) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (Stream) SetDeadline(time.Time) error      { return nil }
func (Stream) SetReadDeadline(time.Time) error  { return nil }
func (Stream) SetWriteDeadline(time.Time) error { return nil }
