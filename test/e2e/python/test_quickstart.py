"""The README's quickstart, word for word, and what it must print."""

import subprocess
import sys

QUICKSTART = """
from e2b_code_interpreter import Sandbox
sbx = Sandbox.create()
print(sbx.run_code("print('hello world')").logs)
print(sbx.files.list("/"))
sbx.kill()
"""


def test_quickstart():
    out = subprocess.run([sys.executable, "-c", QUICKSTART], check=True, text=True,
                         capture_output=True, timeout=300).stdout
    logs, listing = out.splitlines()
    assert logs == "Logs(stdout: ['hello world\\n'], stderr: [])"
    for name in ("'etc'", "'home'", "'usr'"):
        assert f"name={name}" in listing
