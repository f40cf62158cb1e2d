package front

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// TLS writes and reads 16 KiB at a time, and each write wakes the other end: of a large answer many
// records go at once.
const (
	batch     = 256 << 10 // bytes
	readAhead = 128 << 10
)

// Listen returns a listener whose connections Server serves large answers on.
func Listen(l net.Listener) net.Listener { return batches{l} }

type batches struct{ net.Listener }

func (l batches) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &batched{Conn: c}, nil
}

// batched holds what is written back while a large answer is.
type batched struct {
	net.Conn
	mu   sync.Mutex
	held *[]byte // nil while nothing is held back
}

func (c *batched) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(b)
	}
	if len(*c.held)+len(b) > batch {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	*c.held = append(*c.held, b...)
	return len(b), nil
}

// flush writes what is held back. The caller holds c.mu.
func (c *batched) flush() error {
	_, err := c.Conn.Write(*c.held)
	*c.held = (*c.held)[:0]
	return err
}

// hold has writes go in batches until end.
func (c *batched) hold() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = helds.Get().(*[]byte)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.flush() // the connection fails again with the rest of the answer
		helds.Put(c.held)
		c.held = nil
	}
}

var helds = sync.Pool{New: func() any {
	b := make([]byte, 0, batch)
	return &b
}}

// batchedConn is the key of a connection in the context of its requests.
type batchedConn struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	return context.WithValue(ctx, batchedConn{}, c)
}

// inBatches has the answer to a request go in batches until end: that of HTTP/1.1, which has its
// connection alone.
func inBatches(r *http.Request) (end func()) {
	if c, ok := r.Context().Value(batchedConn{}).(*batched); ok && r.ProtoMajor == 1 {
		return c.hold()
	}
	return func() {}
}

// ahead is a connection that is read in batches.
type ahead struct {
	net.Conn
	from *bufio.Reader
}

func (c ahead) Read(b []byte) (int, error) { return c.from.Read(b) }
