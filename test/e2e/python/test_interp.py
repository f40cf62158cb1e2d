"""The code interpreter through the unmodified Python SDK."""

import base64
import io
import random
import struct

import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

STRAWBERRY = "word='strawberry'\ncount=word.count('r')\ncount"

ANALYSIS = """
import pandas as pd
import matplotlib.pyplot as plt
frame = pd.read_csv("dataset.csv")
frame.groupby("kind")["value"].mean().plot.bar()
plt.ylabel("Value (kg)")
plt.show()
len(frame)
"""


def is_png(text):
    """Whether text is a PNG with pixels in it, in base64."""
    raw = base64.b64decode(text, validate=True)
    width, height = struct.unpack(">II", raw[16:24])
    return raw.startswith(b"\x89PNG\r\n\x1a\n") and raw.endswith(b"IEND\xaeB`\x82") and width > 9 < height


def test_models_answer(ci):
    execution = ci.run_code(STRAWBERRY)
    assert execution.text == "3"
    assert execution.error is None


def test_state_is_kept(ci):
    first = ci.run_code("x = 1")
    second = ci.run_code("x += 1; x")
    assert second.text == "2"
    assert second.execution_count == first.execution_count + 1


def test_logs_and_callbacks(ci):
    seen = []
    execution = ci.run_code(
        "import sys\nprint('one', flush=True)\nprint('two', file=sys.stderr, flush=True)\n3",
        on_stdout=lambda message: seen.append((message.line, message.error)),
        on_stderr=lambda message: seen.append((message.line, message.error)),
        on_result=lambda result: seen.append(result.text),
    )
    assert seen == [("one\n", False), ("two\n", True), "3"]
    assert execution.logs.stdout == ["one\n"]
    assert execution.logs.stderr == ["two\n"]


def test_error(ci):
    errors = []
    execution = ci.run_code("def divide():\n    return 1 / 0\ndivide()", on_error=errors.append)
    assert execution.error.name == "ZeroDivisionError"
    assert execution.error.value == "division by zero"
    assert "return 1 / 0" in execution.error.traceback
    assert "\x1b" not in execution.error.traceback
    assert len(errors) == 1
    assert ci.run_code("1 + 1").text == "2"


def test_data_analysis(ci):
    rows = random.Random(1)
    table = io.StringIO("kind,value\n" + "".join(
        f"{'abc'[i % 3]},{rows.random()}\n" for i in range(10_000)))
    ci.files.write("dataset.csv", table)
    execution = ci.run_code(ANALYSIS)
    assert execution.error is None
    assert execution.text == "10000"
    picture = execution.results[0]
    assert is_png(picture.png)
    chart = picture.chart
    assert chart.type == "bar" and chart.y_unit == "kg"
    assert sorted(bar.label for bar in chart.elements) == ["a", "b", "c"]


def test_data_frame_and_json(ci):
    frame = ci.run_code("import pandas as pd; pd.DataFrame({'a': [1, 2], 'b': ['x', None]})").results[0]
    assert frame.data == {"a": [1, 2], "b": ["x", None]}
    assert "<table" in frame.html
    assert ci.run_code("{'a': [1, 2.5, None]}").results[0].json == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("code, kind, element", [
    ("plt.plot([1, 2], [3, 4], label='l')", "line", {"label": "l", "points": [(1, 3), (2, 4)]}),
    ("plt.scatter([1, 2], [3, 4], label='s')", "scatter", {"label": "s", "points": [(1, 3), (2, 4)]}),
    ("plt.pie([1, 3], labels=['a', 'b'])", "pie", {"label": "a", "angle": 90, "radius": 1}),
    ("plt.boxplot([1, 2, 3, 4, 20], patch_artist=True)", "box_and_whisker",
     {"label": "1", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [20]}),
])
def test_charts(ci, code, kind, element):
    execution = ci.run_code(f"import matplotlib.pyplot as plt\n{code}\nplt.show()")
    chart = execution.results[0].chart
    assert chart.type == kind
    assert vars(chart.elements[0]) == element


def test_contexts(ci):
    context = ci.create_code_context(cwd="/tmp", language="python")
    assert context.cwd == "/tmp" and context.language == "python"
    assert ci.run_code("import os; only_here = 1; os.getcwd()", context=context).text == "/tmp"
    assert ci.run_code("only_here").error.name == "NameError"
    assert context.id in [c.id for c in ci.list_code_contexts()]
    ci.restart_code_context(context)
    assert ci.run_code("only_here", context=context).error.name == "NameError"
    ci.remove_code_context(context)
    with pytest.raises(NotFoundException):
        ci.run_code("1", context=context)


def test_environment(ci, create):
    read = "import os; [os.environ.get('OF_CALL'), os.environ.get('OF_SANDBOX')]"
    assert ci.run_code(read, envs={"OF_CALL": "c"}).text == "['c', None]"
    assert ci.run_code(read).text == "[None, None]"
    own = create(kind=Sandbox, envs={"OF_SANDBOX": "s"})
    assert own.run_code(read).text == "[None, 's']"


def test_timeout_interrupts(ci):
    ci.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        ci.run_code("while True: pass", timeout=2)
    assert ci.run_code("kept").text == "7"


def test_dead_kernel_is_replaced(ci):
    execution = ci.run_code("import os\nos.kill(os.getpid(), 9)")
    assert execution.error.name == "UnexpectedEndOfExecution"
    assert ci.run_code("1 + 1").text == "2"


def test_pip_install_then_import(ci):
    assert ci.commands.run("pip install cowsay", timeout=300).exit_code == 0
    execution = ci.run_code("import cowsay\ncowsay.cow('moo')")
    assert execution.error is None
    assert "moo" in "".join(execution.logs.stdout)


def test_clones_draw_different_numbers(create):
    draw = "import random, numpy\n[random.random(), numpy.random.random()]"
    one, other = (create(kind=Sandbox).run_code(draw).results[0].json for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]


def test_javascript(ci):
    ci.run_code("const x = 1; let y = [x]", language="js")
    assert ci.run_code("const x = 2; y.push(x); y", language="javascript").results[0].json == [1, 2]
    execution = ci.run_code(
        "import fs from 'fs'\nconst text = await fs.promises.readFile('/etc/hostname', 'utf8')\n"
        "console.log('out'); console.error('err'); typeof text", language="js")
    assert (execution.text, execution.logs.stdout, execution.logs.stderr) == ("string", ["out\n"], ["err\n"])
    execution = ci.run_code("function f() { null.x }\nf()", language="js")
    assert execution.error.name == "TypeError" and "cell-" in execution.error.traceback
    assert ci.run_code("process.env.OF_CALL", language="js", envs={"OF_CALL": "c"}).text == "c"
    assert ci.run_code("process.env.OF_CALL ?? 'none'", language="js").text == "none"
    with pytest.raises(TimeoutException):
        ci.run_code("await 1; while (true) {}", language="js", timeout=2)
    assert ci.run_code("x", language="js").text == "2"


def test_typescript_shares_the_javascript_context(ci):
    ci.run_code("interface P { n: number }\nconst p: P = await Promise.resolve({ n: 4 })", language="ts")
    assert ci.run_code("enum E { A = 3 }\n(p.n as number) + E.A", language="typescript").text == "7"
    assert ci.run_code("p.n", language="js").text == "4"


def test_npm_install_then_import(ci):
    assert ci.commands.run("npm install is-odd", timeout=300).exit_code == 0
    assert ci.run_code("require('is-odd')(3)", language="js").text == "true"
    assert ci.run_code("import isOdd from 'is-odd'\nisOdd(4)", language="js").text == "false"


def test_bash(ci):
    ci.run_code("greeting=hello; cd /tmp; greet() { echo $greeting; }", language="bash")
    assert "".join(ci.run_code("greet; pwd", language="bash").logs.stdout) == "hello\n/tmp\n"
    execution = ci.run_code("echo err >&2; exit 3", language="bash")
    assert (execution.logs.stderr, execution.error.name, execution.error.value) == (["err\n"], "ExitCode", "3")
    with pytest.raises(TimeoutException):
        ci.run_code("while true; do sleep 1; done", language="bash", timeout=2)
    assert "".join(ci.run_code("greet; echo $OF_CALL", language="bash", envs={"OF_CALL": "c"}).logs.stdout) == "hello\nc\n"


def test_contexts_of_languages(ci):
    assert {"python", "javascript"} <= {c.language for c in ci.list_code_contexts()}
    context = ci.create_code_context(cwd="/tmp", language="js")
    assert ci.run_code("globalThis.mine = process.cwd()", context=context).text == "/tmp"
    assert ci.run_code("typeof mine", language="js").text == "undefined"
    ci.remove_code_context(context)


async def test_async(ci):
    sandbox = await AsyncSandbox.connect(ci.sandbox_id)
    assert (await sandbox.run_code(STRAWBERRY)).text == "3"
    seen = []

    async def on_stdout(message):
        seen.append(message.line)

    execution = await sandbox.run_code("print('out')\n1/0", on_stdout=on_stdout)
    assert seen == ["out\n"]
    assert execution.error.name == "ZeroDivisionError"
    context = await sandbox.create_code_context()
    assert (await sandbox.run_code("1 + 1", context=context)).text == "2"
    await sandbox.remove_code_context(context)
    with pytest.raises(TimeoutException):
        await sandbox.run_code("import time; time.sleep(3600)", timeout=2)
    assert (await sandbox.run_code("2 + 2")).text == "4"
