package cay_test

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func TestStartsThatAreAskedAbout(t *testing.T) {
	bash := func(line string) cay.Start { return cay.Start{Command: []string{"/bin/bash", "-l", "-c", line}} }
	program := func(words ...string) cay.Start { return cay.Start{Command: words} }
	with := func(s cay.Start, names ...string) cay.Start {
		s.Env = map[string]string{}
		for _, name := range names {
			s.Env[name] = "x"
		}
		return s
	}
	for _, tt := range []struct {
		start    cay.Start
		patterns string // between commas
		line     string
		asked    bool
	}{
		{bash("git push origin main"), "git push*", "git push origin main", true},
		{bash("cd x && git push"), "git push*", "cd x && git push", false},
		{bash("cd x && git push"), "*git push*", "cd x && git push", true},
		{bash("a\nrm -rf /\n"), "*rm -rf*", "a\nrm -rf /\n", true},
		{bash("ls"), "*", "ls", true},
		{bash("ls"), "", "ls", false},
		{bash("ls"), "rm *,ls", "ls", true},
		{bash("ls"), "rm *", "ls", false},
		{bash(""), "*", "", true},
		{program("rm", "-rf", "/"), "rm *", "rm -rf /", true},
		{program("rm", "a b", "it's"), "rm *", `rm 'a b' 'it'\''s'`, true},
		{program("sh", "-ec", "rm x"), "rm *", "rm x", true},
		{program("sh", "-ce", "rm x"), "rm *", "rm x", true},
		{program("bash", "-c", "a $0", "rm"), "rm *", "bash -c 'a $0' rm", false},
		{program("bash", "-euo", "pipefail", "-c", "rm x"), "rm *", "rm x", true},
		{program("bash", "-ceuo", "pipefail", "rm x"), "rm *", "rm x", true},
		{program("bash", "--login", "-norc", "+e", "-c", "--", "rm x"), "rm *", "rm x", true},
		{program("bash", "-login", "-c", "rm x"), "rm *", "rm x", true},
		{program("bash", "--rcfile", "a", "+e", "-c", "ls"), "rm *", "bash --rcfile a +e -c ls", true}, // runs what a file has
		{program("bash", "-rcfile", "a", "-i", "-c", "ls"), "rm *", "bash -rcfile a -i -c ls", true},
		{program("bash", "-init-file", "a", "-i", "-c", "ls"), "rm *", "bash -init-file a -i -c ls", true},
		{program("rbash", "-c", "rm x"), "rm *", "rm x", true},
		{program("busybox", "sh", "-c", "rm x"), "rm *", "rm x", true},
		{program("busybox", "ls"), "rm *", "busybox ls", false},
		{program("zsh", "-b", "-c", "ls"), "rm *", "zsh -b -c ls", true}, // ends its options
		{program("bash", "+c", "ls"), "rm *", "bash +c ls", true},
		{program("bash", "-c", "-login", "rm x"), "rm *", "bash -c -login 'rm x'", true},
		{with(bash("ls"), "BASH_ENV"), "rm *", "ls", true}, {with(bash("ls"), "PS4"), "rm *", "ls", true}, {with(program("sh", "-ic", "ls"), "ENV"), "rm *", "ls", true},
		{with(program("ls"), "LD_PRELOAD"), "rm *", "ls", true}, {with(program("ls"), "LD_AUDIT"), "rm *", "ls", true}, {with(bash("ls"), "PROMPT_COMMAND"), "rm *", "ls", true},
		{with(bash("ls"), "BASH_FUNC_ls%%"), "rm *", "ls", true}, {with(program("git", "log"), "GIT_PAGER"), "rm *", "git log", true}, {with(program("ls"), "PATH"), "rm *", "ls", true},
		{with(bash("ls"), "LANG", "LC_ALL", "TERM", "TZ"), "rm *", "ls", false}, {with(bash("ls"), "BASH_ENV"), "", "ls", false},
		{with(cay.Start{Code: "1"}, "LD_PRELOAD"), "rm *", "1", true},
		{program("bash", "-s", "x"), "rm *", "bash -s x", true}, // reads what it runs
		{program("bash", "-o", "pipefail"), "rm *", "bash -o pipefail", true},
		{program("bash", "-o"), "rm *", "bash -o", true},
		{program("bash", "--", "c.sh"), "rm *", "bash -- c.sh", false},
		{program("bash", "-c"), "rm *", "bash -c", false}, // it fails
		{program("bash", "run.sh"), "rm *", "bash run.sh", false},
		{program("zsh", "-c", "rm x", "y"), "rm *", "zsh -c 'rm x' y", true},
		{program("dash", "-x"), "rm *", "dash -x", true},
		{program("bash"), "rm *", "bash", true}, // reads what it runs
		{program("/usr/bin/bash", "-i", "-l"), "rm *", "/usr/bin/bash -i -l", true},
		{program("bash"), "", "bash", false},
		{cay.Start{Command: []string{"top"}, Unseen: true}, "rm *", "top", true},
		{cay.Start{Command: []string{"top"}, Unseen: true}, "", "top", false},
		{cay.Start{Code: "import stripe\n"}, "*stripe*", "import stripe\n", true},
		{cay.Start{Code: "1+1"}, "*stripe*", "1+1", false},
	} {
		var patterns []string
		if tt.patterns != "" {
			patterns = strings.Split(tt.patterns, ",")
		}
		if got := tt.start.IsAsked(patterns); got != tt.asked || tt.start.Line() != tt.line {
			t.Errorf("%q with %q: asked %v, line %q", tt.start.Command, patterns, got, tt.start.Line())
		}
	}
}

// A decision is for one start alone, and shows all that it does.
func TestStartsAsQuestions(t *testing.T) {
	start := cay.Start{
		Command: []string{"/bin/bash", "-c", "a\u202eb\x1b[2J\nuser: \"root\""}, User: "user", Dir: "/home/a\nb", Env: map[string]string{"TOKEN": "s3cret", "A": "1"},
	}
	want := "program: \"/bin/bash\" \"-c\"\nuser: \"user\"\ndirectory: \"/home/a\\nb\"\nvariables: \"A\" \"TOKEN\"\n\na\\u202eb\\x1b[2J\nuser: \"root\""
	if got := start.Shown(); got != want {
		t.Errorf("shown as\n%s\nnot\n%s", got, want)
	}
	for _, text := range []string{start.Title(), start.Shown(), start.Subject()} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("it tells a variable's value: %q", text)
		}
	}
	seen := map[string]bool{start.Subject(): true}
	for _, change := range []func(*cay.Start){
		func(s *cay.Start) { s.User = "root" }, func(s *cay.Start) { s.Dir = "/" }, func(s *cay.Start) { s.Unseen = true },
		func(s *cay.Start) { s.Env = map[string]string{"TOKEN": "other", "A": "1"} },
		func(s *cay.Start) { s.Command = []string{"/bin/bash", "-l", "-c", s.Command[2]} },
		func(s *cay.Start) { s.Command = []string{"/bin/bash", "-c", s.Command[2] + strings.Repeat("x", 600)} },
		func(s *cay.Start) { s.Command = []string{"/bin/bash", "-c", s.Command[2] + strings.Repeat("x", 601)} },
		func(s *cay.Start) { s.Command, s.Code = nil, s.Command[2] },
		func(s *cay.Start) { s.Command, s.Code, s.Language = nil, s.Command[2], "r" },
		func(s *cay.Start) { s.Command, s.Code, s.Context = nil, s.Command[2], "other" },
	} {
		other := start
		change(&other)
		if seen[other.Subject()] {
			t.Errorf("the decision about another start counts for %+v", other)
		}
		seen[other.Subject()] = true
	}
}

func TestPatternsOfCommands(t *testing.T) {
	for text, ok := range map[string]bool{"*": true, "git push*": true, "ü": true, "": false, " ": false, "a\nb": false, "a\u202eb": false, strings.Repeat("x", 257): false} {
		if err := cay.CheckAskCommands([]string{text}); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if cay.CheckAskCommands(make([]string, 33)) == nil {
		t.Error("33 patterns pass")
	}
}

// FuzzShells runs a script in real shells with any options: where one runs it, a pattern
// of it is asked about.
func FuzzShells(f *testing.F) {
	words := []string{
		"-c", "-l", "-login", "--login", "-norc", "--norc", "-rcfile", "--rcfile", "--init-file", "/dev/null", "-i", "-e", "+e", "-o", "+o", "pipefail", "-O", "extglob",
		"--", "-", "-x", "-s", "+c", "-ec", "-ce", "-co", "-euo", "-oc", "-posix", "--posix", "-r", "-D", "", "+", "-k", "--verbose", "-b", "-noprofile", "--debugger", "-P", "-t",
	}
	script := len(words)
	for _, seed := range [][]byte{{0, byte(script)}, {2, 0, byte(script)}, {6, 9, 0, byte(script)}, {25, 15, byte(script)}, {22, byte(script)}, {27, 15, byte(script)}, {0, 18, byte(script)}, {0, byte(script), 1}, {3, 0, 13, 15, byte(script)}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 8 {
			return
		}
		var args []string
		for _, b := range in {
			args = append(args, slices.Concat(words, []string{"echo ran"})[int(b)%(script+1)])
		}
		for _, shell := range []string{"bash", "dash", "rbash"} {
			if _, err := exec.LookPath(shell); err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			out, _ := exec.CommandContext(ctx, shell, args...).Output() // most options are refused
			cancel()
			ran := slices.Contains(strings.Split(string(out), "\n"), "ran")
			if s := (cay.Start{Command: append([]string{shell}, args...)}); ran && !s.IsAsked([]string{"echo ran"}) {
				t.Errorf("%q runs the script, and is not asked about", s.Command)
			}
		}
	})
}
