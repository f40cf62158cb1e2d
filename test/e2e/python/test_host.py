"""What befalls the whole host: no other test can run meanwhile."""

import json
import os
import pathlib
import subprocess
import urllib.request

import e2b
import pytest

import world
from saved import BOOT_ID, saved_as


def test_full_disk(create):
    box = create()
    other = create()
    box.files.write("/home/user/note", "kept")
    box.commands.run("head -c 2000000 /dev/urandom > /home/user/more-than-fits")
    process = box.commands.run("sleep 100000", background=True)
    snapshots = pathlib.Path(os.environ["CAY_DATA_DIR"], "snapshots")
    for call in (box.pause, lambda: box.pause(mode="filesystem"), box.create_snapshot, box.fork):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", snapshots], check=True)
        try:
            with pytest.raises(e2b.SandboxException, match="507.*disk of the data directory is full"):
                call()
            assert list(snapshots.iterdir()) == []  # nothing half written
        finally:
            subprocess.run(["umount", "-l", snapshots], check=True)  # the engine may still let go of files
        assert process.pid in [p.pid for p in box.commands.list()]  # it runs on
        assert other.is_running()
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert process.pid in [p.pid for p in box.commands.list()]
    assert box.files.read("/home/user/note") == "kept"


def test_collecting_removes_what_it_said(eventually):
    """Nobody makes or leaves anything meanwhile."""
    server = world.Server()
    # A build that an earlier test ended may still be at work for a moment.
    would = eventually(lambda: (done := server.cay("gc", "--dry-run", "--json", check=False)).returncode == 0 and done.stdout)
    did = server.cay("gc", "--json").stdout
    assert all(one in json.loads(would) for one in json.loads(did))  # the server may have come first


def test_withdrawn_engine(create):
    """A memory that must not be restored any more is given up, and that is said."""
    box = create()
    box.files.write("/home/user/note", "kept")
    boot = box.commands.run(BOOT_ID).stdout
    box.pause()
    build = json.loads((saved_as(box) / "snapshot.json").read_text())["engineHash"]
    mark = pathlib.Path(os.environ["CAY_DATA_DIR"], "engines", build + ".withdrawn")
    mark.write_text("a hole was found in it\n")
    try:
        request = urllib.request.Request(
            f"{os.environ['E2B_API_URL']}/v2/sandboxes/{box.sandbox_id}/connect", data=b'{"timeout":300}',
            headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            notice = json.load(reply)["notice"]
    finally:
        mark.unlink()
    assert "without its memory" in notice and f"{build} is withdrawn: a hole was found in it" in notice
    assert box.files.read("/home/user/note") == "kept"
    assert box.commands.run(BOOT_ID).stdout != boot
