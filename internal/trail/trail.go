// Package trail follows a request through the parts of a server. Its id is in
// the context of all that is done for it, in each line that is logged
// meanwhile, and in the answer. A Watcher in the context is told of requests
// and of the operations that they cause: parts know neither metrics nor traces.
package trail

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cay-run/cay"
)

// The headers of an answer. E2B's JavaScript SDK logs the second.
const (
	IDHeader    = "X-Request-Id"
	TraceHeader = "X-E2b-Trace-Id"
)

// Request is what is known of a request of one of the server's faces. Its
// fields are written while it is served, by the goroutine that serves it.
type Request struct {
	cay.Origin
	// Trace is the id of the trace that the request belongs to, 32 hex digits:
	// the caller's where it sent a traceparent.
	Trace string

	Face  Face
	Route string // of REST, as its description has it; empty for no such route
	Team  cay.TeamID
	// Sandbox is what a request to a sandbox is for.
	Sandbox cay.SandboxID
	Code    string // of the error that it was answered with, or its kind
}

// Chosen reports whether the caller chose the id.
func (r *Request) Chosen() bool { return r.Request != r.Trace }

// Face is a way in.
type Face string

// The faces. The last three are the proxy's, by what the request is for.
const (
	REST        Face = "rest"
	Operator    Face = "operator"
	Agent       Face = "agent"
	Interpreter Face = "interpreter"
	Port        Face = "port"
)

type requestKey struct{}

// Of returns the request that a context belongs to; nil for what the server
// does by itself.
func Of(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// OriginOf returns where that request came from; nil for what the server does
// by itself.
func OriginOf(ctx context.Context) *cay.Origin {
	if r := Of(ctx); r != nil {
		return &r.Origin
	}
	return nil
}

// With returns a context of a request.
func With(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// Follow has every request that next serves be followed. It is one of that
// face, unless next knows better.
func Follow(face Face, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := Arrived(r)
		of.Face = face
		of.Tell(w.Header())
		ctx := With(r.Context(), of)
		watcher := watcherOf(ctx)
		if watcher == nil {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		ctx = watcher.Arrived(ctx, r, of)
		out := &reply{ResponseWriter: w, came: time.Now()}
		defer func() { watcher.Answered(ctx, r, of, out.answer()) }() // after a panic too
		next.ServeHTTP(out, r.WithContext(ctx))
		out.whole = true
	})
}

// Tell says the ids of a request in its answer.
func (r *Request) Tell(h http.Header) {
	h[IDHeader], h[TraceHeader] = []string{r.Request}, []string{r.Trace}
}

// Leave takes the ids out of an answer that is not the server's own.
func Leave(h http.Header) {
	delete(h, IDHeader)
	delete(h, TraceHeader)
}

type carriedKey struct{}

// carried are the ids of a request that another server took in.
type carried struct{ request, trace string }

// Carry returns a context in which a request that arrives keeps the ids of the server
// that brings it. Ids that are not well formed change nothing.
func Carry(ctx context.Context, request, trace string) context.Context {
	if !isID(request) || len(trace) != 32 || !isID32(trace) {
		return ctx
	}
	return context.WithValue(ctx, carriedKey{}, carried{request, trace})
}

// Arrived is a request as it comes in. The ids are those that it is carried with, or its
// caller's where they are well formed, else new ones.
func Arrived(r *http.Request) *Request {
	out := &Request{Origin: cay.Origin{Address: address(r.RemoteAddr), Agent: printable(r.UserAgent(), maxAgent)}}
	if of, ok := r.Context().Value(carriedKey{}).(carried); ok {
		out.Request, out.Trace = of.request, of.trace
		return out
	}
	out.Trace = traceOf(r.Header["Traceparent"])
	if out.Trace == "" {
		out.Trace = newTrace()
	}
	out.Request = out.Trace
	if given := r.Header[IDHeader]; len(given) == 1 && isID(given[0]) {
		out.Request = given[0]
	}
	return out
}

const (
	maxID    = 128
	maxAgent = 200
)

// isID reports whether a caller's id may stand in logs and records.
func isID(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.:/+=@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// traceOf returns the trace's id of a traceparent (W3C Trace Context); empty
// for one that is not well formed.
func traceOf(values []string) string {
	const size = len("00-") + 32 + len("-") + 16 + len("-01")
	if len(values) != 1 || len(values[0]) < size {
		return ""
	}
	v := values[0]
	version, trace, span, flags := v[:2], v[3:35], v[36:52], v[53:55]
	whole := v[2] == '-' && v[35] == '-' && v[52] == '-' && (len(v) == size || version != "00" && v[size] == '-')
	if !whole || !isHex(version) || version == "ff" || !isHex(flags) || !isID32(trace) || !isID32(span) {
		return ""
	}
	return trace
}

// isID32 reports whether s is hex and not all zeros.
func isID32(s string) bool { return isHex(s) && strings.Trim(s, "0") != "" }

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// NewID makes an id for what is served and is no request over HTTP.
func NewID() string { return newTrace() }

// newTrace makes an id. It is no secret: it only has to be another each time.
func newTrace() string {
	var id [16]byte
	binary.LittleEndian.PutUint64(id[:], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64()|1) // never all zeros
	return hex.EncodeToString(id[:])
}

// address is that of a client, without its port.
func address(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return ""
}

// printable keeps the beginning of a text, with a dot for each character that
// a terminal would not show.
func printable(s string, most int) string {
	if len(s) > most {
		s = s[:most]
		for len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]) {
			s = s[:len(s)-1]
		}
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, s)
}
