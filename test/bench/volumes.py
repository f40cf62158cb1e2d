"""Volumes: files inside on one, beside the sandbox's own root and the host's disk;
what a mount adds to a create and a resume; their files from outside.

    BENCH_VOLUMES=3     rounds of each; creates and resumes are ten times as many

Places are taken in turns. Packages are fetched by the host before: what npm and
pip do inside reads caches and writes files, and waits for no network.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

import e2b

from figure import Figure, ms
from life import CALM, Rest

ROUNDS = int(os.environ.get("BENCH_VOLUMES", "3"))
FILES = 10_000
PATH = "/mnt/volume"

# Runs in a directory, inside and on the host; prints milliseconds.
WORK = """
import json, os, sys, time
where, files = sys.argv[1], int(sys.argv[2])
block, took = os.urandom(1 << 20), {}

def timed(name, work):
    begun = time.perf_counter()
    work()
    took[name] = (time.perf_counter() - begun) * 1000

big = os.path.join(where, "big")

def write(fsync):
    with open(big, "wb", 0) as f:
        for _ in range(1024):
            f.write(block)
        if fsync:
            os.fsync(f.fileno())

def read():
    with open(big, "rb", 0) as f:
        while f.read(1 << 20):
            pass

small = os.path.join(where, "small")

def create():
    os.mkdir(small)
    for i in range(files):
        with open(os.path.join(small, str(i)), "w") as f:
            f.write("x" * 100)
    for i in range(files):
        os.stat(os.path.join(small, str(i)))

timed("write", lambda: write(False))
timed("read", read)
os.remove(big)
timed("synced", lambda: write(True))
os.remove(big)
timed("small", create)
print(json.dumps(took))
"""

TOOLS = {
    "git clone": "git clone -q /home/user/repo {0}/clone",
    "npm ci": "cp -r /home/user/app {0}/app && cd {0}/app && npm ci --offline --cache /home/user/npm --no-audit --no-fund --loglevel=error",
    "pip install": "python3 -m venv {0}/venv && {0}/venv/bin/pip install -q --no-index --no-compile --find-links /home/user/wheels ipython pandas",
}


@contextlib.contextmanager
def volume():
    made = e2b.Volume.create(f"bench-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        e2b.Volume.destroy(made.volume_id)


@contextlib.contextmanager
def sandbox_with(**options):
    """A sandbox that is gone at the end, before the volumes that it mounts."""
    made = e2b.Sandbox.create(timeout=3600, **options)
    try:
        yield made
    finally:
        made.kill()


def sequential_and_small(server):
    """1 GB written and read in blocks of 1 MiB, and many small files."""
    wanted = {"write": "1 GB written", "read": "1 GB read", "synced": "1 GB written and synced",
              "small": f"{FILES:,} small files created and looked at"}
    bars = {"write": (1 / 0.7, "0.7 × the speed"), "read": (1 / 0.7, "0.7 × the speed"), "synced": (None, "the root syncs nothing"), "small": (2, "2 ×")}
    beside, host = {}, {}
    for name, text in wanted.items():
        factor, rule = bars[name]
        bar = None if factor is None else lambda raw, factor=factor: factor * raw
        beside[name] = Figure(f"{text} on a volume, beside the sandbox's root", "ms", bar, rule)
        host[name] = Figure(f"{text} on a volume, beside the host's disk", "ms", None, "–")
    with volume() as made, tempfile.TemporaryDirectory(dir=server.data.parent) as outside:
        script = pathlib.Path(outside) / "work.py"
        script.write_text(WORK)
        for turn in range(ROUNDS + 1):
            took = {}
            with sandbox_with(volume_mounts={PATH: made}) as sandbox:
                sandbox.files.write("/tmp/work.py", WORK)
                for where in (PATH, "/home/user"):
                    took[where] = json.loads(sandbox.commands.run(f"python3 /tmp/work.py {where} {FILES}", timeout=600).stdout)
                sandbox.commands.run(f"rm -rf {PATH}/small", timeout=300)
            alone = json.loads(subprocess.run([sys.executable, str(script), outside, str(FILES)], check=True, capture_output=True, text=True).stdout)
            shutil.rmtree(pathlib.Path(outside) / "small")
            if not turn:
                continue
            for name in wanted:
                beside[name].ours.append(round(took[PATH][name], 1))
                beside[name].raw.append(round(took["/home/user"][name], 1))
                host[name].ours.append(round(took[PATH][name], 1))
                host[name].raw.append(round(alone[name], 1))
    return [*beside.values(), *host.values()]


def prepare(directory):
    """The things that git, npm and pip need: a repository, an application with a filled cache, wheels."""
    repo, app, wheels = directory / "repo", directory / "app", directory / "wheels"
    repo.mkdir()
    for i in range(2000):
        (repo / f"{i % 50}").mkdir(exist_ok=True)
        (repo / f"{i % 50}" / f"{i}.txt").write_text(f"{i}\n" * 200)
    git = ["git", "-C", str(repo), "-c", "user.name=b", "-c", "user.email=b@example.com"]
    for args in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *args], check=True)
    app.mkdir()
    (app / "package.json").write_text('{"name":"app","version":"1.0.0","private":true}')
    # With addresses, npm ci takes files from the cache by their sums and asks for nothing else.
    cache = ["--cache", str(directory / "npm"), "--no-audit", "--no-fund", "--loglevel=error", "--omit-lockfile-registry-resolved=false"]
    subprocess.run(["npm", "install", *cache, "express", "vite", "typescript", "eslint"], cwd=app, check=True, capture_output=True)
    shutil.rmtree(app / "node_modules")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), "--python-version", "3.11",
                    "--only-binary", ":all:", "ipython", "pandas"], check=True, capture_output=True)
    archive = directory / "all.tar"
    subprocess.run(["tar", "-C", str(directory), "-cf", str(archive), "repo", "app", "npm", "wheels"], check=True)
    return archive


def tools(server):
    figures = {name: Figure(f"{name} on a volume", "ms", lambda raw: 1.5 * raw, "1.5 × on the sandbox's root") for name in TOOLS}
    with volume() as made, sandbox_with(volume_mounts={PATH: made}) as sandbox, tempfile.TemporaryDirectory(dir=server.data.parent) as outside:
        with open(prepare(pathlib.Path(outside)), "rb") as archive:
            sandbox.files.write("/tmp/all.tar", archive, request_timeout=300)
        sandbox.commands.run("tar -C /home/user -xf /tmp/all.tar && rm /tmp/all.tar && mkdir /home/user/here", timeout=300)
        for turn in range(ROUNDS + 1):
            for name, command in TOOLS.items():
                for where, into in ((PATH, figures[name].ours), ("/home/user/here", figures[name].raw)):
                    took = ms(lambda: sandbox.commands.run(command.format(where), timeout=1200))
                    if turn:
                        into.append(took)
            sandbox.commands.run(f"rm -rf {PATH}/* /home/user/here/*", timeout=600)
    return figures.values()


def mounts(server):
    """The time that a mount adds, of a volume that other sandboxes mount already and of one that nothing had open."""
    create = Figure("warm create with a mount, REST part", "ms", lambda raw: raw + 3, "3 ms more than without")
    first = Figure("the same, of a volume made just now", "ms", None, "–")
    resume = Figure("resume with a mount", "ms", lambda raw: raw + 10, "10 ms more than without")
    rest = Rest(server)

    def made(mounted):
        body = {"templateID": "base", "timeout": 600}
        if mounted:
            body["volumeMounts"] = [{"name": mounted.name, "path": PATH}]
        out = []
        took = ms(lambda: out.append(rest.call("POST", "/v2/sandboxes", body)["sandboxID"]))
        return took, out[0]

    def one(mounted, into):
        time.sleep(CALM)
        took, box = made(mounted)
        into.append(took)
        time.sleep(CALM / 2)
        rest.kill(box)

    with volume() as shared:
        _, holder = made(shared)
        boxes = [made(shared)[1], made(None)[1]]
        for turn in range(10 * ROUNDS + 1):
            for mounted, figure in ((shared, create.ours), (None, create.raw)):
                one(mounted, figure)
            for box, figure in zip(boxes, (resume.ours, resume.raw)):
                rest.call("POST", f"/sandboxes/{box}/pause")
                figure.append(ms(lambda: rest.call("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 600})))
            if turn % 10 == 9:
                with volume() as fresh:
                    one(fresh, first.ours)
        for box in (holder, *boxes):
            rest.kill(box)
    first.raw = create.raw
    for figure in (create, resume):  # the first turn warms caches
        figure.ours, figure.raw = figure.ours[1:], figure.raw[1:]
    return [create, first, resume]


def from_outside(server):
    """1 GB by the SDK, in one call: into a volume and out, beside `files` of a sandbox."""
    up = Figure("1 GB into a volume from outside, by the Python SDK", "ms", lambda raw: raw / 0.7, "0.7 × the speed of files.write")
    down = Figure("1 GB out of a volume", "ms", lambda raw: raw / 0.7, "0.7 × the speed of files.read")
    block = os.urandom(1 << 20)

    def content():
        for _ in range(1024):
            yield block

    def drained(stream):
        assert sum(len(piece) for piece in stream) == 1 << 30

    with volume() as made, sandbox_with() as sandbox, tempfile.TemporaryFile(dir=server.data.parent) as whole:
        for piece in content():
            whole.write(piece)
        for turn in range(ROUNDS + 1):
            taken = []
            for name, put, get in (("/big", made.write_file, made.read_file), ("/home/user/big", sandbox.files.write, sandbox.files.read)):
                whole.seek(0)
                taken.append((ms(lambda: put(name, whole, request_timeout=600)),
                              ms(lambda: drained(get(name, format="stream", request_timeout=600)))))
            if turn:
                up.ours.append(taken[0][0])
                down.ours.append(taken[0][1])
                up.raw.append(taken[1][0])
                down.raw.append(taken[1][1])
    return [up, down]


def measure(server):
    os.environ["E2B_VOLUME_API_URL"] = server.url
    for part in (mounts, sequential_and_small, tools, from_outside):
        yield from part(server)
