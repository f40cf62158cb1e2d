"""The files of a volume, as the SDKs reach them: every method, every form, sync and async."""

import asyncio
import datetime
import io
import os
import uuid

import e2b
import pytest

import cayv1


@pytest.fixture(scope="module")
def volume():
    made = e2b.Volume.create(f"content-{uuid.uuid4().hex[:8]}")
    yield made
    assert e2b.Volume.destroy(made.volume_id)


def same(volume):
    """The volume of a sync object, for async calls."""
    return e2b.AsyncVolume(volume.volume_id, volume.name, volume.token)


@pytest.fixture
def root(volume):
    """A directory of the test's own."""
    path = f"/{uuid.uuid4().hex[:8]}"
    volume.make_dir(path)
    yield path
    volume.remove(path)


def test_text_and_bytes(volume, root):
    entry = volume.write_file(f"{root}/a.txt", "héllo\n")
    assert (entry.name, entry.path, entry.type.value, entry.size) == ("a.txt", f"{root}/a.txt", "file", 7)
    assert (entry.uid, entry.gid, entry.mode, entry.target) == (1000, 1000, 0o644, None)
    assert volume.read_file(f"{root}/a.txt") == "héllo\n"
    assert volume.read_file(f"{root}/a.txt", format="bytes") == "héllo\n".encode()
    every = bytes(range(256)) * 10
    volume.write_file(f"{root}/b", every)
    assert volume.read_file(f"{root}/b", format="bytes") == every
    volume.write_file(f"{root}/b", "")
    assert volume.read_file(f"{root}/b") == "" and volume.read_file(f"{root}/b", format="bytes") == b""


def test_streams(volume, root):
    much = os.urandom(1 << 20) * 5
    assert volume.write_file(f"{root}/much", io.BytesIO(much)).size == len(much)
    assert b"".join(volume.read_file(f"{root}/much", format="stream")) == much
    volume.write_file(f"{root}/lines", io.StringIO("one\ntwo\n"))
    assert volume.read_file(f"{root}/lines") == "one\ntwo\n"


def test_a_stream_that_breaks_leaves_what_was_there(volume, root):
    volume.write_file(f"{root}/a", "before")

    class Broken(io.RawIOBase):
        left = 3

        def readable(self):
            return True

        def readinto(self, buffer):
            self.left -= 1
            if self.left < 0:
                raise OSError("the line is cut")
            buffer[:1] = b"x"
            return 1

    with pytest.raises(Exception, match="."):
        volume.write_file(f"{root}/a", Broken())
    assert volume.read_file(f"{root}/a") == "before"
    assert [e.name for e in volume.list(root)] == ["a"]


def test_directories(volume, root):
    entry = volume.make_dir(f"{root}/d", uid=7, gid=8, mode=0o750)
    assert (entry.type.value, entry.uid, entry.gid, entry.mode) == ("directory", 7, 8, 0o750)
    volume.make_dir(f"{root}/x/y/z", force=True)
    volume.make_dir(f"{root}/x/y/z", force=True)
    volume.write_file(f"{root}/x/f/g", "1", force=True)
    assert [e.name for e in volume.list(root)] == ["d", "x"]
    assert [e.path for e in volume.list(root, depth=9)] == [
        f"{root}/{p}" for p in ("d", "x", "x/f", "x/f/g", "x/y", "x/y/z")]
    assert volume.list(f"{root}/d") == []
    volume.remove(f"{root}/x")
    assert not volume.exists(f"{root}/x/f/g") and volume.exists(f"{root}/d")


def test_metadata(volume, root):
    volume.write_file(f"{root}/a", "x", uid=5, gid=6, mode=0o600)
    info = volume.get_info(f"{root}/a")
    assert (info.uid, info.gid, info.mode, info.size) == (5, 6, 0o600, 1)
    now = datetime.datetime.now(datetime.timezone.utc)
    for stamp in (info.atime, info.mtime, info.ctime):
        assert abs(now - stamp) < datetime.timedelta(hours=1)
    changed = volume.update_metadata(f"{root}/a", mode=0o4755)
    assert (changed.uid, changed.gid, changed.mode) == (5, 6, 0o4755)
    assert volume.update_metadata(f"{root}/a", uid=9, gid=10).uid == 9
    volume.write_file(f"{root}/a", "again")
    kept = volume.get_info(f"{root}/a")
    assert (kept.uid, kept.gid) == (9, 10)


def test_what_is_not_there(volume, root):
    for call in (
        lambda: volume.read_file(f"{root}/none"),
        lambda: list(volume.read_file(f"{root}/none", format="stream")),
        lambda: volume.get_info(f"{root}/none"),
        lambda: volume.update_metadata(f"{root}/none", mode=0o600),
        lambda: volume.list(f"{root}/none"),
        lambda: volume.remove(f"{root}/none"),
        lambda: volume.make_dir(f"{root}/none/d"),
        lambda: volume.write_file(f"{root}/none/f", "x"),
    ):
        with pytest.raises(e2b.VolumePathNotFoundException, match="none"):
            call()
    assert not volume.exists(f"{root}/none")


def test_what_is_refused(volume, root):
    volume.write_file(f"{root}/file", "x")
    for call, words in (
        (lambda: volume.make_dir(root), "exists"),
        (lambda: volume.make_dir(f"{root}/file", force=True), "not found"),
        (lambda: volume.write_file(root, "x"), "directory"),
        (lambda: volume.read_file(root), "directory"),
        (lambda: volume.remove("/"), "root"),
        (lambda: volume.list(root, depth=0), "depth"),
        (lambda: volume.list(root, depth=10_000), "depth"),
        (lambda: volume.update_metadata(root, mode=0o10000), "mode"),
        (lambda: volume.get_info("a" * 300), "long"),
        (lambda: volume.get_info("a\0b"), "zero byte"),
    ):
        with pytest.raises((e2b.VolumeException, e2b.VolumePathNotFoundException), match=words):
            call()
    assert volume.read_file(f"{root}/../{root}/./file") == "x"


def test_a_wrong_token_opens_nothing(volume, root):
    volume.write_file(f"{root}/a", "x")
    wrong = e2b.Volume(volume.volume_id, volume.name, volume.token[:-1] + "x")
    for call in (lambda: wrong.read_file(f"{root}/a"), lambda: wrong.write_file(f"{root}/a", "y"), lambda: wrong.remove(root)):
        with pytest.raises(e2b.AuthenticationException):
            call()
    assert volume.read_file(f"{root}/a") == "x"


def test_a_full_volume_keeps_what_it_has():
    made = cayv1.call("POST", "/volumes", {"name": f"full-{uuid.uuid4().hex[:8]}", "sizeMB": 64})
    try:
        small = e2b.Volume.connect(made["volumeID"])
        small.write_file("/kept", "before")
        much = bytes(100 << 20)
        for content in (much, io.BytesIO(much)):  # of a known size, and of none
            with pytest.raises(e2b.VolumeException, match="507.*full"):
                small.write_file("/kept", content)
        assert small.read_file("/kept") == "before"
        assert [e.name for e in small.list("/")] == ["kept"]
        small.write_file("/kept", bytes(20 << 20))
        assert small.get_info("/kept").size == 20 << 20
    finally:
        e2b.Volume.destroy(made["volumeID"])


def test_async(volume, root):
    async def use():
        v = same(volume)
        await v.make_dir(f"{root}/d/e", force=True)
        await v.write_file(f"{root}/d/a", "text")
        await v.write_file(f"{root}/d/b", b"\0\xff")
        much = os.urandom(1 << 20) * 3
        await v.write_file(f"{root}/d/c", io.BytesIO(much))
        assert await v.read_file(f"{root}/d/a") == "text"
        assert await v.read_file(f"{root}/d/b", format="bytes") == b"\0\xff"
        assert b"".join([part async for part in await v.read_file(f"{root}/d/c", format="stream")]) == much
        assert [e.name for e in await v.list(f"{root}/d", depth=1)] == ["a", "b", "c", "e"]
        assert (await v.update_metadata(f"{root}/d/a", mode=0o600)).mode == 0o600
        assert (await v.get_info(f"{root}/d/a")).mode == 0o600
        assert await v.exists(f"{root}/d/a")
        await v.remove(f"{root}/d/a")
        assert not await v.exists(f"{root}/d/a")
        with pytest.raises(e2b.VolumePathNotFoundException):
            await v.read_file(f"{root}/d/a")
        await asyncio.gather(*(v.write_file(f"{root}/d/{n}", str(n)) for n in range(20)))
        assert await asyncio.gather(*(v.read_file(f"{root}/d/{n}") for n in range(20))) == [str(n) for n in range(20)]

    asyncio.run(use())
