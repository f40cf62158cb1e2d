"""Every method of files and git, through the sync and the async SDK."""

import asyncio
import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import uuid

import e2b
import pytest

import conftest
from e2b.sandbox.signature import get_signature

CREATE, WRITE, CHMOD = (e2b.FilesystemEventType[n] for n in ("CREATE", "WRITE", "CHMOD"))
RENAME, REMOVE = (e2b.FilesystemEventType[n] for n in ("RENAME", "REMOVE"))
BIG = os.urandom(5 << 20)


@pytest.fixture
def at(sbx):
    """A new directory of the sandbox."""
    path = f"/home/user/{uuid.uuid4().hex}"
    assert sbx.files.make_dir(path)
    return path


@pytest.fixture
async def asbx(sbx):
    """The shared sandbox, seen by the async SDK."""
    return await e2b.AsyncSandbox.connect(sbx.sandbox_id)


# --- read and write -------------------------------------------------------


@pytest.mark.parametrize("gzip", [False, True])
def test_write_and_read(sbx, at, gzip):
    for octets in [None, True] if gzip else [None, True, False]:
        info = sbx.files.write(f"{at}/a b/é.txt", "hällo", gzip=gzip, use_octet_stream=octets)
        assert (info.path, info.name, info.type) == (f"{at}/a b/é.txt", "é.txt", e2b.FileType.FILE)
        assert info.metadata is None
        assert sbx.files.read(info.path, gzip=gzip) == "hällo"
        assert sbx.files.read(info.path, format="bytes", gzip=gzip) == "hällo".encode()
        assert b"".join(sbx.files.read(info.path, format="stream", gzip=gzip)) == "hällo".encode()


@pytest.mark.parametrize("gzip", [False, True])
def test_empty_file(sbx, at, gzip):
    sbx.files.write(f"{at}/empty", "")
    assert sbx.files.read(f"{at}/empty", gzip=gzip) == ""
    assert sbx.files.read(f"{at}/empty", format="bytes", gzip=gzip) == b""
    assert b"".join(sbx.files.read(f"{at}/empty", format="stream", gzip=gzip)) == b""


def test_five_megabytes(sbx, at):
    for octets in True, False:
        sbx.files.write(f"{at}/big", BIG, use_octet_stream=octets)
        assert sbx.files.read(f"{at}/big", format="bytes") == BIG
    sbx.files.write(f"{at}/big", io.BytesIO(BIG), gzip=True)
    total = hashlib.sha256()
    with sbx.files.read(f"{at}/big", format="stream", gzip=True) as stream:
        for chunk in stream:
            total.update(chunk)
    assert total.digest() == hashlib.sha256(BIG).digest()
    sbx.files.write(f"{at}/big", (BIG[i : i + 65536] for i in range(0, len(BIG), 65536)))
    out = sbx.commands.run(f"sha256sum {at}/big").stdout
    assert out.split()[0] == hashlib.sha256(BIG).hexdigest()


def test_several_files_at_once(sbx, at):
    files = [{"path": f"{at}/d{i}/f", "data": f"{i}" * 1000} for i in range(10)]
    infos = sbx.files.write_files(files)
    assert [i.path for i in infos] == [f["path"] for f in files]
    for f in files:
        assert sbx.files.read(f["path"]) == f["data"]
    assert sbx.files.write_files([]) == []


def test_overwriting(sbx, at):
    sbx.files.write(f"{at}/f", "long text")
    sbx.files.write(f"{at}/f", "short")
    assert sbx.files.read(f"{at}/f") == "short"


def test_relative_paths(sbx):
    name = uuid.uuid4().hex
    for path in name, f"~/{name}", f"./x/../{name}":
        info = sbx.files.write(path, path)
        assert info.path == f"/home/user/{name}"
        assert sbx.files.read(path) == path
    sbx.files.remove(name)
    assert sbx.files.write(name, "", user="root").path == f"/root/{name}"


def test_generated_files(sbx):
    want = sbx.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
    for gzip in False, True:
        assert sbx.files.read("/proc/sys/kernel/random/boot_id", gzip=gzip) == want


def test_users_own_what_they_write(sbx, at):
    for user in "user", "root":
        sbx.files.write(f"{at}/{user}/f", "x", user=user)
        for path in f"{at}/{user}", f"{at}/{user}/f":
            assert sbx.files.get_info(path).owner == user
    # The daemon writes for users also where they could not.
    sbx.files.write("/opt/written/f", "x")
    assert sbx.files.get_info("/opt/written/f").owner == "user"


def test_metadata(sbx, at):
    path = f"{at}/f"
    info = sbx.files.write(path, "x", metadata={"Author": "me", "k": "v 1"})
    assert info.metadata == {"author": "me", "k": "v 1"}
    assert sbx.files.get_info(path).metadata == {"author": "me", "k": "v 1"}
    assert sbx.files.list(at)[0].metadata == {"author": "me", "k": "v 1"}
    assert sbx.files.rename(path, f"{at}/g").metadata == {"author": "me", "k": "v 1"}
    sbx.files.write(f"{at}/g", "x")
    assert sbx.files.get_info(f"{at}/g").metadata is None


# --- directories ----------------------------------------------------------


def test_list(sbx, at):
    for f in "b/2/x", "b/1", "a":
        sbx.files.write(f"{at}/{f}", "text")

    def names(**kw):
        return [e.path.removeprefix(at + "/") for e in sbx.files.list(at, **kw)]

    assert names() == ["a", "b"]
    assert names(depth=2) == ["a", "b", "b/1", "b/2"]
    assert names(depth=9) == ["a", "b", "b/1", "b/2", "b/2/x"]
    a, b = sbx.files.list(at)
    assert (a.type, a.size, a.mode, a.permissions) == (e2b.FileType.FILE, 4, 0o644, "-rw-r--r--")
    assert (a.owner, a.group, a.symlink_target) == ("user", "user", None)
    assert (b.type, b.mode, b.permissions) == (e2b.FileType.DIR, 0o755, "drwxr-xr-x")
    assert b.size > 0


def test_exists_rename_remove(sbx, at):
    sbx.files.write(f"{at}/f", "x")
    assert sbx.files.exists(f"{at}/f") and not sbx.files.exists(f"{at}/g")
    info = sbx.files.rename(f"{at}/f", f"{at}/new/dir/g")
    assert (info.path, info.name) == (f"{at}/new/dir/g", "g")
    assert not sbx.files.exists(f"{at}/f") and sbx.files.read(info.path) == "x"
    sbx.files.remove(f"{at}/new")
    sbx.files.remove(f"{at}/new")
    assert sbx.files.list(at) == []


def test_make_dir(sbx, at):
    assert sbx.files.make_dir(f"{at}/a/b/c") is True
    assert sbx.files.make_dir(f"{at}/a/b/c") is False
    assert sbx.files.get_info(f"{at}/a/b").owner == "user"


def test_links(sbx, at):
    sbx.files.write(f"{at}/f", "text")
    sbx.commands.run(f"ln -s f {at}/link && ln -s . {at}/self && ln -s none {at}/dangling")
    info = sbx.files.get_info(f"{at}/link")
    assert info.symlink_target == f"{at}/f" and info.permissions == "Lrwxrwxrwx"
    assert sbx.files.read(f"{at}/link") == "text"
    assert sbx.files.exists(f"{at}/dangling")
    entries = sbx.files.list(at, depth=5)
    assert [e.name for e in entries] == ["dangling", "f", "link", "self"]
    assert [e.name for e in sbx.files.list(f"{at}/self")] == ["dangling", "f", "link", "self"]
    sbx.files.remove(f"{at}/link")
    assert sbx.files.read(f"{at}/f") == "text"


# --- watching -------------------------------------------------------------


def pairs(events):
    return [(e.name, e.type) for e in events]


def test_watch_sync(sbx, at):
    handle = sbx.files.watch_dir(at)
    assert handle.get_new_events() == []
    sbx.files.write(f"{at}/f", "x")
    assert pairs(handle.get_new_events()) == [("f", CREATE), ("f", CHMOD), ("f", WRITE)]
    sbx.files.rename(f"{at}/f", f"{at}/g")
    assert pairs(handle.get_new_events()) == [("f", RENAME), ("g", CREATE)]
    sbx.files.remove(f"{at}/g")
    assert pairs(handle.get_new_events()) == [("g", REMOVE)]
    handle.stop()
    with pytest.raises(e2b.SandboxException):
        handle.get_new_events()


def test_watch_recursive_with_entries(sbx, at):
    handle = sbx.files.watch_dir(at, recursive=True, include_entry=True)
    made = {"d"}
    for i in range(20):
        sbx.files.write(f"{at}/d/{i}/x/f", "x")
        made |= {f"d/{i}", f"d/{i}/x", f"d/{i}/x/f"}
    events = handle.get_new_events()
    assert {e.name for e in events if e.type == CREATE} == made
    entry = next(e.entry for e in events if e.name == "d/0/x/f" and e.type == CREATE)
    assert (entry.path, entry.name) == (f"{at}/d/0/x/f", "f")
    handle.stop()


async def test_watch_async(asbx, at):
    seen, done = [], asyncio.Event()

    def on_event(event):
        seen.append(event)
        if event.name == "sub/f" and event.type == WRITE:
            done.set()

    ended = asyncio.Event()
    handle = await asbx.files.watch_dir(
        at, on_event=on_event, on_exit=lambda _: ended.set(), recursive=True, include_entry=True, timeout=0)
    await asbx.files.make_dir(f"{at}/sub")
    await asbx.files.write(f"{at}/sub/f", "x")
    await asyncio.wait_for(done.wait(), 60)
    assert pairs(seen)[0] == ("sub", CREATE) and ("sub/f", CREATE) in pairs(seen)
    assert seen[0].entry.path == f"{at}/sub"
    await handle.stop()
    await asyncio.wait_for(ended.wait(), 60)


# --- the async SDK --------------------------------------------------------


async def test_async_files(asbx, at):
    files = asbx.files
    info = await files.write(f"{at}/f", "text", metadata={"k": "v"})
    assert info.metadata == {"k": "v"}
    assert await files.read(info.path) == "text"

    async def chunks():
        for i in range(0, len(BIG), 1 << 18):
            yield BIG[i : i + (1 << 18)]

    await files.write(f"{at}/big", chunks())
    assert await files.read(f"{at}/big", format="bytes", gzip=True) == BIG
    stream = await files.read(f"{at}/big", format="stream")
    assert b"".join([chunk async for chunk in stream]) == BIG
    await files.write_files([{"path": f"{at}/d/{i}", "data": f"{i}"} for i in range(3)])
    assert [e.name for e in await files.list(f"{at}/d")] == ["0", "1", "2"]
    assert await files.exists(f"{at}/d/0") and not await files.exists(f"{at}/d/3")
    assert (await files.rename(f"{at}/d", f"{at}/e")).type == e2b.FileType.DIR
    assert await files.make_dir(f"{at}/e") is False
    assert (await files.get_info(f"{at}/e/1")).size == 1
    await files.remove(f"{at}/e")
    with pytest.raises(e2b.FileNotFoundException):
        await files.get_info(f"{at}/e")
    with pytest.raises(e2b.InvalidArgumentException):
        await files.list(f"{at}/f")
    with pytest.raises(e2b.AuthenticationException):
        await files.read(f"{at}/f", user="nobod")


async def test_async_in_parallel(asbx, at):
    await asyncio.gather(*(asbx.files.write(f"{at}/{i}", f"{i}") for i in range(50)))
    texts = await asyncio.gather(*(asbx.files.read(f"{at}/{i}") for i in range(50)))
    assert texts == [f"{i}" for i in range(50)]


# --- errors ---------------------------------------------------------------


def test_not_found(sbx, at):
    files = sbx.files
    for call in (
        lambda: files.read(f"{at}/none"),
        lambda: list(files.read(f"{at}/none", format="stream")),
        lambda: files.list(f"{at}/none"),
        lambda: files.get_info(f"{at}/none"),
        lambda: files.rename(f"{at}/none", f"{at}/f"),
        lambda: files.watch_dir(f"{at}/none"),
    ):
        with pytest.raises(e2b.FileNotFoundException, match="does not exist"):
            call()


def test_invalid_arguments(sbx, at):
    files = sbx.files
    files.write(f"{at}/f", "x")
    for call in (
        lambda: files.read(at),
        lambda: files.list(at, depth=0),
        lambda: files.list(f"{at}/f"),
        lambda: files.make_dir(f"{at}/f"),
        lambda: files.make_dir(f"{at}/f/d"),
        lambda: files.write(at, "x"),
        lambda: files.write(f"{at}/f/g", "x"),
        lambda: files.write(f"{at}/{'n' * 300}", "x"),
        lambda: files.write_files([{"path": f"{at}/g", "data": "1"}, {"path": f"{at}/./g", "data": "2"}]),
        lambda: files.watch_dir(f"{at}/f"),
        lambda: files.write(f"{at}/f", "x", metadata={"k": "é"}),
    ):
        with pytest.raises(e2b.InvalidArgumentException):
            call()


def test_unknown_user(sbx, at):
    for call in (
        lambda: sbx.files.read("x", user="nobod"),
        lambda: sbx.files.write("x", "x", user="nobod"),
        lambda: sbx.files.list("x", user="nobod"),
    ):
        with pytest.raises(e2b.AuthenticationException, match="invalid username: 'nobod'"):
            call()


# --- signed URLs and the tar endpoint ---------------------------------------


def fetch(url, data=None, headers=None):
    """Returns status and body, whatever the status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=60) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def routed(sbx):
    """Says whose a request is where the URL's host and signature cannot."""
    return {"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "49983"}


def test_signed_urls(sbx, at):
    assert sbx._envd_access_token, "sandboxes are secured"
    sbx.files.write(f"{at}/f", "text")
    assert fetch(sbx.download_url(f"{at}/f")) == (200, b"text")
    assert fetch(sbx.download_url(f"{at}/f", user="user", use_signature_expiration=60)) == (200, b"text")
    status, _ = fetch(sbx.upload_url(f"{at}/up"), b"up", {"Content-Type": "application/octet-stream"})
    assert (status, sbx.files.read(f"{at}/up")) == (200, "up")


def test_bad_signatures(sbx, at):
    sbx.files.write(f"{at}/f", "text")
    url = sbx.download_url(f"{at}/f", use_signature_expiration=-10)
    assert fetch(url, headers=routed(sbx)) == (401, b'{"code":401,"message":"signature is already expired"}')
    url = sbx.download_url(f"{at}/f").replace("signature=v1_", "signature=v1_x")
    assert fetch(url, headers=routed(sbx)) == (401, b'{"code":401,"message":"invalid signature"}')
    assert fetch(url.split("&signature")[0], headers=routed(sbx))[0] == 401


def test_tar(sbx, at):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in {"a/b/f": b"text", "g": BIG}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o640
            tar.addfile(info, io.BytesIO(text))
    base = urllib.parse.urlsplit(sbx.download_url("x"))

    def tar_request(path, operation, data=None):
        signature = get_signature(path, operation, None, sbx._envd_access_token)["signature"]
        query = urllib.parse.urlencode({"path": path, "signature": signature})
        return fetch(f"{base.scheme}://{base.netloc}/files/tar?{query}", data,
                     {"Content-Type": "application/x-tar", **routed(sbx)})

    status, body = tar_request(f"{at}/new", "write-tar", packed.getvalue())
    assert (status, body) == (200, b'{"entries":2,"bytes":%d}' % (4 + len(BIG)))
    assert sbx.files.read(f"{at}/new/a/b/f") == "text"
    assert (sbx.files.get_info(f"{at}/new/g").owner, sbx.files.get_info(f"{at}/new/g").mode) == ("user", 0o640)
    status, body = tar_request(f"{at}/new", "read-tar")
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["a", "a/b", "a/b/f", "g"]
        assert tar.extractfile("g").read() == BIG


def test_ranges(sbx, at):
    sbx.files.write(f"{at}/f", "0123456789")
    url = urllib.parse.urlsplit(sbx.download_url(f"{at}/f"))
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    conn = kind(url.netloc, timeout=60)
    for ranges, want in {"bytes=2-4": b"234", "bytes=-2": b"89", "bytes=7-": b"789"}.items():
        conn.request("GET", f"{url.path}?{url.query}", headers={"Range": ranges, **routed(sbx)})
        answer = conn.getresponse()
        assert (answer.status, answer.read()) == (206, want)
    conn.close()


# --- git ------------------------------------------------------------------


@pytest.fixture(scope="module")
def remote(sbx):
    """A git daemon inside the sandbox; gives the URL below which it serves."""
    sbx.files.make_dir("/home/user/srv")
    sbx.git.configure_user("Me", "me@example.com")
    daemon = sbx.commands.run(
        "git daemon --reuseaddr --base-path=/home/user/srv --export-all"
        " --enable=receive-pack --listen=127.0.0.1 --port=9418",
        background=True, timeout=0)
    # ls-remote of nothing fails once a server answers; until then, connect.
    sbx.commands.run("until (exec 3<>/dev/tcp/127.0.0.1/9418) 2>/dev/null; do sleep 0.1; done", timeout=60)
    yield "git://127.0.0.1"
    daemon.kill()


def test_git(sbx, at, remote):
    git, repo = sbx.git, f"{at}/clone"
    name = f"{uuid.uuid4().hex}.git"
    git.init(f"/home/user/srv/{name}", bare=True, initial_branch="main")
    git.clone(f"{remote}/{name}", path=repo)
    assert git.remote_get(repo, "origin") == f"{remote}/{name}"
    assert git.remote_get(repo, "none") is None

    sbx.files.write(f"{repo}/a.txt", "1")
    status = git.status(repo)
    assert [(f.name, f.status) for f in status.file_status] == [("a.txt", "untracked")]
    git.add(repo)
    assert git.status(repo).has_staged
    git.commit(repo, "first", author_name="Other", author_email="other@example.com")
    assert git.status(repo).is_clean
    git.push(repo, remote="origin", branch="main")
    assert git.status(repo).upstream == "origin/main"

    git.create_branch(repo, "topic")
    sbx.files.write(f"{repo}/c.txt", "2")
    git.add(repo, files=["c.txt"])
    git.reset(repo)
    assert git.status(repo).has_untracked
    git.add(repo)
    git.commit(repo, "second")
    with pytest.raises(e2b.GitUpstreamException):
        git.pull(repo)
    git.push(repo, remote="origin", branch="topic")
    git.checkout_branch(repo, "main")
    branches = git.branches(repo)
    assert (branches.current_branch, sorted(branches.branches)) == ("main", ["main", "topic"])
    git.pull(repo, remote="origin", branch="topic")
    assert sbx.files.read(f"{repo}/c.txt") == "2"
    git.delete_branch(repo, "topic", force=True)
    assert git.branches(repo).branches == ["main"]

    sbx.files.write(f"{repo}/c.txt", "changed")
    git.restore(repo, ["c.txt"])
    assert sbx.files.read(f"{repo}/c.txt") == "2"
    git.remote_add(repo, "second", f"{remote}/{name}", fetch=True)
    git.remote_add(repo, "second", f"{remote}/{name}", overwrite=True)
    git.set_config("user.name", "Local", scope="local", path=repo)
    assert git.get_config("user.name", scope="local", path=repo) == "Local"
    assert git.get_config("user.email") == "me@example.com"
    git.clone(f"{remote}/{name}", path=f"{at}/shallow", branch="main", depth=1)
    assert sbx.files.read(f"{at}/shallow/a.txt") == "1"
    git.dangerously_authenticate("me", "secret", host="example.com")
    assert sbx.files.read("/home/user/.git-credentials") == "https://me:secret@example.com\n"
    sbx.files.remove("/home/user/.git-credentials")


async def test_git_async(asbx, at, remote):
    git, repo = asbx.git, f"{at}/clone"
    name = f"{uuid.uuid4().hex}.git"
    await git.init(f"/home/user/srv/{name}", bare=True, initial_branch="main")
    await git.clone(f"{remote}/{name}", path=repo)
    await asbx.files.write(f"{repo}/f", "1")
    await git.add(repo)
    await git.commit(repo, "first")
    await git.push(repo, remote="origin", branch="main")
    assert (await git.status(repo)).is_clean

    await git.create_branch(repo, "topic")
    await asbx.files.write(f"{repo}/g", "2")
    await git.add(repo)
    await git.reset(repo)
    assert (await git.status(repo)).has_untracked
    await git.add(repo)
    await git.commit(repo, "second")
    with pytest.raises(e2b.GitUpstreamException):
        await git.pull(repo)
    await git.push(repo, remote="origin", branch="topic")
    await git.checkout_branch(repo, "main")
    await git.pull(repo, remote="origin", branch="topic")
    await git.delete_branch(repo, "topic", force=True)
    assert (await git.branches(repo)).branches == ["main"]
    await asbx.files.write(f"{repo}/g", "changed")
    await git.restore(repo, ["g"])
    assert await asbx.files.read(f"{repo}/g") == "2"
    await git.remote_add(repo, "second", f"{remote}/{name}")
    assert await git.remote_get(repo, "second") == f"{remote}/{name}"
    await git.configure_user("Async", "async@example.com", scope="local", path=repo)
    await git.set_config("cay.test", "yes", scope="local", path=repo)
    assert await git.get_config("cay.test", scope="local", path=repo) == "yes"
    assert await git.get_config("user.name", scope="local", path=repo) == "Async"
    await git.dangerously_authenticate("me", "secret", host="async.example.com")
    assert await asbx.files.read("/home/user/.git-credentials") == "https://me:secret@async.example.com\n"
    await asbx.files.remove("/home/user/.git-credentials")
    with pytest.raises(e2b.GitAuthException):  # "access denied or repository not exported"
        await git.clone(f"{remote}/none.git", path=f"{at}/none")


def test_git_needs_credentials(sbx, at):
    """A server that lets no client in."""
    sbx.files.write(f"{at}/deny.py", """
import http.server
class Deny(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 9419), Deny).serve_forever()
""")
    server = sbx.commands.run(f"python3 {at}/deny.py", background=True, timeout=0)
    try:
        sbx.commands.run("until (exec 3<>/dev/tcp/127.0.0.1/9419) 2>/dev/null; do sleep 0.1; done", timeout=60)
        with pytest.raises(e2b.GitAuthException):
            sbx.git.clone("http://127.0.0.1:9419/r.git", path=f"{at}/r")
        with pytest.raises(e2b.GitAuthException):
            sbx.git.clone("http://127.0.0.1:9419/r.git", path=f"{at}/r", username="u", password="p")
        with pytest.raises(e2b.InvalidArgumentException):
            sbx.git.clone("http://127.0.0.1:9419/r.git", password="p")
    finally:
        server.kill()


def test_every_method_was_called(uncalled):
    missing = uncalled(*conftest.FILES)
    assert not missing, missing
