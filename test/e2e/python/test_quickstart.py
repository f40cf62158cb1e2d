"""The README's demo and the quickstart page, word for word, and what they must print."""

import os
import re
import subprocess
import sys

import pytest

import world

BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def programs(page, *languages):
    """A page's programs in some languages, each with the output below it, empty for none."""
    return [found for found in BLOCKS.findall((world.ROOT / page).read_text()) if found[0] in languages]


def run(language, text, cwd):
    command = {"python": [sys.executable, "-c", text], "sh": ["bash", "-ec", text]}[language]
    env = {**os.environ, "PATH": f"{world.CAY.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=300)
    # The end of a traceback comes first: the tests of older SDKs know it by that.
    assert ended.returncode == 0, "\n".join([*ended.stderr.splitlines()[-1:], ended.stderr])
    return ended.stdout


def test_readme(tmp_path):
    [(language, text, _)] = programs("README.md", "python")
    logs, listing = run(language, text + "sbx.kill()\n", tmp_path).splitlines()
    assert logs == "Logs(stdout: ['hello world\\n'], stderr: [])"
    for name in ("'etc'", "'home'", "'usr'"):
        assert f"name={name}" in listing


PAGE = [program for program in programs("docs/use/quickstart.md", "python", "sh") if program[2]]


def test_the_page_has_programs():
    assert [language for language, _, _ in PAGE] == ["python", "sh", "python", "python"]


@pytest.mark.parametrize(("language", "text", "output"), PAGE)
def test_page(tmp_path, language, text, output):
    told = re.sub(r"^[a-z0-9]{20,21}$", "ID", run(language, text, tmp_path), flags=re.MULTILINE)
    # A program's output may end its lines twice.
    assert re.sub(r"\n+", "\n", told) == output
