package proxy

import "net/http"

// Apps that route in the browser put paths of their own into its address line,
// which then lacks their prefix: a reload of such a page, or a link on it, asks
// the server for what is the app's. What the server does not have itself is
// looked for where the browser was last.

// lost sends a navigation that the server has no page for to the page that was
// opened last by the path form.
type lost struct {
	http.ResponseWriter
	to    place
	begun bool // the head is written
	moved bool // as another answer than the server's own
}

// orLost returns what a request that is not for a sandbox is to be answered with.
func (p *Proxy) orLost(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if !p.takesStrays(r) || !opensDocument(r) {
		return w
	}
	at := lastOpened(r)
	if at.verdict != ours {
		return w
	}
	at.moved = at.prefix + r.URL.RequestURI()
	return &lost{ResponseWriter: w, to: at}
}

func (l *lost) WriteHeader(code int) {
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

func (l *lost) Write(b []byte) (int, error) {
	if l.moved { // what the server says instead
		return len(b), nil
	}
	l.begun = true
	return l.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (l *lost) Unwrap() http.ResponseWriter { return l.ResponseWriter }
