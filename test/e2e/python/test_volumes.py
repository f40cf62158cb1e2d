"""Volumes as records, and in the life of sandboxes, with the SDK as it is."""

import asyncio
import uuid

import e2b
import pytest


def fresh():
    return f"life-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def volume():
    made = e2b.Volume.create(fresh())
    yield made
    e2b.Volume.destroy(made.volume_id)


def mounted(volume, **more):
    return e2b.Sandbox.create(volume_mounts={"/mnt/data": volume}, timeout=300, **more)


def test_records(volume):
    again = e2b.Volume.connect(volume.volume_id)
    assert (again.volume_id, again.name, again.token) == (volume.volume_id, volume.name, volume.token)
    info = e2b.Volume.get_info(volume.volume_id)
    assert (info.volume_id, info.name) == (volume.volume_id, volume.name)
    assert volume.volume_id in [v.volume_id for v in e2b.Volume.list()]
    with pytest.raises(Exception):
        e2b.Volume.create(volume.name)
    for name in ("a/b", "..", "x y"):
        with pytest.raises(Exception):
            e2b.Volume.create(name)
    other = e2b.Volume.create(fresh())
    assert e2b.Volume.destroy(other.volume_id)
    assert not e2b.Volume.destroy(other.volume_id)
    with pytest.raises(Exception, match="not found"):
        e2b.Volume.connect(other.volume_id)


def test_records_async():
    async def run():
        made = await e2b.AsyncVolume.create(fresh())
        again = await e2b.AsyncVolume.connect(made.volume_id)
        assert again.name == made.name and again.token == made.token
        assert (await e2b.AsyncVolume.get_info(made.volume_id)).name == made.name
        assert made.volume_id in [v.volume_id for v in await e2b.AsyncVolume.list()]
        assert await e2b.AsyncVolume.destroy(made.volume_id)
        assert not await e2b.AsyncVolume.destroy(made.volume_id)

    asyncio.run(run())


def test_a_sandbox_and_its_volume(volume):
    volume.write_file("/in", "from outside\n")
    box = mounted(volume)
    try:
        assert box.commands.run("cat /mnt/data/in").stdout == "from outside\n"
        assert box.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
        box.commands.run("echo inside > /mnt/data/out && sync")
        assert volume.read_file("/out") == "inside\n"
        with pytest.raises(Exception) as refused:
            e2b.Volume.destroy(volume.volume_id)
        assert box.sandbox_id in str(refused.value)
        second = mounted(volume.name)
        try:
            assert second.commands.run("cat /mnt/data/out").stdout == "inside\n"
        finally:
            second.kill()
    finally:
        box.kill()


def test_pause_and_resume(volume):
    box = mounted(volume)
    try:
        box.commands.run("echo before > /mnt/data/f && sync")
        box.pause()
        with pytest.raises(Exception) as refused:
            e2b.Volume.destroy(volume.volume_id)
        assert box.sandbox_id in str(refused.value)
        volume.write_file("/f", "meanwhile\n")
        box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
        assert box.commands.run("cat /mnt/data/f && echo after > /mnt/data/f && sync").stdout == "meanwhile\n"
        assert volume.read_file("/f") == "after\n"
    finally:
        box.kill()


def test_a_snapshot_keeps_the_mount(volume):
    box = mounted(volume)
    try:
        box.commands.run("echo then > /mnt/data/f && sync")
        saved = box.create_snapshot()
        box.commands.run("echo now > /mnt/data/f && sync")
        copy = e2b.Sandbox.create(saved.snapshot_id, timeout=300)
        try:
            assert copy.commands.run("cat /mnt/data/f").stdout == "now\n"
        finally:
            copy.kill()
        e2b.Sandbox.delete_snapshot(saved.snapshot_id)
    finally:
        box.kill()


def test_mounts_that_cannot_be(volume):
    with pytest.raises(Exception) as refused:
        e2b.Sandbox.create(volume_mounts={"/proc/x": volume, "/mnt/a": "nosuchvolume", "/mnt/ok": volume})
    assert "volumeMounts[0]" in str(refused.value) and "volumeMounts[1]" in str(refused.value)
    assert "volumeMounts[2]" not in str(refused.value)
