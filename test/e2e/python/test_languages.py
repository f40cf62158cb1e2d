"""Every language of the code interpreter: the same promises for each."""

import base64
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
import world
from e2b import InvalidArgumentException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

# For each language: code with a result or output, what prints a variable of
# the environment, how the working directory is told, an endless loop, what
# ends the process of the kernel, a mistake of syntax.
LANGUAGES = {
    "python": ("kept = 20\nprint(kept + 1)", "import os; print(os.environ.get('NAME', ''))",
               "import os; print(os.getcwd())", "while True: pass", "import os; os._exit(3)", "def ("),
    "javascript": ("let kept = 20\nconsole.log(kept + 1)", "console.log(process.env.NAME ?? '')",
                   "console.log(process.cwd())", "while (true) {}", "process.kill(process.pid, 'SIGKILL')", "let let = ("),
    "typescript": ("let typed: number = await Promise.resolve(20)\nconsole.log(typed + 1)", "console.log(process.env.NAME ?? '')",
                   "console.log(process.cwd())", "while (true) {}", "process.kill(process.pid, 'SIGKILL')", "let x: number = ("),
    "r": ("kept <- 20\ncat(kept + 1, '\\n', sep='')", "cat(Sys.getenv('NAME'), '\\n', sep='')", "cat(getwd(), '\\n', sep='')",
          "repeat {}", "tools::pskill(Sys.getpid(), 9)", "1 +* 2"),
    "java": ("int kept = 20;\nSystem.out.println(kept + 1);", 'System.out.println(System.getProperty("NAME", ""));',
             'System.out.println(System.getProperty("user.dir"));', "while (true) {}", "Runtime.getRuntime().halt(3);", "int = 3;"),
    "bash": ("kept=20\necho $((kept + 1))", "echo $NAME", "pwd", "while :; do :; done", "kill -9 $$", "if ("),
}
EVERY = pytest.mark.parametrize("language", LANGUAGES)


def out(execution):
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


@EVERY
def test_runs_and_keeps(ci, language):
    code, *_ = LANGUAGES[language]
    seen = []
    execution = ci.run_code(code, language=language.upper(), on_stdout=lambda message: seen.append(message.line))
    assert out(execution) == "".join(seen) == "21\n"


@EVERY
def test_errors_are_readable(ci, language):
    execution = ci.run_code(LANGUAGES[language][5], language=language)
    assert execution.error.name
    assert "\x1b" not in execution.error.traceback + execution.error.value
    assert out(ci.run_code(LANGUAGES[language][0].replace("let ", "").replace(": number", ""), language=language)) == "21\n"


@EVERY
def test_variables_of_a_call(ci, language):
    read = LANGUAGES[language][1]
    assert out(ci.run_code(read, language=language, envs={"NAME": "a 'b'"})) == "a 'b'\n"
    assert out(ci.run_code(read, language=language)) == "\n"


@EVERY
def test_working_directory(ci, language):
    context = ci.create_code_context(language=language, cwd="/tmp")
    assert out(ci.run_code(LANGUAGES[language][2], context=context)) == "/tmp\n"
    ci.remove_code_context(context)


@EVERY
def test_endless_code_is_interrupted(ci, language):
    keep = {"bash": "mark=1", "java": "int mark = 1;", "r": "mark <- 1"}.get(language, "mark = 1")
    show = {"python": "print(mark)", "bash": "echo $mark", "java": "System.out.println(mark);", "r": "cat(mark, '\\n', sep='')"}
    assert ci.run_code(keep, language=language).error is None
    with pytest.raises(TimeoutException):
        ci.run_code(LANGUAGES[language][3], language=language, timeout=1)
    assert out(ci.run_code(show.get(language, "console.log(mark)"), language=language)) == "1\n"


@EVERY
def test_dead_kernel_is_replaced(ci, language):
    execution = ci.run_code(LANGUAGES[language][4], language=language)
    assert execution.error.name == "UnexpectedEndOfExecution"
    again = ci.run_code(LANGUAGES[language][2], language=language)
    assert (out(again), again.execution_count) == ("/home/user\n", 1)


NUMBERS = {
    "python": "[2**53 + 1, -2**70, 1.0, 0.1 + 0.2]",
    "javascript": "[2**53, 1e21, 5e-324, 0.1 + 0.2]",
    "typescript": "[2**53, 1e21, 5e-324, 0.1 + 0.2] as number[]",
}


@pytest.mark.parametrize("language", NUMBERS)
def test_numbers_of_results_stay_as_they_are(ci, language):
    shown = ci.run_code(NUMBERS[language], language=language).results[0]
    assert json.dumps(shown.json) == {
        "python": "[9007199254740993, -1180591620717411303424, 1.0, 0.30000000000000004]",
    }.get(language, "[9007199254740992, 1e+21, 5e-324, 0.30000000000000004]")


def test_numbers_of_frames_stay_as_they_are(ci):
    frame = ci.run_code("import pandas\npandas.DataFrame({'i': [2**53 + 1], 'f': [1.0]})").results[0]
    assert json.dumps(frame.data) == '{"i": [9007199254740993], "f": [1.0]}'
    frame = ci.run_code("data.frame(n = c(2^53 - 1, 0.1 + 0.2), one = 1:2)[1:2, ]", language="r").results[0]
    assert frame.data == {"n": [2**53 - 1, 0.1 + 0.2], "one": [1, 2]}


def test_java_says_a_line_and_its_end_in_two_messages(ci):
    assert ci.run_code('System.out.println("Hello");', language="java").logs.stdout == ["Hello", "\n"]


def test_java_sees_the_sandbox_environment(create):
    sandbox = create(kind=Sandbox, envs={"NAME": "of the sandbox"})
    assert sandbox.run_code('System.getProperty("NAME")', language="java").text == "of the sandbox"
    assert sandbox.run_code('System.getProperty("NAME")', language="java", envs={"NAME": "c"}).text == "c"
    assert sandbox.run_code('System.getProperty("NAME")', language="java").text == "of the sandbox"


# For each language: what ends its kernel and how that is told.
ENDS = {
    "python": ("import os; os._exit(3)", "exit status 3"),
    "javascript": ("process.kill(process.pid, 'SIGKILL')", "signal: killed"),
    "typescript": ("process.kill(process.pid, 'SIGTERM'); await new Promise(() => {})", "signal: terminated"),
    "r": ("tools::pskill(Sys.getpid(), 9)", "signal: killed"),
    "java": ("Runtime.getRuntime().halt(3);", "exit status 3"),
    "bash": ("kill -9 $$", "signal: killed"),
}


@EVERY
def test_a_dead_kernel_says_why(ci, language, eventually):
    code, how = ENDS[language]
    error = ci.run_code(code, language=language).error
    assert error.name == "UnexpectedEndOfExecution" and f"the kernel ended ({how})" in error.value, error

    def logged():
        request = urllib.request.Request(
            f"{os.environ['E2B_API_URL']}/v2/sandboxes/{ci.sandbox_id}/logs", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return [line for line in json.load(reply)["logs"] if line["message"] == "kernel ended" and line["level"] == "warn"]

    home = "javascript" if language == "typescript" else language
    eventually(lambda: any(how in line["fields"]["status"] and line["fields"]["language"] == home for line in logged()))


def test_a_crash_says_where(ci):
    error = ci.run_code("import ctypes\nctypes.string_at(0)").error
    assert "(signal: segmentation fault" in error.value and "string_at" in error.traceback


def test_java_starts_from_classes(ci):
    assert ci.run_code("1 + 1", language="java").text == "2"
    running = ci.commands.run("pgrep -af '[J]ava.* /run/cay/interp/k'").stdout
    assert "-cp /run/cay/interp/lib/java Java /run/" in running, running


def test_killed_from_outside(ci, eventually):
    """Any kernel that is killed while it is idle is there again soon. An
    execution that comes while it dies may be told so."""
    pids = {"python": "import os; print(os.getpid())", "r": "cat(Sys.getpid(), '\\n', sep='')"}
    for language, code in pids.items():
        ci.commands.run(f"kill -9 {out(ci.run_code(code, language=language)).strip()}", user="root")

        def answers():
            execution = ci.run_code(LANGUAGES[language][0], language=language)
            assert execution.error is None or execution.error.name == "UnexpectedEndOfExecution"
            return execution.error is None and out(execution) == "21\n"

        eventually(answers)


def test_r_shows_values_frames_and_plots(ci):
    execution = ci.run_code("plot(1:3)\ndata.frame(a = 1:2, b = c('x', NA))", language="r")
    frame, plot = execution.results
    assert execution.text == frame.text and "<table" in frame.html
    assert frame.data == {"a": [1, 2], "b": ["x", None]}
    assert base64.b64decode(plot.png).startswith(b"\x89PNG")
    assert ci.run_code("6 * 7", language="r").text == "[1] 42"
    failed = ci.run_code("f <- function(n) stop('too few: ', n)\nf(2)", language="r").error
    assert (failed.name, failed.value) == ("Error", "too few: 2") and "1. f(2)" in failed.traceback


def test_java_shows_values_and_places(ci):
    assert ci.run_code("record Point(int x, int y) {}\nnew Point(1, 2)", language="java").text == "Point[x=1, y=2]"
    failed = ci.run_code("int half(int n) {\n  return n / 0;\n}\nhalf(2)", language="java").error
    assert (failed.name, failed.value) == ("java.lang.ArithmeticException", "/ by zero")
    assert "at half" in failed.traceback and "jdk." not in failed.traceback
    failed = ci.run_code('int y =\n"text";', language="java").error
    assert failed.name == "CompilationError" and ":2: error: incompatible types" in failed.traceback


def test_error_inside_a_display_hook(ci):
    execution = ci.run_code("class Shy:\n    def __repr__(self): raise ValueError('shy')\nShy()")
    assert execution.error.name == "ValueError"
    assert ci.run_code("class Half:\n    def _repr_html_(self): raise ValueError('shy')\n    def __repr__(self): return 'half'\nHalf()").text == "half"
    assert ci.run_code("1 + 1").text == "2"


def test_contexts_run_side_by_side(ci):
    """Two executions that each wait for the other's file."""
    wait = "import os, time\nopen('/tmp/{0}', 'w').close()\nwhile not os.path.exists('/tmp/{1}'): time.sleep(.01)\n'met'"
    context = ci.create_code_context()
    met = []
    other = threading.Thread(target=lambda: met.append(ci.run_code(wait.format("b", "a"), context=context).text))
    other.start()
    met.append(ci.run_code(wait.format("a", "b")).text)
    other.join()
    assert met == ["met", "met"]
    ci.remove_code_context(context)


LIBRARIES = """
import bs4, cv2, docx, librosa.feature, matplotlib, nltk, numba, numpy, openpyxl, pandas, PIL, plotly, pytest
import requests, scipy.stats, seaborn, sklearn.linear_model, spacy, sympy, xarray, xlrd
assert (matplotlib.__version__, pandas.__version__, numpy.__version__) == ("3.10.9", "2.2.3", "2.3.5")  # E2B's
"""


def test_libraries_of_data(ci):
    assert ci.run_code(LIBRARIES).error is None
    assert ci.run_code("import spacy; [t.text for t in spacy.blank('en')('Two words')]").results[0].json == ["Two", "words"]
    picture = ci.run_code("import plotly.graph_objects as go\nfrom IPython.display import Image\n"
                          "Image(go.Figure(go.Bar(x=[1], y=[2])).to_image(format='png'))")
    assert picture.error is None and base64.b64decode(picture.results[0].png).startswith(b"\x89PNG")


def test_python_alone(create):
    sandbox = create("code-interpreter-python", kind=Sandbox)
    assert sandbox.run_code("import pandas; 6 * 7").text == "42"
    assert [c.language for c in sandbox.list_code_contexts()] == ["python"]
    with pytest.raises(SandboxException, match="400"):
        sandbox.run_code("1", language="js")


class TestBadInput:
    """Each gets a clear answer, and the sandbox lives on."""

    @pytest.fixture(autouse=True)
    def lives_on(self, ci):
        yield
        assert ci.run_code("1 + 1").text == "2"

    def post(self, ci, body):
        """Asks without an SDK. Returns the open answer."""
        request = urllib.request.Request(
            world.Server().url + "/execute", json.dumps(body).encode(),
            {**ci.connection_config.sandbox_headers, "E2b-Sandbox-Id": ci.sandbox_id, "E2b-Sandbox-Port": "49999",
             "Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=300)

    def test_unknown(self, ci):
        with pytest.raises(SandboxException, match="400"):
            ci.run_code("1", language="cobol")
        context = ci.create_code_context()
        ci.remove_code_context(context)
        with pytest.raises(NotFoundException):
            ci.run_code("1", context=context)
        with pytest.raises(SandboxException):
            ci.create_code_context(cwd="/no/such/directory")

    @EVERY
    def test_closed_directory(self, ci, language):
        ci.commands.run("install -d -m 0700 /closed /closed/below", user="root")
        for closed in ["/closed", "/closed/below"]:
            with pytest.raises(SandboxException, match="400"):
                ci.create_code_context(cwd=closed, language=language)
        assert ci.run_code("1", language="python").text == "1"

    def test_both_given(self, ci):
        context = ci.list_code_contexts()[0]
        with pytest.raises(InvalidArgumentException):
            ci.run_code("1", language="python", context=context)
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.post(ci, {"code": "1", "language": "python", "context_id": context.id})
        assert refused.value.code == 400

    def test_ten_megabytes_of_code(self, ci):
        assert ci.run_code("text = '" + "x" * 10_000_000 + "'\nlen(text)").text == "10000000"

    def test_output_without_end(self, ci):
        """The client reads some, then nothing for a while, then leaves."""
        answer = self.post(ci, {"code": "while True: print('x' * 1000)"})
        assert len(answer.read(20_000_000)) == 20_000_000
        status = ci.commands.run("cat /proc/1/status", user="root").stdout
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        assert resident < 150_000, f"the agent holds {resident} kB"
        answer.close()

    def test_output_that_is_no_text(self, ci):
        execution = ci.run_code("import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb\\n')\nsys.stdout.flush()")
        assert out(execution) == "a\ufffd\ufffdb\n"
        execution = ci.run_code("printf 'a\\xff\\xfeb\\n'", language="bash")
        assert out(execution) == "a\ufffdb\n"
        assert out(ci.run_code("console.log('\\ud800')", language="js")) == "\ufffd\n"

    def test_characters_that_end_lines_elsewhere(self, ci):
        """The SDK would take some of them for the end of an event."""
        text = "a\u0085b\u2028c\x0bd\x1ce\u0301\U0001f600"
        assert out(ci.run_code(f"print({text!a})")) == text + "\n"

    def test_result_of_a_hundred_megabytes(self, ci):
        execution = ci.run_code("'x' * 100_000_000")
        assert execution.error is not None or len(execution.text) == 100_000_000


class TestCayRun:
    """`cay run`: a script, or code, in a sandbox of its own."""

    @pytest.fixture
    def cay(self):
        server = world.Server()
        return lambda *args, **kw: subprocess.run(
            [str(world.CAY), "run", *args], env=server.env, text=True, capture_output=True, timeout=300, **kw)

    def test_code(self, cay):
        done = cay("-c", "print('out'); import sys; print('err', file=sys.stderr); 6 * 7")
        assert (done.returncode, done.stdout, done.stderr) == (0, "out\n42\n", "err\n")
        assert cay("-c", "import sys; sys.exit(7)", "--lang", "python").returncode == 7
        done = cay("-c", "exit 3", "--lang", "bash")
        assert (done.returncode, done.stdout) == (3, "")

    def test_script(self, cay, tmp_path):
        script = tmp_path / "draw.py"
        script.write_text("import matplotlib.pyplot as plt\nfor n in range(2):\n    plt.plot([n])\n    plt.show()\n1 / 0\n")
        done = cay(str(script))
        assert done.returncode == 1 and "ZeroDivisionError: division by zero" in done.stderr
        for n in (1, 2):
            assert (tmp_path / f"draw-{n}.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "hello.js").write_text("console.log('from', process.version.slice(0, 2))")
        assert cay(str(tmp_path / "hello.js")).stdout == "from v2\n"
        assert cay("-", input="print(input)").returncode == 0
        missing = cay(str(tmp_path / "none.py"))
        assert missing.returncode == 1 and "cannot be read" in missing.stderr
