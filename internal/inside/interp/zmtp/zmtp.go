// Package zmtp is the connecting side of ZeroMQ's wire protocol, ZMTP 3.0 with
// the NULL mechanism, for one peer per socket: just what talking to a Jupyter
// kernel takes. A Conn is a plain connection without queues, reconnects or
// goroutines of its own, so that a slow reader holds the kernel back and the
// end of the kernel is seen as the end of the stream, after its last message.
package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Type is a socket's type as the handshake names it.
type Type string

// Dealer is the type of a socket that sends and receives as it likes.
const Dealer Type = "DEALER"

const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2

	// maxMessage bounds one message: the kernel runs its user's code and may
	// send what it likes.
	maxMessage = 256 << 20
	maxFrames  = 64
)

// ErrTooLarge is returned by Recv for a message above the limits. The stream
// cannot be read further.
var ErrTooLarge = errors.New("zmtp: message too large")

// Conn is a connected socket. Recv may be called by one goroutine, Send by
// any number.
type Conn struct {
	nc net.Conn
	r  *bufio.Reader
	mu sync.Mutex // guards writes: frames of one message stay together
}

// Dial connects and shakes hands. It tries once: ctx bounds it.
func Dial(ctx context.Context, network, address string, typ Type) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c := newConn(nc)
	err = c.handshake(typ)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("zmtp: handshake with %s: %w", address, err)
	}
	return c, nil
}

func newConn(nc net.Conn) *Conn { return &Conn{nc: nc, r: newReader(nc)} }

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 32<<10) }

func (c *Conn) handshake(typ Type) error {
	greeting := make([]byte, 64)
	greeting[0], greeting[9] = 0xff, 0x7f
	greeting[10] = 3 // version 3.0: subscriptions are messages, no heartbeats
	copy(greeting[12:32], "NULL")
	if _, err := c.nc.Write(greeting); err != nil {
		return err
	}
	peer := make([]byte, 64)
	if _, err := io.ReadFull(c.r, peer); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[9]&1 != 1 || peer[10] < 3 {
		return errors.New("the peer does not speak ZMTP 3")
	}
	if mech := string(bytes.TrimRight(peer[12:32], "\x00")); mech != "NULL" {
		return fmt.Errorf("the peer asks for mechanism %q", mech)
	}
	ready := append([]byte("\x05READY"), property("Socket-Type", string(typ))...)
	if _, err := c.nc.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return err
	}
	flags, body, err := c.frame(maxMessage)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return fmt.Errorf("the peer refused: %.100q", body)
	}
	return nil
}

func property(name, value string) []byte {
	b := append([]byte{byte(len(name))}, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// Send writes one message.
func (c *Conn) Send(frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.nc.Write(b)
	return err
}

// Recv reads one message. It returns io.EOF when the peer is gone and
// everything it sent was read.
func (c *Conn) Recv() ([][]byte, error) {
	var frames [][]byte
	left := uint64(maxMessage)
	for {
		flags, body, err := c.frame(left)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			continue
		}
		frames = append(frames, body)
		left -= uint64(len(body))
		if flags&flagMore == 0 {
			return frames, nil
		}
		if len(frames) == maxFrames {
			return nil, ErrTooLarge
		}
	}
}

func (c *Conn) frame(limit uint64) (flags byte, body []byte, err error) {
	flags, err = c.r.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	var head [8]byte
	size := head[7:]
	if flags&flagLong != 0 {
		size = head[:]
	}
	if _, err := io.ReadFull(c.r, size); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(head[:])
	if n > limit {
		return 0, nil, ErrTooLarge
	}
	if n <= 1<<20 {
		body = make([]byte, n)
		_, err = io.ReadFull(c.r, body)
		return flags, body, err
	}
	// Announced bytes cost nothing before they come.
	var b bytes.Buffer
	_, err = io.CopyN(&b, c.r, int64(n))
	return flags, b.Bytes(), err
}

// SetReadDeadline bounds Recv, as net.Conn does.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// Close closes the connection; a blocked Recv or Send returns.
func (c *Conn) Close() error { return c.nc.Close() }
