"""Faults of the whole host: no other test can run meanwhile."""

import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import uuid
import urllib.request

import e2b
import pytest

import cayv1
import world
from saved import BOOT_ID, saved_as


def events():
    """Those that tell of a disk at its reserve."""
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + "/cay/v1/events?type=machine.disk_low&limit=1000", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["events"]


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
            with pytest.raises(e2b.SandboxException, match=r"507.*disk (at \S+ )?is full"):
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


@contextlib.contextmanager
def layers_of(names):
    """Has the layers of builds on a disk of their own with room for so many names more."""
    layers = pathlib.Path(os.environ["CAY_DATA_DIR"], "layers")
    rooms = ["tmp", "packs", "keys"]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=1m,nr_inodes={1 + len(rooms) + names}", "full", layers], check=True)
    try:
        for room in rooms:
            (layers / room).mkdir()
        yield layers
    finally:
        subprocess.run(["umount", "-l", layers], check=True)


def test_a_build_on_a_full_disk(create):
    """The build says which disk is full, at each thing that it cannot write; with room it goes on."""
    name = "f" + uuid.uuid4().hex[:12]
    building = pathlib.Path(os.environ["CAY_DATA_DIR"], "building")
    said = []
    for names in range(12):
        with layers_of(names) as layers:
            try:
                e2b.Template.build(e2b.Template().from_template("base").run_cmd("echo made > /home/user/made"), name, cpu_count=1, memory_mb=512)
                break
            except e2b.BuildException as failure:
                said.append(str(failure))
            assert f"the disk at {layers} is full" in said[-1], said[-1]
            assert list((layers / "tmp").iterdir()) == list(building.iterdir()) == []  # nothing half made
    else:
        pytest.fail(f"no room was enough: {said}")
    assert any("write a key: " in text for text in said), said
    box = create(name)
    assert box.files.read("/home/user/made") == "made\n"
    box.kill()
    deleted = world.Server().cay("template", "delete", name, check=False)
    assert deleted.returncode == 0, deleted.stderr


@contextlib.contextmanager
def small_disk_of_volumes():
    """Has the volumes on a disk of 600 MB; gives what fills it and what gives that back."""
    volumes = pathlib.Path(os.environ["CAY_DATA_DIR"], "volumes")
    image = volumes.with_name("volumes.img")
    with open(image, "wb") as file:
        file.truncate(600 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, volumes], check=True)
    filling = volumes / "filling"

    def fill():
        with open(filling, "wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(1 << 20))
        with open(filling, "ab") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))

    try:
        yield fill, filling.unlink
    finally:
        subprocess.run(["umount", "-l", volumes], check=True)
        image.unlink()


WRITES = """
import os
for n in range(1 << 16):
    f = os.open(f"/mnt/v/{n}", os.O_WRONLY | os.O_CREAT)
    os.write(f, b"%08d" % n * 8192)
    os.fsync(f)
    os.close(f)
    print(n, flush=True)
"""


@pytest.mark.parametrize("size", [64, 1024])  # in ext4 and in XFS
def test_volumes_on_a_full_disk(create, size):
    """A sandbox is told that a write failed, what it was told to be synced stays, and each call names the disk."""
    names = f"507.*{os.environ['CAY_DATA_DIR']}/volumes"
    name = "full" + uuid.uuid4().hex[:8]
    with small_disk_of_volumes() as (fill, empty):
        made = cayv1.call("POST", "/volumes", {"name": name, "sizeMB": size})
        volume = e2b.Volume.connect(made["volumeID"])
        volume.write_file("/kept", "kept")
        box = create(volume_mounts={"/mnt/v": name})
        try:
            cayv1.call("POST", f"/volumes/{name}/snapshots", {"name": "before"})
            fill()
            told = []
            with pytest.raises(e2b.CommandExitException, match="No space left|Input/output|Read-only"):
                box.commands.run(f"python3 -c '{WRITES}'", on_stdout=lambda text: told.extend(text.split()), timeout=120)
            with pytest.raises(e2b.VolumeException, match=names):
                volume.write_file("/more", io.BytesIO(bytes(40 << 20)))
            for path, body in ((f"/volumes/{name}/snapshots", {"name": "full"}), ("/volumes", {"name": name + "2", "sizeMB": size})):
                with pytest.raises(cayv1.Failed, match=names):
                    cayv1.call("POST", path, body)
            assert volume.read_file("/kept") == "kept"
            box.pause()  # its memory is on another disk
            with pytest.raises(cayv1.Failed, match="409"):  # of a volume that it has
                cayv1.call("POST", f"/volumes/{name}/snapshots/before/restore")
            box.connect(timeout=300)
            assert box.commands.run("cat /mnt/v/kept").stdout == "kept"
            empty()
            box.pause()
            box.connect(timeout=300)  # which mounts anew what failed
            assert box.commands.run("echo on > /mnt/v/on && sync /mnt/v/on && cat /mnt/v/on").stdout == "on\n"
            for n in told:
                assert volume.read_file(f"/{n}") == f"{int(n):08d}" * 8192
            cayv1.call("POST", f"/volumes/{name}/snapshots", {"name": "after"})
            box.kill()
            cayv1.call("POST", f"/volumes/{name}/snapshots/before/restore")
            assert [e.name for e in volume.list("/")] == ["kept"]
        finally:
            box.kill()
            for snapshot in cayv1.call("GET", f"/volumes/{name}/snapshots"):
                cayv1.call("DELETE", f"/volumes/{name}/snapshots/{snapshot['name']}")
            cayv1.call("DELETE", f"/volumes/{name}")


def test_a_disk_at_its_reserve(create, eventually):
    """New work is refused and says why; time, saves and ends go on."""
    box, other = create(timeout=60), create()
    paused = create()
    paused.pause()
    free = shutil.disk_usage(os.environ["CAY_DATA_DIR"]).free
    with world.started_anew(CAY_DISK_RESERVE=f"{(free >> 20) + 2048}MiB") as server:
        said = f"507.*{os.environ['CAY_DATA_DIR']}.*kept in reserve"
        with pytest.raises(e2b.SandboxException, match=said):
            e2b.Sandbox.create()
        assert re.search(said.removeprefix("507.*"), str(other.fork()[0]))  # an error each
        with pytest.raises(Exception, match="reserve"):
            # A step of its own: one that an earlier build has run would be no new work.
            e2b.Template.build(e2b.Template().from_template("base").run_cmd(f"true {uuid.uuid4()}"), "none", cpu_count=1, memory_mb=512)
        box.set_timeout(300)
        assert box.commands.run("echo on").stdout == "on\n"
        paused = paused.connect(timeout=300)
        box.pause()
        box.connect(timeout=300)
        assert other.kill()
        checks = {c["name"]: c for c in json.loads(server.cay("doctor", "--json", check=False).stdout)}
        assert checks["data directory"]["status"] == "warn" and "new work is refused" in checks["data directory"]["detail"]
        seen = eventually(events)
        assert seen, "no event tells that the disk is low"
    assert create().is_running()


@contextlib.contextmanager
def restores_hang():
    """Has every new sentry sleep in place of its work, until the end of the block."""
    sentries = list(pathlib.Path(os.environ["CAY_DATA_DIR"], "engines").glob("*/gvisor-bin/gvisor_sentry"))
    assert sentries
    for sentry in sentries:
        sentry.rename(sentry.with_name("kept"))
        sentry.write_text("#!/bin/sh\nexec sleep 100000\n")
        sentry.chmod(0o755)
    try:
        yield
    finally:
        for sentry in sentries:
            sentry.with_name("kept").rename(sentry)


def test_restores_that_do_not_end(create):
    """Each verb says so in time, all of them at once, what it was about is as it was, and the next try works."""
    with world.started_anew(CAY_RESTORE_TIMEOUT="5s", CAY_POOL_MEMORY="0"):
        resumed, rebooted, back, forked = (create() for _ in range(4))
        pids = {box.sandbox_id: box.commands.run("sleep 100000", background=True, timeout=0).pid for box in (resumed, back, forked)}

        def goes_on(box):
            return pids[box.sandbox_id] in [p.pid for p in box.commands.list()]

        rebooted.files.write("/home/user/note", "kept")
        resumed.pause()
        rebooted.pause()
        node = cayv1.checkpoint(back)
        saved = forked.create_snapshot().snapshot_id
        with restores_hang():
            verbs = [
                lambda: resumed.connect(timeout=300), lambda: rebooted.connect(timeout=300),
                lambda: cayv1.rollback(back, node), lambda: e2b.Sandbox.create(saved)]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                forking = pool.submit(forked.fork)
                failures = [call.exception() for call in [pool.submit(verb) for verb in verbs]]
                fork, = forking.result()
            for failure, kind in zip([*failures, fork], [e2b.ServiceBusyException] * 2 + [cayv1.Failed, e2b.ServiceBusyException, object]):
                assert isinstance(failure, kind) and "not restored in 5s" in str(failure), repr(failure)
            for box in (resumed, rebooted):
                assert e2b.Sandbox.get_info(box.sandbox_id).state == e2b.SandboxState.PAUSED
            assert goes_on(back)
            assert goes_on(forked)
        resumed.connect(timeout=300)
        assert goes_on(resumed)
        rebooted.connect(timeout=300, on_resume="reboot")
        assert rebooted.files.read("/home/user/note") == "kept"
        cayv1.rollback(back, node)
        assert goes_on(back)
        fork, = forked.fork()
        assert pids[forked.sandbox_id] in [p.pid for p in fork.commands.list()]
        fork.kill()
        made = create(saved)
        assert pids[forked.sandbox_id] in [p.pid for p in made.commands.list()]
        made.kill()
        e2b.Sandbox.delete_snapshot(saved)


def test_collecting_removes_what_it_said(eventually):
    """No other test makes or leaves anything meanwhile."""
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
