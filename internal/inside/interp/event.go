package interp

import (
	"encoding/json"
	"strings"
	"time"
)

// The events of an execution's stream, one JSON object a line.
type (
	plainEvent struct {
		Type string `json:"type"`
	}
	streamEvent struct {
		Type      string `json:"type"` // stdout or stderr
		Text      string `json:"text"`
		Timestamp string `json:"timestamp"`
	}
	countEvent struct {
		Type  string `json:"type"`
		Count int    `json:"execution_count"`
	}
	errorEvent struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	}
	// resultEvent is keyed by the short names of MIME types. Values are JSON as
	// it came: decoding and encoding changes some numbers.
	resultEvent map[string]any
)

var (
	keepalive      = plainEvent{"keepalive"}
	endOfExecution = plainEvent{"end_of_execution"}
)

// Names of the errors that do not come from the kernel. Clients may look at
// them.
const (
	errUnexpectedEnd = "UnexpectedEndOfExecution"
	errRestarting    = "ContextRestarting"
)

// shortNames maps MIME types to the fields of a result. Others go to extra.
var shortNames = map[string]string{
	"text/plain":             "text",
	"text/html":              "html",
	"text/markdown":          "markdown",
	"image/svg+xml":          "svg",
	"image/png":              "png",
	"image/jpeg":             "jpeg",
	"application/pdf":        "pdf",
	"text/latex":             "latex",
	"application/json":       "json",
	"application/javascript": "javascript",
	"e2b/data":               "data",
	"e2b/chart":              "chart",
}

// translator turns what a kernel publishes about one execution into events.
type translator struct {
	emit   func(any)
	failed bool // the first error was reported; later ones are not
}

func (t *translator) message(m *message) {
	switch m.header.Type {
	case "stream":
		var c struct{ Name, Text string }
		if json.Unmarshal(m.content, &c) == nil && (c.Name == "stdout" || c.Name == "stderr") {
			t.emit(streamEvent{Type: c.Name, Text: c.Text, Timestamp: timestamp(m.header.Date)})
		}
	case "execute_result", "display_data":
		var c struct {
			Data map[string]json.RawMessage `json:"data"`
		}
		if json.Unmarshal(m.content, &c) == nil && len(c.Data) > 0 {
			t.emit(newResult(c.Data, m.header.Type == "execute_result"))
		}
	case "execute_input":
		var c struct {
			Count int `json:"execution_count"`
		}
		if json.Unmarshal(m.content, &c) == nil {
			t.emit(countEvent{Type: "number_of_executions", Count: c.Count})
		}
	case "error":
		var c struct {
			Name      string   `json:"ename"`
			Value     string   `json:"evalue"`
			Traceback []string `json:"traceback"`
		}
		if json.Unmarshal(m.content, &c) == nil {
			t.error(c.Name, c.Value, strings.Join(c.Traceback, "\n"))
		}
	}
}

func (t *translator) error(name, value, traceback string) {
	if t.failed {
		return
	}
	t.failed = true
	t.emit(errorEvent{Type: "error", Name: name, Value: stripANSI(value), Traceback: stripANSI(traceback)})
}

// newResult makes the event of a result from its forms by MIME type.
func newResult(data map[string]json.RawMessage, main bool) resultEvent {
	r := resultEvent{"type": "result", "is_main_result": main}
	extra := map[string]json.RawMessage{}
	for mime, v := range data {
		if len(v) == 0 || string(v) == "null" {
			continue
		}
		switch name, ok := shortNames[mime]; {
		case !ok:
			extra[mime] = v
		case name == "text":
			r[name] = edited(v, unquote)
		case name == "png" || name == "jpeg" || name == "pdf":
			r[name] = edited(v, strings.TrimSpace) // some libraries wrap base64
		default:
			r[name] = v
		}
	}
	if len(extra) > 0 {
		r["extra"] = extra
	}
	return r
}

// edited is a string of JSON after edit, and what is no string as it came.
func edited(value json.RawMessage, edit func(string) string) any {
	var s string
	if json.Unmarshal(value, &s) != nil {
		return value
	}
	if e := edit(s); e != s {
		return e
	}
	return value
}

// unquote takes one pair of quotes off: a string's value is shown, not its
// literal.
func unquote(s string) string {
	if n := len(s); n >= 2 && s[0] == s[n-1] && (s[0] == '\'' || s[0] == '"') {
		return s[1 : n-1]
	}
	return s
}

// timestamp is the time of a message for a client: ISO 8601 with a zone.
func timestamp(date string) string {
	t, err := time.Parse(time.RFC3339Nano, date)
	if err != nil {
		t = time.Now()
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
}

// stripANSI removes colour codes: ESC [ … letter.
func stripANSI(s string) string {
	if !strings.Contains(s, "\x1b[") {
		return s
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		end := strings.IndexFunc(after, func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return b.String()
		}
		s = after[end+1:]
	}
}
