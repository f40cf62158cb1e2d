package triggers

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// ping is the event that GitHub sends to try an address. It is of no interest
// unless a hook names it.
const ping = "ping"

// ignored says why a request is of no interest to a hook; empty when it is.
func ignored(x cay.Trigger, r told) string {
	switch {
	case len(x.Events) > 0 && !slices.Contains(x.Events, r.event):
		return "the event " + strconv.Quote(short(r.event)) + " is none of the hook's"
	case len(x.Events) == 0 && x.Proof == cay.GitHubProof && r.event == ping:
		return "a ping tries the address"
	}
	for _, f := range x.Filters {
		if !passes(r.document, f) {
			return "the filter of " + f.Path + " does not pass it"
		}
	}
	return ""
}

// readJSON reads one JSON value, with its numbers as they are written; nil where
// the text is something else.
func readJSON(text []byte) any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var out any
	if d.Decode(&out) != nil {
		return nil
	}
	if _, err := d.Token(); err != io.EOF {
		return nil
	}
	return out
}

// passes reports whether a document has one of a filter's values at its path.
func passes(document any, f cay.HookFilter) bool {
	found := false
	visit(document, strings.Split(f.Path, "."), func(v any) bool {
		text, ok := textOf(v)
		found = ok && slices.ContainsFunc(f.Values, func(pattern string) bool { return like(text, pattern) })
		return !found
	})
	return found
}

// textAt is the text at a path; empty where there is none.
func textAt(document any, path string) (text string) {
	visit(document, strings.Split(path, "."), func(v any) bool {
		text, _ = textOf(v)
		return false
	})
	return text
}

// visit calls f with each value at a path until f returns false, and reports
// whether it never did. No value of the document is met twice for one part of the
// path, so that the work is bounded by both.
func visit(v any, path []string, f func(any) bool) bool {
	if len(path) == 0 {
		return f(v)
	}
	switch v := v.(type) {
	case map[string]any:
		if below, ok := v[path[0]]; ok {
			return visit(below, path[1:], f)
		}
		if path[0] == "*" {
			for _, below := range v {
				if !visit(below, path[1:], f) {
					return false
				}
			}
		}
	case []any:
		if path[0] == "*" {
			for _, below := range v {
				if !visit(below, path[1:], f) {
					return false
				}
			}
		}
		if at, err := strconv.Atoi(path[0]); err == nil && at >= 0 && at < len(v) {
			return visit(v[at], path[1:], f)
		}
	}
	return true
}

// textOf is a value as the text that filters compare: numbers as they were
// written, true, false and null by name. Objects and lists have none.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	case nil:
		return "null", true
	}
	return "", false
}

// like reports whether a text is as a pattern, in which * stands for any
// characters. It takes time in proportion to both lengths multiplied, at most.
func like(text, pattern string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return text == pattern
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
