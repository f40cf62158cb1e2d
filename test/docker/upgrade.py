"""Containers over an upgrade of the server and its engine.

    make test-docker-upgrade BEFORE=PATH    PATH is the program of the release before, with another engine

Sandboxes are made under the earlier program, one is paused, and the present one takes
over. Both go on under the engine that they began with, through every verb that restores.
"""

import os
import pathlib
import sys

import e2b

import cayv1
import world
from conftest import IMAGE
from test_docker import eventually, get, output

STARTED = "docker inspect -f '{{.State.StartedAt}}' bridged host"


def with_containers():
    """A sandbox with one container on a bridge and one on the sandbox's network."""
    box = e2b.Sandbox.create("docker", timeout=3600)
    output(box, IMAGE)
    output(box, "docker run -d --name bridged -p 8080:80 box httpd -f -h /www")
    output(box, "docker run -d --name host --network host box httpd -f -p 8081 -h /www")
    goes_on(box, "before", output(box, STARTED))
    return box


def goes_on(box, what, started):
    eventually(lambda: get(box, 8081, "/index.html") == "served", 20)
    took = eventually(lambda: get(box, 8080, "/index.html") == "served", 20)
    assert output(box, STARTED) == started, what
    assert output(box, "docker run --rm box echo new") == "new", what
    print(f"✓ {what} (bridged after {took:.2f} s)", flush=True)


def engines(server):
    return {path.name for path in (server.data / "engines").iterdir() if not path.name.startswith(".")}


def upgrade(server):
    server.binary = pathlib.Path(os.environ["BEFORE"])
    server.start(templates=["base"])
    server.cay("template", "add", "docker", timeout=1800)
    os.environ.update(server.sdk_env(server.new_key()))
    runs, paused = with_containers(), with_containers()
    of_runs, of_paused = output(runs, STARTED), output(paused, STARTED)
    node = cayv1.checkpoint(runs)
    paused.pause()

    server.stop()
    server.binary = world.CAY
    server.start(templates=["base"])
    goes_on(runs, "one that ran on", of_runs)
    e2b.Sandbox.connect(paused.sandbox_id, timeout=3600)
    goes_on(paused, "one that was paused, resumed", of_paused)
    paused.pause()
    e2b.Sandbox.connect(paused.sandbox_id, timeout=3600)
    goes_on(paused, "paused and resumed again", of_paused)
    fork, = runs.fork()
    goes_on(fork, "a fork", of_runs)
    cayv1.rollback(runs, node)
    goes_on(runs, "a rollback to a checkpoint of before", of_runs)
    paused.pause()
    e2b.Sandbox.connect(paused.sandbox_id, timeout=3600, on_resume="reboot")
    eventually(lambda: output(paused, "docker run --rm box echo hello") == "hello", 60)
    print("✓ a start from its files, under the new engine", flush=True)
    server.cay("template", "wait", "docker", timeout=1800)
    fresh = with_containers()
    print("✓ a new sandbox", flush=True)
    for box in (runs, paused, fork, fresh):
        box.kill()


def main():
    if not os.environ.get("BEFORE"):
        sys.exit("BEFORE names the program of the release before")
    server = world.aside("docker-upgrade", 7196, "10.230.0.0/16", "cydku")
    try:
        upgrade(server)
    finally:
        server.cay("down", check=False)


if __name__ == "__main__":
    main()
