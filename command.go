package cay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Start is a program, or code, that a client wants to have run in a sandbox.
type Start struct {
	Command        []string // the program and its arguments; empty for code
	Code, Language string
	Context        string // of the code's variables; empty for the language's usual one
	// Unseen says that what it does comes later, over a terminal or a connection.
	Unseen    bool
	User, Dir string // empty for the usual ones
	Env       map[string]string
}

// The bounds of the commands that are asked about.
const (
	maxAskCommands = 32
	maxAskCommand  = 256
	// MaxStartShown bounds what a person is shown of a start, in bytes.
	MaxStartShown = maxApprovalBody
)

// CheckAskCommands reports, as an error, patterns that no sandbox can have.
func CheckAskCommands(patterns []string) error {
	if len(patterns) > maxAskCommands {
		return Errorf(Invalid, "askCommands: has more than %d patterns", maxAskCommands)
	}
	for _, p := range patterns {
		if strings.TrimSpace(p) == "" || len(p) > maxAskCommand || Fit(p, maxAskCommand) != p {
			return Errorf(Invalid, "askCommands: %.80q must have 1 to %d bytes in one line of printable characters", p, maxAskCommand)
		}
	}
	return nil
}

// bourne are the programs whose script after -c says what runs, with the letters of
// options that only change how it runs; c, s, o and O have a meaning of their own.
var bourne = map[string]string{
	"bash": bashLetters, "rbash": bashLetters, "sh": bashLetters, "dash": bashLetters,
	"ash": plainLetters, "ksh": plainLetters, "ksh93": plainLetters, "mksh": plainLetters, "yash": plainLetters, "zsh": plainLetters,
}

const (
	plainLetters = "eflnuvx"
	bashLetters  = plainLetters + "abhkmprtBCEHPTi"
)

// harmlessLong are the long options of bash that do no more than that, with one dash or
// two; otherLong are the others, whose letters alone would be known.
var (
	harmlessLong = []string{"login", "noediting", "noprofile", "norc", "posix", "restricted", "verbose"}
	otherLong    = []string{"debug", "debugger", "dump-po-strings", "dump-strings", "help", "init-file", "pretty-print", "protected", "rcfile", "version", "wordexp"}
)

// shell is what a start gives a shell to run.
type shell struct {
	script []string // after -c, with the script's own arguments
	// hides says that what runs is not in the words: the shell reads its input, or has an
	// option that is not known to be harmless.
	hides bool
}

// shell is what the start gives a shell; nothing for another program.
func (s Start) shell() shell {
	words := s.Command
	if len(words) > 0 && path.Base(words[0]) == "busybox" {
		words = words[1:]
	}
	if len(words) == 0 {
		return shell{}
	}
	name := path.Base(words[0])
	known, is := bourne[name]
	if !is {
		return shell{}
	}
	letters, rest, harmless := shellOptions(words[1:], known, strings.HasSuffix(name, "bash") || name == "sh")
	switch {
	case !harmless:
		return shell{hides: true}
	case strings.Contains(letters, "c"):
		return shell{script: rest}
	}
	return shell{hides: len(rest) == 0 || strings.Contains(letters, "s")}
}

// shellOptions takes the options off a shell's arguments, as shells read them: long ones
// where there are any, then letters in any order, of which some take the next argument. It
// returns the letters and the rest, and whether each option is known to be harmless.
func shellOptions(args []string, known string, long bool) (letters string, rest []string, harmless bool) {
	for long && len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name := strings.TrimPrefix(args[0][1:], "-")
		if slices.Contains(otherLong, name) {
			return "", nil, false
		}
		if !slices.Contains(harmlessLong, name) {
			break
		}
		args = args[1:]
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "-" || arg == "--" {
			return letters, args[i+1:], true
		}
		if arg == "" || arg[0] != '-' && arg[0] != '+' {
			return letters, args[i:], true
		}
		for _, letter := range arg[1:] {
			switch {
			case letter == 'o' || letter == 'O':
				i++
				if i < len(args) && strings.Trim(args[i], "abcdefghijklmnopqrstuvwxyz-_0123456789") != "" {
					return "", nil, false
				}
			case arg[0] == '-' && (letter == 'c' || letter == 's'):
			case !strings.ContainsRune(known, letter):
				return "", nil, false
			}
			letters += string(letter)
		}
	}
	return letters, nil, true
}

// harmlessEnv are the variables, beside LC_*, that are known to change no more than how a
// program looks and speaks. Any other may start another program: BASH_ENV, LD_PRELOAD
// and PATH are some of many.
var harmlessEnv = []string{"CI", "CLICOLOR", "COLORTERM", "COLUMNS", "DEBIAN_FRONTEND", "FORCE_COLOR", "LANG", "LANGUAGE", "LINES", "NO_COLOR", "PYTHONUNBUFFERED", "TERM", "TZ"}

// hidesInEnv reports whether a variable may start a program that the words do not name.
func (s Start) hidesInEnv() bool {
	for name := range s.Env {
		if !slices.Contains(harmlessEnv, name) && !strings.HasPrefix(name, "LC_") {
			return true
		}
	}
	return false
}

// Line is what runs, in the form that patterns are compared with: the script of a
// shell's -c, else the program and its arguments as a shell takes them; or the code.
func (s Start) Line() string {
	if len(s.Command) == 0 {
		return s.Code
	}
	if script := s.shell().script; len(script) == 1 {
		return script[0]
	}
	words := make([]string, len(s.Command))
	for i, arg := range s.Command {
		words[i] = shellWord(arg)
	}
	return strings.Join(words, " ")
}

func shellWord(s string) string {
	plain := func(r rune) bool {
		return r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=@%+,", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// IsAsked reports whether a start waits for a person's yes where these patterns are
// asked about. One whose deeds come later, or are not in its words, is asked about with
// any pattern.
func (s Start) IsAsked(patterns []string) bool {
	if len(patterns) == 0 {
		return false
	}
	given := s.shell()
	if given.hides || s.Unseen || s.hidesInEnv() {
		return true
	}
	lines := []string{s.Line()}
	if len(given.script) > 1 {
		lines = append(lines, given.script[0]) // an argument behind a script hides it from no pattern
	}
	return slices.ContainsFunc(patterns, func(p string) bool {
		return slices.ContainsFunc(lines, func(line string) bool { return Matches(p, line) })
	})
}

// Subject names exactly this start: a decision about it is for no other one.
func (s Start) Subject() string {
	return Fit(s.Line(), maxSubject-64) + " #" + s.digest()
}

func (s Start) digest() string {
	text, err := json.Marshal(s)
	if err != nil { // strings always marshal
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Title says in one line what runs.
func (s Start) Title() string {
	what := "Run "
	if len(s.Command) == 0 {
		what = "Run " + s.language() + " code: "
	}
	if s.Unseen {
		what = "Open a terminal: "
	}
	return Fit(what+s.Line(), maxApprovalTitle)
}

func (s Start) language() string {
	if s.Language == "" {
		return "python"
	}
	return s.Language
}

// Shown is all of a start for people, with what cannot be seen escaped: facts, one a
// line, and after an empty line what runs. Values of variables may be secret: the
// digest in the subject stands for them.
func (s Start) Shown() string {
	var out strings.Builder
	fact := func(name string, values ...string) {
		for i, v := range values {
			values[i] = strconv.Quote(v)
		}
		out.WriteString(name + ": " + strings.Join(values, " ") + "\n")
	}
	script := s.shell().script
	text, given := "", len(script) == 1
	switch {
	case len(s.Command) == 0:
		fact("code", s.language())
		text, given = s.Code, true
		if s.Context != "" {
			fact("context", s.Context)
		}
	case given:
		text = script[0]
		fact("program", slices.Clone(s.Command[:len(s.Command)-1])...)
	default:
		fact("program", slices.Clone(s.Command)...)
	}
	if s.User != "" {
		fact("user", s.User)
	}
	if s.Dir != "" {
		fact("directory", s.Dir)
	}
	if len(s.Env) > 0 {
		fact("variables", slices.Sorted(maps.Keys(s.Env))...)
	}
	if s.Unseen {
		out.WriteString("Text that is typed or sent there is not asked about.\n")
	}
	if given {
		out.WriteString("\n")
		for _, r := range text {
			if unicode.IsPrint(r) || r == '\n' || r == '\t' {
				out.WriteRune(r)
				continue
			}
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return out.String()
}
