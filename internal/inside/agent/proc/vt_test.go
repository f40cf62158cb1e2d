package proc

import (
	"bytes"
	"strings"
	"testing"
)

func readAll(text string) string {
	v := vt{}
	out := v.read([]byte(text), []byte{})
	return string(append(out, v.rest()...))
}

// A terminal that reads old output answers nothing, and has no clipboard of it.
func TestQuestionsAreNotAskedAgain(t *testing.T) {
	for text, want := range map[string]string{
		"plain\r\nünï\u00a0漢\t\x07":                            "plain\r\nünï\u00a0漢\t\x07",
		"\x1b[31;1mred\x1b[0m":                                 "\x1b[31;1mred\x1b[0m",
		"\x1b[2J\x1b[3;4Hx\x1b7\x1b8\x1b(0q\x1b(B\x1bM":        "\x1b[2J\x1b[3;4Hx\x1b7\x1b8\x1b(0q\x1b(B\x1bM",
		"\x1b[?1049h\x1b[?25l":                                 "\x1b[?1049h\x1b[?25l",
		"a\x1b[cb\x1b[0cc\x1b[>cd\x1b[=ce":                     "abcde",
		"a\x1b[6nb\x1b[?6nc\x1b[5nd":                           "abcd",
		"a\x05b\x1b[\x05mc\x1b\x05[1md":                        "ab\x1b[mc\x1b[1md",
		"a\x1b[18tb\x1b[8;20;20tc":                             "abc",
		"a\x1b[?2004$pb\x1b[!pc":                               "ab\x1b[!pc",
		"a\x1b[>0qb\x1b[2 qc":                                  "ab\x1b[2 qc",
		"a\x1b[?ub\x1b[uc\x1b[>1ud":                            "ab\x1b[uc\x1b[>1ud",
		"a\x1b[1xb\x1bZc":                                      "abc",
		"a\x1b]10;?\x07b\x1b]11;?\x1b\\c":                      "abc",
		"a\x1b]4;1;?\x07b\x1b]4;1;#fff\x07c":                   "ab\x1b]4;1;#fff\x07c",
		"a\x1b]52;c;c3RvbGVu\x07b\x1b]52;c;?\x07c":             "abc",
		"a\x1b]8;;http://x/?q\x07b\x1b]8;;\x07c":               "a\x1b]8;;http://x/?q\x07b\x1b]8;;\x07c",
		"a\x1b]0;title\x07b\x1b]2;t\x1b\\c":                    "a\x1b]0;title\x07b\x1b]2;t\x1b\\c",
		"a\x1b]1337;ReportCellSize\x07b\x1b]60\x07c\x1b]\x07d": "abcd",
		"a\x1bP$qm\x1b\\b\x1bP+q544e\x1b\\c\x1b_Ga=q\x1b\\d":   "abcd",
		// Eight-bit controls, which UTF-8 writes in two bytes, in every place.
		"a\u009bcb\u009b31mc\u009d52;c;eA==\u009cd\u009d2;t\u009ce": "ab\u009b31mcd\u009d2;t\u009ce",
		"a\u0090$qm\u009cb\u009ac\u0085d":                           "abc\u0085d",
		"\x1b]2;x\u009bcy":                                          "y",
		"\x1b[3\u009b6ny":                                           "y",
		// Sequences that end halfway.
		"\x1b[3\x1b[6nx":               "x",
		"\x1b]2;a\x1b[6nx":             "x",
		"\x1b[6\x18n\x1b[6\x1anx":      "nnx",
		"\xc2\x1b[6nx":                 "x",
		"\xc2\x05\x9bcx":               "\x9bcx",
		"\x1b]2;\xc2\x1b[cx\x07":       "x\x07",
		"\xc2\xc2\x9bcx\xe2\xc2\x9bcy": "x\xe2y",
		// One that has not ended goes on with what follows.
		"a\x1b":         "a\x1b",
		"a\x1b[3":       "a\x1b[3",
		"a\x1b]2;title": "a\x1b]2;title",
		"a\xc2":         "a\xc2",
		"a\x1b]2;t\xc2": "a\x1b]2;t\xc2",
		"a\x1b[" + strings.Repeat("1;", heldMax) + "mb":     "ab",
		"a\x1b]2;" + strings.Repeat("x", heldMax) + "\x07b": "ab",
	} {
		if got := readAll(text); got != want {
			t.Errorf("%.60q gives %.60q, want %.60q", text, got, want)
		}
	}
}

func TestModes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"x\x1b[1h\x1b[4l":                     "",
		"\x1b[?1049h\x1b[?1;2004h\x1b[?25l":   "\x1b[?1h\x1b[?25l\x1b[?1049h\x1b[?2004h",
		"\x1b[?1049h\x1b[?1049l":              "\x1b[?1049l",
		"\x1b[?1049h\x1bc\x1b[?25l":           "\x1b[?25l",
		"\u009b?7l":                           "\x1b[?7l",
		"\x1b[?99999999999h\x1b[?-1h\x1b[?;h": "",
	} {
		v := vt{}
		v.read([]byte(text), nil)
		if got := string(v.modes.restore(nil)); got != want {
			t.Errorf("%q sets %q, want %q", text, got, want)
		}
	}
	v := vt{}
	for n := range 1000 {
		v.read([]byte("\x1b[?"+strings.Repeat("1", n%5)+"h"), nil)
		v.modes = v.modes.note([]byte{byte('0' + n%10), byte('0' + n/10%10), byte('0' + n/100%10)}, true)
	}
	if len(v.modes) > modesMax {
		t.Errorf("%d modes are kept", len(v.modes))
	}
}

// Output that is passed on asks for nothing, however it is read, and its parts are those
// of the whole.
func FuzzVT(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "\x1b[c", "\x1b]52;c;x\x07", "\x1bP$qm\x1b\\", "\u009b6n", "\xc2", "\x1b[3\x1b[?1049h", "\x1b]8;;?\x1b\\a\x1b]8;;\x07", "\x1b[?1;2$p\x05\x18\x1a",
	} {
		f.Add([]byte(seed), uint16(len(seed)/2))
	}
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		whole := vt{}
		want := whole.read(text, []byte{})
		k := min(int(cut), len(text))
		parts := vt{}
		got := parts.read(text[k:], parts.read(text[:k], []byte{}))
		if !bytes.Equal(got, want) || !bytes.Equal(parts.rest(), whole.rest()) || !bytes.Equal(parts.modes.restore(nil), whole.modes.restore(nil)) {
			t.Fatalf("cut at %d: %q and %q, whole: %q and %q", k, got, parts.rest(), want, whole.rest())
		}
		again := vt{}
		if twice := again.read(want, []byte{}); !bytes.Equal(twice, want) {
			t.Fatalf("%q is %q when it is read again", want, twice)
		}
		if len(whole.held) > heldMax || len(whole.modes) > modesMax {
			t.Fatalf("%d bytes are held, %d modes", len(whole.held), len(whole.modes))
		}
	})
}
