package models

import (
	"bytes"
	"encoding/json"
)

// The bounds of what is kept of an answer to read its usage in it.
const (
	maxCounted = 16 << 20 // of one that is not streamed
	maxLine    = 1 << 20  // of a line of a stream
	maxTokens  = 1 << 40  // more is no count of tokens
	// bytesOfToken is how much text is taken for one token where no usage is said.
	bytesOfToken = 4
)

// meter reads the tokens of an answer in a copy of it, piece by piece.
type meter struct {
	streams       bool
	input, output int64
	whole         bool // the usage is the last, not one on the way
	events        int64
	seen          int64
	kept          []byte // the answer, or the line of it that is not whole yet
	over          bool   // too much of it came to be kept
}

// spent is a usage as the wires have it.
type spent struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	// Anthropic's wire does not have these in the input.
	CacheMade int64 `json:"cache_creation_input_tokens"`
	CacheRead int64 `json:"cache_read_input_tokens"`
}

// said is what an answer, or an event of one, may say of its usage.
type said struct {
	Type     string                  `json:"type"`
	Usage    *spent                  `json:"usage"`
	Message  *struct{ Usage *spent } `json:"message"`  // Anthropic's message_start
	Response *struct{ Usage *spent } `json:"response"` // OpenAI's response.completed
}

// take looks at a piece of the answer.
func (m *meter) take(piece []byte) {
	m.seen += int64(len(piece))
	if !m.streams {
		if m.over = m.over || len(m.kept)+len(piece) > maxCounted; m.over {
			m.kept = nil
			return
		}
		m.kept = append(m.kept, piece...)
		return
	}
	for len(piece) > 0 {
		line, rest, ended := bytes.Cut(piece, []byte("\n"))
		piece = rest
		if m.over = m.over || len(m.kept)+len(line) > maxLine; !m.over {
			m.kept = append(m.kept, line...)
		}
		if ended {
			m.line(m.kept)
			m.kept, m.over = m.kept[:0], false
		}
	}
}

// line looks at a line of a stream.
func (m *meter) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	data = bytes.TrimSpace(data)
	if !ok || len(data) == 0 || string(data) == "[DONE]" {
		return
	}
	m.events++
	if !bytes.Contains(data, []byte(`"usage"`)) {
		return
	}
	var event said
	if json.Unmarshal(data, &event) != nil {
		return
	}
	switch {
	case event.Message != nil && event.Message.Usage != nil:
		m.note(event.Message.Usage, false)
	case event.Response != nil && event.Response.Usage != nil:
		m.note(event.Response.Usage, true)
	case event.Usage != nil:
		m.note(event.Usage, true)
	}
}

// note takes a usage. Those of a stream are sums of all before.
func (m *meter) note(u *spent, whole bool) {
	in := sum(u.Prompt, u.Input, u.CacheMade, u.CacheRead)
	m.input, m.output, m.whole = max(m.input, in), max(m.output, sum(u.Completion, u.Output)), m.whole || whole
}

func sum(counts ...int64) (n int64) {
	for _, c := range counts {
		n += min(max(0, c), maxTokens)
	}
	return n
}

// tokens are those of the request and of the answer as far as it came. Without
// a usage they are estimated: from the bytes of the request, and for the answer from
// its events or bytes.
func (m *meter) tokens(request int) (input, output int64) {
	if !m.streams && !m.over {
		var answer said
		if json.Unmarshal(m.kept, &answer) == nil && answer.Usage != nil {
			m.note(answer.Usage, true)
		}
	}
	if m.streams && len(m.kept) > 0 { // a last line without an end
		m.line(m.kept)
		m.kept = nil
	}
	input, output = m.input, m.output
	if input == 0 {
		input = int64(request+bytesOfToken-1) / bytesOfToken
	}
	switch {
	case m.whole:
	case m.streams:
		output = max(output, m.events)
	default:
		output = (m.seen + bytesOfToken - 1) / bytesOfToken
	}
	return input, output
}

// strip passes a stream on event by event, but for the one that has the usage and
// nothing else, which the sandbox did not ask for.
type strip struct {
	held []byte
	seen int  // bytes of held in which no event ends
	raw  bool // the event is too large to be held: it is passed on as it comes
}

// take returns what may be passed on with another piece.
func (s *strip) take(piece []byte) (out []byte) {
	s.held = append(s.held, piece...)
	for {
		end := endOfEvent(s.held[s.seen:])
		if end == 0 {
			break
		}
		end += s.seen
		if event := s.held[:end]; s.raw || !isUsage(event) {
			out = append(out, event...)
		}
		s.held, s.raw, s.seen = s.held[end:], false, 0
	}
	// The last bytes may be the first of an end.
	if keep := len("\r\n\r"); s.raw || len(s.held) > maxLine {
		n := max(0, len(s.held)-keep)
		out, s.held, s.raw = append(out, s.held[:n]...), s.held[n:], true
	}
	s.seen = max(0, len(s.held)-len("\r\n\r"))
	return out
}

// rest returns what is held at the end of the stream.
func (s *strip) rest() []byte { return s.held }

// endOfEvent is where the first event of a stream ends, behind its blank line; 0
// where it does not.
func endOfEvent(b []byte) int {
	end := 0
	for _, blank := range []string{"\n\n", "\r\n\r\n"} {
		if i := bytes.Index(b, []byte(blank)); i >= 0 && (end == 0 || i+len(blank) < end) {
			end = i + len(blank)
		}
	}
	return end
}

// isUsage reports whether an event of OpenAI's chat has the usage and nothing else.
func isUsage(event []byte) bool {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(event), []byte("data:"))
	if !ok || !bytes.Contains(data, []byte(`"usage"`)) {
		return false
	}
	var chunk struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   *spent            `json:"usage"`
	}
	return json.Unmarshal(data, &chunk) == nil && chunk.Choices != nil && len(chunk.Choices) == 0 && chunk.Usage != nil
}
