package interp

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
)

// nasty are texts that have been lost, with their neighbours, on some way out.
// The halves of surrogate pairs among them are code points here.
var nasty = map[string][]rune{
	"half of a pair":            {'a', 0xd83d, 'b'},
	"the other half":            {0xde00},
	"halves the wrong way":      {0xde00, 'x', 0xd83d},
	"a zero byte":               {'a', 0, 'b'},
	"control characters":        span(1, 0x1f, '\n', '\r'),
	"delete and C1":             span(0x7f, 0x9f),
	"separators of lines":       {'a', 0x85, 0x2028, 0x2029, 'b'},
	"marks of direction":        {'a', 0x202e, 'b', 0x202c, 0x200f, 0x2066, 0x2069, 0x61c},
	"marks without end":         append([]rune{'e'}, []rune(strings.Repeat("\u0301", 20_000))...),
	"no characters":             {0xfffe, 0xffff, 0x1fffe, 0xfeff, 0xfffd},
	"other planes":              {0x10000, 0x1f600, 0x10ffff, 0xe0001},
	"joined":                    {0x1f468, 0x200d, 0x1f469, 0x200d, 0x1f467, 0xfe0f},
	"quotes and backslashes":    []rune(`'"\ \u0041 \\ ${x} %s`),
	"what looks like an escape": []rune("\x1b]0;x\x07\x1bc"),
}

func span(from, to rune, but ...rune) (all []rune) {
	for r := from; r <= to; r++ {
		if !strings.ContainsRune(string(but), r) {
			all = append(all, r)
		}
	}
	return all
}

// whole is a text as it arrives.
func whole(text []rune) string { return string(text) } // halves are U+FFFD

// ways are how a language lets text out. In code, %s stands for the text's
// literal.
var ways = map[string][]struct {
	name, code string
	got        func(x *execution) string
}{
	langPython: {
		{"stdout", `print("before"); print(%s); print("after")`, (*execution).between},
		{"stderr", "import sys\nsys.stdout, sys.stderr, was = sys.stderr, sys.stdout, sys.stdout\n" + `print("before"); print(%s); print("after"); sys.stderr, sys.stdout = sys.stdout, was`, (*execution).betweenErrors},
		{"a file's bytes", `import os, sys; print("before", flush=True); os.write(1, (%s + "\n").encode()); sys.stdout.flush(); print("after")`, (*execution).between},
		{"result", "class T:\n    def __repr__(self): return %s\nprint('before'); T()", (*execution).text},
		{"display", "class T:\n    def __repr__(self): return %s\nprint('before'); display(T())", (*execution).first},
		{"html", "display({'text/html': %s}, raw=True)", (*execution).html},
		{"json", "[%s]", (*execution).json},
		{"data", "import pandas; pandas.DataFrame({'a': [%s]})", (*execution).data},
		{"error", "print('before'); raise Exception(%s)", (*execution).value},
	},
	langJavaScript: {
		{"stdout", `console.log("before"); console.log(%s); console.log("after")`, (*execution).between},
		{"stderr", `console.error("before"); console.error(%s); console.error("after")`, (*execution).betweenErrors},
		{"result", `console.log("before"); ({ [Symbol.for('nodejs.util.inspect.custom')]() { return %s } })`, (*execution).text},
		{"display", `display({ [Symbol.for('nodejs.util.inspect.custom')]() { return %s } })`, (*execution).first},
		{"html", `display({ 'text/html': %s }, { raw: true })`, (*execution).html},
		{"json", `[%s]`, (*execution).json},
		{"error", `console.log("before"); throw new Error(%s)`, (*execution).value},
	},
	langJava: {
		{"stdout", `System.out.println("before"); System.out.println(%s); System.out.println("after");`, (*execution).between},
		{"stderr", `System.err.println("before"); System.err.println(%s); System.err.println("after");`, (*execution).betweenErrors},
		{"result", `new Object() { public String toString() { return %s; } }`, (*execution).text},
		{"display", `display(new Object() { public String toString() { return %s; } });`, (*execution).first},
		{"error", `throw new Exception(%s);`, (*execution).value},
	},
	langR: {
		{"stdout", `cat("before\n"); cat(%s, "\n", sep = ""); cat("after\n")`, (*execution).between},
		{"stderr", `message("before"); message(%s); message("after")`, (*execution).betweenErrors},
		{"result", "print.txt <- function(x, ...) cat(x)\nstructure(%s, class = 'txt')", (*execution).text},
		{"html", `IRdisplay::display_html(%s)`, (*execution).html},
		{"data", `data.frame(a = %s)`, (*execution).data},
		{"error", `cat("before\n"); stop(%s)`, (*execution).value},
	},
	langBash: {
		{"stdout", `echo before; printf %s; echo; echo after`, (*execution).between},
		{"stderr", `{ echo before; printf %s; echo; echo after; } >&2`, (*execution).betweenErrors},
	},
}

func (x *execution) between() string       { return cutOut(x.stdout) }
func (x *execution) betweenErrors() string { return cutOut(x.stderr) }
func (x *execution) value() string         { return x.err.text("value") }

func (x *execution) first() string {
	if len(x.results) == 0 {
		return ""
	}
	return x.results[0].text("text")
}

func (x *execution) html() string {
	if len(x.results) == 0 {
		return ""
	}
	return x.results[0].text("html")
}

func (x *execution) json() string {
	if len(x.results) == 0 {
		return ""
	}
	list, _ := x.results[0]["json"].([]any)
	return fmt.Sprint(list...)
}

func (x *execution) data() string {
	if len(x.results) == 0 {
		return ""
	}
	columns, _ := x.results[0]["data"].(map[string]any)
	list, _ := columns["a"].([]any)
	return fmt.Sprint(list...)
}

// cutOut is what stands between two lines.
func cutOut(text string) string {
	rest, head := strings.CutPrefix(text, "before\n")
	rest, tail := strings.CutSuffix(rest, "\nafter\n")
	if !head || !tail {
		return "neighbours are lost: " + text
	}
	return rest
}

// literal writes a text in a language's source, in ASCII; "" where the language
// knows no such text.
func literal(lang string, text []rune) string {
	var out strings.Builder
	for _, r := range text {
		half := utf16.IsSurrogate(r)
		switch {
		case lang == langPython:
			fmt.Fprintf(&out, `\U%08x`, r)
		case lang == langJavaScript && !half:
			fmt.Fprintf(&out, `\u{%x}`, r)
		case lang == langJava && r <= 0xff:
			fmt.Fprintf(&out, `\%03o`, r)
		case lang == langJava && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		case lang == langJavaScript || lang == langJava:
			fmt.Fprintf(&out, `\u%04x`, r)
		case half, lang == langR && r == 0:
			return ""
		case lang == langR:
			fmt.Fprintf(&out, ",%d", r)
		default: // bash
			for _, b := range []byte(string(r)) {
				fmt.Fprintf(&out, `\%03o`, b)
			}
		}
	}
	switch lang {
	case langBash:
		return "'" + out.String() + "'"
	case langR:
		return "intToUtf8(c(" + out.String()[1:] + "))"
	}
	return `"` + out.String() + `"`
}

// TestTexts is the table of nasty texts by every way out: each arrives whole,
// with what JSON cannot carry as U+FFFD, and so do its neighbours.
func TestTexts(t *testing.T) {
	for lang, ways := range ways {
		t.Run(lang, func(t *testing.T) {
			w := openWorld(t, configs[lang](t))
			for title, text := range nasty {
				code := literal(lang, text)
				if code == "" {
					continue
				}
				want := whole(text)
				for _, way := range ways {
					x := w.in(t, lang, strings.ReplaceAll(strings.ReplaceAll(way.code, "%[1]s", code), "%s", code))
					if got := way.got(x); got != want && !byItself(lang, way.name, text, got) {
						t.Errorf("%s by %s is %.200q, want %.200q; %.600v", title, way.name, got, want, x.events)
					}
				}
			}
		})
	}
}

// byItself reports whether a language makes of a text by itself what has come:
// Java's encoder writes question marks for halves of pairs, and IPython one end of
// a line for every other, Python encodes no halves, and R cuts its errors.
func byItself(lang, way string, text []rune, got string) bool {
	switch {
	case lang == langJava && strings.HasPrefix(way, "std"):
		return got == strings.ReplaceAll(whole(text), "\ufffd", "?")
	case lang == langPython && (way == "result" || way == "display"):
		return got == strings.NewReplacer("\v", "\n", "\f", "\n", "\x1c", "\n", "\x1d", "\n", "\x1e", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(whole(text))
	}
	if lang == langR && way == "error" {
		return len(got) > 8000 && strings.HasPrefix(whole(text), strings.TrimRight(got, "\ufffd"))
	}
	return lang == langPython && way == "a file's bytes" && slices.ContainsFunc(text, utf16.IsSurrogate)
}

// TestBytesThatAreNoText writes them in each language.
func TestBytesThatAreNoText(t *testing.T) {
	for lang, code := range map[string]string{
		langPython:     "import sys, subprocess\nprint('before'); sys.stdout.buffer.write(b'a\\xff\\xc3b\\xf0\\x9f'); print('\\nafter')",
		langJavaScript: "console.log('before'); process.stdout.write(Buffer.from([0x61, 0xff, 0xc3, 0x62, 0xf0, 0x9f])); console.log('\\nafter')",
		langJava:       "System.out.println(\"before\"); System.out.write(new byte[] {0x61, -1, -61, 0x62, -16, -97}); System.out.println(\"\\nafter\");",
		langR:          "cat('before\\n'); cat('a\\xff\\xc3b\\xf0\\x9f'); cat('\\nafter\\n')",
		langBash:       `echo before; printf 'a\377\303b\360\237'; echo; echo after`,
	} {
		t.Run(lang, func(t *testing.T) {
			w := openWorld(t, configs[lang](t))
			x := w.in(t, lang, code)
			got := x.between()
			if x.err != nil || strings.Trim(got, "\ufffd") == got || strings.ReplaceAll(got, "\ufffd", "") != "ab" {
				t.Errorf("%q: %.600v", got, x.events)
			}
		})
	}
}

// TestLongLines prints, shows and raises 2 MB without the end of a line, or
// twice CAY_TEST_LINE bytes.
func TestLongLines(t *testing.T) {
	size := 1_000_000
	if set := os.Getenv("CAY_TEST_LINE"); set != "" {
		var err error
		if size, err = strconv.Atoi(set); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Repeat("é", size)
	for lang, text := range map[string]string{
		langPython: "'\\u00e9' * %d", langJavaScript: "'é'.repeat(%d)", langJava: `"é".repeat(%d)`,
		langR: `strrep("\u00e9", %d)`,
	} {
		t.Run(lang, func(t *testing.T) {
			w := openWorld(t, configs[lang](t))
			for _, way := range ways[lang] {
				if !slices.Contains([]string{"stdout", "result", "error"}, way.name) {
					continue
				}
				x := w.in(t, lang, strings.ReplaceAll(way.code, "%s", "("+fmt.Sprintf(text, size)+")"))
				if got := way.got(x); got != want && !byItself(lang, way.name, []rune(want), got) {
					t.Errorf("by %s came %d bytes of %d: %.200q", way.name, len(got), len(want), got)
				}
			}
		})
	}
	t.Run(langBash, func(t *testing.T) {
		w := openWorld(t, configs[langBash](t))
		if x := w.in(t, langBash, fmt.Sprintf(`yes é | head -n %d | tr -d '\n'`, size)); x.stdout != want {
			t.Errorf("%d bytes of %d", len(x.stdout), len(want))
		}
	})
}
