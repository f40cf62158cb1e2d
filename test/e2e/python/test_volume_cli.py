"""`cay volume`, as a person or a script uses it, with sandboxes that mount it."""

import json
import os
import subprocess
import uuid

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def server():
    server = world.Server()
    server.env.update({name: os.environ[name] for name in ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL") if name in os.environ})
    return server


@pytest.fixture
def volume(server):
    name = f"cli-{uuid.uuid4().hex[:8]}"
    server.cay("volume", "create", name, "--size", "200MB")
    yield name
    for snapshot in json.loads(server.cay("volume", "snapshots", name, "--json").stdout):
        server.cay("volume", "delete", name, "--snapshot", snapshot["name"])
    server.cay("volume", "delete", name)


def test_files_there_and_back(server, volume, tmp_path):
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    content = os.urandom(3_000_000)
    (source / "deep" / "é b.bin").write_bytes(content)
    (source / "link").symlink_to("deep")
    server.cay("volume", "cp", "-r", str(source), f"{volume}:/")
    listed = server.cay("volume", "ls", f"{volume}:/source").stdout
    assert "deep/" in listed and "link -> deep" in listed and "1000:1000" in listed
    server.cay("volume", "cp", "-r", f"{volume}:/source", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "é b.bin").read_bytes() == content
    assert os.readlink(tmp_path / "back" / "link") == "deep"

    sent = subprocess.run([str(world.CAY), "volume", "cp", "-", f"{volume}:/text"], env=server.env, input=b"from a pipe\n", timeout=120)
    assert sent.returncode == 0
    assert server.cay("volume", "cp", f"{volume}:/text", "-").stdout == "from a pipe\n"
    for kind in (".tar", ".tar.gz", ".tar.zst", ".zip"):
        server.cay("volume", "export", f"{volume}:/source", str(tmp_path / f"a{kind}"))
        server.cay("volume", "fill", f"{volume}:/from{kind}", str(tmp_path / f"a{kind}"))
        server.cay("volume", "cp", f"{volume}:/from{kind}/deep/é b.bin", str(tmp_path / "again"))
        assert (tmp_path / "again").read_bytes() == content
    assert server.cay("volume", "rm", f"{volume}:/source", check=False).returncode == 1
    server.cay("volume", "rm", "-r", f"{volume}:/source")
    assert "source" not in server.cay("volume", "ls", volume).stdout.split()


def test_snapshots_and_sandboxes(server, volume):
    box = json.loads(server.cay("sandbox", "create", "--volume", f"{volume}:/mnt/v", "--json").stdout)["sandboxID"]
    try:
        inside = e2b.Sandbox.connect(box)
        inside.commands.run("echo before > /mnt/v/f && sync")
        server.cay("volume", "snapshot", volume, "first")
        inside.commands.run("echo after > /mnt/v/f && sync")
        server.cay("volume", "clone", volume, f"{volume}-then", "--snapshot", "first")
        try:
            assert server.cay("volume", "cp", f"{volume}-then:/f", "-").stdout == "before\n"
        finally:
            server.cay("volume", "delete", f"{volume}-then")
        for refused in (["restore", volume, "first"], ["delete", volume]):
            answer = server.cay("volume", *refused, check=False)
            assert answer.returncode == 1 and box in answer.stderr, answer.stderr
        assert json.loads(server.cay("volume", "info", volume, "--json").stdout)["sandboxes"] == [box]
    finally:
        server.cay("sandbox", "kill", box)
    assert server.cay("volume", "cp", f"{volume}:/f", "-").stdout == "after\n"
    server.cay("volume", "restore", volume, "first")
    assert server.cay("volume", "cp", f"{volume}:/f", "-").stdout == "before\n"


def test_a_full_volume(server, volume, tmp_path):
    (tmp_path / "big").write_bytes(b"\1" * 300_000_000)
    answer = server.cay("volume", "fill", volume, str(tmp_path), check=False)
    assert answer.returncode == 1 and "full" in answer.stderr, answer.stderr
    assert "big" not in server.cay("volume", "ls", volume).stdout
