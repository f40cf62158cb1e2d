"""Evicted snapshots do all that others do: make test-cache."""

import concurrent.futures
import os
import pathlib
import time

import e2b
import pytest

import cayv1
import world

server = world.Server()
pytestmark = pytest.mark.skipif(server.env.get("CAY_CACHE") != "0MiB", reason="make test-cache has a server that keeps nothing")


def evicted(*ids, within=60):
    """Waits until snapshots are in the bucket alone."""
    deadline = time.monotonic() + within
    while lacking := [i for i in ids if not (server.data / "snapshots" / f".evicted-{i}").exists()]:
        assert time.monotonic() < deadline, f"{lacking} are not evicted"
        time.sleep(0.1)


def paused_in(box):
    events = cayv1.call("GET", f"/sandboxes/{box.sandbox_id}/events?type=sandbox.paused")["events"]
    return events[-1]["data"]["snapshot"]


def pause(box):
    box.pause()
    evicted(paused_in(box))


def images():
    return {f.name for f in (server.data / "images").iterdir()}


def says(box, want):
    """Its process and its disk have the text."""
    assert box.commands.run("curl -s http://localhost:8000/said").stdout == want
    assert box.files.read("/home/user/said") == want


def say(box, text):
    box.files.write("/home/user/said", text)
    says(box, text)


def test_verbs():
    box = e2b.Sandbox.create(timeout=600)
    box.commands.run("cd /home/user && python3 -m http.server 8000", background=True)
    box.commands.run("for i in $(seq 50); do curl -s localhost:8000 >/dev/null && exit; sleep 0.2; done; exit 1")
    say(box, "first")
    pause(box)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:  # five at once
        boxes = list(pool.map(lambda _: e2b.Sandbox.connect(box.sandbox_id, timeout=600), range(5)))
    box = boxes[0]
    says(box, "first")
    first = cayv1.checkpoint(box)
    say(box, "second")
    second = cayv1.checkpoint(box)
    evicted(first["checkpointID"], second["checkpointID"])
    assert cayv1.diff(first, second)["/home/user/said"]["change"] == "changed"
    evicted(first["checkpointID"], second["checkpointID"])
    cayv1.rollback(box, first)
    says(box, "first")
    made = cayv1.call("POST", f"/checkpoints/{second['checkpointID']}/fork", {"count": 2, "timeout": 600})
    forks = [e2b.Sandbox.connect(m["sandbox"]["sandboxID"], timeout=600) for m in made]
    try:
        for one in forks:
            says(one, "second")
        pause(forks[0])
        server.cay("sandbox", "resume", "--files-only", forks[0].sandbox_id)
        assert e2b.Sandbox.connect(forks[0].sandbox_id).files.read("/home/user/said") == "second"
    finally:
        for one in [*forks, box]:
            one.kill()


def test_templates():
    """A template's image goes with its last snapshot, and comes back with it; a template is built on it."""
    before = images()
    alias = f"evicted-{os.getpid()}"
    built = e2b.Template.build(e2b.Template().from_template("base").run_cmd("echo of the template > /home/user/made"), alias=alias)
    try:
        deadline = time.monotonic() + 120
        while images() - before:
            assert time.monotonic() < deadline, f"{images() - before} are not evicted"
            time.sleep(0.2)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            boxes = list(pool.map(lambda _: e2b.Sandbox.create(alias, timeout=600), range(3)))
        for box in boxes:
            assert box.files.read("/home/user/made") == "of the template\n"
            box.kill()
        e2b.Template.build(e2b.Template().from_template(alias).run_cmd("cat /home/user/made"), alias=alias + "-2")
    finally:
        server.cay("template", "delete", alias, check=False)
        server.cay("template", "delete", alias + "-2", check=False)
    assert built


def test_bucket_away():
    """Without the bucket a resume says so and loses nothing."""
    box = e2b.Sandbox.create(timeout=600)
    box.files.write("/home/user/said", "kept")
    pause(box)
    bucket = pathlib.Path(server.env["CAY_BUCKET"])
    away = bucket.with_name(bucket.name + "-away")
    bucket.rename(away)
    try:
        with pytest.raises(Exception, match="503.*in the bucket, which cannot be read now"):
            e2b.Sandbox.connect(box.sandbox_id, timeout=600)
    finally:
        # A server may have made the directory anew, with the mark of a copy that it began.
        if bucket.exists():
            bucket.rename(bucket.with_name(bucket.name + "-made"))
        away.rename(bucket)
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=600)
    assert box.files.read("/home/user/said") == "kept"
    box.kill()
