package interp

import (
	"context"
	"encoding/base64"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// program finds a language's program, or skips the test: its templates have
// it, and the end-to-end tests try it there.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(err)
	}
	return path
}

func TestR(t *testing.T) {
	w := openWorld(t, Config{R: rPath(t)})
	for _, c := range []struct{ code, text, stdout, stderr string }{
		{"x <- 6; x * 7", "[1] 42", "", ""},
		{"x", "[1] 6", "", ""},
		{"invisible(x)", "", "", ""},
		{"cat('out\\n'); message('err')", "", "out\n", "err\n"},
		{"system('echo child')", "", "child\n", ""},
		{"f <- function(a) {\n  a + 1\n}\nf(1)", "[1] 2", "", ""},
		{"for (i in 1:3) print(i)", "", "[1] 1\n[1] 2\n[1] 3\n", ""},
		{"'grüße'", `[1] "grüße"`, "", ""},
		{"quit()", "", "", ""},
		{"", "", "", ""},
	} {
		x := w.in(t, "r", c.code)
		if x.err != nil || x.text() != c.text || x.stdout != c.stdout || x.stderr != c.stderr {
			t.Errorf("%s: %v", c.code, x.events)
		}
	}
	x := w.in(t, "R", "d <- data.frame(a = 1:2, b = c('x', NA)); d")
	if len(x.results) != 1 || !strings.Contains(x.results[0].text("html"), "<table") {
		t.Fatalf("a data frame: %v", x.events)
	}
	data, _ := x.results[0]["data"].(map[string]any)
	if b, _ := data["b"].([]any); len(b) != 2 || b[0] != "x" || b[1] != nil {
		t.Errorf("a data frame: %v", data)
	}
	w.shows(t, "r", "data", `cat('{"n":[9007199254740992,1,0.1,0.30000000000000004,1e+300,null],"i":[1,2,3,4,5,null],"l":[[1],[0.1,2],["x"],null,[true],[null]]}\n')
d <- data.frame(n = c(2^53, 1, 0.1, 0.1 + 0.2, 1e300, NA), i = c(1:5, NA)); d$l <- list(1, c(0.1, 2), 'x', NULL, TRUE, NA); d`)
	w.shows(t, "r", "data", `cat('{"a":[1],"b":["x"]}\n'); data.frame(a = 1, b = 'x')`)
	w.shows(t, "r", "json", `cat('{"a":9007199254740992,"b":[1.0,90071992547409931]}\n')
IRdisplay::publish_mimebundle(list("application/json" = structure('{"a":9007199254740992,"b":[1.0,90071992547409931]}', class = "json")))`)
	w.shows(t, "r", "json", `cat('{"a":9007199254740992,"b":[1,0.30000000000000004],"c":"x"}\n')
IRdisplay::publish_mimebundle(list("application/json" = list(a = 2^53, b = c(1, 0.1 + 0.2), c = "x")))`)
	w.shows(t, "r", "data", `set.seed(1); x <- c(runif(2000), rnorm(2000) * 10^(-150:149), floor(runif(2000, 0, 2^53)))
x <- x[is.finite(x)]; text <- sprintf("%.15g", x)
for (f in c("%.16g", "%.17g")) text <- ifelse(as.numeric(text) == x, text, sprintf(f, x))
cat('{"x":[', paste(text, collapse = ","), ']}\n', sep = ""); data.frame(x = x)`)
	x = w.in(t, "r", "plot(1:3)\nlines(3:1)\n5\nhist(c(1, 2, 2))")
	if x.err != nil || len(x.results) != 3 {
		t.Fatalf("plots: %v", x.events)
	}
	for _, picture := range x.results[1:] {
		if raw, err := base64.StdEncoding.DecodeString(picture.text("png")); err != nil || !strings.HasPrefix(string(raw), "\x89PNG") {
			t.Errorf("plots: %v", picture)
		}
	}
	x = w.in(t, "r", "IRdisplay::display_html('<b>bold</b>')")
	if len(x.results) != 1 || x.results[0].text("html") != "<b>bold</b>" {
		t.Errorf("display: %v", x.events)
	}
	for _, c := range []struct{ code, name, value, trace string }{
		{"g <- function() stop('bad')\ng()", "Error", "bad", "1. g()"},
		{"1 +* 2", "ParseError", "1:4: unexpected '*'\n1: 1 +*\n       ^", "unexpected"},
		{"nowhere", "Error", "object 'nowhere' not found", "nowhere"},
		{"quit(status = 3)", "ExitCode", "3", "3"},
		{"print.odd <- function(x, ...) stop('shy'); structure(1, class = 'odd'); stop('after')", "Error", "shy", "print.odd"},
	} {
		x := w.in(t, "r", c.code)
		if x.err.text("name") != c.name || x.err.text("value") != c.value || !strings.Contains(x.err.text("traceback"), c.trace) {
			t.Errorf("%s: %v", c.code, x.events)
		}
	}
	w.environmentOf(t, "r", `cat(Sys.getenv("NAME"), "")`)
	w.recovers(t, "r", "kept <- 1", "cat(kept)", "repeat {}", "Sys.sleep(3600)", "system('sleep 3600')",
		"repeat cat('flood\n')", "tryCatch(repeat {}, error = function(e) 1)")
	// An interrupt that comes when the code is done hits no execution.
	pid, err := strconv.Atoi(w.out(t, "r", "cat(Sys.getpid())"))
	if err != nil || syscall.Kill(pid, syscall.SIGINT) != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	if got := w.out(t, "r", "for (i in 1:10000) sqrt(i)\ncat(5)"); got != "5" {
		t.Errorf("after a late interrupt: %q", got)
	}
	w.dies(t, "r", "tools::pskill(Sys.getpid(), 9)", "cat(4)", "4")
}

func TestJava(t *testing.T) {
	w := openWorld(t, Config{Java: program(t, "java")})
	if err := w.compileJava(t.Context()); err != nil || !slices.Contains(w.javaKernel(), "-cp") {
		t.Fatalf("%v: kernels start with %q", err, w.javaKernel())
	}
	w.setEnv(map[string]string{"AT_START": "set"})
	for _, c := range []struct{ code, text, stdout, stderr string }{
		{"int x = 6; x * 7", "42", "", ""},
		{"x", "6", "", ""},
		{"x = 8;", "", "", ""},
		{"String s = \"a\\nb\";\ns", "a\nb", "", ""},
		{"System.getProperty(\"AT_START\")", "set", "", ""},
		{"System.out.println(\"out\"); System.err.println(\"err\");", "", "out\n", "err\n"},
		{"record Point(int x, int y) {}\nnew Point(1, 2)", "Point[x=1, y=2]", "", ""},
		{"List<Integer> l = new ArrayList<>();\nfor (int i = 0; i < 3; i++) {\n  l.add(i);\n}\nl", "[0, 1, 2]", "", ""},
		{"new int[] {1, 2}", "[1, 2]", "", ""},
		{"int twice(int n) { return 2 * n; }\n// a comment\ntwice(4)", "8", "", ""},
		{"System.out.println(\"grüße 😀\");", "", "grüße 😀\n", ""},
		{"new ProcessBuilder(\"echo\", \"child\").inheritIO().start().waitFor()", "0", "child\n", ""},
		{"\"grüße 😀\\u0007\"", "grüße 😀\a", "", ""},
		{"", "", "", ""},
	} {
		x := w.in(t, "java", c.code)
		if x.err != nil || x.text() != c.text || x.stdout != c.stdout || x.stderr != c.stderr {
			t.Errorf("%s: %v", c.code, x.events)
		}
	}
	var said []string
	for _, ev := range w.in(t, "java", `System.out.println("a\nb"); System.out.print("é😀"); System.out.println(1);
System.out.write(0xc3); System.out.write(0xa9); System.out.printf("%d%n", 2);`).events {
		if ev.kind() == "stdout" {
			said = append(said, ev.text("text"))
		}
	}
	if want := []string{"a\nb", "\n", "é😀", "1", "\n", "é", "2", "\n"}; !slices.Equal(said, want) {
		t.Errorf("messages %q, want %q", said, want)
	}
	x := w.in(t, "java", "display(1); display(new java.awt.image.BufferedImage(9, 9, 1)); 3")
	if len(x.results) != 3 || x.results[0].text("text") != "1" || x.results[1].text("png") == "" || x.text() != "3" {
		t.Errorf("display: %v", x.events)
	}
	for _, c := range []struct{ code, name, value, trace string }{
		{"int boom(int n) {\n  return 1 / n;\n}\nboom(0)", "java.lang.ArithmeticException", "/ by zero", "cell-17:4"},
		{"int y =\n\"text\";", "CompilationError", "incompatible types: java.lang.String cannot be converted to int", "cell-18:2"},
		{"1 +* 2", "CompilationError", "illegal start of expression", "1 +* 2\n   ^"},
		{"int g() { return absent(); }\ng()", "UnresolvedReferenceException", "this is used before it is defined: method absent()", "absent"},
		{"throw new Exception(\"outer\", new RuntimeException(\"inner\"));", "java.lang.Exception", "outer", "Caused by: java.lang.RuntimeException: inner"},
		{"new Object() { public String toString() { throw new IllegalStateException(\"shy\"); } }", "java.lang.IllegalStateException", "shy", "shy"},
	} {
		x := w.in(t, "java", c.code)
		if x.err.text("name") != c.name || x.err.text("value") != c.value || !strings.Contains(x.err.text("traceback"), c.trace) {
			t.Errorf("%s: %v", c.code, x.events)
		}
	}
	w.environmentOf(t, "java", `System.out.print(System.getProperty("NAME", "") + " ");`)
	w.recovers(t, "java", "int kept = 1;", "System.out.print(kept);", "while (true) {}", "Thread.sleep(3600_000);",
		"for (;;) System.out.println(\"flood\");", "for (;;) try { Thread.sleep(10); } catch (Exception e) {}",
		"new ProcessBuilder(\"sleep\", \"3600\").start().waitFor();")
	w.setEnv(map[string]string{"NAME": "from the start"})
	w.dies(t, "java", "Runtime.getRuntime().halt(3);", `System.out.print(System.getProperty("NAME"));`, "from the start")
	w.setEnv(nil)
	w.dies(t, "java", "Runtime.getRuntime().halt(3);", "System.out.print(4);", "4")
}

// environmentOf sees that the variables of a call are there and then gone.
func (w *world) environmentOf(t *testing.T, lang, read string) {
	t.Helper()
	for _, c := range []struct {
		envs map[string]string
		want string
	}{{map[string]string{"NAME": "of 'the' call\n"}, "of 'the' call\n "}, {nil, " "}} {
		x := w.execute(t, map[string]any{"code": read, "language": lang, "env_vars": c.envs})
		if x.err != nil || x.stdout != c.want {
			t.Errorf("%s with %v: %v", lang, c.envs, x.events)
		}
	}
	w.setEnv(map[string]string{"NAME": "everyone's"})
	if got := w.out(t, lang, read); got != "everyone's " {
		t.Errorf("%s: the sandbox's variable is %q", lang, got)
	}
	w.setEnv(nil)
	if got := w.out(t, lang, read); got != " " {
		t.Errorf("%s: the sandbox's variable is gone, and %q", lang, got)
	}
}

// TestCallHidesTheSandbox sets a variable of the sandbox and one of a call of the
// same name at once: the call sees its own, and the next call the sandbox's.
func TestCallHidesTheSandbox(t *testing.T) {
	for lang, read := range map[string]string{
		langPython: `import os; print(os.environ.get("%s"))`, langJavaScript: `console.log(process.env.%s)`,
		langBash: `echo "$%s"`, langR: `cat(Sys.getenv("%s"), "\n", sep = "")`,
		langJava: `System.out.println(System.getProperty("%s"));`,
	} {
		t.Run(lang, func(t *testing.T) {
			w := openWorld(t, configs[lang](t))
			w.in(t, lang, "")
			for i := range 16 {
				name := fmt.Sprint("CAY_TEST_", i)
				w.setEnv(map[string]string{name: "sandbox"})
				code := fmt.Sprintf(read, name)
				for _, c := range []struct {
					envs map[string]string
					want string
				}{{map[string]string{name: "call"}, "call\n"}, {nil, "sandbox\n"}} {
					x := w.execute(t, map[string]any{"code": code, "language": lang, "env_vars": c.envs})
					if x.err != nil || x.stdout != c.want {
						t.Fatalf("round %d: %q, want %q: %v", i, x.stdout, c.want, x.err)
					}
				}
			}
		})
	}
}

// recovers sees that code whose client has left is ended, and nothing else.
func (w *world) recovers(t *testing.T, lang, keep, read string, endless ...string) {
	t.Helper()
	if x := w.in(t, lang, keep); x.err != nil {
		t.Fatal(x.err)
	}
	say := map[string]string{"r": "cat('running\\n')\n", "java": "System.out.println(\"running\");\n"}[lang]
	for _, code := range endless {
		ctx, cancel := context.WithCancel(context.Background())
		resp := w.begun(ctx, t, map[string]any{"code": say + code, "language": lang})
		cancel()
		_ = resp.Body.Close()
		if got := w.out(t, lang, read); got != "1" {
			t.Fatalf("%s after %q: %q", lang, code, got)
		}
	}
}

// dies sees that the end of a kernel is told and that a new one comes.
func (w *world) dies(t *testing.T, lang, end, read, want string) {
	t.Helper()
	if x := w.in(t, lang, end); x.err.text("name") != errUnexpectedEnd {
		t.Fatalf("%s: %v", lang, x.events)
	}
	if x := w.in(t, lang, read); x.stdout != want || x.count != 1 {
		t.Fatalf("%s: %v", lang, x.events)
	}
}
