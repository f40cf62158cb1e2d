"""Docker in sandboxes of the template `docker`, which it builds where it is missing.

    BENCH_DOCKER=3      samples of each build; ten times as many of the others
"""

import os
import pathlib
import subprocess
import tempfile
import time

import e2b

import world
from figure import Figure, ms

BUILDS = int(os.environ.get("BENCH_DOCKER", "3"))

# An image of busybox alone: no registry is asked.
IMAGE = "mkdir -p root/bin && cp /bin/busybox root/bin/ && ln -s busybox root/bin/sh && tar -C root -c . | docker import - box"

# Ten steps that no build before has run: what they do is the same in both.
STEPS = "".join(
    f"RUN i=0; while [ $i -lt 300 ]; do echo {{new}} >/srv-{step}-$i; i=$((i+1)); done\n" for step in range(10))


def build(server):
    figure = Figure("docker build of ten steps, nothing cached", "ms", lambda raw: 3 * raw, "3 × cay template build of the same", digits=0)
    box = e2b.Sandbox.create("docker", timeout=3600)
    try:
        box.commands.run(IMAGE, timeout=120)
        with tempfile.TemporaryDirectory(prefix="bench-docker-") as directory:
            for turn in range(BUILDS + 1):
                steps = STEPS.format(new=f"{time.time_ns()}")
                box.files.write("/home/user/app/Dockerfile", "FROM box\n" + steps)
                ours = ms(lambda: box.commands.run("docker build -qt app app", timeout=600))
                pathlib.Path(directory, "Dockerfile").write_text("FROM e2bdev/base\nUSER root\n" + steps)
                raw = ms(lambda: subprocess.run(
                    [str(world.CAY), "template", "build", "-t", "bench-docker", directory], env={**os.environ, **server.env}, check=True, capture_output=True))
                if turn:  # the first turn warms caches
                    figure.ours.append(ours)
                    figure.raw.append(raw)
    finally:
        box.kill()
        server.cay("template", "delete", "bench-docker", check=False)
    return figure


def run(_):
    figure = Figure("docker run --rm of a local image", "ms", lambda _: 1000, "1 s", digits=0)
    box = e2b.Sandbox.create("docker", timeout=3600)
    box.commands.run(IMAGE, timeout=120)
    box.commands.run("docker run --rm box sh -c true")
    for _ in range(10 * BUILDS):
        figure.ours.append(ms(lambda: box.commands.run("docker run --rm box sh -c true")))
    box.kill()
    return figure


def create(server):
    """Of a template that has the flag and no Docker, beside the same without the flag."""
    figure = Figure("create of a template with the flag docker", "ms", lambda raw: 1.1 * raw, "1.1 × one without it")
    names = {"bench-flag": ["--docker"], "bench-plain": []}
    with tempfile.TemporaryDirectory(prefix="bench-docker-") as directory:
        pathlib.Path(directory, "Dockerfile").write_text("FROM e2bdev/base\nRUN true\n")
        for name, args in names.items():
            subprocess.run([str(world.CAY), "template", "build", "-t", name, *args, directory], env={**os.environ, **server.env}, check=True, capture_output=True)

    def life(name):
        made = []
        took = ms(lambda: made.append(e2b.Sandbox.create(name)))
        made[0].kill()
        return took

    for turn in range(10 * BUILDS + 2):
        ours, raw = life("bench-flag"), life("bench-plain")
        if turn > 1:
            figure.ours.append(ours)
            figure.raw.append(raw)
    for name in names:
        server.cay("template", "delete", name, check=False)
    return figure


def measure(server):
    server.cay("template", "add", "docker", timeout=1800)
    yield from (figure(server) for figure in (run, build, create))
