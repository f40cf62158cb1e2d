// Package conns takes connections.
package conns

import (
	"errors"
	"iter"
	"net"
	"time"
)

// pause is how long nothing is taken after a failure, which may be a lack of
// descriptors: trying on at once would only keep a processor busy.
const pause = 50 * time.Millisecond

// Each yields connections until the listener is closed.
func Each(l net.Listener) iter.Seq[net.Conn] {
	return func(yield func(net.Conn) bool) {
		for {
			c, err := l.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				time.Sleep(pause)
			case !yield(c):
				return
			}
		}
	}
}
