package interp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cay-run/cay/internal/guest"
)

const (
	// maxBody bounds a request: code of tens of megabytes is still code.
	maxBody = 64 << 20
	// silence is how long a stream may say nothing.
	silence = 5 * time.Second
	// moment is how long an event waits for others, to be sent with them.
	moment = 3 * time.Millisecond
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("POST "+guest.ExecutePath, s.execute)
	mux.HandleFunc("POST "+guest.RehearsePath, s.rehearse)
	mux.HandleFunc("GET /contexts", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.list()) })
	mux.HandleFunc("POST /contexts", s.createContext)
	mux.HandleFunc("POST /contexts/{id}/restart", s.restartContext)
	mux.HandleFunc("DELETE /contexts/{id}", s.deleteContext)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
			h.Set("Access-Control-Allow-Headers", "*")
			if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
				h.Set("Access-Control-Allow-Headers", asked)
			}
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusOK)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if !s.warm.Load() {
		http.Error(w, "the interpreter is starting", http.StatusServiceUnavailable)
		return
	}
	reply(w, "OK")
}

func (s *Server) createContext(w http.ResponseWriter, r *http.Request) {
	var in struct{ Language, Cwd string }
	if !read(w, r, &in) {
		return
	}
	sess, err := s.create(r.Context(), in.Language, in.Cwd)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, sess)
}

func (s *Server) restartContext(w http.ResponseWriter, r *http.Request) {
	sess, err := s.lookup(r.PathValue("id"))
	if err == nil {
		err = sess.restart(r.Context())
	}
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, nil)
}

func (s *Server) deleteContext(w http.ResponseWriter, r *http.Request) {
	if err := s.remove(r.PathValue("id")); err != nil {
		fail(w, err)
		return
	}
	reply(w, nil)
}

// executeBody is the body of POST /execute. Absent and null are the same.
type executeBody struct {
	Code      *string           `json:"code"`
	ContextID string            `json:"context_id"`
	Language  string            `json:"language"`
	EnvVars   map[string]string `json:"env_vars"`
}

func (s *Server) execute(w http.ResponseWriter, r *http.Request) {
	var in executeBody
	if !read(w, r, &in) {
		return
	}
	sess, lang, err := s.target(in)
	if err != nil {
		fail(w, err)
		return
	}
	s.run(w, r, sess, source{text: *in.Code, language: lang}, in.EnvVars)
}

// rehearse runs in Python's default context, by the way of a client's code, what
// touches most of what a first execution touches.
func (s *Server) rehearse(w http.ResponseWriter, r *http.Request) {
	sess, err := s.defaultSession(langPython)
	if err != nil {
		fail(w, err)
		return
	}
	s.run(w, r, sess, source{text: call("rehearse", ""), language: langPython, silent: true}, nil)
}

// run executes code and streams what it does.
func (s *Server) run(w http.ResponseWriter, r *http.Request, sess *session, code source, env map[string]string) {
	// A kernel that cannot start is an error of the request, not of the stream.
	if _, err := sess.kernel(r.Context(), nil); err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-cache")
	rc := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// A client that is gone may leave a write blocked.
	defer context.AfterFunc(ctx, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })()

	events := make(chan any)
	if !s.background(func() {
		sess.execute(ctx, code, env, func(ev any) {
			select {
			case events <- ev:
			case <-ctx.Done():
			}
		})
	}) {
		return
	}
	stream(ctx, w, rc, events)
}

// target is the context that a request means, and the language of its code.
func (s *Server) target(in executeBody) (*session, string, error) {
	switch {
	case in.Code == nil:
		return nil, "", badRequest("code is required")
	case in.ContextID != "" && in.Language != "":
		return nil, "", badRequest("only one of context_id and language can be given")
	case in.ContextID != "":
		sess, err := s.lookup(in.ContextID)
		if err != nil {
			return nil, "", err
		}
		return sess, sess.Language, nil
	}
	lang, err := s.language(in.Language)
	if err != nil {
		return nil, "", err
	}
	sess, err := s.defaultSession(home(lang))
	return sess, lang, err
}

// stream writes events as lines until the last, or until the client is gone.
// Events of one moment leave together: each packet costs more, here and
// on its way, than what is in it.
func stream(ctx context.Context, w http.ResponseWriter, rc *http.ResponseController, events <-chan any) {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	leave := time.NewTimer(moment) // the headers wait at first
	defer leave.Stop()
	waiting := true // something does
	for {
		var ev any
		select {
		case ev = <-events:
		case <-quiet.C:
			ev = keepalive
		case <-leave.C:
			if rc.Flush() != nil {
				return
			}
			waiting = false
			continue
		case <-ctx.Done():
			return
		}
		line, err := marshal(ev)
		if err != nil {
			continue
		}
		if _, err := w.Write(line); err != nil || ev == endOfExecution {
			return // which sends what waits
		}
		if !waiting {
			leave.Reset(moment)
			waiting = true
		}
		quiet.Reset(silence)
	}
}

// marshal is JSON in ASCII, not made safe for HTML, and a line feed. Clients
// decode what they receive piece by piece, which may end amid a character, and
// some take U+0085 for the end of a line.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return ascii(wellFormed(b.Bytes())), err
}

// wellFormed puts U+FFFD in the place of each half of a surrogate pair that JSON
// escapes, in text itself. Values of kernels pass as they came, and a client's
// language may not print or encode such text.
func wellFormed(text []byte) []byte {
	for at := 0; ; {
		next := bytes.IndexByte(text[at:], '\\')
		if next < 0 {
			return text
		}
		at += next
		unit := unitAt(text, at)
		switch {
		case unit < 0:
			at += len(`\n`)
		case !utf16.IsSurrogate(unit):
			at += len(`\ufffd`)
		case utf16.DecodeRune(unit, unitAt(text, at+len(`\ufffd`))) != utf8.RuneError:
			at += 2 * len(`\ufffd`)
		default:
			at += copy(text[at:], `\ufffd`)
		}
	}
}

// unitAt is the unit of UTF-16 that is escaped at a place in JSON, -1 for none.
func unitAt(text []byte, at int) rune {
	if len(text) < at+len(`\ufffd`) || text[at] != '\\' || text[at+1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}

// ascii escapes what in JSON is not ASCII.
func ascii(text []byte) []byte {
	first := bytes.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
	if first < 0 {
		return text
	}
	out := append(make([]byte, 0, 2*len(text)), text[:first]...)
	for text = text[first:]; len(text) > 0; {
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r <= 0xffff:
			out = escape(out, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = escape(escape(out, high), low)
		}
	}
	return out
}

// escape adds a unit of UTF-16 as JSON escapes it.
func escape(out []byte, unit rune) []byte {
	const digits = "0123456789abcdef"
	return append(out, '\\', 'u', digits[unit>>12&15], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body := http.MaxBytesReader(w, r.Body, maxBody)
	err := json.NewDecoder(body).Decode(into)
	if err == nil {
		// Only a body that was read to its end lets the server notice that
		// the client has left.
		_, err = io.Copy(io.Discard, body)
	}
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case errors.As(err, &large):
		http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
	default:
		http.Error(w, "malformed request: "+err.Error(), http.StatusBadRequest)
	}
	return false
}

func reply(w http.ResponseWriter, v any) {
	line, err := marshal(v)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(bytes.TrimSuffix(line, []byte("\n")))
}

// fail answers with an error as plain text.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		code = http.StatusBadRequest
	case errors.Is(err, errNotFound):
		code = http.StatusNotFound
	}
	http.Error(w, err.Error(), code)
}
