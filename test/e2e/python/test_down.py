"""`cay down` leaves the data and nothing else."""

import pathlib
import re
import subprocess

import e2b

import world


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_nothing_is_left():
    server = world.Server()
    e2b.Sandbox.create(timeout=300)
    server.cay("down")
    assert not server.healthy()
    name = server.env["CAY_NETWORK_NAME"]
    # Another tree's name may begin like this one's.
    assert not re.search(rf"\b{name}\b", output("ip", "netns", "list"))
    assert not re.search(rf"\b{name}\b", output("ip", "-br", "link"))
    assert f" {name}\n" not in output("nft", "list", "tables")
    assert list(pathlib.Path("/sys/fs/cgroup").glob(f"*/{name}")) == []
    run = server.env["CAY_RUN_DIR"]
    assert f"{run}/" not in pathlib.Path("/proc/mounts").read_text()
    assert str(server.data) not in pathlib.Path("/proc/mounts").read_text()
    assert list((server.data / "instances").iterdir()) == []
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert f"{run}/".encode() not in process.read_bytes()
        except OSError:
            continue
    assert list((server.data / "images").iterdir()), "templates stay"


def test_it_was_asked_for():
    """Whoever asks later why a sandbox ended is not told that it was lost."""
    server = world.Server()
    server.start()
    try:
        running = e2b.Sandbox.create(timeout=300)
        paused = e2b.Sandbox.create(timeout=300)
        paused.pause()
        server.cay("down")
        server.start()
        told = server.cay("sandbox", "why", running.sandbox_id).stdout
        assert "it was ended on request" in told
        assert "cay down" in told
        assert paused.connect(timeout=60).commands.run("echo back").stdout == "back\n"
        paused.kill()
    finally:
        server.cay("down")
