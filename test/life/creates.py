"""Lives of a minute's work or less: create, run_code, command, kill, two at a time.

    make soak-creates               5,000 lives; none may fail
    SOAK_CREATES=200 make soak-creates

Every line that the code prints must come, once and in order, and every call
must succeed at its first try. A life that fails is counted with its evidence:
what the client saw, what the sandbox's log says, and the server's warnings.
"""

import concurrent.futures
import contextlib
import json
import os
import statistics
import sys
import threading
import time
import urllib.request

import e2b
from e2b_code_interpreter import Sandbox

import world

CREATES = int(os.environ.get("SOAK_CREATES", "5000"))
AT_ONCE = 2
LINES = 10_000
CODE = f"for i in range({LINES}): print(i)\n{LINES}"


def life():
    """One life; what it saw that is not as it should be is raised."""
    sandbox = Sandbox.create(timeout=300)
    try:
        execution = sandbox.run_code(CODE)
        assert execution.error is None, f"error {execution.error.name}: {execution.error.value}"
        lines = "".join(execution.logs.stdout).splitlines()
        assert lines == [str(i) for i in range(LINES)], f"{len(lines)} lines came"
        assert execution.text == str(LINES), f"the result is {execution.text!r}"
        said = sandbox.commands.run("echo $((6 * 7))").stdout
        assert said == "42\n", f"the command says {said!r}"
    except Exception as error:
        error.add_note(f"sandbox {sandbox.sandbox_id}\n{logs(sandbox.sandbox_id)}")
        raise
    finally:
        with contextlib.suppress(e2b.SandboxException):
            sandbox.kill()


def logs(sandbox):
    """The lines that the server keeps of the sandbox's log."""
    request = urllib.request.Request(
        f"{os.environ['E2B_API_URL']}/v2/sandboxes/{sandbox}/logs", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            entries = json.load(reply)["logs"]
    except OSError as error:
        return f"no log: {error}"
    return "\n".join(json.dumps(entry) for entry in entries[-40:])


class Count:
    """Lives and failures so far."""

    def __init__(self, server):
        self.server, self.lock, self.took, self.failures = server, threading.Lock(), [], []

    def one(self, number):
        begun = time.time()
        try:
            life()
        except Exception as error:  # each is counted
            self.fail(number, begun, error)
        with self.lock:
            self.took.append(time.time() - begun)
            if len(self.took) % 100 == 0:
                print(f"{len(self.took)} lives, {len(self.failures)} failed, "
                      f"median {statistics.median(self.took[-100:]) * 1000:.0f} ms", flush=True)

    def fail(self, number, begun, error):
        text = f"life {number}, {time.time() - begun:.3f} s after its begin: {type(error).__name__}: {error}"
        text = "\n".join([text, *getattr(error, "__notes__", [])])
        warnings = [line for line in self.server.tail(200).splitlines() if "level=INFO" not in line]
        with self.lock:
            self.failures.append(text)
        print(f"FAILED {text}\nserver's warnings:\n" + "\n".join(warnings[-20:]), flush=True)


def main():
    server = world.aside("creates", 7186, "10.220.0.0/16", "cycrt")
    server.start()
    os.environ.update(server.sdk_env(server.new_key()))
    count = Count(server)
    try:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(count.one, range(1, CREATES + 1)))
    finally:
        server.cay("down")
    print(f"{CREATES} lives, {len(count.failures)} failed; median {statistics.median(count.took) * 1000:.0f} ms, "
          f"longest {max(count.took):.2f} s")
    for failure in count.failures:
        print(f"- {failure.splitlines()[0]}")
    sys.exit(1 if count.failures else 0)


if __name__ == "__main__":
    main()
