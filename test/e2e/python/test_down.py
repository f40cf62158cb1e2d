"""`cay down` leaves the data and nothing else."""

import json
import pathlib
import re
import subprocess
import urllib.request
import uuid

import e2b
import e2b_code_interpreter
import pytest

import cayv1
import world


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def nothing_is_left(server):
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


@pytest.fixture
def server():
    it = world.Server()
    if it.healthy():
        it = world.running()
    else:
        it.start()
    yield it
    it.cay("down")


@pytest.fixture
def secret(server):
    name = f"down-{uuid.uuid4().hex[:8]}"
    e2b.Secret.create(name, "s3cret-" + "x" * 20)
    yield name


def raw(server, **body):
    """A sandbox with what only the REST API takes."""
    request = urllib.request.Request(
        server.url + "/sandboxes", data=json.dumps({"templateID": "base", "timeout": 300, **body}).encode(),
        headers={"X-API-Key": e2b.ConnectionConfig().api_key, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return e2b.Sandbox.connect(json.load(reply)["sandboxID"])


def paused(**kw):
    mode = kw.pop("mode", None)
    box = e2b.Sandbox.create(timeout=300, **kw)
    box.files.write("/home/user/note", "kept")
    box.pause(mode=mode) if mode else box.pause()
    return box


def branched():
    box = e2b.Sandbox.create(timeout=300, envs={"A": "b"})
    first = cayv1.checkpoint(box, label="first")
    cayv1.checkpoint(box, label="second")
    cayv1.rollback(box, first)
    return box


@pytest.fixture
def volume(server):
    made = e2b.Volume.create(f"down-{uuid.uuid4().hex[:8]}")
    made.write_file("/note", "in the volume")
    yield made


def of_every_kind(server, secret, volume):
    """Sandboxes that run, then those that are saved, by what they have."""
    header = {"rules": {"api.test": [{"transform": {"headers": {"Authorization": "Bearer x"}}}]}}
    kept = {"rules": {"api.test": [{"transform": {"headers": {"Authorization": e2b.Secret.fill(secret)}}}]}}
    socks = {"address": "127.0.0.1:1080", "username": "u", "password": "p"}
    forked = e2b.Sandbox.create(timeout=300, envs={"A": "b"})
    running = {
        "nothing": e2b.Sandbox.create(timeout=300),
        "an environment": e2b.Sandbox.create(timeout=300, envs={"A": "b"}),
        "a header": e2b.Sandbox.create(timeout=300, network=header),
        "a secret in a header": e2b.Sandbox.create(timeout=300, network=kept),
        "a SOCKS proxy": raw(server, network={"egressProxy": socks}),
        "metadata": e2b.Sandbox.create(timeout=300, metadata={"a": "b"}),
        "a volume": e2b.Sandbox.create(timeout=300, volume_mounts={"/mnt/v": volume}),
        "no internet": e2b.Sandbox.create(timeout=300, allow_internet_access=False),
        "a private network": e2b.Sandbox.connect(
            server.cay("sandbox", "create", "--network", f"n{uuid.uuid4().hex[:8]}", "--name", "db", "--timeout", "10m").stdout.strip()),
        "a kernel": e2b_code_interpreter.Sandbox.create(timeout=300),
        "a fork": forked.fork()[0],
        "forks": forked,
        "a tree of checkpoints": branched(),
        "a command": e2b.Sandbox.create(timeout=300),
    }
    running["a command"].commands.run("sleep 100000", background=True)
    saved = {
        "nothing": paused(),
        "an environment": paused(envs={"A": "b"}),
        "a secret in a header": paused(network=kept),
        "no memory": paused(mode="filesystem", envs={"A": "b"}),
        "a volume": paused(volume_mounts={"/mnt/v": volume}),
        "a volume, and no memory": paused(mode="filesystem", volume_mounts={"/mnt/v": volume}),
        "an end that wakes it": paused(lifecycle={"on_timeout": "pause", "auto_resume": True}),
    }
    return running, saved


def pooled(server):
    return list((server.data / "instances").glob("*/pooled"))


def test_whatever_runs(server, secret, volume, eventually):
    """Sandboxes with every option, a warm pool and a build: all end, say why, or come back."""
    running, saved = of_every_kind(server, secret, volume)
    name = f"down-{uuid.uuid4().hex[:8]}"
    build = e2b.Template.build_in_background(e2b.Template().from_template("base").run_cmd("sleep 600"), name)
    eventually(lambda: any("sleep 600" in line.message for line in e2b.Template.get_build_status(build).log_entries))
    eventually(lambda: pooled(server))
    server.cay("down")
    nothing_is_left(server)
    server.cay("down")  # again
    server.start()
    for what, box in running.items():
        told = server.cay("sandbox", "why", box.sandbox_id).stdout
        assert "it was ended on request" in told and "cay down" in told, f"{what}: {told}"
    for what, box in saved.items():
        assert box.connect(timeout=60).files.read("/home/user/note") == "kept", what
    assert saved["an environment"].commands.run("echo $A").stdout == "b\n"
    for what in ("a volume", "a volume, and no memory"):
        assert saved[what].files.read("/mnt/v/note") == "in the volume", what
    assert e2b.Template.get_build_status(build).status != "building"
    for box in saved.values():
        box.kill()


def test_a_server_that_was_killed(server):
    box = e2b.Sandbox.create(timeout=300, envs={"A": "b"})
    server.kill9()
    server.cay("down")
    nothing_is_left(server)
    server.start()
    assert "cay down" in server.cay("sandbox", "why", box.sandbox_id).stdout


def test_records_that_cannot_be_written(server):
    """Sandboxes end all the same, and it is said that nothing tells why."""
    box = e2b.Sandbox.create(timeout=300, envs={"A": "b"})
    key = server.data / "seal.key"
    whole = key.read_bytes()
    key.write_bytes(bytes(32))
    try:
        down = server.cay("down", check=False)
    finally:
        key.write_bytes(whole)
    assert down.returncode == 1 and "all sandboxes have ended" in down.stderr
    nothing_is_left(server)
    server.start()
    assert not box.is_running()
