"""Code that failed never ends as success, and no text is lost, as the SDK sees it."""

import pytest
import world
from e2b_code_interpreter import Sandbox

TABLES = world.ROOT / "internal/inside/interp/testdata/failures"
LANGUAGES = [path.stem for path in sorted(TABLES.glob("*.txt"))]


def failures(language):
    """The rows of a table: the error's name, "" for none; what fails; its code."""
    for part in ("\n" + (TABLES / f"{language}.txt").read_text()).split("\n>>> ")[1:]:
        head, _, code = part.partition("\n")
        name, _, title = head.partition(": ")
        yield name, title, code


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create("code-interpreter-v1", timeout=900) as sandbox:
        yield sandbox


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_failed_is_an_error(sandbox, language):
    wrong = []
    for name, title, code in failures(language):
        if name == "UnexpectedEndOfExecution":
            context = sandbox.create_code_context(language=language)
            execution = sandbox.run_code(code, context=context, timeout=120)
            sandbox.remove_code_context(context)
        else:
            execution = sandbox.run_code(code, language=language, timeout=120)
        got = execution.error.name if execution.error else ""
        if got != name:
            wrong.append((title, got, name))
    assert not wrong


# Each line is a way to use more memory than a sandbox has.
MEMORY = {
    "python": "x = []\nwhile True: x.append(bytearray(1 << 26))",
    "javascript": "const x = []; for (;;) x.push(Buffer.alloc(1 << 26, 1))",
    "r": "x <- list(); repeat x[[length(x) + 1]] <- rep(1, 1e7)",
    "java": "var x = new ArrayList<byte[]>(); for (;;) x.add(new byte[1 << 26]);",
    "bash": "x=x; while :; do x=$x$x; done",
}


@pytest.mark.parametrize("language", MEMORY)
def test_the_memory_is_used_up(language):
    with Sandbox.create("code-interpreter-v1", timeout=300) as sandbox:
        assert sandbox.run_code(MEMORY[language], language=language, timeout=240).error
        assert "4" in "".join(sandbox.run_code("print(2 + 2)").logs.stdout)


def test_half_a_character(sandbox):
    code = r"""import sys
print("before"); print("a\ud83d"); print("after")
print("b\udcff", file=sys.stderr)
display({"text/html": "<b>\ud83d</b>"}, raw=True)
raise ValueError("c\ude00")"""
    execution = sandbox.run_code(code)
    assert "".join(execution.logs.stdout) == "before\na\ufffd\nafter\n"
    assert "".join(execution.logs.stderr) == "b\ufffd\n"
    assert execution.results[0].html == "<b>\ufffd</b>"
    assert (execution.error.name, execution.error.value) == ("ValueError", "c\ufffd")
    frame = sandbox.run_code(r"import pandas; pandas.DataFrame({'a\ud83d': ['\ude00']})")
    assert frame.error is None and frame.results[0].data == {"a\ufffd": ["\ufffd"]}
