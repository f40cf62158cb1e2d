package front

import (
	"net/http"
	"time"
)

const (
	lingerPause = 5 * time.Second  // in which a client sends nothing more
	lingerMost  = 30 * time.Second // of a client that sends on
)

// endUnread ends the client's connection with an answer that comes before the end of the
// body. With full duplex net/http looks for that end when it has ceased to watch the
// connection, and panics at the next request.
func (t *trip) endUnread(answer http.Header) {
	if t.unread() {
		answer.Set("Connection", "close")
	}
}

// unread reports whether an answer now comes before the end of the body.
func (t *trip) unread() bool {
	return t.body != nil && t.in.ProtoMajor == 1 && !t.body.ended()
}

// linger reads what the client still sends after an answer that ends the connection, and
// drops it. A connection that ends over bytes that are not read is reset, and a client that
// reads when it has sent all never sees the answer. After an answer that does not say where
// it ends the client may wait for that end instead.
func (t *trip) linger(w http.ResponseWriter) {
	if !t.unread() || !t.sized || t.in.Header.Get("Expect") != "" && !t.begun() { // it waits with its body, and need not send it
		return
	}
	control := http.NewResponseController(w)
	if control.Flush() != nil {
		return
	}
	piece := make([]byte, 32<<10)
	for end := time.Now().Add(lingerMost); ; {
		until := time.Now().Add(lingerPause)
		if until.After(end) {
			until = end
		}
		if control.SetReadDeadline(until) != nil {
			return
		}
		if _, err := t.body.Read(piece); err != nil {
			return
		}
	}
}
