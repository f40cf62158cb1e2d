package proxy

import "net/http"

// Apps that route in the browser put paths of their own into its address line,
// which then lacks their prefix: a reload of such a page, or a link on it, asks
// the server for a page of the app. A page that the server lacks is looked for
// where the browser was last.

// strayReply sends a navigation that the server has no page for to the page that
// was opened last by the path form.
type strayReply struct {
	http.ResponseWriter
	to    place
	begun bool // the head is written
	moved bool // as another answer than the server's own
}

// replyTo returns the writer for a request that is not for a sandbox.
func (p *Proxy) replyTo(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if !p.takesStrays(r) || !opensDocument(r) {
		return w
	}
	at := lastOpened(r)
	if at.verdict != ours {
		return w
	}
	at.moved = at.prefix + r.URL.RequestURI()
	return &strayReply{ResponseWriter: w, to: at}
}

func (l *strayReply) WriteHeader(code int) {
	switch {
	case l.moved:
	case l.begun || code != http.StatusNotFound:
		l.begun = l.begun || code >= 200
		l.ResponseWriter.WriteHeader(code)
	default:
		l.begun, l.moved = true, true
		clear(l.Header())
		move(l.ResponseWriter, l.to)
	}
}

func (l *strayReply) Write(b []byte) (int, error) {
	if l.moved { // the server's own text goes nowhere
		return len(b), nil
	}
	l.begun = true
	return l.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (l *strayReply) Unwrap() http.ResponseWriter { return l.ResponseWriter }
