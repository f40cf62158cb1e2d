package proxy

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// A pause takes the guest away from requests that are under way. Those that came
// before it get their answers first, where these are near; those that the guest has
// not heard of wait, wake it and reach it; streams of the agent and the interpreter
// end with an error that says so, after which E2B's clients look no further: of a
// connection that breaks they ask the sandbox whether it lives, which wakes it.

const (
	// pauseWait is how long a pause waits for the answers of requests under way.
	pauseWait = time.Second
	// maxWakes bounds how often one request has a sandbox woken, whose time may be over
	// before the request reaches it.
	maxWakes = 3
)

// errOver is the error of a request that came to an instance which is being paused, or
// is over: nothing of it has left.
var errOver = errors.New("the instance takes no more requests")

// begin counts a request that is about to reach the guest. No request begins once the
// instance is being paused.
func (l *upstream) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil || l.rested != nil {
		return false
	}
	l.trips++
	return true
}

// settle is called once after begin, when the answer is through or has no near end.
func (l *upstream) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trips--; l.trips == 0 && l.rested != nil {
		close(l.rested)
	}
}

// rest lets requests that are under way get their answers, and no other begin.
func (l *upstream) rest() {
	l.mu.Lock()
	rested := make(chan struct{})
	if l.rested != nil || l.conns == nil {
		l.mu.Unlock()
		return
	}
	l.rested = rested
	if l.trips == 0 {
		close(rested)
	}
	l.mu.Unlock()
	patience := time.NewTimer(pauseWait)
	defer patience.Stop()
	select {
	case <-rested:
	case <-patience.C:
	}
}

// isPaused reports whether the instance was cut for a pause.
func (l *upstream) isPaused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rested != nil
}

// begun is begin for a request: false where it was answered otherwise.
func (p *Proxy) begun(w http.ResponseWriter, t *trip) bool {
	if t.upstream.begin() {
		return true
	}
	p.failed(w, t, errOver)
	return false
}

// again serves a request that the guest has not heard of, or may hear of twice, once
// the sandbox runs again. It reports false where the request cannot be sent again.
func (p *Proxy) again(w http.ResponseWriter, t *trip, err error) bool {
	var dial *dialError
	unheard := errors.Is(err, errOver) || errors.As(err, &dial)
	if t.wakes >= maxWakes || !unheard && !isRepeatable(t.outgoing()) {
		return false
	}
	in := t.in
	if in.Body != nil && in.Body != http.NoBody && t.upload != nil {
		body, whole := t.upload.rewound()
		if !whole {
			return false
		}
		in = in.WithContext(in.Context())
		in.Body = body
	}
	next := &trip{place: t.place, in: in, wakes: t.wakes + 1}
	if next.target, next.upstream, err = p.reach(w, in, t.place); next.upstream != nil {
		p.carryOn(w, next)
	} else if err != nil {
		p.gone(t.id, err).write(w, in)
	}
	return true
}

// interrupted answers a request that a pause has cut off and that may have run.
func (p *Proxy) interrupted(w http.ResponseWriter, t *trip) {
	if isCall(t.in, t.port) {
		_ = connect.NewErrorWriter().Write(w, t.in, connect.NewError(connect.CodeCanceled, errors.New(pausedUnderWay)))
		return
	}
	a := answer{SandboxID: t.id, Message: pausedUnderWay, Code: http.StatusServiceUnavailable, ErrorCode: cay.CodePaused}
	a.title, a.text, a.retry = "Paused", a.Message, cay.Retry{May: true, After: time.Second}
	a.write(w, t.in)
}

// pausedUnderWay is said of a request of which it is not known how far it came.
const pausedUnderWay = "The sandbox was paused while the request was under way, which may have run"

// isCall reports whether a request is one of the agent's calls, whose clients read
// errors in Connect's form or gRPC's.
func isCall(r *http.Request, port int) bool {
	return port == guest.AgentPort && r.Method == http.MethodPost && (strings.HasPrefix(r.URL.Path, "/process.Process/") || strings.HasPrefix(r.URL.Path, "/filesystem.Filesystem/"))
}

// isSaved reports whether a sandbox is paused, or about to be or to run again.
func (p *Proxy) isSaved(id cay.SandboxID) bool {
	if p.cfg.Fate == nil {
		return false
	}
	switch p.cfg.Fate(id).State {
	case cay.Pausing, cay.Paused, cay.Resuming:
		return true
	}
	return false
}

// stream follows an answer that has no near end, to know where a message of it ends
// and an error may stand.
type stream struct {
	kind  int
	head  []byte // of a message whose head is not whole
	left  uint32 // of its payload
	ended bool   // it has said how it ended
	line  bool   // the last byte ended a line, or there is none
}

const (
	plainStream = iota // of which nothing is known
	callStream         // Connect's: messages with a head of five bytes
	grpcStream         // the same, and trailers say the end
	lineStream         // the interpreter's: an object of JSON in each line
)

func followed(t *trip, resp *http.Response) *stream {
	s := &stream{line: true}
	kind := resp.Header.Get("Content-Type")
	switch {
	case resp.StatusCode != http.StatusOK || resp.ContentLength >= 0 || len(resp.Header["Content-Encoding"]) > 0:
	case t.port == guest.AgentPort && strings.HasPrefix(kind, "application/connect+"):
		s.kind = callStream
	case t.port == guest.AgentPort && isGRPC(t.in):
		s.kind = grpcStream
	case t.port == guest.InterpPort && t.in.URL.Path == guest.ExecutePath:
		s.kind = lineStream
	}
	return s
}

// observe follows bytes on their way to the client.
func (s *stream) observe(b []byte) {
	if len(b) > 0 {
		s.line = b[len(b)-1] == '\n'
	}
	if s.kind != callStream && s.kind != grpcStream {
		return
	}
	for len(b) > 0 {
		if s.left > 0 {
			n := min(int(s.left), len(b))
			s.left -= uint32(n)
			b = b[n:]
			continue
		}
		n := min(5-len(s.head), len(b))
		s.head, b = append(s.head, b[:n]...), b[n:]
		if len(s.head) == 5 {
			s.ended = s.kind == callStream && s.head[0]&2 != 0
			s.left, s.head = binary.BigEndian.Uint32(s.head[1:]), s.head[:0]
		}
	}
}

// between reports whether an error may stand here.
func (s *stream) between() bool {
	switch s.kind {
	case callStream, grpcStream:
		return s.left == 0 && len(s.head) == 0 && !s.ended
	case lineStream:
		return s.line
	}
	return false
}

// pausedStream is said at the end of a stream. The processes of the sandbox continue at its resume.
const pausedStream = "The sandbox was paused; its processes continue when it is resumed"

// endPaused ends a stream whose instance is being paused, and reports whether it could.
func (s *stream) endPaused(w http.ResponseWriter) bool {
	if !s.between() {
		return false
	}
	type object = map[string]string
	var tail []byte
	switch s.kind {
	case callStream:
		text, err := json.Marshal(map[string]any{"error": object{"code": connect.CodeCanceled.String(), "message": pausedStream}})
		if err != nil {
			return false
		}
		tail = slices.Concat(binary.BigEndian.AppendUint32([]byte{2}, uint32(len(text))), text)
	case lineStream:
		text, err := json.Marshal(object{"type": "error", "name": "SandboxPaused", "value": pausedStream, "traceback": ""})
		if err != nil {
			return false
		}
		tail = append(text, '\n')
	case grpcStream:
		maps.Copy(w.Header(), http.Header{http.TrailerPrefix + "Grpc-Status": {"1"}, http.TrailerPrefix + "Grpc-Message": {pausedStream}})
		return true
	}
	_, err := w.Write(tail)
	return err == nil
}
