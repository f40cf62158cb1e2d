package egress

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// maskWithin is how much of a body is searched for secrets.
const maskWithin = 64 << 10

// maskHeader hides secrets in a header's values.
func maskHeader(h http.Header, secrets []string) {
	for _, values := range h {
		for i, v := range values {
			for _, s := range secrets {
				v = strings.ReplaceAll(v, s, strings.Repeat("*", len(s)))
			}
			values[i] = v
		}
	}
}

// masked hides secrets in the beginning of a body by as many stars, so that
// its length stays. What could be the beginning of one waits for the next
// byte; nothing else waits.
type masked struct {
	body    io.ReadCloser
	secrets []string
	buf     []byte // read and not given away yet
	clear   int    // of buf, which may be given away
	left    int    // of the body to search
	err     error
}

func mask(body io.ReadCloser, secrets []string) io.ReadCloser {
	return &masked{body: body, secrets: secrets, left: maskWithin}
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
		if m.left <= 0 && len(m.buf) == 0 {
			return m.body.Read(p)
		}
		piece := make([]byte, 4096)
		var n int
		n, m.err = m.body.Read(piece)
		m.left -= n
		m.buf = append(m.buf, piece[:n]...)
		m.search()
	}
	n := copy(p, m.buf[:m.clear])
	m.buf, m.clear = m.buf[n:], m.clear-n
	return n, nil
}

// search masks what is whole and finds how much cannot be the beginning of
// more.
func (m *masked) search() {
	for _, s := range m.secrets {
		for from := 0; ; {
			i := bytes.Index(m.buf[from:], []byte(s))
			if i < 0 {
				break
			}
			copy(m.buf[from+i:], strings.Repeat("*", len(s)))
			from += i + len(s)
		}
	}
	m.clear = len(m.buf)
	if m.err != nil || m.left <= 0 {
		return
	}
	for _, s := range m.secrets {
		for n := min(len(s)-1, len(m.buf)); n > 0; n-- {
			if strings.HasPrefix(s, string(m.buf[len(m.buf)-n:])) {
				m.clear = min(m.clear, len(m.buf)-n)
				break
			}
		}
	}
}
