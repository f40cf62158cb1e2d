package egress

import (
	"bufio"
	"encoding/binary"
	"errors"
)

// hello is what is read of a TLS ClientHello.
type hello struct {
	name string // the server name, clean; empty for none
	ech  bool   // it hides another ClientHello
}

const (
	recordHandshake = 22
	messageHello    = 1
	extensionName   = 0
	extensionECH    = 0xfe0d
	maxRecord       = 16<<10 + 256
	maxHello        = 32 << 10
)

var errHello = errors.New("no good ClientHello")

// readHello reads a ClientHello without consuming it. The buffer bounds it.
func readHello(r *bufio.Reader) (hello, error) {
	var message []byte
	for at := 0; ; {
		head, err := r.Peek(at + 5)
		if err != nil {
			return hello{}, err
		}
		n := int(binary.BigEndian.Uint16(head[at+3:]))
		if head[at] != recordHandshake || head[at+1] != 3 || n == 0 || n > maxRecord {
			return hello{}, errHello
		}
		record, err := r.Peek(at + 5 + n)
		if err != nil {
			return hello{}, err
		}
		message = append(message, record[at+5:]...)
		at += 5 + n
		if len(message) < 4 {
			continue
		}
		want := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
		if message[0] != messageHello || want > maxHello {
			return hello{}, errHello
		}
		if len(message) >= 4+want {
			return parseHello(message[4 : 4+want])
		}
	}
}

// cursor takes lengths and pieces off a message; bad is set once it ended too
// early.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) take(n int) []byte {
	if n > len(c.rest) {
		c.bad, c.rest = true, nil
		return nil
	}
	out := c.rest[:n]
	c.rest = c.rest[n:]
	return out
}

// vector takes a piece whose length is written in that many bytes before it.
func (c *cursor) vector(size int) cursor {
	n := 0
	for _, b := range c.take(size) {
		n = n<<8 | int(b)
	}
	out := c.take(n)
	return cursor{rest: out, bad: c.bad}
}

func (c *cursor) number() int {
	b := c.take(2)
	if b == nil {
		return -1
	}
	return int(binary.BigEndian.Uint16(b))
}

// parseHello reads the body of a ClientHello. Two server names, or one that is
// no name of a host, are none.
func parseHello(body []byte) (hello, error) {
	var out hello
	c := cursor{rest: body}
	c.take(2 + 32)
	c.vector(1) // session
	c.vector(2) // cipher suites
	c.vector(1) // compressions
	if c.bad {
		return out, errHello
	}
	if len(c.rest) == 0 {
		return out, nil
	}
	extensions := c.vector(2)
	seen := false
	for !extensions.bad && len(extensions.rest) > 0 {
		kind := extensions.number()
		data := extensions.vector(2)
		switch kind {
		case extensionECH:
			out.ech = true
		case extensionName:
			if seen {
				return out, errHello
			}
			seen = true
			list := data.vector(2)
			kind := list.take(1)
			name := list.vector(2)
			if list.bad || name.bad || len(list.rest) > 0 || kind[0] != 0 {
				return out, errHello
			}
			out.name = cleanName(string(name.rest))
		}
	}
	if c.bad || extensions.bad {
		return out, errHello
	}
	return out, nil
}
