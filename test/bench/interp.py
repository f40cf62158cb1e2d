"""The code interpreter's speed: beside the kernel alone, a raw process, and a
Jupyter server over its websocket, which is how code interpreters are usually
built. All sides run in turns in one sandbox.

    BENCH_TURNS=3     samples of each, times ten
"""

import json
import os
import statistics

import e2b_code_interpreter

from figure import Figure, ms

TURNS = int(os.environ.get("BENCH_TURNS", "3"))

# The kernel that Cay starts, as one that Jupyter's own programs can start too:
# what is compared differs then in what is around the kernel, not in it.
SPEC = json.dumps({"argv": ["python3", "/run/cay/interp/lib/launch.py", "-f", "{connection_file}"],
                   "display_name": "cay", "language": "python"})


def give_kernel(sandbox):
    sandbox.files.write("/home/user/.local/share/jupyter/kernels/cay/kernel.json", SPEC)

# Executes "1" through our port and through a Jupyter server's websocket, both
# with as little client as can be, and prints milliseconds of each, and those
# that Jupyter's kernel says it was busy for.
SIDES = """
import http.client, json, subprocess, sys, time, urllib.request, uuid
from datetime import datetime
import websocket

def ours():
    connection = http.client.HTTPConnection("127.0.0.1", 49999)
    begun = time.perf_counter()
    connection.request("POST", "/execute", json.dumps({"code": "1"}), {"Content-Type": "application/json"})
    text = connection.getresponse().read()
    took = time.perf_counter() - begun
    assert b'"text":"1"' in text, text
    connection.close()
    return took * 1000

base = "127.0.0.1:8888/api/kernels"
for _ in range(600):
    try:
        kernel = json.load(urllib.request.urlopen(urllib.request.Request(f"http://{base}", b'{"name":"cay"}', method="POST")))["id"]
        break
    except OSError:
        time.sleep(0.1)
socket = websocket.create_connection(f"ws://{base}/{kernel}/channels")

def jupyter():
    message = uuid.uuid4().hex
    begun = time.perf_counter()
    socket.send(json.dumps({
        "channel": "shell", "parent_header": {}, "metadata": {},
        "header": {"msg_id": message, "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3", "date": ""},
        "content": {"code": "1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}}))
    shown, states = False, {}
    while "idle" not in states:
        reply = json.loads(socket.recv())
        if reply["parent_header"].get("msg_id") != message:
            continue
        shown |= reply["msg_type"] == "execute_result"
        if reply["msg_type"] == "status":
            states[reply["content"]["execution_state"]] = datetime.fromisoformat(reply["header"]["date"].replace("Z", "+00:00"))
    took = time.perf_counter() - begun
    assert shown
    return took * 1000, (states["idle"] - states["busy"]).total_seconds() * 1000

for _ in range(10):
    ours(), jupyter()
out = {"ours": [], "jupyter": [], "kernel": []}
for _ in range(%d):
    out["ours"].append(ours())
    took, own = jupyter()
    out["jupyter"].append(took)
    out["kernel"].append(own)
print(json.dumps({name: [round(v, 2) for v in values] for name, values in out.items()}))
"""


def beside_jupyter(_):
    """Two figures: each one's round trip less the kernel's own time."""
    sandbox = e2b_code_interpreter.Sandbox.create(timeout=1800)
    sandbox.run_code("1")
    give_kernel(sandbox)
    sandbox.commands.run("python3 -m venv --system-site-packages /tmp/venv && "
                         "/tmp/venv/bin/pip install -q jupyter-server websocket-client", timeout=600)
    sandbox.commands.run("exec /tmp/venv/bin/jupyter-server --ip=127.0.0.1 --port=8888 --no-browser "
                         "--IdentityProvider.token= --ServerApp.disable_check_xsrf=True --ServerApp.root_dir=/home/user",
                         background=True, timeout=0)
    sandbox.files.write("/tmp/sides.py", SIDES % (10 * TURNS))
    samples = json.loads(sandbox.commands.run("/tmp/venv/bin/python /tmp/sides.py", timeout=300).stdout)
    sandbox.kill()
    kernel = statistics.median(samples["kernel"])
    figure = Figure("overhead of an execution", "ms", lambda raw: 0.5 * raw, "0.5 × a Jupyter server's over its websocket")
    figure.ours = [round(v - kernel, 2) for v in samples["ours"]]
    figure.raw = [round(v - kernel, 2) for v in samples["jupyter"]]
    return figure


KERNEL = """
import json, sys
from datetime import datetime
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="cay")
def run():
    states = {}
    def hook(m):
        if m["msg_type"] == "status": states[m["content"]["execution_state"]] = m["header"]["date"]
    client.execute_interactive("1", output_hook=hook)
    return (states["idle"] - states["busy"]).total_seconds() * 1000
for _ in range(5): run()
print("ready", flush=True)
for _ in sys.stdin: print(round(run(), 2), flush=True)
"""


def run_code(_):
    figure = Figure('run_code("1")', "ms", lambda raw: raw + 5, "the time the kernel says it took + 5")
    sandbox = e2b_code_interpreter.Sandbox.create(timeout=900)
    own = []
    give_kernel(sandbox)
    sandbox.files.write("/tmp/kernel.py", KERNEL)
    sandbox.run_code("1")
    process = sandbox.commands.run("python3 /tmp/kernel.py", background=True, stdin=True, timeout=0)
    answers = (out for out, _, _ in process if out)
    assert next(answers) == "ready\n"
    for _ in range(10 * TURNS):
        figure.ours.append(ms(lambda: sandbox.run_code("1")))
        sandbox.commands.send_stdin(process.pid, "\n")
        own.append(float(next(answers)))
    figure.raw = own
    sandbox.kill()
    return figure


LINES = "for i in range(10000): print(i)"


def lines(_):
    figure = Figure("10,000 lines of output", "ms", lambda raw: 1.5 * raw, "1.5 × the same from a process through Start")
    sandbox = e2b_code_interpreter.Sandbox.create(timeout=900)
    want = "".join(f"{i}\n" for i in range(10_000))
    for turn in range(3 * TURNS + 1):
        got = []
        ours = ms(lambda: got.append("".join(sandbox.run_code(LINES).logs.stdout)))
        raw = ms(lambda: got.append(sandbox.commands.run(f"python3 -c '{LINES}'").stdout))
        assert got == [want, want]
        if turn:
            figure.ours.append(ours)
            figure.raw.append(raw)
    sandbox.kill()
    return figure


FIRST = {"javascript": "1", "bash": "echo 1", "r": "1", "java": "1"}


def first(language):
    def measure(_):
        figure = Figure(f"first {language} in a sandbox", "ms", lambda _: 5000, "5 s")
        for _ in range(TURNS):
            sandbox = e2b_code_interpreter.Sandbox.create(timeout=300)
            sandbox.run_code("1")
            figure.ours.append(ms(lambda: sandbox.run_code(FIRST[language], language=language)))
            sandbox.kill()
        return figure

    return measure


MEASURES = (run_code, beside_jupyter, lines, *map(first, FIRST))
