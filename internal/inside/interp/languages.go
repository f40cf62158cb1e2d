package interp

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The languages that have a kernel here, by the names that clients give them.
const (
	langPython     = "python"
	langJavaScript = "javascript"
	langTypeScript = "typescript"
	langBash       = "bash"
	langR          = "r"
	langJava       = "java"
)

// Languages are all that a server can run where their programs are installed.
func Languages() []string {
	return []string{langPython, langJavaScript, langTypeScript, langR, langJava, langBash}
}

// aliases are other names, Jupyter's for their kernels among them.
var aliases = map[string]string{
	"": langPython, "python3": langPython,
	"js": langJavaScript, "ts": langTypeScript,
	"ir": langR, "sh": langBash,
}

// atHand are the languages whose default contexts exist from the start. Their
// kernels start when they are first used.
var atHand = []string{langPython, langJavaScript}

// language resolves a name to a language that has a kernel here.
func (s *Server) language(name string) (string, error) {
	lang := strings.ToLower(strings.TrimSpace(name))
	if real, ok := aliases[lang]; ok {
		lang = real
	}
	if slices.Contains(s.cfg.Languages, lang) {
		return lang, nil
	}
	return "", badRequest(fmt.Sprintf("this template has no kernel for the language %.40q; it has %s", name, strings.Join(s.cfg.Languages, ", ")))
}

// home is the language whose default context runs lang.
func home(lang string) string {
	if lang == langTypeScript {
		return langJavaScript
	}
	return lang
}

// startKernel starts a kernel for lang in its place.
func (s *Server) startKernel(ctx context.Context, lang string, at spec) (kernel, error) {
	lib := func(name string) string { return filepath.Join(s.cfg.Dir, "lib", name) }
	switch home(lang) {
	case langJavaScript:
		at.argv = []string{
			s.cfg.Node, "--disable-warning=ExperimentalWarning",
			// Code that is interrupted inside a callback leaves the stack of
			// asynchronous contexts behind.
			"--no-force-async-hooks-checks", lib("node.cjs"),
		}
		return startLines(ctx, at, node{})
	case langBash:
		at.argv = []string{"bash", "-c", bashStart, "bash", lib("bash.sh")}
		return startLines(ctx, at, bash{})
	case langR:
		at.argv = []string{s.cfg.R, "--no-echo", "--no-restore", "--file=" + lib("r.R"), "--args"}
		return startLines(ctx, at, files{})
	case langJava:
		at.argv = s.javaKernel()
		return startLines(ctx, at, files{})
	}
	at.argv = []string{s.cfg.Python, lib("launch.py"), "-f"}
	return startJupyter(ctx, at)
}

// node speaks with kernel/node.cjs: requests are JSON.
type node struct{}

func (node) send(k *lines, op string, more any) error {
	line, err := json.Marshal(more)
	if err != nil {
		return err
	}
	head := fmt.Appendf(nil, `{"id":%d,"op":%q`, k.last, op)
	if string(line) != "{}" {
		head = append(head, ',')
	}
	return k.request(append(head, line[1:]...))
}

func (n node) execute(k *lines, code source) error {
	return n.send(k, "execute", struct {
		Code     string `json:"code"`
		Language string `json:"language"`
	}{code.text, code.language})
}

func (n node) prepare(k *lines, p preparation) error { return n.send(k, "prepare", p) }

func (n node) restore(k *lines) error { return n.send(k, "restore", struct{}{}) }

func (n node) interrupt(k *lines) {
	_ = n.send(k, "interrupt", struct{}{})
	k.signalled()
}

// bashStart is what the shell of a bash context runs, on one line: the lines
// of a message then count those of the code. Outside the code its traces
// (set -x) are not shown.
const bashStart = `{ builtin source "$1"; builtin set --; } 2>/dev/null; ` +
	`while { __cay_next "$?"; } 2>/dev/null; do builtin eval "$__cay_code"; done`

// bash speaks with kernel/bash.sh: requests are code in a file.
type bash struct{}

func (bash) send(k *lines, code string) error {
	// The file is the kernel's user's, as all in its directory.
	if err := os.WriteFile(filepath.Join(k.dir, "code"), []byte(code), 0o644); err != nil {
		return err
	}
	return k.request(strconv.AppendInt(nil, int64(k.last), 10))
}

func (b bash) execute(k *lines, code source) error { return b.send(k, code.text) }

// shellName is what a shell takes for the name of a variable.
var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (b bash) prepare(k *lines, p preparation) error {
	var code strings.Builder
	for _, name := range p.Unset {
		if shellName.MatchString(name) {
			fmt.Fprintf(&code, "unset -v %s\n", name)
		}
	}
	for _, v := range p.variables() {
		if shellName.MatchString(v.name) {
			fmt.Fprintf(&code, map[string]string{"set": "export %s=%s\n", "call": "__cay_call %s %s\n"}[v.verb], v.name, shellQuote(v.value))
		}
	}
	if n := len(p.Entropy); n >= 2 {
		fmt.Fprintf(&code, "RANDOM=%d\n", int(p.Entropy[0])<<8|int(p.Entropy[1]))
	}
	return b.quietly(k, code.String())
}

func (b bash) restore(k *lines) error {
	return b.quietly(k, "eval \"$__cay_undo\"; __cay_undo=\n")
}

// quietly runs code of ours, which fails without a word.
func (b bash) quietly(k *lines, code string) error {
	return b.send(k, "{ "+code+":; } >/dev/null 2>&1 || :")
}

// interrupt leaves a shell alone that starts itself again: it has stopped the
// code, and the new shell has no trap yet that would save it and its variables.
// The new shell has the FIFO's byte, and waits for it while an interrupt has it. The
// interrupt names the request that it is meant for, because a shell may come to
// it with the next one in hand.
func (bash) interrupt(k *lines) {
	turn := make([]byte, 1)
	if n, err := unix.Read(k.turn, turn); n != 1 || err != nil {
		return
	}
	if k.stops(k.last) == nil {
		k.signalled()
	}
	_, _ = unix.Write(k.turn, turn) // an empty pipe takes a byte
}

func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "\x00", ""), "'", `'\''`) + "'"
}

// files speaks with kernel/r.R and kernel/Java.java: a request is a number and
// a verb, and what it is about is in a file.
type files struct{}

func (files) send(k *lines, verb string, content []byte) error {
	if err := os.WriteFile(filepath.Join(k.dir, "code"), content, 0o644); err != nil {
		return err
	}
	return k.request(fmt.Appendf(nil, "%d %s", k.last, verb))
}

func (f files) execute(k *lines, code source) error { return f.send(k, "execute", []byte(code.text)) }

// prepare sends verb, name and value of each change, each ended by a zero
// byte, which none of them can hold.
func (f files) prepare(k *lines, p preparation) error {
	var content []byte
	change := func(verb, name, value string) {
		for _, field := range []string{verb, name, value} {
			content = append(content, strings.ReplaceAll(field, "\x00", "")...)
			content = append(content, 0)
		}
	}
	for _, name := range p.Unset {
		change("unset", name, "")
	}
	for _, v := range p.variables() {
		change(v.verb, v.name, v.value)
	}
	if len(p.Entropy) > 0 {
		change("entropy", "", hex.EncodeToString(p.Entropy))
	}
	return f.send(k, "prepare", content)
}

func (f files) restore(k *lines) error { return f.send(k, "restore", nil) }

func (files) interrupt(k *lines) { k.signalled() }
