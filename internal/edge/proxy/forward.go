package proxy

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cay-run/cay/internal/edge/doors"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/trail"
)

// forward sends a request to its guest and the answer back. It is not net/http's
// own reverse proxy, because that sends the head of each answer from a
// goroutine of its own, ahead of the body: two packets and two threads where
// one does.
func (p *Proxy) forward(w http.ResponseWriter, t *trip) {
	out := t.outgoing()
	if out.Body != nil {
		t.upload = &upload{body: out.Body, keep: isPlain(out)}
		out.Body = t.upload
		defer func() { _ = t.upload.Close() }() // a transport may read on behind our back
	}
	if !p.begun(w, t) {
		return
	}
	settle := sync.OnceFunc(t.upstream.settle)
	defer settle()
	resp, err := t.sendWatched(w, out)
	if err != nil {
		settle()
		p.failed(w, t, err)
		return
	}
	defer resp.Body.Close()
	if resp.ContentLength < 0 {
		settle() // it may be a stream without an end
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // without a request for it
		noAnswer(t.route).write(w, t.in)
		return
	}
	dropHopByHop(resp.Header)
	dress(t, resp)
	t.unmark(w)
	maps.Copy(w.Header(), resp.Header)
	resp.Trailer = t.sideHeader(resp.Trailer)
	announced := slices.Sorted(maps.Keys(resp.Trailer))
	if len(announced) > 0 {
		w.Header().Set("Trailer", strings.Join(announced, ", "))
	}
	w.WriteHeader(resp.StatusCode)
	following := followed(t, resp)
	if err := deliver(w, resp, following); err != nil {
		if t.upstream.isPaused() && following.endPaused(w) {
			return
		}
		panic(http.ErrAbortHandler) // the client sees a broken answer, not a short one
	}
	if len(resp.Trailer) == 0 {
		return
	}
	_ = http.NewResponseController(w).Flush() // or a short answer gets a length, and no trailers
	for name, values := range t.sideHeader(resp.Trailer) {
		if !slices.Contains(announced, name) {
			name = http.TrailerPrefix + name
		}
		w.Header()[name] = values
	}
}

// sendWatched is send, of which a watcher is told when it is for a command.
func (t *trip) sendWatched(w http.ResponseWriter, out *http.Request) (*http.Response, error) {
	if _, command := changes(t.in, t.port); !command {
		return t.send(w, out)
	}
	_, done := trail.Begin(t.in.Context(), trail.Exec)
	resp, err := t.send(w, out)
	done(err)
	return resp, err
}

// send makes the request. Interim answers of the guest, such as early hints, are
// passed on meanwhile.
func (t *trip) send(w http.ResponseWriter, out *http.Request) (*http.Response, error) {
	var mu sync.Mutex
	answered := false
	early := func(code int, header textproto.MIMEHeader) error {
		mu.Lock()
		defer mu.Unlock()
		if answered {
			return nil
		}
		t.unmark(w)
		h := w.Header()
		maps.Copy(h, t.sideHeader(http.Header(header)))
		w.WriteHeader(code)
		clear(h)
		return nil
	}
	if isPlain(out) {
		return t.upstream.plain(out, early)
	}
	out = out.WithContext(httptrace.WithClientTrace(out.Context(), &httptrace.ClientTrace{Got1xxResponse: early}))
	resp, err := t.upstream.RoundTrip(out)
	mu.Lock()
	answered = true // the transport reads on while the answer is written
	mu.Unlock()
	return resp, err
}

// deliver copies the body of an answer. Bytes wait for nothing but those that
// are here already, and nothing big is held while a guest is silent.
func deliver(w http.ResponseWriter, resp *http.Response, following *stream) error {
	if resp.Body == http.NoBody || resp.ContentLength == 0 {
		return nil
	}
	body, _ := resp.Body.(*directBody)
	flush := http.NewResponseController(w).Flush
	full := false // whether the last read filled its buffer
	for {
		if body == nil || !body.pending() {
			if err := flush(); err != nil {
				return err
			}
			if body != nil {
				if err := body.wait(); err != nil {
					return err
				}
			}
		}
		n, err := carry(w, resp.Body, full, following)
		full = n >= smallSize
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// carry reads once and writes what came, through a large buffer if it is known
// that much comes: a system call costs more than a copy.
func carry(w io.Writer, r io.Reader, much bool, following *stream) (int, error) {
	var b []byte
	if much {
		big := large.Get().(*[largeSize]byte)
		defer large.Put(big)
		b = big[:]
	} else {
		few := small.Get().(*[smallSize]byte)
		defer small.Put(few)
		b = few[:]
	}
	n, err := r.Read(b)
	if n > 0 {
		following.observe(b[:n])
		if _, e := w.Write(b[:n]); e != nil {
			return n, e
		}
	}
	return n, err
}

const largeSize = 256 << 10

var large = sync.Pool{New: func() any { return new([largeSize]byte) }}

// hopByHop are headers of a connection, not of what it carries.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func dropHopByHop(h http.Header) {
	for _, line := range h.Values("Connection") {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// notTheirs are headers that the proxy says itself, or that are for it alone.
var notTheirs = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Prefix", http.CanonicalHeaderKey(trafficToken),
}

// outgoing is the request as the guest is to see it.
func (t *trip) outgoing() *http.Request {
	in := t.in
	out := in.WithContext(in.Context())
	out.Close, out.Host = false, in.Host
	if in.ContentLength == 0 || in.Body == http.NoBody {
		out.Body, out.ContentLength = nil, 0
	}
	out.URL = &url.URL{
		Scheme:   "http",
		Host:     net.JoinHostPort(t.target.Addr.String(), strconv.Itoa(t.port)),
		Path:     in.URL.Path,
		RawPath:  in.URL.RawPath,
		RawQuery: in.URL.RawQuery,
	}
	out.Header = t.headers()
	if t.port == guest.AgentPort {
		return out
	}
	if !t.target.Public {
		out.URL.RawQuery = withoutToken(out.URL.RawQuery)
	}
	if t.speaksTLS() {
		out.URL.Scheme = "https"
	}
	if mask := t.target.MaskHost; mask != "" {
		out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(t.port))
	}
	return out
}

// unmark keeps the request's ids out of the answer of a user's own server, which
// is passed on as it came. The agent's and the interpreter's have them.
func (t *trip) unmark(w http.ResponseWriter) {
	if !doors.Is(t.port) {
		trail.Leave(w.Header())
	}
}

// headers are those of the request that the guest is to see. The agent gets no
// upgrade, which would be a way around the check of internal paths.
func (t *trip) headers() http.Header {
	in := t.in
	h := make(http.Header, len(in.Header)+4)
	maps.Copy(h, in.Header)
	dropHopByHop(h)
	for _, name := range notTheirs {
		delete(h, name)
	}
	t.withoutCredentials(h)
	if listed(in.Header, "Te", "trailers") {
		h.Set("Te", "trailers")
	}
	if _, named := h["User-Agent"]; !named {
		h["User-Agent"] = []string{""} // or net/http gives its own
	}
	if from, _, err := net.SplitHostPort(in.RemoteAddr); err == nil {
		h.Set("X-Forwarded-For", from)
	}
	h.Set("X-Forwarded-Host", in.Host)
	h.Set("X-Forwarded-Proto", "http")
	if isHTTPS(in) {
		h.Set("X-Forwarded-Proto", "https")
	}
	if cookies := h["Cookie"]; len(cookies) > 0 {
		delete(h, "Cookie")
		own := withoutOwn(strings.Join(cookies, "; "))
		if t.way == byPage && isUpgrade(in) {
			own = withTwins(own, in, t.place)
		}
		if own != "" {
			h.Set("Cookie", own)
		}
	}
	if t.port != guest.AgentPort && t.shared() {
		h.Set("X-Forwarded-Prefix", t.prefix)
		if from := h.Get("Referer"); from != "" {
			h.Set("Referer", reference(from, t.place))
		}
	}
	return h
}
