package services

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxUnitFile bounds what is read of one unit file.
const maxUnitFile = 1 << 20

// sections are the settings of a unit file and its drop-ins: the values of each
// key of a section, in their order. The notation is that of systemd.syntax(7).
type sections map[string]map[string][]string

// read adds the settings of a file. An empty value drops those before it.
// A line that is no setting is left out, as systemd does.
func (s sections) read(text string) {
	section := ""
	for _, line := range logicalLines(text) {
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			section = line[1 : len(line)-1]
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || section == "" {
			continue
		}
		s.add(section, strings.TrimSpace(key), strings.TrimSpace(value))
	}
}

func (s sections) add(section, key, value string) {
	keys := s[section]
	if keys == nil {
		keys = map[string][]string{}
		s[section] = keys
	}
	if value == "" {
		keys[key] = nil
		return
	}
	keys[key] = append(keys[key], value)
}

// logicalLines joins lines that end with a backslash and drops comments and
// empty lines. A comment between joined lines does not end them.
func logicalLines(text string) []string {
	var out []string
	joined, open := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		if open {
			line = joined + " " + line
		}
		if open = strings.HasSuffix(line, `\`); open {
			joined = strings.TrimSuffix(line, `\`)
			continue
		}
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	if open && strings.TrimSpace(joined) != "" {
		out = append(out, strings.TrimSpace(joined))
	}
	return out
}

// last is the value of a key that takes one.
func (s sections) last(section, key string) string {
	all := s[section][key]
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// words are the words of all values of a key. Quotes that do not close end the
// list.
func (s sections) words(section, key string) []string {
	var out []string
	for _, value := range s[section][key] {
		words, _ := split(value)
		for _, w := range words {
			out = append(out, w.text)
		}
	}
	return out
}

// word is a part of a value. A quoted word is never a separator of commands.
type word struct {
	text   string
	quoted bool
}

var errQuote = errors.New("a quote does not close")

// split cuts a value into words, with quotes and escapes of C.
func split(value string) ([]word, error) {
	var out []word
	var now strings.Builder
	var quote byte
	in, quoted := false, false
	for i := 0; i < len(value); {
		c := value[i]
		switch {
		case c == '\\':
			text, n := unescapeC(value[i:])
			now.WriteString(text)
			in = true
			i += n
			continue
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, in, quoted = c, true, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if in {
				out = append(out, word{now.String(), quoted})
			}
			now.Reset()
			in, quoted = false, false
		default:
			now.WriteByte(c)
			in = true
		}
		i++
	}
	if quote != 0 {
		return out, errQuote
	}
	if in {
		out = append(out, word{now.String(), quoted})
	}
	return out, nil
}

// escapes are those of one letter.
var escapes = map[byte]string{
	'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
	'\\': `\`, '"': `"`, '\'': "'", 's': " ", ';': `\;`,
}

// unescapeC reads an escape at the beginning of s, which begins with a
// backslash, and returns the bytes that it takes. One that is unknown stays.
func unescapeC(s string) (text string, taken int) {
	if len(s) < 2 {
		return s, len(s)
	}
	if text, ok := escapes[s[1]]; ok {
		return text, 2
	}
	digits, base := 0, 16
	switch {
	case s[1] == 'x':
		digits = 2
	case s[1] == 'u':
		digits = 4
	case s[1] == 'U':
		digits = 8
	case s[1] >= '0' && s[1] <= '7':
		digits, base = 3, 8
	}
	from := 2
	if base == 8 {
		from = 1
	}
	if digits == 0 || len(s) < from+digits {
		return s[:2], 2
	}
	n, err := strconv.ParseUint(s[from:from+digits], base, 32)
	switch {
	case err != nil || n == 0:
		return s[:2], 2
	case s[1] == 'u' || s[1] == 'U':
		return string(utf8.AppendRune(nil, rune(n))), from + digits
	}
	return string([]byte{byte(n)}), from + digits
}

// command is one program of an ExecStart and the like.
type command struct {
	path   string
	args   []string // with the name by which the program is called
	ignore bool     // a failure counts as success
	plain  bool     // $ has no meaning
	root   bool     // the account of the service is not taken
}

// commands reads the lines of an Exec setting.
func commands(lines []string, expand func(string) string) ([]command, error) {
	var out []command
	for _, line := range lines {
		words, err := split(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		for len(words) > 0 {
			end := len(words)
			for i, w := range words {
				if w.text == ";" && !w.quoted {
					end = i
					break
				}
			}
			c, err := newCommand(words[:end], expand)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			out = append(out, c)
			words = words[min(end+1, len(words)):]
		}
	}
	return out, nil
}

func newCommand(words []word, expand func(string) string) (command, error) {
	var c command
	if len(words) == 0 {
		return c, errors.New("there is no program")
	}
	path, named := words[0].text, false
prefixes:
	for path != "" {
		switch path[0] {
		case '-':
			c.ignore = true
		case '@':
			named = true
		case ':':
			c.plain = true
		case '+', '!':
			c.root = true
		case '|': // a login shell; sandboxes have none of their own
		default:
			break prefixes
		}
		path = path[1:]
	}
	c.path = expand(path)
	if c.path == "" {
		return c, errors.New("there is no program")
	}
	rest := words[1:]
	if !named {
		rest = words
	}
	for i, w := range rest {
		text := w.text
		if i == 0 && !named {
			text = path
		}
		if text == `\;` {
			text = ";"
		}
		c.args = append(c.args, expand(text))
	}
	if len(c.args) == 0 {
		return c, errors.New("there is no name for the program")
	}
	return c, nil
}

// with fills in variables: ${NAME} anywhere, $NAME where it is a word, as the
// words that it has.
func (c command) with(env map[string]string) []string {
	if c.plain {
		return c.args
	}
	var out []string
	for _, arg := range c.args {
		if name, ok := strings.CutPrefix(arg, "$"); ok && isName(name) {
			out = append(out, strings.Fields(env[name])...)
			continue
		}
		out = append(out, fill(arg, env))
	}
	return out
}

func fill(s string, env map[string]string) string {
	var out strings.Builder
	for {
		before, after, ok := strings.Cut(s, "$")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			s = after[1:]
		case strings.HasPrefix(after, "{") && closed && isName(name):
			out.WriteString(env[name])
			s = rest
		default:
			out.WriteByte('$')
			s = after
		}
	}
}

func isName(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
