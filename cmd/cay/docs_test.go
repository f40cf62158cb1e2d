package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var (
	inlineCode = regexp.MustCompile("`([^`\n]+)`")
	// A program call ends where the shell's next word begins.
	shellEnd = regexp.MustCompile(`[|;&)<>"]| # |$`)
	isCall   = regexp.MustCompile(`(?:^|[ (;&])(?:bin/)?cay ([a-z-].*)`)
)

// TestDocsCallRealCommands holds that each call of cay in the documents, the errors'
// hints and the specifications names a command, flags and as many arguments as the
// program has.
func TestDocsCallRealCommands(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("cay"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for file, calls := range documentedCalls(t) {
		for _, call := range calls {
			seen++
			if problem := checkCall(parser.Model.Node, strings.Fields(call)); problem != "" {
				t.Errorf("%s: cay %s: %s", file, call, problem)
			}
		}
	}
	if seen < 200 {
		t.Errorf("only %d calls were found", seen)
	}
}

func TestCheckCallFindsMistakes(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("cay"))
	if err != nil {
		t.Fatal(err)
	}
	for call, wrong := range map[string]bool{
		"why":                         true,
		"sandbox why ID":              false,
		"sandbox snapshot ID NAME":    true,
		"sandbox snapshot ID --name":  false,
		"sandbox list --nonsense":     true,
		"sbx ls --json":               false,
		"sandbox":                     false,
		"sandbox exec ID -- sh -c 'x": false,
	} {
		if problem := checkCall(parser.Model.Node, strings.Fields(call)); (problem != "") != wrong {
			t.Errorf("cay %s: %q", call, problem)
		}
	}
}

// documentedCalls maps each document to the calls of cay in it.
func documentedCalls(t *testing.T) map[string][]string {
	t.Helper()
	calls := map[string][]string{}
	collect := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		calls[path] = callsIn(string(text), filepath.Ext(path) == ".md")
	}
	for _, path := range []string{"../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md", "../../codes.go", "../../api/openapi/cay.yaml"} {
		collect(path)
	}
	for _, dir := range []string{"../../docs/use", "../../docs/operate", "../../docs/develop"} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".md" {
				collect(path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

// callsIn returns the calls of cay in inline code, and in a document's blocks of shell code.
func callsIn(text string, document bool) (calls []string) {
	shell, fenced := false, false
	for line := range strings.Lines(text) {
		if document && strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			shell = fenced && strings.TrimSpace(line) == "```sh"
			continue
		}
		if shell {
			calls = append(calls, callIn(line)...)
		}
		if !fenced {
			for _, code := range inlineCode.FindAllStringSubmatch(line, -1) {
				calls = append(calls, callIn(code[1])...)
			}
		}
	}
	return calls
}

// callIn returns the calls of cay in a line of shell code.
func callIn(line string) (calls []string) {
	for {
		at := isCall.FindStringSubmatchIndex(line)
		if at == nil {
			return calls
		}
		rest := strings.TrimSpace(line[at[2]:])
		end := shellEnd.FindStringIndex(rest)
		calls = append(calls, strings.TrimSpace(rest[:end[0]]))
		line = rest[end[0]:]
	}
}

// checkCall returns the first mistake of a call, or nothing. A call may end at any
// word, because a sentence can name a group of commands.
func checkCall(at *kong.Node, words []string) string {
	flags := flagsOf(at)
	arguments := 0
	for i := 0; i < len(words); i++ {
		word := strings.Trim(words[i], "[],'")
		if at.DefaultCmd != nil && child(at, word) == nil {
			at = at.DefaultCmd
			maps.Copy(flags, flagsOf(at))
		}
		switch {
		case word == "--" || word == "#": // a guest's command, or a comment
			return ""
		case word == "\\" || word == "…":
			continue
		case strings.HasPrefix(word, "--"):
			name, _, hasValue := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			flag, ok := flags[name]
			if !ok {
				return "no flag --" + name
			}
			if !flag.IsBool() && !hasValue {
				i++
			}
		case len(word) == 2 && word[0] == '-':
			flag, ok := flags[word[1:]]
			if !ok {
				return "no flag " + word
			}
			if !flag.IsBool() {
				i++
			}
		default:
			if next := child(at, word); next != nil && arguments == 0 {
				at = next
				maps.Copy(flags, flagsOf(at))
				continue
			}
			if len(at.Positional) == 0 {
				return "no command or argument " + word
			}
			if arguments++; arguments > len(at.Positional) && !at.Positional[len(at.Positional)-1].IsCumulative() {
				return "too many arguments: " + word
			}
			if at.Passthrough {
				return ""
			}
		}
	}
	return ""
}

func child(at *kong.Node, word string) *kong.Node {
	for _, c := range at.Children {
		if c.Name == word {
			return c
		}
		for _, alias := range c.Aliases {
			if alias == word {
				return c
			}
		}
	}
	return nil
}

func flagsOf(n *kong.Node) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for _, f := range n.Flags {
		flags[f.Name] = f
		if f.Short != 0 {
			flags[string(f.Short)] = f
		}
		if f.Tag != nil && f.Tag.Negatable != "" {
			flags["no-"+f.Name] = f
		}
	}
	return flags
}
