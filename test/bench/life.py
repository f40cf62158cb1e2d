"""A sandbox's life: creates, pauses, forks, and how many a second.

Each figure is taken in turns with the engine alone doing the same (raw/), on
the same disk. REST parts are timed by a bare HTTP client with a connection
that is kept, as an SDK's is.

    BENCH_LIFE=10       samples of each
    BENCH_SUSTAIN=60    seconds of creates and kills
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import time

import e2b
import e2b_code_interpreter

import world
from figure import Figure, ms

LIFE = int(os.environ.get("BENCH_LIFE", "10"))
SUSTAIN = int(os.environ.get("BENCH_SUSTAIN", "60"))
FORKS = int(os.environ.get("BENCH_FORKS", "20"))
TURNS = max(2, os.cpu_count() * 3 // 2)  # restores at once, as the server has it
BASE, INTERPRETER = 1024, 2048  # templates by their memory, MB
REST = 0.6  # seconds in which a pool fills up again, mostly
CALM = 1.5  # seconds in which all is done that a create and a kill begin


def raw(server, work, memory=BASE, **options):
    """The time that the engine alone takes."""
    flags = [text for name, value in options.items() for text in (f"-{name}", str(value))]
    out = subprocess.run(
        [str(world.ROOT / "build" / "bench-raw"), "-data", str(server.data), "-run", "/run/cay-bench-raw",
         "-memory", str(memory), "-work", work, *flags],
        check=True, stdout=subprocess.PIPE, text=True, env=server.env).stdout
    return json.loads(out)


class Rest:
    """The REST API over one connection."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        """A body may be given as JSON, where writing it is not to be measured."""
        if body is not None and not isinstance(body, str):
            body = json.dumps(body)
        self.connection.request(method, path, body, self.headers)
        reply = self.connection.getresponse()
        text = reply.read()
        assert reply.status < 300, (reply.status, text)
        return json.loads(text) if text else None

    def create(self, template):
        return self.call("POST", "/v2/sandboxes", {"templateID": template, "timeout": 600})["sandboxID"]

    def kill(self, sandbox):
        self.call("DELETE", f"/sandboxes/{sandbox}")


@contextlib.contextmanager
def without_pool(server):
    """The same server with every create made when it is asked for."""
    restart(server, "0")
    try:
        yield
    finally:
        restart(server, "5%")


def restart(server, pool):
    server.stop()
    server.env["CAY_POOL_MEMORY"] = pool
    server.start()


def warm_create(server):
    """Of creates that find a filled pool and a machine at rest the median and
    the slowest in a hundred; and of those that come while the sandbox before is
    being ended and the pool fills up, which has no bar. Beside it, as what the
    machine and HTTP take alone, a request that only reads, after such a rest."""
    middle = Figure("warm create, REST part, p50", "ms", lambda _: 10, "10 ms")
    slow = Figure("warm create, REST part, p99", "ms", lambda _: 30, "30 ms", at=0.99)
    busy = Figure("warm create while the pool fills up, p50", "ms", None, "–")
    rest = Rest(server)

    def one(live, calm):
        made = []
        took = ms(lambda: made.append(rest.create("base")))
        time.sleep(live)
        rest.kill(made[0])
        time.sleep(calm)
        return took

    for _ in range(3):  # the first ones fill the pool
        one(0, CALM)
    reads = rest.create("base")
    for _ in range(10 * LIFE):
        middle.ours.append(one(0, CALM))
        middle.raw.append(ms(lambda: rest.call("GET", f"/sandboxes/{reads}")))
        time.sleep(CALM / 2)
    rest.kill(reads)
    slow.ours, slow.raw = middle.ours, middle.raw
    one(REST, 0)
    busy.ours = [one(REST, 0) for _ in range(3 * LIFE)]
    return [middle, slow, busy]


def warm_first_result(_):
    figure = Figure("run_code in a new sandbox from the pool", "ms", lambda _: 60, "60 ms after the create")
    for turn in range(LIFE + 2):
        sandbox = e2b_code_interpreter.Sandbox.create()
        took = ms(lambda: sandbox.run_code("1"))
        time.sleep(2 * REST)
        sandbox.kill()
        if turn > 1:
            figure.ours.append(took)
    return [figure]


def cold_create(server):
    figure = Figure("cold create, REST part", "ms", lambda raw: raw, "raw create + restore as two calls")
    rest = Rest(server)
    for turn in range(LIFE + 1):
        made = []
        took = ms(lambda: made.append(rest.create("base")))
        rest.kill(made[0])
        alone = raw(server, "twocalls")["ms"]
        if turn:
            figure.ours.append(took)
            figure.raw.append(alone)
    return [figure]


def pause_resume(server):
    pauses = Figure("pause of a Jupyter sandbox", "ms", lambda raw: 1.2 * raw, "1.2 × raw checkpoint with sync")
    resumes = Figure("resume of a Jupyter sandbox", "ms", lambda raw: 1.2 * raw, "1.2 × raw restore")
    rest = Rest(server)
    sandbox = rest.create("code-interpreter-v1")
    for turn in range(LIFE + 1):
        paused = ms(lambda: rest.call("POST", f"/sandboxes/{sandbox}/pause"))
        resumed = ms(lambda: rest.call("POST", f"/v2/sandboxes/{sandbox}/connect", {"timeout": 600}))
        saved, restored = raw(server, "checkpoint", INTERPRETER)["ms"], raw(server, "restore", INTERPRETER)["ms"]
        if turn:
            pauses.ours.append(paused)
            pauses.raw.append(saved)
            resumes.ours.append(resumed)
            resumes.raw.append(restored)
    rest.kill(sandbox)
    return [pauses, resumes]


GAPS = """
import sys, time
longest, last, end = 0, time.time(), time.time() + float(sys.argv[1])
print("on", flush=True)
while last < end:
    now = time.time()
    longest, last = max(longest, now - last), now
print(longest * 1000)
"""


def fork_stop(server):
    """How long a program inside the source stands still."""
    figure = Figure("the source stops for a fork", "ms", lambda raw: 1.2 * raw, "1.2 × raw checkpoint -leave-running")
    rest = Rest(server)
    sandbox = e2b.Sandbox.create(timeout=600)
    sandbox.files.write("/tmp/gaps.py", GAPS)
    for _ in range(LIFE):
        begun = []
        command = sandbox.commands.run("exec python3 /tmp/gaps.py 4", background=True)
        time.sleep(1)
        begun = rest.call("POST", f"/sandboxes/{sandbox.sandbox_id}/fork", {"count": 1, "timeout": 60})
        figure.ours.append(round(float(command.wait().stdout.split()[1]), 2))
        rest.kill(begun[0]["sandbox"]["sandboxID"])
        figure.raw.append(raw(server, "keep")["ms"])
    sandbox.kill()
    return [figure]


def forks(server):
    figure = Figure(f"{FORKS} forks of a live Jupyter sandbox, all answering", "ms", lambda raw: 1.2 * raw,
                    f"1.2 × {FORKS} raw restores, {TURNS} at once")
    rest = Rest(server)
    source = e2b_code_interpreter.Sandbox.create(timeout=600)
    source.run_code("x = 41")
    for _ in range(max(2, LIFE // 3)):
        made = []

        def fork():
            answers = rest.call("POST", f"/sandboxes/{source.sandbox_id}/fork", {"count": FORKS, "timeout": 300})
            made.extend(a["sandbox"] for a in answers)  # each has its identity: its agent answered

        figure.ours.append(ms(fork))
        for box in made:
            rest.kill(box["sandboxID"])
        figure.raw.append(raw(server, "many", INTERPRETER, count=FORKS, parallel=TURNS)["ms"])
    source.kill()
    return [figure]


def server_memory(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1e3 for line in status.splitlines() if line.startswith("VmRSS"))


def sustained(server):
    """Creates with matching kills; the rate is told as milliseconds for each."""
    rate = Figure(f"each create and kill, {SUSTAIN} s of them", "ms", lambda raw: raw / 0.8, "0.8 of the raw rate")
    memory = Figure("server's memory after that", "MB", lambda raw: 1.2 * raw + 10, "1.2 × before + 10")

    def client(until):
        rest, done = Rest(server), 0
        while time.monotonic() < until:
            rest.kill(rest.create("base"))
            done += 1
        return done

    def burst(seconds):
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(TURNS) as pool:
            done = sum(f.result() for f in [pool.submit(client, begun + seconds) for _ in range(TURNS)])
        return 1000 * (time.monotonic() - begun) / done

    burst(max(5, SUSTAIN // 6))  # the memory that work takes
    memory.raw.append(server_memory(server))
    rate.ours.append(burst(SUSTAIN))
    memory.ours.append(server_memory(server))
    rate.raw.append(1000 / raw(server, "sustain", count=SUSTAIN, parallel=TURNS)["rate"])
    return [rate, memory]


def measure(server):
    """Yields every row."""
    with without_pool(server):
        for work in (cold_create, pause_resume, fork_stop, forks, sustained):
            yield from work(server)
    for work in (warm_create, warm_first_result):
        yield from work(server)
