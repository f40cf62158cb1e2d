package egress

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// A server that repeats a header tells a guest the secret in it. Wherever an
// answer can repeat one legibly, it is hidden by as many stars, so that lengths
// stay: in headers of early, final and upgrade answers, in bodies, in trailers,
// and in what follows an upgrade.

const (
	// maskWithin is how much of a body is searched for short secrets.
	maskWithin = 64 << 10
	// longSecret is the length from which a secret occurs in no other data by
	// chance: it is searched for to the end.
	longSecret = 8
	// maskPiece is how much is read at once.
	maskPiece = 32 << 10
)

// needles are the forms in which an answer may repeat secrets legibly: as they
// are, and as URLs, JSON and HTML write them.
type needles []string

func needlesOf(secrets []string) needles {
	var out needles
	for _, s := range secrets {
		inJSON, _ := json.Marshal(s) // strings always marshal
		out = append(out, s, url.QueryEscape(s), url.PathEscape(s), html.EscapeString(s), strings.Trim(string(inJSON), `"`))
	}
	slices.SortFunc(out, func(a, b string) int { // a form may be within a longer one
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// header hides secrets in a header's values, and takes out fields that have one
// for their name.
func (n needles) header(h map[string][]string) {
	for name, values := range h {
		lower := strings.ToLower(name)
		if slices.ContainsFunc(n, func(s string) bool { return strings.Contains(lower, strings.ToLower(s)) }) {
			delete(h, name)
			continue
		}
		for i, v := range values {
			for _, s := range n {
				v = strings.ReplaceAll(v, s, strings.Repeat("*", len(s)))
			}
			values[i] = v
		}
	}
}

// early has what a server says before its answer pass through header.
func (n needles) early(r *http.Request) *http.Request {
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		n.header(h)
		return nil
	}}
	return r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
}

// answer hides secrets in all of an answer.
func (n needles) answer(resp *http.Response) {
	n.header(resp.Header)
	n.header(resp.Trailer) // those that are announced; their values come later
	body := &masked{body: resp.Body, needles: n, left: maskWithin}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &maskedAnswer{masked: body, resp: resp}
		return
	}
	resp.Status = ""
	if both, ok := resp.Body.(io.ReadWriteCloser); ok {
		resp.Body = &maskedStream{masked: body, both: both}
	}
}

// maskedAnswer hides secrets in trailers too, which are there when the body has
// been read or closed.
type maskedAnswer struct {
	*masked
	resp *http.Response
}

func (m *maskedAnswer) Close() error {
	err := m.masked.Close()
	m.needles.header(m.resp.Trailer)
	return err
}

// maskedStream is a connection after an upgrade.
type maskedStream struct {
	*masked
	both io.ReadWriteCloser
}

func (m *maskedStream) Write(b []byte) (int, error) { return m.both.Write(b) }

func (m *maskedStream) CloseWrite() error {
	if half, ok := m.both.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return m.both.Close()
}

// masked hides secrets in what is read of a body. Bytes that could begin a
// secret wait for the next; no others wait.
type masked struct {
	body    io.ReadCloser
	needles needles
	left    int // of the body to search for short secrets

	buf   []byte // read and not given away yet
	clear int    // of buf, which may be given away
	err   error
}

func (m *masked) Close() error { return m.body.Close() }

func (m *masked) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for m.clear == 0 {
		if m.err != nil {
			return 0, m.err
		}
		if len(m.needles) == 0 && len(m.buf) == 0 {
			return m.body.Read(p)
		}
		m.fill()
		m.search()
	}
	n := copy(p, m.buf[:m.clear])
	m.buf, m.clear = m.buf[n:], m.clear-n
	return n, nil
}

// fill reads more behind the bytes that wait.
func (m *masked) fill() {
	if cap(m.buf)-len(m.buf) < maskPiece {
		m.buf = append(make([]byte, 0, len(m.buf)+4*maskPiece), m.buf...)
	}
	n, err := m.body.Read(m.buf[len(m.buf) : len(m.buf)+maskPiece])
	m.buf, m.err = m.buf[:len(m.buf)+n], err
	m.left -= n
}

// search masks whole secrets and finds the bytes that cannot begin another.
func (m *masked) search() {
	for _, s := range m.needles {
		for from := 0; ; {
			i := bytes.Index(m.buf[from:], []byte(s))
			if i < 0 {
				break
			}
			copy(m.buf[from+i:], strings.Repeat("*", len(s)))
			from += i + len(s)
		}
	}
	if m.left <= 0 {
		m.needles = slices.DeleteFunc(slices.Clone(m.needles), func(s string) bool { return len(s) < longSecret })
	}
	m.clear = len(m.buf)
	if m.err != nil {
		return
	}
	for _, s := range m.needles {
		for n := min(len(s)-1, len(m.buf)); n > 0; n-- {
			if strings.HasPrefix(s, string(m.buf[len(m.buf)-n:])) {
				m.clear = min(m.clear, len(m.buf)-n)
				break
			}
		}
	}
}
