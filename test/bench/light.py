"""The cost of a sandbox to its host, and of files inside.

With BENCH_BESIDE another `cay`, say one with an engine of before, is measured
by turns in the same run, on a server of its own: its figures stand as raw.

    BENCH_BESIDE=PATH   that program; eager is this one with all memory loaded at once
    BENCH_LIGHT=15      samples of each
    BENCH_IDLE=20       seconds for which an idle sandbox is watched
"""

import json
import os
import pathlib
import time

import e2b
import e2b_code_interpreter

import world
from figure import Figure, ms

N = int(os.environ.get("BENCH_LIGHT", "15"))
IDLE = int(os.environ.get("BENCH_IDLE", "20"))
LIVES = 5  # in one sample
CLOCK = os.sysconf("SC_CLK_TCK")

# The program that times commands inside, in milliseconds. Each tree is made
# before, and the first round warms up.
INSIDE = """
import json, os, subprocess, time
out = {}
def timed(name, work):
    begun = time.perf_counter()
    work()
    out.setdefault(name, []).append((time.perf_counter() - begun) * 1000)
def run(*argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
def walk(top):
    for at, dirs, files in os.walk(top):
        for name in files:
            os.stat(os.path.join(at, name))
os.chdir("/home/user/light")
for _ in range(%d):
    timed("git", lambda: run("git", "-C", "repo", "status"))
    timed("find", lambda: run("find", "many"))
    timed("stat", lambda: walk("many"))
    run("make", "-C", "c", "clean")
    timed("make", lambda: run("make", "-C", "c", "-j2"))
print(json.dumps(out))
"""

SET_UP = r"""
set -e
mkdir -p /home/user/light && cd /home/user/light
mkdir repo many c
for d in $(seq 40); do
  mkdir -p repo/$d
  for f in $(seq 50); do echo "$d $f" >repo/$d/$f.txt; done
done
git -C repo init -q && git -C repo add -A
git -C repo -c user.name=a -c user.email=a@b commit -qm x
python3 - <<'PY'
import os
for d in range(200):
    os.mkdir(f"many/{d}")
    for f in range(100):
        open(f"many/{d}/{f}", "w").close()
for n in range(20):
    with open(f"c/f{n}.c", "w") as out:
        out.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
        for g in range(60):
            out.write(f"int f{n}_{g}(int x) {{ char b[64]; snprintf(b, sizeof b, \"%d\", x); return atoi(b) + (int)strlen(b); }}\n")
with open("c/Makefile", "w") as out:
    names = " ".join(f"f{n}.o" for n in range(20))
    out.write(f"all: {names}\n%.o: %.c\n\t$(CC) -O1 -c -o $@ $<\nclean:\n\trm -f *.o\n")
PY
"""


class Side:
    """One of the servers that are compared."""

    def __init__(self, server):
        self.server = server
        self.options = {"api_key": server.new_key(), "api_url": server.url, "sandbox_url": server.url}

    def create(self, kind=e2b.Sandbox):
        return kind.create(timeout=1800, **self.options)

    def cgroup(self, controller):
        """The directory of all sandboxes of this server, in version 1 or 2."""
        name = self.server.env["CAY_NETWORK_NAME"]
        for at in (pathlib.Path("/sys/fs/cgroup", controller, name), pathlib.Path("/sys/fs/cgroup", name)):
            if at.is_dir():
                return at
        raise RuntimeError(f"there is no cgroup {name}")

    def only(self, controller):
        """The same of the one sandbox that is alive."""
        found = [d for d in self.cgroup(controller).iterdir() if d.is_dir()]
        assert len(found) == 1, found
        return found[0]

    def sandboxes_cpu(self):
        """Milliseconds of processor of all sandboxes that were and are."""
        return cpu(self.cgroup("cpuacct"))

    def server_cpu(self):
        """The same of the server with the commands that it has run."""
        text = pathlib.Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return 1000 * sum(int(n) for n in text[11:15]) / CLOCK

    def empty(self):
        """Waits until no sandbox is left, and what ends one is done."""
        while any(d.is_dir() for d in self.cgroup("pids").iterdir()):
            time.sleep(0.01)
        time.sleep(0.2)


def cpu(directory):
    """Milliseconds of processor that a cgroup has used."""
    if (directory / "cpuacct.usage").exists():
        return int((directory / "cpuacct.usage").read_text()) / 1e6
    lines = (directory / "cpu.stat").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("usage_usec"))


def first(directory, *names):
    """The number in the first of these files that is there."""
    return next(int((directory / name).read_text()) for name in names if (directory / name).exists())


def by_turns(sides, samples, measure, *figures):
    """Puts what measure returns for ours, and for the other where there is one,
    into figures. The first turn warms up."""
    for turn in range(samples + 1):
        order = list(zip(sides, ("ours", "raw")))
        if turn % 2:
            order.reverse()
        for side, where in order:
            found = measure(side)
            if turn:
                for figure, value in zip(figures, found):
                    getattr(figure, where).append(round(value, 2))
    return list(figures)


def lives(sides):
    """A life: a create, which answers when the agent has answered, and a kill."""
    whole = Figure("processor of one base life", "ms", lambda _: 125, "125 ms")
    inside = Figure("of it the sandbox's own", "ms", None, "–")
    took = Figure("one base life after the other", "ms", None, "–")

    def measure(side):
        side.create().kill()  # the parent's directory is there
        side.empty()
        sandboxes, server = side.sandboxes_cpu(), side.server_cpu()
        spent = ms(lambda: [side.create().kill() for _ in range(LIVES)])
        side.empty()
        sandboxes, server = side.sandboxes_cpu() - sandboxes, side.server_cpu() - server
        return (sandboxes + server) / LIVES, sandboxes / LIVES, spent / LIVES

    return by_turns(sides, N, measure, whole, inside, took)


def memory_of(directory):
    """Megabytes of a cgroup, but for the host's cache of files: the programs'
    text is charged to the first sandbox that runs them."""
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    cached = sum(int(stat.get("total_" + name, stat[name])) for name in ("inactive_file", "active_file"))
    return (first(directory, "memory.usage_in_bytes", "memory.current") - cached) / 1e6


def idle(sides):
    """A sandbox without a client."""
    rows = []
    for name, kind, bars in (("base", e2b.Sandbox, (30, 24, 0.5)), ("Jupyter", e2b_code_interpreter.Sandbox, (30, None, None))):
        tasks = Figure(f"idle {name}, host tasks", "", lambda _, bar=bars[0]: bar, str(bars[0]), digits=0)
        memory = Figure(f"idle {name}, cgroup", "MB", (lambda _, bar=bars[1]: bar) if bars[1] else None, f"{bars[1] or '–'}")
        spent = Figure(f"idle {name}, processor", "ms/s", (lambda _, bar=bars[2]: bar) if bars[2] else None, f"{bars[2] or '–'}", digits=2)

        def measure(side):
            sandbox = side.create(kind)
            try:
                time.sleep(5)  # what a create begins is over
                before, begun = cpu(side.only("cpuacct")), time.monotonic()
                time.sleep(IDLE)
                used = (cpu(side.only("cpuacct")) - before) / (time.monotonic() - begun)
                return first(side.only("pids"), "pids.current"), memory_of(side.only("memory")), used
            finally:
                sandbox.kill()
                side.empty()

        rows += by_turns(sides, max(2, N // 5), measure, tasks, memory, spent)
    return rows


def command(sides):
    figure = Figure('commands.run("true"), the SDK of Python', "ms", lambda _: 28, "28 ms")
    boxes = {id(side): side.create() for side in sides}

    def measure(side):
        samples = sorted(ms(lambda: boxes[id(side)].commands.run("true")) for _ in range(5))
        return (samples[2],)

    rows = by_turns(sides, 2 * N, measure, figure)
    for box in boxes.values():
        box.kill()
    return rows


def files(sides):
    names = {
        "git": Figure("git status of 2,000 files", "ms", lambda _: 35, "35 ms"),
        "find": Figure("find of 20,000 files", "ms", lambda _: 80, "80 ms"),
        "stat": Figure("stat of 20,000 files by Python", "ms", lambda _: 700, "700 ms"),
        "make": Figure("make -j2 of 20 C files", "ms", lambda raw: raw and 1.05 * raw, "1.05 × the other engine's"),
    }
    boxes = {id(side): side.create() for side in sides}
    for box in boxes.values():
        box.files.write("/tmp/light.py", INSIDE % 2)
        box.commands.run(SET_UP, timeout=600)

    def measure(side):
        found = json.loads(boxes[id(side)].commands.run("python3 /tmp/light.py", timeout=600).stdout)
        return [found[name][-1] for name in names]

    rows = by_turns(sides, N, measure, *names.values())
    for box in boxes.values():
        box.kill()
    return rows


MEASURES = {"lives": lives, "idle": idle, "command": command, "files": files}


def measure(server):
    """Yields every row. BENCH_LIGHT_ROWS names some of MEASURES."""
    sides = [server]
    if other := os.environ.get("BENCH_BESIDE"):
        beside = world.aside("bench-beside", 7181, "10.209.0.0/16", "cybcb")
        if other == "eager":
            beside.env["CAY_MEMORY_LOADING"] = other
        else:
            beside.binary = pathlib.Path(other).resolve()
        sides.append(beside)
    for each in sides:
        if each.process:
            each.stop()
        each.env["CAY_POOL_MEMORY"] = "0"
        each.start()
    try:
        both = [Side(each) for each in sides]
        for name in os.environ.get("BENCH_LIGHT_ROWS", " ".join(MEASURES)).split():
            yield from MEASURES[name](both)
    finally:
        for each in sides[1:]:
            each.cay("down", check=False)
        server.stop()
        server.env["CAY_POOL_MEMORY"] = "5%"
        server.start()
