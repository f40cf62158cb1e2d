package fs

import (
	"net/url"
	"strings"
)

// formPart is what a part's Content-Disposition says.
type formPart struct {
	name    string // the form field
	file    string // the file name, which is a path here
	hasFile bool
}

// parseDisposition reads a Content-Disposition header. The standard library's
// readers take a file name's directories off, or refuse what browsers and
// SDKs send.
func parseDisposition(header string) (formPart, bool) {
	kind, rest, _ := strings.Cut(header, ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "form-data") {
		return formPart{}, false
	}
	var part formPart
	extended := false
	for rest != "" {
		var key, value string
		key, value, rest = nextParam(rest)
		switch strings.ToLower(key) {
		case "name":
			part.name = value
		case "filename":
			part.hasFile = true
			if !extended {
				part.file = decodeFormName(value)
			}
		case "filename*":
			if name, ok := decodeExtended(value); ok {
				part.file, part.hasFile, extended = name, true, true
			}
		}
	}
	return part, true
}

// nextParam splits the first parameter off: key=token or key="quoted".
func nextParam(s string) (key, value, rest string) {
	s = strings.TrimLeft(s, " \t;")
	i := strings.IndexAny(s, "=;")
	if i < 0 || s[i] == ';' {
		key, rest, _ = strings.Cut(s, ";")
		return strings.TrimSpace(key), "", rest
	}
	key, s = strings.TrimSpace(s[:i]), strings.TrimLeft(s[i+1:], " \t")
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		return key, strings.TrimSpace(value), rest
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			_, rest, _ = strings.Cut(s[i+1:], ";")
			return key, b.String(), rest
		case c == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			b.WriteByte(s[i])
		default: // a lone backslash is one, as browsers send it
			b.WriteByte(c)
		}
	}
	return key, b.String(), "" // the closing quote is missing
}

// decodeFormName undoes the three escapes that HTML's form encoding makes in
// names. Any other percent sign means itself.
func decodeFormName(s string) string {
	return formEscapes.Replace(s)
}

var formEscapes = strings.NewReplacer("%22", `"`, "%0D", "\r", "%0d", "\r", "%0A", "\n", "%0a", "\n")

// decodeExtended reads a value of RFC 8187 in UTF-8.
func decodeExtended(s string) (string, bool) {
	charset, rest, ok := strings.Cut(s, "'")
	if !ok || !strings.EqualFold(charset, "utf-8") {
		return "", false
	}
	_, text, ok := strings.Cut(rest, "'")
	if !ok {
		return "", false
	}
	name, err := url.PathUnescape(text)
	return name, err == nil
}
