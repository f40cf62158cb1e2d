"""Memory as a server loads it unasked beside memory loaded at once, by turns on one server.

    BENCH_PARTS=memory make bench
    BENCH_CLONES=50       idle clones, and those that answer
    BENCH_MEMORY_N=7      samples of each time
    BENCH_MEMORY_TURNS=2  restarts into each way of loading
    BENCH_LOADING=demand  for ours another CAY_MEMORY_LOADING than auto

Ours is CAY_MEMORY_LOADING=auto, raw is eager: the same build of the engine,
the same snapshots, the same run. Memory of a clone is what the host has less of
(MemAvailable), so a machine that does other work measures that too; the cgroup's
own figure stands beside it.
"""

import concurrent.futures
import os
import pathlib
import statistics
import time

import e2b
import e2b_code_interpreter

from figure import Figure, ms
from life import Rest

CLONES = int(os.environ.get("BENCH_CLONES", "50"))
N = int(os.environ.get("BENCH_MEMORY_N", "7"))
TURNS = int(os.environ.get("BENCH_MEMORY_TURNS", "2"))
OURS = os.environ.get("BENCH_LOADING", "auto")
FORKS = 20
SETTLE = 3  # seconds in which a new sandbox has done all that it does by itself


def available():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1e3
    raise RuntimeError("no MemAvailable")


def cgroups(server):
    """The memory of each instance by its cgroup, in MB, without the page cache."""
    root, name = pathlib.Path("/sys/fs/cgroup"), server.env["CAY_NETWORK_NAME"]
    old = (root / "memory" / name).is_dir()
    usage, prefix = ("memory.usage_in_bytes", "total_") if old else ("memory.current", "")
    out = []
    for one in (root / ("memory" if old else "") / name).iterdir():
        if one.is_dir():
            stat = dict(line.split() for line in (one / "memory.stat").read_text().splitlines())
            files = int(stat[prefix + "inactive_file"]) + int(stat[prefix + "active_file"])
            out.append((int((one / usage).read_text()) - files) / 1e6)
    return out


def run_code(sandbox):
    assert sandbox.run_code("1").text == "1"


def interpreter():
    return e2b_code_interpreter.Sandbox.create(timeout=1800, request_timeout=300)


class Ways:
    """One figure for each measured thing, in both ways of loading."""

    def __init__(self):
        self.figures = {}

    def add(self, way, name, unit, bar, value):
        if name not in self.figures:
            rule = "–" if bar is None else f"{bar} {unit}"
            self.figures[name] = Figure(name, unit, None if bar is None else lambda _: bar, rule)
        figure = self.figures[name]
        (figure.ours if way == OURS else figure.raw).append(round(value, 2))


def clones(server, way, ways):
    first = interpreter()  # what all of them have one copy of counts once
    run_code(first)
    time.sleep(SETTLE)
    before = available()
    boxes = [interpreter() for _ in range(CLONES)]
    time.sleep(SETTLE)
    ways.add(way, f"host memory of each further idle Jupyter clone, {CLONES} of them", "MB", 60, (before - available()) / CLONES)
    ways.add(way, "the same, cgroup of the middle one", "MB", None, statistics.median(cgroups(server)))
    for box in boxes:
        run_code(box)
    time.sleep(SETTLE)
    ways.add(way, 'host memory of each after run_code("1")', "MB", 80, (before - available()) / CLONES)
    ways.add(way, 'the same, cgroup of the middle one, after run_code("1")', "MB", None, statistics.median(cgroups(server)))
    for box in [first, *boxes]:
        box.kill()


def idle_base(server, way, ways):
    made = [e2b.Sandbox.create(timeout=900) for _ in range(5)]
    time.sleep(SETTLE)
    for mb in cgroups(server):
        ways.add(way, "idle base, cgroup", "MB", 24, mb)
    for box in made:
        box.kill()


def times(server, way, ways):
    rest = Rest(server)
    for turn in range(N + 1):
        made = []

        def first():
            made.append(interpreter())
            run_code(made[0])

        took = ms(first)
        made[0].kill()
        untouched = interpreter()
        pause = ms(lambda: rest.call("POST", f"/sandboxes/{untouched.sandbox_id}/pause"))

        def resume():
            run_code(e2b_code_interpreter.Sandbox.connect(untouched.sandbox_id, timeout=600))

        back = ms(resume)
        untouched.kill()
        if turn:
            ways.add(way, "first run_code after a cold create, with the create", "ms", 300, took)
            ways.add(way, "pause of an untouched Jupyter", "ms", 200, pause)
            ways.add(way, "resume of a paused Jupyter, answering run_code", "ms", 180, back)
    for make, name, bar in (e2b.Sandbox.create, "base", 120), (interpreter, "Jupyter", 250):
        box = make()
        node = rest.call("POST", f"/cay/v1/sandboxes/{box.sandbox_id}/checkpoints", {})["checkpointID"]
        for turn in range(N + 1):
            took = ms(lambda: rest.call("POST", f"/cay/v1/sandboxes/{box.sandbox_id}/rollback", {"checkpointID": node}))
            if turn:
                ways.add(way, f"rollback in place, {name}", "ms", bar, took)
        box.kill()


def forks(server, way, ways):
    rest, source = Rest(server), interpreter()
    run_code(source)

    def fork():
        answers = rest.call("POST", f"/sandboxes/{source.sandbox_id}/fork", {"count": FORKS, "timeout": 300})
        boxes.extend(e2b_code_interpreter.Sandbox.connect(a["sandbox"]["sandboxID"]) for a in answers)
        with concurrent.futures.ThreadPoolExecutor(FORKS) as pool:
            list(pool.map(run_code, boxes))

    for _ in range(max(2, N // 3)):
        boxes = []
        ways.add(way, f"{FORKS} forks of a live Jupyter, all answering run_code", "ms", 3000, ms(fork))
        for box in boxes:
            box.kill()
    source.kill()


def pooled(way, ways):
    for turn in range(N + 2):
        box = interpreter()
        took = ms(lambda: run_code(box))
        time.sleep(2)
        box.kill()
        if turn > 1:
            ways.add(way, "first run_code in a sandbox from the pool", "ms", 15, took)


def measure(server):
    """Yields every row."""
    ways = Ways()

    def restart(way, pool):
        server.stop()
        server.env.update(CAY_MEMORY_LOADING=way, CAY_POOL_MEMORY=pool)
        server.start()

    try:
        for _ in range(TURNS):
            for way in "eager", OURS:
                restart(way, "0")
                for name in "base", "code-interpreter-v1":  # its working set is written after its first start
                    e2b.Sandbox.create(name, timeout=60).kill()
                time.sleep(10)
                for work in idle_base, times, forks, clones:
                    work(server, way, ways)
                restart(way, "5%")
                pooled(way, ways)
    finally:
        server.env.pop("CAY_MEMORY_LOADING", None)
        server.env.pop("CAY_POOL_MEMORY", None)
        server.stop()
        server.start()
    yield from ways.figures.values()
