package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long a server may be away, or say nothing of a part.
	patience = 10 * time.Minute
	pause    = 200 * time.Millisecond // between two tries to reach a server
	maxReply = 4 << 10
)

// place is where the server answers for an instance.
type place struct{ socket, instance string }

// The server's answers to a question for a part.
const (
	partThere = 0
	allThere  = 1 // and everything else of the file
	partLost  = 2 // for good
)

// hello begins a line, and reply answers it, with a descriptor of the file.
type hello struct {
	Instance string `json:"instance"`
	File     string `json:"file"`
}

type reply struct {
	Size  int64  `json:"size"`
	Error string `json:"error"`
}

// errRefused is the server's final answer.
type errRefused string

func (e errRefused) Error() string { return string(e) }

// line asks the server for parts of one file, one after another. A part that is
// there stays there; a server that starts anew may have the file elsewhere.
type line struct {
	at   place
	name string

	conn *net.UnixConn // nil while there is none
	file *os.File
	size int64
	all  bool // everything is there
}

// read has a part on the disk and reads it.
func (l *line) read(ctx context.Context, one read) (uint64, error) {
	if !l.all {
		if err := l.await(ctx, one.off, int64(one.total)); err != nil {
			return 0, err
		}
	}
	return fill(int(l.file.Fd()), one.into, one.off)
}

// await asks until a server says that the part is there, or never will be.
func (l *line) await(ctx context.Context, off, length int64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := l.connect(ctx)
		if err == nil {
			err = l.ask(ctx, off, length)
		}
		var refused errRefused
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return err
		}
		l.hangUp() // the server ends, or is away
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *line) ask(ctx context.Context, off, length int64) error {
	defer interruptible(ctx, l.conn)()
	question := binary.LittleEndian.AppendUint64(nil, uint64(off))
	question = binary.LittleEndian.AppendUint64(question, uint64(length))
	if _, err := l.conn.Write(question); err != nil {
		return err
	}
	var answer [1]byte
	n, err := l.conn.Read(answer[:])
	switch {
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	case answer[0] == partLost:
		return errRefused("the part does not arrive")
	}
	l.all = answer[0] == allThere
	return nil
}

// connect begins the line, unless it has begun.
func (l *line) connect(ctx context.Context) (err error) {
	if l.conn != nil {
		return nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", l.at.socket)
	if err != nil {
		return err
	}
	l.conn = c.(*net.UnixConn)
	defer func() {
		if err != nil {
			l.hangUp()
		}
	}()
	defer interruptible(ctx, l.conn)()
	text, err := json.Marshal(hello{l.at.instance, l.name})
	if err != nil {
		return err
	}
	if _, err := l.conn.Write(text); err != nil {
		return err
	}
	buf, rights := make([]byte, maxReply), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := l.conn.ReadMsgUnix(buf, rights)
	if err != nil {
		return err
	}
	var said reply
	if err := json.Unmarshal(buf[:n], &said); err != nil {
		return err
	}
	if said.Error != "" {
		return errRefused(said.Error)
	}
	fd, err := received(rights[:m])
	if err != nil {
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size = os.NewFile(uintptr(fd), l.name), said.Size
	return nil
}

func received(rights []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(err, errors.New("the server gave no file"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(err, errors.New("the server gave no file"))
	}
	return fds[0], nil
}

// interruptible ends waits for a connection when a context ends, until stop.
func interruptible(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

func (l *line) hangUp() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

func (l *line) close() {
	l.hangUp()
	if l.file != nil {
		l.file.Close()
	}
}
