// Package conns takes connections, and says how long they may be silent.
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

// Patience finds peers whose host has vanished without a word: a peer that has
// been silent for half a minute is asked for a sign of life, and is gone when it
// has missed four. It says nothing of a peer that lives and does not read, for
// which there is no bound; TCP_USER_TIMEOUT would end that one too. One that
// vanished and owes acknowledgements is given up by the kernel, after a quarter
// of an hour (net.ipv4.tcp_retries2).
var Patience = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 4}

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
