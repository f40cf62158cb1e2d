package interp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// rehearse has the default context rehearse, which looks like an execution that
// shows 1.
func rehearse(t *testing.T, w *world) {
	t.Helper()
	res := w.post(t.Context(), t, guest.RehearsePath, nil)
	defer res.Body.Close()
	x := gather(t, res.Body)
	if x.err != nil || x.count != 0 || len(x.results) != 1 || x.results[0].text("text") != "1" || x.stdout+x.stderr != "" {
		t.Fatalf("a rehearsal gives %v", x.events)
	}
}

// TestPython runs on one warm context, as most sandboxes do.
func TestPython(t *testing.T) {
	w := newWorld(t, true)

	t.Run("result, state and count", func(t *testing.T) {
		first := w.run(t, "word = 'strawberry'\ncount = word.count('r')\ncount")
		if first.text() != "3" || first.err != nil {
			t.Fatalf("got %v", first.events)
		}
		w.run(t, "x = 1")
		third := w.run(t, "x += 1; x")
		if third.text() != "2" || third.count != first.count+2 {
			t.Fatalf("got %q, count %v after %v", third.text(), third.count, first.count)
		}
		if first.count != 1 {
			t.Fatalf("our own preparations counted: %v", first.count)
		}
	})
	t.Run("nothing of ours in the namespace", func(t *testing.T) {
		names := w.get(t, "sorted(n for n in globals() if not n.startswith('_') and n not in "+
			"('In', 'Out', 'exit', 'quit', 'open', 'get_ipython', 'word', 'count', 'x'))")
		if names != "[]" {
			t.Fatalf("got %s", names)
		}
		if got := w.get(t, "import sys; all(m in sys.modules for m in ('pandas', 'numpy', 'matplotlib.pyplot'))"); got != "True" {
			t.Fatalf("not warm: %s", got)
		}
	})
	t.Run("a rehearsal leaves no trace", func(t *testing.T) {
		const look = "import builtins; seen.append((len(globals()), len(vars(builtins)), len(Out), len(In), get_ipython().execution_count))"
		w.run(t, "seen = []")
		for range 3 { // what an execution adds by itself shows between the second and the third
			w.run(t, look)
		}
		rehearse(t, w)
		w.run(t, look)
		if got := w.get(t, "d = [[b - a for a, b in zip(*two)] for two in zip(seen[1:], seen[2:])]; d[0] == d[1] or seen"); got != "True" {
			t.Errorf("what there is after each: %s", got)
		}
		w.run(t, "'theirs'")
		rehearse(t, w)
		if got := w.get(t, "_"); got != "theirs" {
			t.Errorf("the last result is %q", got)
		}
	})
	t.Run("streams", func(t *testing.T) {
		x := w.run(t, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
		if x.stdout != "out\n" || x.stderr != "err\n" {
			t.Fatalf("got %q and %q", x.stdout, x.stderr)
		}
		if x.events[0].kind() != "number_of_executions" || x.events[1].text("timestamp") == "" {
			t.Fatalf("got %v", x.events)
		}
	})
	t.Run("error", func(t *testing.T) {
		x := w.run(t, "def f():\n    return 1 / 0\nf()")
		if x.err.text("name") != "ZeroDivisionError" || x.err.text("value") != "division by zero" {
			t.Fatalf("got %v", x.events)
		}
		if tb := x.err.text("traceback"); !strings.Contains(tb, "return 1 / 0") || strings.Contains(tb, "\x1b") {
			t.Fatalf("traceback %q", tb)
		}
		if w.run(t, "for").err.text("name") != "SyntaxError" {
			t.Fatal("no syntax error")
		}
		if w.run(t, "input()").err.text("name") != "StdinNotImplementedError" {
			t.Fatal("input() asks")
		}
		if w.run(t, "kept = 1\nexit()\nkept = 2").err.text("name") != "SystemExit" || w.get(t, "kept") != "1" {
			t.Fatal("exit() does not end the code, or ends more")
		}
	})
	t.Run("text", func(t *testing.T) {
		for code, want := range map[string]string{
			"'abc'": "abc", `"it's"`: "it's", "  5": "5", "'é\\u2028😀'": `é\u2028😀`, "None": "", "7;": "",
		} {
			if got := w.get(t, code); got != want {
				t.Errorf("%s gives %q, want %q", code, got, want)
			}
		}
	})
	t.Run("json", func(t *testing.T) { testJSON(t, w) })
	t.Run("numbers", func(t *testing.T) { testNumbers(t, w) })
	t.Run("data frame", func(t *testing.T) { testDataFrame(t, w) })
	t.Run("figure", func(t *testing.T) { testFigure(t, w) })
	t.Run("charts", func(t *testing.T) { testCharts(t, w) })
	t.Run("images", func(t *testing.T) {
		x := w.run(t, "from PIL import Image, ImageShow\nImage.new('RGB', (4, 4)).save('a.png')\nImage.new('RGB', (4, 4)).show('title')\n"+
			"for mode in ('1', 'L', 'LA', 'P', 'RGBA', 'RGBX', 'CMYK', 'YCbCr', 'HSV', 'LAB', 'I', 'F', 'I;16'): Image.new(mode, (4, 4)).show()\n"+
			"assert ImageShow.show(Image.new('RGB', (4, 4)))")
		if x.err != nil || len(x.results) != 16 || x.stdout+x.stderr != "" {
			t.Fatalf("got %v", x.events)
		}
		for i, r := range x.results {
			if r.text("png") == "" {
				t.Errorf("picture %d: %v", i, r)
			}
		}
	})
	t.Run("display", func(t *testing.T) {
		x := w.run(t, "from IPython.display import *\ndisplay(HTML('<b>1</b>'), Markdown('*2*'))\n"+
			"display({'x/y': 1, 'text/latex': '$3$'}, raw=True)\n4")
		var got []string
		for _, r := range x.results {
			got = append(got, r.text("html")+r.text("markdown")+r.text("latex")+r.text("text"))
		}
		if len(got) != 4 || !strings.HasPrefix(got[0], "<b>1</b>") || !strings.HasPrefix(got[1], "*2*") ||
			got[2] != "$3$" || got[3] != "4" {
			t.Fatalf("got %q", got)
		}
		if !reflect.DeepEqual(x.results[2]["extra"], map[string]any{"x/y": 1.0}) {
			t.Fatalf("extra: %v", x.results[2])
		}
	})
	t.Run("environment", func(t *testing.T) { testEnvironment(t, w) })
	t.Run("reseed", func(t *testing.T) { testReseed(t, w) })
	t.Run("an alarm amid results", func(t *testing.T) { testAlarm(t, w) })
	t.Run("flood", func(t *testing.T) {
		x := w.run(t, "for i in range(200): print('x' * 49999)\nfor i in range(3000): display(i)\nprint('end')")
		if n := len(x.stdout); n != 200*50000+4 || !strings.HasSuffix(x.stdout, "end\n") {
			t.Fatalf("%d bytes came", n)
		}
		if len(x.results) != 3000 {
			t.Fatalf("%d results came", len(x.results))
		}
		if kept := w.get(t, "len(get_ipython().history_manager.outputs)"); kept != "0" {
			t.Errorf("the kernel keeps the output of %s executions", kept)
		}
	})
	t.Run("a child that stays", func(t *testing.T) { testFork(t, w) })
	t.Run("a child's output", func(t *testing.T) {
		x := w.run(t, "import os, sys\nprint('before')\nsys.stdout.flush()\nif os.fork() == 0:\n    print('child')\n"+
			"    sys.stdout.flush()\n    os._exit(0)\n_ = os.wait()\nprint('after')")
		if x.err != nil || !strings.HasPrefix(x.stdout, "before\n") || !strings.Contains(x.stdout, "child\n") ||
			strings.Count(x.stdout, "\n") != 3 {
			t.Fatalf("%q, %v", x.stdout, x.err)
		}
	})
}

func testJSON(t *testing.T, w *world) {
	for code, want := range map[string]string{
		"[1, 'a', None, 2.5, float('nan'), True]": `[1,"a",null,2.5,null,true]`,
		"{'a': {1: (2,)}, None: 3}":               `{"a":{"1":[2]},"null":3}`,
		"import numpy; {'n': numpy.int64(7), 'm': numpy.arange(2), 'f': numpy.float32(0.5)}": `{"n":7,"m":[0,1],"f":0.5}`,
		"import datetime; [datetime.date(2026, 1, 2)]":                                       `["2026-01-02"]`,
		"[object()]":             "",
		"a = []; a.append(a); a": "",
	} {
		x := w.run(t, code)
		if len(x.results) != 1 || x.err != nil {
			t.Fatalf("%s gives %v", code, x.events)
		}
		var wanted any
		if want != "" {
			_ = json.Unmarshal([]byte(want), &wanted)
		}
		if got := x.results[0]["json"]; !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s gives %v, want %v", code, got, wanted)
		}
	}
}

// testNumbers compares what the kernel's own JSON says with what comes.
func testNumbers(t *testing.T, w *world) {
	const draw = "import json, math, random, struct\ndraw = random.Random(%d)\n" +
		"def number():\n" +
		"    double = struct.unpack('d', draw.randbytes(8))[0]\n" +
		"    return draw.choice([draw.getrandbits(80) - 2**79, draw.getrandbits(60), float(draw.getrandbits(20)), draw.random(), double if math.isfinite(double) else 2**53 + 1])\n" +
		"values = [2**53 + 1, 1.0, -0.0, 1e22, 5e-324, *(number() for _ in range(2000))]\n"
	for seed := range 3 {
		begin := fmt.Sprintf(draw, seed)
		w.shows(t, "python", "json", begin+"print(json.dumps({'v': values}, separators=(',', ':')))\n{'v': values}")
		w.shows(t, "python", "extra", begin+"print(json.dumps({'x/y': values}, separators=(',', ':')))\n"+
			"from IPython.display import display\ndisplay({'x/y': values}, raw=True)")
	}
	w.shows(t, "python", "data", `import pandas, numpy
print('{"i":[9007199254740993,-1],"u":[18446744073709551615,0],"f":[1.0,0.1],"n":[9007199254740993,null]}')
pandas.DataFrame({"i": [2**53 + 1, -1], "u": numpy.array([2**64 - 1, 0], dtype="uint64"), "f": [1, 0.1],
    "n": pandas.array([2**53 + 1, None], dtype="Int64")})`)
	x := w.run(t, "import matplotlib.pyplot as plt\nplt.plot([0, 1], [0, 1])\nplt.xticks([0, 1, 2])\nplt.show()")
	if len(x.lines) != 1 || !strings.Contains(x.lines[0], `"y_ticks":[-0.2,0.0,0.2,`) {
		t.Errorf("ticks: %v", x.events)
	}
}

func testDataFrame(t *testing.T, w *world) {
	x := w.run(t, "import pandas as pd\n"+
		"pd.DataFrame({'n': [1, 2], 's': ['a', None], 'f': [0.5, float('nan')], "+
		"'t': pd.to_datetime(['2026-01-02', None]), 5: [True, False]})")
	if x.err != nil || len(x.results) != 1 {
		t.Fatalf("got %v", x.events)
	}
	want := map[string]any{
		"n": []any{1.0, 2.0}, "s": []any{"a", nil}, "f": []any{0.5, nil},
		"t": []any{"2026-01-02T00:00:00", nil}, "5": []any{true, false},
	}
	if got := x.results[0]["data"]; !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v", got)
	}
	if !strings.Contains(x.results[0].text("html"), "<table") {
		t.Fatal("no html")
	}
}

func testFigure(t *testing.T, w *world) {
	code := "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [1, 4, 9], label='squares')\n" +
		"plt.title('T')\nplt.xlabel('Time (s)')\nplt.show()"
	x := w.run(t, code)
	if x.err != nil || len(x.results) != 1 {
		t.Fatalf("got %v", x.events)
	}
	raw, err := base64.StdEncoding.DecodeString(x.results[0].text("png"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	chart, _ := x.results[0]["chart"].(map[string]any)
	if chart["type"] != "line" || chart["title"] != "T" || chart["x_unit"] != "s" {
		t.Fatalf("chart %v", chart)
	}
	saved := w.run(t, "fig = plt.figure()\nfig.add_subplot().plot([1])\nfig.savefig('f.png')\nplt.close(fig)")
	if saved.err != nil || len(saved.results) != 0 {
		t.Fatalf("savefig shows: %v", saved.events)
	}
}

func testCharts(t *testing.T, w *world) {
	for code, want := range map[string]string{
		"ax.plot([1, 2], [1/3, 4], label='l')":                               `line [{"label":"l","points":[[1,0.33333333],[2,4]]}]`,
		"import datetime as dt; ax.plot([dt.datetime(2026, 1, 2)], [1])":     `line [{"label":"Line 1","points":[["2026-01-02T00:00:00",1]]}]`,
		"ax.scatter(['a', 'b'], [3, 4], label='s'); ax.grid(); ax.axhline()": `scatter [{"label":"s","points":[["a",3],["b",4]]}]`,
		"ax.bar(['p', 'q'], [3, 4.5], label='g')":                            `bar [{"group":"g","label":"p","value":3},{"group":"g","label":"q","value":4.5}]`,
		"ax.barh(['p'], [3])":                                                `bar [{"group":"","label":"p","value":3}]`,
		"ax.pie([1, 3], labels=['a', 'b'])":                                  `pie [{"angle":90,"label":"a","radius":1},{"angle":270,"label":"b","radius":1}]`,
		"ax.boxplot([1, 2, 3, 4, 20], patch_artist=True)": `box_and_whisker [{"first_quartile":2,"label":"1","max":4,` +
			`"median":3,"min":1,"outliers":[20],"third_quartile":4}]`,
		"ax.imshow([[1, 2]])":                                `unknown []`,
		"plt.close(fig); display(plt.figure()); plt.close()": `<nil> null`,
	} {
		x := w.run(t, "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"+code+"\nplt.show()")
		if x.err != nil || len(x.results) == 0 {
			t.Errorf("%s: %v", code, x.events)
			continue
		}
		chart, _ := x.results[0]["chart"].(map[string]any)
		elements, _ := json.Marshal(chart["elements"])
		if got := fmt.Sprint(chart["type"], " ", string(elements)); got != want {
			t.Errorf("%s gives %s, want %s", code, got, want)
		}
	}
	x := w.run(t, "fig, ax = plt.subplots(1, 2)\nax[0].plot([1])\nax[1].bar([1], [2])\nfig.suptitle('S')\nplt.show()")
	chart, _ := x.results[0]["chart"].(map[string]any)
	if parts, _ := chart["elements"].([]any); chart["type"] != "superchart" || chart["title"] != "S" || len(parts) != 2 {
		t.Errorf("superchart: %v", chart)
	}
}

func testEnvironment(t *testing.T, w *world) {
	const show = "import os; [os.environ.get(n) for n in ('CAY_A', 'CAY_B', 'CAY_C')]"
	w.setEnv(map[string]string{"CAY_A": "1", "CAY_B": "é\"'\\\n"})
	if got := w.get(t, show+"[:2] == ['1', 'é\"\\'\\\\\\n']"); got != "True" {
		t.Fatalf("after a change: %s", w.get(t, show))
	}
	w.setEnv(map[string]string{"CAY_A": "2"})
	x := w.execute(t, map[string]any{"code": show, "env_vars": map[string]string{"CAY_A": "call", "CAY_C": "c"}})
	if x.text() != "['call', None, 'c']" {
		t.Fatalf("with call variables: %s", x.text())
	}
	if got := w.get(t, show); got != "['2', None, None]" {
		t.Fatalf("restored: %s", got)
	}
	w.get(t, "os.environ['CAY_A'] = 'own'")
	if got := w.get(t, "os.environ['CAY_A']"); got != "own" {
		t.Fatalf("the code's own value is lost: %s", got)
	}
	x = w.execute(t, map[string]any{"code": "1/0", "env_vars": map[string]string{"CAY_C": "c"}})
	if x.err == nil || w.get(t, show) != "['own', None, None]" {
		t.Fatal("not restored after an error")
	}
}

func testReseed(t *testing.T, w *world) {
	const draw = "import random, numpy\nrandom.random(), numpy.random.random()"
	values := map[string]bool{}
	for _, entropy := range []string{"one", "two", "one"} {
		w.get(t, "import random, numpy; random.seed(1); numpy.random.seed(1)")
		if err := w.Reseed(context.Background(), []byte(entropy)); err != nil {
			t.Fatal(err)
		}
		values[w.get(t, draw)] = true
	}
	if len(values) != 2 {
		t.Fatalf("three clones of two kinds drew %v", values)
	}
	w.get(t, "random.seed(42)")
	first := w.get(t, "random.random()")
	w.get(t, "random.seed(42)")
	if w.get(t, "random.random()") != first {
		t.Fatal("a seed of the user's does not hold")
	}

	// A sandbox that goes on keeps seeds; OpenSSL, which has none, is told all the same.
	w.get(t, "import _cay, ssl; told = []; was = _cay.stir; _cay.stir = lambda b: (told.append(len(b)), was(b))")
	w.get(t, "random.seed(42)")
	if err := w.Stir(context.Background(), []byte("three")); err != nil {
		t.Fatal(err)
	}
	if got := w.get(t, "random.random()"); got != first {
		t.Fatalf("a seed of the user's does not survive a resume: %s, before %s", got, first)
	}
	if got := w.get(t, "told"); got != "[32]" {
		t.Fatalf("OpenSSL was told %s", got)
	}
}

// testAlarm has a signal's handler raise wherever it comes while results are
// sent: what was sent stays whole, and the kernel goes on. The handler raises
// once for each time that it is armed, because IPython itself may catch the
// error, as it does while it formats a value.
func testAlarm(t *testing.T, w *world) {
	x := w.run(t, `import signal
class Late(TimeoutError): pass
armed = False
def late(*_):
    global armed
    if armed:
        armed = False
        raise Late
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
caught = 0
for _ in range(60):
    try:
        armed = True
        while armed: display("x" * 100_000)
    except Late:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
caught > 0`)
	// IPython shows an exception that it catches, so that there may be an error as well.
	if x.text() != "True" {
		t.Fatalf("ended with %v and %q", x.err, x.text())
	}
	for _, r := range x.results[:len(x.results)-1] {
		if len(r.text("text")) != 100_000 {
			t.Fatalf("a result of %d", len(r.text("text")))
		}
	}
	if got := w.get(t, "1 + 1"); got != "2" {
		t.Fatalf("then the kernel gives %q", got)
	}
}

// testFork leaves copies of the kernel behind that go on as if they were it:
// only the kernel itself is asked and heard from then on.
func testFork(t *testing.T, w *world) {
	x := w.run(t, "import os\nkernel, children = os.getpid(), []\nfor _ in range(3):\n"+
		"    if os.getpid() == kernel: children.append(os.fork())\nlen(children)")
	if x.err != nil || x.text() != "3" || len(x.results) != 1 {
		t.Fatalf("got %v", x.events)
	}
	for range 20 {
		if got := w.get(t, "os.getpid() == kernel"); got != "True" {
			t.Fatalf("asked the kernel, got %q", got)
		}
	}
	if got := w.get(t, "for child in children:\n    os.kill(child, 9)\n    os.waitpid(child, 0)\nlen(children)"); got != "3" {
		t.Fatalf("got %q", got)
	}
}

func TestAPI(t *testing.T) {
	w := newWorld(t, false)
	ctx := context.Background()
	if code, _ := w.do(t, http.MethodGet, "/health", ""); code != http.StatusServiceUnavailable {
		t.Fatalf("healthy before Start: %d", code)
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/execute", `{"code":"1","context_id":"a","language":"python"}`, 400},
		{"POST", "/execute", `{"code":"1","context_id":"a"}`, 404},
		{"POST", "/execute", `{"code":"1","language":"cobol"}`, 400},
		{"POST", "/execute", `{"language":"python"}`, 400},
		{"POST", "/execute", `{"code":`, 400},
		{"POST", "/contexts", `{"language":"cobol"}`, 400},
		{"POST", "/contexts", `{"cwd":"/does/not/exist"}`, 400},
		{"POST", "/contexts/a/restart", "", 404},
		{"DELETE", "/contexts/a", "", 404},
		{"GET", "/execute", "", 405},
		{"GET", "/other", "", 404},
		{"OPTIONS", "/execute", "", 200},
	} {
		if code, text := w.do(t, c.method, c.path, c.body); code != c.want {
			t.Errorf("%s %s %s gives %d %s, want %d", c.method, c.path, c.body, code, text, c.want)
		}
	}
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if code, text := w.do(t, http.MethodGet, "/health", ""); code != 200 || text != `"OK"` {
		t.Fatalf("health: %d %s", code, text)
	}
	resp := w.post(ctx, t, "/execute", map[string]any{"code": "1", "language": "Python", "context_id": nil})
	defer resp.Body.Close()
	if resp.Header.Get("Access-Control-Allow-Origin") != "*" || gather(t, resp.Body).text() != "1" {
		t.Fatal("no CORS header, or no result")
	}
}

// do makes a request and returns its status and body.
func (w *world) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestContexts(t *testing.T) {
	w := newWorld(t, false)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ ID, Language, Cwd string }
	body, _ := json.Marshal(map[string]string{"language": "python", "cwd": dir})
	code, text := w.do(t, http.MethodPost, "/contexts", string(body))
	if err := json.Unmarshal([]byte(text), &made); err != nil || code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if made.ID == "" || made.Language != "python" || made.Cwd != dir {
		t.Fatalf("got %s", text)
	}
	in := func(code string) *execution {
		return w.execute(t, map[string]any{"code": code, "context_id": made.ID})
	}
	if got := in("import os; x = 1; os.getcwd()").text(); got != dir {
		t.Fatalf("works in %q", got)
	}
	if x := w.run(t, "x"); x.err.text("name") != "NameError" {
		t.Fatalf("contexts share variables: %v", x.events)
	}
	if _, list := w.do(t, http.MethodGet, "/contexts", ""); strings.Count(list, `"id"`) != 3 {
		t.Fatalf("list: %s", list)
	}
	// One waits for the other's file: contexts run side by side.
	flag := filepath.Join(dir, "flag")
	done := make(chan *execution, 1)
	go func() {
		defer close(done)
		done <- in("import time\nwhile not os.path.exists('flag'): time.sleep(.01)\n'seen'")
	}()
	w.get(t, "open("+quote(flag)+", 'w').close()")
	if x := <-done; x == nil || x.text() != "seen" {
		t.Fatalf("got %v", x)
	}
	if code, text := w.do(t, http.MethodPost, "/contexts/"+made.ID+"/restart", ""); code != 200 || text != "null" {
		t.Fatalf("restart: %d %s", code, text)
	}
	if x := in("x"); x.err.text("name") != "NameError" || x.count != 1 {
		t.Fatalf("variables outlive a restart: %v", x.events)
	}
	if got := in("import os; os.getcwd()").text(); got != dir {
		t.Fatalf("works in %q after a restart", got)
	}
	if code, text := w.do(t, http.MethodDelete, "/contexts/"+made.ID, ""); code != 200 || text != "null" {
		t.Fatalf("delete: %d %s", code, text)
	}
	if code, _ := w.do(t, http.MethodDelete, "/contexts/"+made.ID, ""); code != 404 {
		t.Fatalf("delete again: %d", code)
	}
}

// lastLine ends every stream.
var lastLine = []byte("{\"type\":\"end_of_execution\"}\n")

func quote(s string) string { b, _ := json.Marshal(s); return string(b) }

func TestKernelDeath(t *testing.T) {
	w := openWorld(t, Config{Python: python(t), Why: func(int) string { return "the reason" }})
	// Output that is still inside the kernel is lost with it, so it waits until its
	// words have arrived.
	flag := filepath.Join(t.TempDir(), "flag")
	resp := w.blocked(context.Background(), t,
		"import os, time\nwhile not os.path.exists("+quote(flag)+"): time.sleep(.01)\nos._exit(3)")
	defer resp.Body.Close()
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(rest, []byte(errUnexpectedEnd)) || !bytes.Contains(rest, []byte("(exit status 3: the reason)")) || !bytes.HasSuffix(rest, lastLine) {
		t.Fatalf("%v: %s", err, rest)
	}
	if got := w.get(t, "1 + 1"); got != "2" {
		t.Fatalf("the new kernel gives %q", got)
	}
	// A child holds what it inherited from the kernel.
	x := w.run(t, "import os, time\nif os.fork() == 0:\n    time.sleep(3600)\nos.kill(os.getpid(), 9)")
	if x.err.text("name") != errUnexpectedEnd || !strings.Contains(x.err.text("value"), "(signal: killed: the reason)") {
		t.Fatalf("got %v", x.events)
	}
	if got := w.get(t, "2 + 2"); got != "4" {
		t.Fatalf("the new kernel gives %q", got)
	}
}

// TestLastWords sees that what a kernel writes to its log before it dies is in
// the error, and in a warning that names the context; and that an end which was
// asked for is none.
func TestLastWords(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	said := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
	log := slog.New(slog.NewTextHandler(writer(func(p []byte) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, string(p))
	}), &slog.HandlerOptions{Level: slog.LevelWarn}))
	w := openWorld(t, Config{Python: python(t), Log: log})
	x := w.run(t, "import ctypes; ctypes.string_at(0)")
	if !strings.Contains(x.err.text("value"), "(signal: segmentation fault") || !strings.Contains(x.err.text("traceback"), "ctypes") || strings.Contains(x.err.text("traceback"), "NOTE") {
		t.Errorf("got %v", x.err)
	}
	if warnings := said(); len(warnings) != 1 || !strings.Contains(warnings[0], "segmentation fault") || !strings.Contains(warnings[0], "context="+w.list()[0].ID) ||
		!strings.Contains(warnings[0], "Fatal Python error") && !strings.Contains(warnings[0], "ctypes") {
		t.Errorf("warnings %q", warnings)
	}
	w.get(t, "1")
	if code, text := w.do(t, http.MethodPost, "/contexts/"+w.list()[0].ID+"/restart", ""); code != http.StatusOK {
		t.Fatalf("restart: %d %s", code, text)
	}
	if w.get(t, "2"); len(said()) != 1 {
		t.Errorf("a restart warns: %q", said())
	}
}

// writer is a function that takes what is written.
type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// TestDirectoryThatIsClosed asks for a context where its user may not go.
func TestDirectoryThatIsClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's processes need root")
	}
	w := openWorld(t, Config{User: "nobody", Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if code, text := w.do(t, http.MethodPost, "/contexts", `{"language":"bash","cwd":"/"}`); code != http.StatusOK {
		t.Fatalf("a directory that all can write: %d %s", code, text)
	}
	inside := filepath.Join(t.TempDir(), "closed", "below")
	if err := errors.Join(os.MkdirAll(inside, 0o755), os.Chmod(filepath.Dir(inside), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{inside, filepath.Dir(inside)} {
		code, text := w.do(t, http.MethodPost, "/contexts", `{"language":"bash","cwd":`+quote(dir)+`}`)
		if code != http.StatusBadRequest || !strings.Contains(text, dir) || !strings.Contains(text, "nobody") {
			t.Errorf("%s: %d %s", dir, code, text)
		}
	}
}

// TestReplacedKernelIsWarm sees that a kernel that takes another's place loads
// by itself what that one had.
func TestReplacedKernelIsWarm(t *testing.T) {
	w := newWorld(t, true)
	w.run(t, "import os; os._exit(1)")
	for begun := time.Now(); w.get(t, "import sys; 'matplotlib.pyplot' in sys.modules") != "True"; {
		if time.Since(begun) > limit {
			t.Fatal("the new kernel is cold")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// blocked starts an execution that never ends and returns once it runs.
func (w *world) blocked(ctx context.Context, t *testing.T, code string) *http.Response {
	t.Helper()
	return w.begun(ctx, t, map[string]any{"code": "print('running', flush=True)\n" + code})
}

// begun starts an execution and returns once it has said that it runs.
func (w *world) begun(ctx context.Context, t *testing.T, body map[string]any) *http.Response {
	t.Helper()
	resp := w.post(ctx, t, "/execute", body)
	var seen []byte
	one := make([]byte, 1)
	for !bytes.Contains(seen, []byte(`:"running`)) {
		if _, err := resp.Body.Read(one); err != nil {
			t.Fatalf("%v after %s", err, seen)
		}
		seen = append(seen, one...)
	}
	return resp
}

func TestInterruptWhenTheClientLeaves(t *testing.T) {
	w := newWorld(t, false)
	w.get(t, "kept = 1")
	for _, code := range []string{
		"while True: pass",
		"import time\ntime.sleep(3600)",
		"import subprocess\nsubprocess.run(['sleep', '3600'])",
		"while True: print('x' * 10000)",
	} {
		ctx, cancel := context.WithCancel(context.Background())
		resp := w.blocked(ctx, t, code)
		cancel()
		_ = resp.Body.Close()
		if got := w.get(t, "kept"); got != "1" {
			t.Fatalf("after %q: %q", code, got)
		}
	}
}

func TestRestartWhileRunning(t *testing.T) {
	w := newWorld(t, false)
	resp := w.blocked(context.Background(), t, "import time\ntime.sleep(3600)")
	defer resp.Body.Close()
	if code, text := w.do(t, http.MethodPost, "/contexts/"+w.list()[0].ID+"/restart", ""); code != 200 {
		t.Fatalf("restart: %d %s", code, text)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(rest, []byte(errRestarting)) || !bytes.HasSuffix(rest, lastLine) {
		t.Fatalf("%v: %s", err, rest)
	}
	if got := w.get(t, "1 + 1"); got != "2" {
		t.Fatalf("got %q", got)
	}
}

func TestKernelThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{Python: "/does/not/exist", Dir: dir, Home: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Start(context.Background()); err == nil || !os.IsNotExist(err) {
		t.Fatalf("Start: %v", err)
	}
}
