package interp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// in executes code of a language in its default context.
func (w *world) in(t *testing.T, lang, code string) *execution {
	t.Helper()
	return w.execute(t, map[string]any{"code": code, "language": lang})
}

// value executes code that must not fail and returns its main text.
func (w *world) value(t *testing.T, lang, code string) string {
	t.Helper()
	x := w.in(t, lang, code)
	if x.err != nil {
		t.Fatalf("%s: %v", code, x.err)
	}
	return x.text()
}

// out executes code that must not fail and returns its standard output.
func (w *world) out(t *testing.T, lang, code string) string {
	t.Helper()
	x := w.in(t, lang, code)
	if x.err != nil {
		t.Fatalf("%s: %v", code, x.err)
	}
	return x.stdout
}

// nodePath finds node: CAY_TEST_NODE, or the one on the path.
func nodePath(t *testing.T) string {
	t.Helper()
	name := os.Getenv("CAY_TEST_NODE")
	if name == "" {
		name = "node"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

func TestJavaScript(t *testing.T) {
	w := openWorld(t, Config{Node: nodePath(t)})

	t.Run("values", func(t *testing.T) {
		for _, c := range [][2]string{
			{"1 + 1", "2"}, {"'abc'", "abc"}, {"undefined", ""}, {"null", "null"}, {"10n", "10n"}, {"-0", "-0"},
			{"const x = 1; x", "1"}, {"const x = 2; class A { b = 1 }; x", "2"}, {"class A { c = 2 }; new A()", "A { c: 2 }"},
			{"let n = await Promise.resolve(7); n", "7"}, {"n += 1", "8"}, {"async function f() { return 9 }; f()", "9"},
			{"{ a: 1 }", "{ a: 1 }"}, {"{ let a = 3; a }", "3"}, {"// nothing", ""},
			{"for (let i = 0; i < 3; i++) i", "2"}, {"typeof require('fs').readFileSync", "function"},
			{"import fs, { readFileSync as r } from 'fs'\nimport * as p from \"node:path\"; [typeof r === typeof fs.readFileSync, p.sep].join()", "true,/"},
			{"import {\n  sep,\n  join\n} from 'path'\njoin(sep, 'a')", "/a"},
			{"const m = 'import(1)'; const {sep: s} = await import('path'); /import(2)/.source + m + s", "import(2)import(1)/"},
			{"export const q = 5; q", "5"}, {"process.argv.length", "1"},
			{"`import x from 'y'`", "import x from \\'y\\'"},
		} {
			if got := w.value(t, "js", c[0]); strings.ReplaceAll(got, "`", "") != c[1] && got != strings.ReplaceAll(c[1], `\`, "") {
				t.Errorf("%s gives %q, want %q", c[0], got, c[1])
			}
		}
	})
	t.Run("json", func(t *testing.T) {
		for code, want := range map[string]any{
			"({a: [1, null, 'x']})": map[string]any{"a": []any{1.0, nil, "x"}}, "[1]": []any{1.0},
			"new Map()": nil, "1": nil, "const a = []; a.push(a); a": nil,
		} {
			if x := w.in(t, "javascript", code); len(x.results) != 1 || !reflect.DeepEqual(x.results[0]["json"], want) {
				t.Errorf("%s gives %v", code, x.events)
			}
		}
	})
	t.Run("numbers", func(t *testing.T) {
		const draw = `
const bits = new DataView(new ArrayBuffer(8)), values = [2 ** 53, 1e21, 5e-324, -0, 0.1]
for (let i = 0; i < 2000; i++) {
  for (let at = 0; at < 8; at++) bits.setUint8(at, Math.random() * 256)
  values.push(bits.getFloat64(0), Math.random(), Number(bits.getBigInt64(0)))
}
`
		w.shows(t, "js", "json", draw+"console.log(JSON.stringify({values}));\n({values})")
		w.shows(t, "js", "extra", draw+"console.log(JSON.stringify({'x/y': values}));\ndisplay({'x/y': values}, {raw: true})")
		for _, code := range []string{"display(5, {raw: true})", "display(undefined, {raw: true})", "display([5], {raw: true})"} {
			if x := w.in(t, "js", code); x.err.text("name") != "TypeError" {
				t.Errorf("%s: %v", code, x.events)
			}
		}
	})
	t.Run("streams", func(t *testing.T) {
		x := w.in(t, "js", "console.log('one'); console.error('two'); display(3); process.stdout.write('é'); display({'text/html': '<b>'}, {raw: true}); 4")
		if x.stdout != "one\né" || x.stderr != "two\n" || x.count == 0 || x.err != nil {
			t.Fatalf("got %v", x.events)
		}
		if len(x.results) != 3 || x.results[0].text("text") != "3" || x.results[1].text("html") != "<b>" || x.text() != "4" {
			t.Fatalf("got %v", x.results)
		}
		x = w.in(t, "js", "require('child_process').execSync('echo child; echo sad >&2', {stdio: 'inherit'}); console.log('end')")
		if !strings.Contains(x.stdout, "child\n") || x.stderr != "sad\n" || !strings.Contains(x.stdout, "end\n") {
			t.Fatalf("got %v", x.events)
		}
	})
	t.Run("errors", func(t *testing.T) { testJavaScriptErrors(t, w) })
	t.Run("environment", func(t *testing.T) {
		const show = "[process.env.CAY_A, process.env.CAY_C].join()"
		w.setEnv(map[string]string{"CAY_A": "é'\n"})
		x := w.execute(t, map[string]any{"code": show, "language": "js", "env_vars": map[string]string{"CAY_C": "c"}})
		if got := x.text(); got != `é\'\n,c` && got != `é'\n,c` {
			t.Fatalf("got %q", got)
		}
		w.setEnv(nil)
		if got := w.value(t, "js", show); got != "," {
			t.Fatalf("got %q", got)
		}
	})
	t.Run("reseed", func(t *testing.T) {
		seen := map[string]bool{}
		for _, entropy := range []string{"one", "two", "one"} {
			if err := w.Reseed(context.Background(), []byte(entropy)); err != nil {
				t.Fatal(err)
			}
			seen[w.value(t, "js", "const r = Math.random(); if (!(r >= 0 && r < 1)) throw r; r")] = true
		}
		if len(seen) != 2 {
			t.Fatalf("three clones of two kinds drew %v", seen)
		}
	})
	t.Run("crypto", func(t *testing.T) {
		// Random bytes are the kernel's; errors are node's.
		const code = `
const crypto = require('crypto'), { randomBytes } = require('node:crypto')
const bad = (f) => { try { f() } catch (e) { return e.name } return 'none' }
const u = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
const later = (f) => new Promise((resolve, reject) => f((e, v) => e ? reject(e) : resolve(v)))
const ints = new Set(Array.from({ length: 300 }, () => crypto.randomInt(3, 6)))
const part = crypto.randomFillSync(new Uint16Array(8), 2, 4);
[randomBytes === crypto.randomBytes, randomBytes(7).length, (await later((f) => randomBytes(5, f))).length,
  bad(() => randomBytes(-1)), [...ints].sort().join(), bad(() => crypto.randomInt(2, 1)), await later((f) => crypto.randomInt(1, f)),
  u.test(crypto.randomUUID()), u.test(globalThis.crypto.randomUUID()), part[0] + part[1] + part[6] + part[7], part.slice(2, 6).some((x) => x),
  (await later((f) => crypto.randomFill(Buffer.alloc(9), f))).some((x) => x), crypto.randomFillSync(new ArrayBuffer(4)).byteLength,
  globalThis.crypto.getRandomValues(new Uint8Array(9)).some((x) => x), bad(() => globalThis.crypto.getRandomValues(new Float32Array(1)))].join(' ')`
		const want = "'true 7 5 RangeError 3,4,5 RangeError 0 true true 0 true true 4 true TypeMismatchError'"
		if got := w.value(t, "js", code); got != want && got != strings.Trim(want, "'") {
			t.Fatalf("got %q", got)
		}
	})
	t.Run("flood", func(t *testing.T) {
		x := w.in(t, "js", "for (let i = 0; i < 200; i++) console.log('é'.repeat(24999)); for (let i = 0; i < 3000; i++) display(i); console.log('end')")
		if len(x.stdout) != 200*49999+4 || !strings.HasSuffix(x.stdout, "end\n") || len(x.results) != 3000 {
			t.Fatalf("%d bytes, %d results", len(x.stdout), len(x.results))
		}
		if got := w.value(t, "js", "'x'.repeat(3e6).length"); got != "3000000" {
			t.Fatal(got)
		}
	})
}

func testJavaScriptErrors(t *testing.T, w *world) {
	for _, c := range []struct{ code, name, value, traceback string }{
		{"function f() { throw new TypeError('boo') }\nf()", "TypeError", "boo", "cell-"},
		{"await null; missing", "ReferenceError", "missing is not defined", "cell-"},
		{"let 1a", "SyntaxError", "Invalid or unexpected token", "let 1a\n    ^"},
		{"throw 5", "Error", "5", "Uncaught 5"},
		{"Promise.reject(new RangeError('later'))", "RangeError", "later", "cell-"},
		{"await new Promise(() => { setTimeout(() => { throw new Error('stray') }, 1) })", "Error", "stray", "cell-"},
		{"process.exit(3)", "ProcessExit", "process.exit(3)", ""},
		{"import x from 'no-such-package'", "Error", "no-such-package", ""},
		{"require('./none.cjs')", "Error", "none.cjs", ""},
	} {
		if strings.Contains(c.code, "stray") {
			c.code = "setTimeout(() => { throw new Error('stray') }, 1); await new Promise(done => setTimeout(done, 50))"
		}
		x := w.in(t, "js", c.code)
		if x.err == nil || x.err.text("name") != c.name || !strings.Contains(x.err.text("value"), c.value) ||
			!strings.Contains(x.err.text("traceback"), c.traceback) || strings.Contains(x.err.text("traceback"), "node:i") {
			t.Errorf("%s gives %v", c.code, x.events)
		}
	}
	if x := w.in(t, "js", "console.log(1); process.exit(0); console.log(2)"); x.err != nil || x.stdout != "1\n" {
		t.Errorf("got %v", x.events)
	}
}

func TestTypeScript(t *testing.T) {
	w := openWorld(t, Config{Node: nodeOfTypes(t)})
	w.value(t, "ts", "interface P { n: number }\nconst p: P = await Promise.resolve({ n: 4 })")
	if got := w.value(t, "TypeScript", "const double = (x: number): number => x * 2\ndouble(p.n)"); got != "8" {
		t.Fatalf("got %q", got)
	}
	if got := w.value(t, "js", "p.n"); got != "4" {
		t.Fatalf("JavaScript does not share: %q", got)
	}
	if got := w.value(t, "ts", "enum E { A = 3 }\nE.A"); got != "3" {
		t.Fatalf("got %q", got)
	}
	if x := w.in(t, "ts", "const a: = 3"); x.err == nil {
		t.Fatalf("got %v", x.events)
	}
}

func TestBash(t *testing.T) {
	w := openWorld(t, Config{})
	dir, _ := filepath.EvalSymlinks(t.TempDir())
	for _, c := range [][2]string{
		{"x=1; f() { echo f$x; }; cd " + dir, ""}, {"f; pwd", "f1\n" + dir + "\n"},
		{"for i in 1 2; do\n  echo $i\ndone", "1\n2\n"}, {"cat", ""}, {"cat <<E\ntwo\nE", "two\n"},
		{"a=(1 'b c'); echo ${#a[@]}", "2\n"}, {"echo \"${a[1]}\" | tr b d", "d c\n"}, {"continue", ""},
		{"set -u; trap 'echo bye' USR1; kill -USR1 $$", "bye\n"}, {"set +u; echo $#", "0\n"}, {"IFS=x; echo ok", "ok\n"},
	} {
		if got := w.out(t, "bash", c[0]); got != c[1] {
			t.Errorf("%s gives %q, want %q", c[0], got, c[1])
		}
	}
	x := w.in(t, "bash", "echo out; echo err >&2; false")
	if x.stdout != "out\n" || x.stderr != "err\n" || x.err.text("name") != "ExitCode" || x.err.text("value") != "1" {
		t.Fatalf("got %v", x.events)
	}
	if x = w.in(t, "bash", "true\nno-such-command"); x.err.text("value") != "127" || !strings.HasPrefix(x.stderr, "bash: line 2: no-such") {
		t.Fatalf("got %v", x.events)
	}
	if x = w.in(t, "bash", "if"); x.err == nil {
		t.Fatalf("got %v", x.events)
	}
	if x = w.in(t, "bash", "set -x; :; set +x"); x.stderr != "++ :\n++ set +x\n" {
		t.Fatalf("got %v", x.events)
	}
	t.Run("the shell's end", func(t *testing.T) {
		for code, status := range map[string]string{
			"readonly r=1; exit 3": "3", "y=2; set -eu; false; echo no": "1", "set +eu; g() { exit 4; }; g": "4", ": ${nothing:?}": "127",
		} {
			x := w.in(t, "bash", code)
			if x.err.text("value") != status && status != "127" || x.err == nil || x.stdout != "" {
				t.Errorf("%s: %v", code, x.events)
			}
		}
		if x := w.in(t, "bash", "set +eu; f; echo $x $y; pwd; echo ${a[1]}; exit 0"); x.stdout != "f1\n1 2\n"+dir+"\nb c\n" || x.err != nil {
			t.Fatalf("got %v", x.events)
		}
	})
	t.Run("environment", func(t *testing.T) {
		w.setEnv(map[string]string{"CAY_A": "é'\n$x"})
		call := map[string]string{"CAY_C": "c", "x": "call", "not a name": ""}
		x := w.execute(t, map[string]any{"code": `printenv CAY_A CAY_C; echo $x`, "language": "bash", "env_vars": call})
		if x.stdout != "é'\n$x\nc\ncall\n" {
			t.Fatalf("got %v", x.events)
		}
		w.setEnv(nil)
		if got := w.out(t, "bash", `echo "$x${CAY_A-}${CAY_C-}"`); got != "1\n" {
			t.Fatalf("got %q", got)
		}
	})
	t.Run("flood", func(t *testing.T) {
		x := w.in(t, "bash", "head -c 10000000 /dev/zero | tr '\\0' x; printf '\\303'; printf '\\251\\377'; yes é | head -n 30000")
		if n := len(x.stdout); n != 10000000+2+3+90000 {
			t.Fatalf("%d bytes", n)
		}
	})
}

// TestLinesInterrupt leaves executions that never end.
func TestLinesInterrupt(t *testing.T) {
	w := openWorld(t, Config{Node: nodePath(t)})
	w.value(t, "js", "let kept = 1")
	w.out(t, "bash", "kept=1")
	for _, c := range [][2]string{
		{"js", "while (true) {}"},
		{"js", "await null; while (true) {}"},
		{"js", "setTimeout(() => { console.log('running'); while (true) {} }, 0); await new Promise(() => {})"},
		{"js", "for (;;) { try { for (;;) console.log('x'.repeat(10000)) } catch {} }"},
		{"js", "require('child_process').execSync('sleep 3600')"},
		{"js", "await new Promise(() => {})"},
		{"bash", "while :; do :; done"},
		{"bash", "sleep 3600"},
		{"bash", "f() { while :; do sleep 3600; done; }; f"},
		{"bash", "yes"},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		say := map[string]string{"js": "console.log('running')\n", "bash": "echo running\n"}[c[0]]
		if strings.Contains(c[1], "running") {
			say = "" // it says so itself
		}
		resp := w.begun(ctx, t, map[string]any{"code": say + c[1], "language": c[0]})
		cancel()
		_ = resp.Body.Close()
		if c[0] == "js" {
			if got := w.value(t, "js", "kept"); got != "1" {
				t.Fatalf("after %q: %q", c[1], got)
			}
		} else if got := w.out(t, "bash", "echo $kept"); got != "1\n" {
			t.Fatalf("after %q: %q", c[1], got)
		}
	}
}

// TestInterruptsOfAShellThatStarts sees that no interrupt hits a shell that
// starts itself again: one that is under way is over before the shell does, and
// one that comes later waits for the next code.
func TestInterruptsOfAShellThatStarts(t *testing.T) {
	w := openWorld(t, Config{})
	w.out(t, "bash", "kept=1")
	sess, err := w.defaultSession(langBash)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sess.kernel(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	k := got.(*lines)

	// An interrupt that has looked and not yet sent its signal.
	turn := make([]byte, 1)
	if n, err := unix.Read(k.turn, turn); n != 1 || err != nil {
		t.Fatalf("a shell that waits for code has no turn: %d, %v", n, err)
	}
	state := filepath.Join(k.dir, "state")
	resp := w.begun(t.Context(), t, map[string]any{"language": "bash", "code": "echo running; exit 3"})
	late := time.Now().Add(time.Minute)
	for text := []byte(nil); !bytes.Contains(text, []byte("\numask ")); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the shell does not leave")
		}
		text, _ = os.ReadFile(state)
	}
	bash{}.interrupt(k) // finds the shell's turn taken, and sends nothing
	for range 100 {
		k.signalled()
	}
	if _, err := unix.Write(k.turn, turn); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Contains(rest, []byte(`"value":"3"`)) {
		t.Errorf("%v: %s", err, rest)
	}
	if got := w.out(t, "bash", "echo $kept"); got != "1\n" {
		t.Errorf("the variable is %q", got)
	}
	if st, err := os.Stat(state); err != nil || st.Size() != 0 {
		t.Errorf("the variables stay on disk: %v, %v", st, err)
	}

	// Interrupts at any moment of a shell that leaves again and again.
	for range 20 {
		resp := w.begun(t.Context(), t, map[string]any{"language": "bash", "code": "echo running; exit 3"})
		ctx, cancel := context.WithCancel(t.Context())
		var storm sync.WaitGroup
		storm.Go(func() {
			// A thousand times as often as await does. Bash runs a trap inside
			// itself if its signal comes again before the trap's first command, so
			// signals without any rest fill the stack, and no script can help it.
			for ctx.Err() == nil {
				bash{}.interrupt(k)
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
		rest, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		storm.Wait() // they are of this code
		if err != nil || !bytes.Contains(rest, []byte(`"ExitCode"`)) {
			t.Errorf("it ended as %s, %v", rest, err)
		}
	}
	if got := w.out(t, "bash", "echo $kept"); got != "1\n" {
		t.Errorf("after interrupts at any moment the variable is %q", got)
	}
}

func TestLinesKernelDeath(t *testing.T) {
	w := openWorld(t, Config{Node: nodePath(t)})
	for lang, code := range map[string]string{
		"js":   "require('child_process').spawn('setsid', ['sleep', '60'], {stdio: 'inherit'}); process.kill(process.pid, 'SIGKILL')",
		"bash": "echo last; setsid sleep 60 & kill -9 $$",
	} {
		x := w.in(t, lang, code)
		if x.err.text("name") != errUnexpectedEnd || lang == "bash" && x.stdout != "last\n" {
			t.Fatalf("%s: %v", lang, x.events)
		}
		if x := w.in(t, lang, map[string]string{"js": "console.log(4)", "bash": "echo 4"}[lang]); x.stdout != "4\n" || x.count != 1 {
			t.Fatalf("%s: %v", lang, x.events)
		}
	}
}

func TestLinesContexts(t *testing.T) {
	w := openWorld(t, Config{Node: nodePath(t)})
	var list []struct{ ID, Language string }
	_, text := w.do(t, http.MethodGet, "/contexts", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 || list[0].Language != "python" || list[1].Language != "javascript" {
		t.Fatalf("the default contexts: %s", text)
	}
	dir, _ := filepath.EvalSymlinks(t.TempDir())
	if err := os.WriteFile(filepath.Join(dir, "own.mjs"), []byte("export default 'own'"), 0o600); err != nil {
		t.Fatal(err)
	}
	for lang, code := range map[string]string{
		"js":   "import own from './own.mjs'\nconsole.log(own, process.cwd())",
		"bash": `echo "$(basename own.mjs .mjs) $PWD"`,
	} {
		body, _ := json.Marshal(map[string]string{"language": lang, "cwd": dir})
		_, text := w.do(t, http.MethodPost, "/contexts", string(body))
		var made struct{ ID string }
		if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" {
			t.Fatal(text)
		}
		for range 2 { // also after a restart
			x := w.execute(t, map[string]any{"code": code, "context_id": made.ID})
			if x.stdout != "own "+dir+"\n" || x.count != 1 {
				t.Fatalf("%s: %v", lang, x.events)
			}
			if code, text := w.do(t, http.MethodPost, "/contexts/"+made.ID+"/restart", ""); code != 200 {
				t.Fatal(text)
			}
		}
	}
}

func TestLanguages(t *testing.T) {
	w := openWorld(t, Config{Languages: []string{langPython, langBash}, R: "/nonexistent"})
	if _, text := w.do(t, http.MethodGet, "/contexts", ""); strings.Count(text, "language") != 1 {
		t.Fatalf("default contexts: %s", text)
	}
	for name, want := range map[string]string{"": langPython, "Python": langPython, "python3": langPython, " BASH ": langBash, "sh": langBash} {
		if got, err := w.language(name); got != want {
			t.Errorf("%q is %q: %v", name, got, err)
		}
	}
	for _, name := range []string{"js", "r", "cobol", strings.Repeat("x", 1<<20)} {
		body, _ := json.Marshal(map[string]string{"code": "1", "language": name})
		if code, text := w.do(t, http.MethodPost, "/execute", string(body)); code != 400 || !strings.Contains(text, "it has python, bash") || len(text) > 300 {
			t.Errorf("%.20s: %d %.300s", name, code, text)
		}
	}
	all := openWorld(t, Config{R: "/nonexistent"})
	for name, want := range map[string]string{"JS": langJavaScript, "ts": langTypeScript, "R": langR, "ir": langR, "Java": langJava} {
		if got, err := all.language(name); got != want {
			t.Errorf("%q is %q: %v", name, got, err)
		}
	}
	if code, text := all.do(t, http.MethodPost, "/execute", `{"code":"1","language":"r"}`); code != 500 || !strings.Contains(text, "nonexistent") {
		t.Errorf("a language whose program is missing: %d %s", code, text)
	}
}
