"""Sandboxes of one processor, each held on one core by a balancer, beside the
same sandboxes where the host's scheduler has its way.

    BENCH_PARTS=cores make bench
    BENCH_CORES_N=5          turns
    BENCH_CORES_ALIVE="1 2 4 8"  sandboxes that work at once
    BENCH_CORES_SECONDS=8    of work in a turn

The balancer is here and not in Cay: this load test decides whether Cay should
have one. It gives each sandbox's cgroup one core, looks 20 times a second, and
moves the sandbox whose move evens most out where a core is busy.
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import threading
import time

import e2b

from figure import Figure

N = int(os.environ.get("BENCH_CORES_N", "5"))
ALIVE = [int(n) for n in os.environ.get("BENCH_CORES_ALIVE", "1 2 4 8").split()]
SECONDS = float(os.environ.get("BENCH_CORES_SECONDS", "8"))
LOOK = 0.05
BUSY, EVEN = 0.9, 0.15  # of a core: when it is busy, and what a move must even out
NAME = "bench-one-processor"

# Inside: as many of one kind of work as fit into some seconds, and how long each took.
WORK = """
import json, subprocess, sys, time
seconds, work = float(sys.argv[1]), {
    "process": lambda: subprocess.run(["/bin/bash", "-l", "-c", "true"]),
    "python": lambda: subprocess.run([sys.executable, "-I", "-c", "import json"]),
    "sums": lambda: sum(i * i for i in range(200_000)),
}[sys.argv[2]]
work()
out, end = [], time.monotonic() + seconds
while (begun := time.monotonic()) < end:
    work()
    out.append((time.monotonic() - begun) * 1000)
print(json.dumps(out))
"""


class Balancer(threading.Thread):
    """Holds each sandbox on a core, and moves one where that core is busy."""

    def __init__(self, groups):
        super().__init__(daemon=True)
        self.cores = sorted(os.sched_getaffinity(0))
        self.at = {g: self.cores[i % len(self.cores)] for i, g in enumerate(groups)}
        self.over, self.moves = threading.Event(), 0

    def run(self):
        for group, core in self.at.items():
            GROUPS[group].hold(core)
        before, host, then = self.spent(), busy(), time.monotonic()
        while not self.over.wait(LOOK):
            now = time.monotonic()
            after, there = self.spent(), busy()
            use = {g: (after[g] - before[g]) / (now - then) for g in after}
            core = {c: (there[c] - host[c]) / (now - then) for c in self.cores}
            before, host, then = after, there, now
            self.even(use, core)
        for group in self.at:
            GROUPS[group].free(self.cores)

    def spent(self):
        return {g: GROUPS[g].seconds() for g in self.at}

    def even(self, use, core):
        most, least = max(self.cores, key=core.get), min(self.cores, key=core.get)
        gap = core[most] - core[least]
        if core[most] < BUSY or gap < EVEN:
            return
        # The one whose move leaves the smallest gap.
        movable = [(abs(gap - 2 * use[g]), g) for g, c in self.at.items() if c == most]
        left, group = min(movable, default=(gap, None))
        if left < gap - EVEN:
            self.at[group] = least
            self.moves += 1
            GROUPS[group].hold(least)


class Group:
    """The cgroup of a sandbox, in version 1 or 2."""

    def __init__(self, name, instance):
        root = pathlib.Path("/sys/fs/cgroup")
        old = (root / "cpuset" / name / instance).is_dir()
        self.cpus = (root / "cpuset" if old else root) / name / instance / "cpuset.cpus"
        self.use = root / "cpuacct" / name / instance / "cpuacct.usage" if old else self.cpus.parent / "cpu.stat"
        self.old = old

    def hold(self, core):
        self.cpus.write_text(str(core))

    def free(self, cores):
        self.cpus.write_text(",".join(map(str, cores)))

    def seconds(self):
        text = self.use.read_text()
        if self.old:
            return int(text) / 1e9
        return next(int(line.split()[1]) / 1e6 for line in text.splitlines() if line.startswith("usage_usec"))


GROUPS = {}


def busy():
    """Seconds that each core has worked, for whatever."""
    out, tick = {}, os.sysconf("SC_CLK_TCK")
    for line in pathlib.Path("/proc/stat").read_text().splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _wait, irq, soft, *_ = map(int, counts)
            out[int(name[3:])] = (user + nice + system + irq + soft) / tick
    return out


def instances(server):
    root = pathlib.Path("/sys/fs/cgroup")
    name = server.env["CAY_NETWORK_NAME"]
    at = root / "cpuset" / name if (root / "cpuset" / name).is_dir() else root / name
    return name, {d.name for d in at.iterdir() if d.is_dir()}


def sandboxes(server, count):
    made = []
    for _ in range(count):
        _, before = instances(server)
        box = e2b.Sandbox.create(NAME, timeout=3600)
        name, after = instances(server)
        (instance,) = after - before
        GROUPS[instance] = Group(name, instance)
        box.files.write("/tmp/work.py", WORK)
        made.append((box, instance))
    return made


def turn(boxes, kind, held):
    """Works in all at once; the times of each piece, of all together."""
    balancer = None
    if held:
        balancer = Balancer([instance for _, instance in boxes])
        balancer.start()
        time.sleep(0.3)  # all are moved
    with concurrent.futures.ThreadPoolExecutor(len(boxes)) as pool:
        runs = [pool.submit(box.commands.run, f"python3 /tmp/work.py {SECONDS} {kind}", timeout=120) for box, _ in boxes]
        times = [t for run in runs for t in json.loads(run.result().stdout)]
    if balancer:
        balancer.over.set()
        balancer.join()
    return times


def measure(server):
    server.stop()
    server.env["CAY_POOL_MEMORY"] = "0"
    server.start()
    e2b.Sandbox.create("base", timeout=60).kill()
    e2b.Template.build(e2b.Template().from_template("base"), NAME, cpu_count=1, memory_mb=512)
    made = sandboxes(server, max(ALIVE))
    try:
        for alive in ALIVE:
            for kind in "process", "python", "sums":
                mean = Figure(f"{alive} at once, {kind}: a piece", "ms", lambda raw: raw, "that of the host's scheduler")
                late = Figure(f"{alive} at once, {kind}: its p95", "ms", lambda raw: raw, "that of the host's scheduler")
                for n in range(N):
                    for held in (True, False) if n % 2 else (False, True):
                        times = turn(made[:alive], kind, held)
                        p95 = statistics.quantiles(times, n=20)[-1]
                        (mean.ours if held else mean.raw).append(round(statistics.mean(times), 2))
                        (late.ours if held else late.raw).append(round(p95, 2))
                yield mean
                yield late
    finally:
        for box, _ in made:
            box.kill()
        server.stop()
        server.env["CAY_POOL_MEMORY"] = "5%"
        server.start()
