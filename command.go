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

// shells are the programs whose script after -c says what runs.
var shells = []string{"bash", "dash", "sh", "zsh"}

// script is what a shell is given to run after -c, with the script's own arguments; waits
// says that it is given nothing and reads its input. Neither is so for another program.
func (s Start) script() (words []string, waits bool) {
	if len(s.Command) == 0 || !slices.Contains(shells, path.Base(s.Command[0])) {
		return nil, false
	}
	letters, words := shellOptions(s.Command[1:])
	if strings.Contains(letters, "c") {
		return words, false
	}
	return nil, len(words) == 0 || strings.Contains(letters, "s")
}

// shellOptions takes the options off a shell's arguments, as shells read them: letters in
// any order, of which some take the next argument. It returns the letters and the rest.
func shellOptions(args []string) (letters string, rest []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "-" || arg == "--":
			return letters, args[i+1:]
		case arg == "--rcfile" || arg == "--init-file":
			i++
		case strings.HasPrefix(arg, "--"):
		case strings.HasPrefix(arg, "-") || strings.HasPrefix(arg, "+"):
			letters += arg[1:]
			i += strings.Count(arg, "o") + strings.Count(arg, "O")
		default:
			return letters, args[i:]
		}
	}
	return letters, nil
}

// Line is what runs, in the form that patterns are compared with: the script of a
// shell's -c, else the program and its arguments as a shell takes them; or the code.
func (s Start) Line() string {
	if len(s.Command) == 0 {
		return s.Code
	}
	if script, _ := s.script(); len(script) == 1 {
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
// asked about. One whose deeds come later is asked about with any pattern.
func (s Start) IsAsked(patterns []string) bool {
	if len(patterns) == 0 {
		return false
	}
	script, waits := s.script()
	if waits || s.Unseen {
		return true
	}
	lines := []string{s.Line()}
	if len(script) > 1 {
		lines = append(lines, script[0]) // an argument behind a script hides it from no pattern
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
	script, _ := s.script()
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
