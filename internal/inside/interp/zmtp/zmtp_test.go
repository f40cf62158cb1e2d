package zmtp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// peer listens as a socket would and hands its side of one connection to
// serve, after the handshake.
func peer(t *testing.T, serve func(c *Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		c := newConn(nc)
		if c.handshake("ROUTER") == nil {
			serve(c)
		}
	}()
	return path
}

func TestMessages(t *testing.T) {
	messages := [][][]byte{
		{[]byte("one")},
		{{}, []byte("two"), bytes.Repeat([]byte("x"), 255)},
		{bytes.Repeat([]byte("y"), 256), bytes.Repeat([]byte("z"), 1<<20)},
	}
	path := peer(t, func(c *Conn) {
		for range messages {
			m, err := c.Recv()
			if err != nil || c.Send(m...) != nil {
				return
			}
		}
	})
	c, err := Dial(context.Background(), "unix", path, Dealer)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, m := range messages {
		if err := c.Send(m...); err != nil {
			t.Fatal(err)
		}
		got, err := c.Recv()
		if err != nil || !bytes.Equal(bytes.Join(got, []byte("|")), bytes.Join(m, []byte("|"))) {
			t.Fatalf("%v: %d frames for %d", err, len(got), len(m))
		}
	}
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the peer's end: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	path := peer(t, func(c *Conn) {
		_, _ = c.nc.Write([]byte{flagLong, 0xff, 0, 0, 0, 0, 0, 0, 0})
		_, _ = c.Recv()
	})
	c, err := Dial(context.Background(), "unix", path, Dealer)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Recv(); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("got %v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path) // never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, "unix", path, Dealer); err == nil {
		t.Fatal("connected without a peer")
	}
}

func TestNotZMTP(t *testing.T) {
	for _, greeting := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", string(make([]byte, 64))} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = io.CopyN(io.Discard, theirs, 64)
			_, _ = io.WriteString(theirs, greeting)
			_ = theirs.Close()
		}()
		if err := newConn(ours).handshake(Dealer); err == nil {
			t.Fatalf("%q passes", greeting)
		}
	}
}

func FuzzRecv(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, flagMore, []byte("a")), 0, bytes.Repeat([]byte("b"), 300)))
	f.Add(appendFrame(nil, flagCommand, []byte("\x05READY")))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := &Conn{r: newReader(bytes.NewReader(stream))}
		for {
			m, err := c.Recv()
			if err != nil {
				return
			}
			if len(m) == 0 {
				t.Fatal("a message without frames")
			}
		}
	})
}
