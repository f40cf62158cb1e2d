"""Every error that an SDK raises from commands, pty, files and git.

Those of a full disk are in test_hostile, those of git servers in test_files.
"""

import contextlib
import inspect
import socket

import e2b
import pytest
from e2b.connection_config import ConnectionConfig
from packaging.version import Version

KINDS = [e2b.Sandbox, e2b.AsyncSandbox]
SIZE = e2b.PtySize(rows=24, cols=80)
NOBODY = 2**31 - 1


async def settled(result):
    return await result if inspect.isawaitable(result) else result


def seen_by(kind, sandbox_id, token, **opts):
    """A sandbox as an SDK sees it that was told this token."""
    headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
    return kind(
        sandbox_id=sandbox_id, sandbox_domain=None, envd_version=Version("0.6.13"), envd_access_token=token,
        traffic_access_token=None, connection_config=ConnectionConfig(extra_sandbox_headers=headers, **opts))


def one_of_each(box):
    """A call of each module."""
    def ignore(_):
        pass

    watch, terminal = {}, {}
    if isinstance(box, e2b.AsyncSandbox):
        watch, terminal = {"on_event": ignore}, {"on_data": ignore}
    return {
        "commands.run": lambda: box.commands.run("true"),
        "commands.list": lambda: box.commands.list(),
        "pty.create": lambda: box.pty.create(SIZE, **terminal),
        "pty.kill": lambda: box.pty.kill(NOBODY),
        "files.read": lambda: box.files.read("/etc/hostname"),
        "files.write": lambda: box.files.write("/tmp/f", "x"),
        "files.list": lambda: box.files.list("/"),
        "files.watch_dir": lambda: box.files.watch_dir("/tmp", **watch),
        "git.status": lambda: box.git.status("/tmp"),
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_token(sbx, kind):
    stranger = seen_by(kind, sbx.sandbox_id, "0" * 64)
    for name, call in one_of_each(stranger).items():
        with pytest.raises(e2b.AuthenticationException):
            await settled(call())
            pytest.fail(f"{name} let a stranger in")


@pytest.mark.parametrize("kind", KINDS)
async def test_not_running(kind):
    made = await settled(kind.create(timeout=60))
    await settled(made.kill())
    for name, call in one_of_each(made).items():
        with pytest.raises(e2b.SandboxNotRunningException):
            await settled(call())
            pytest.fail(f"{name} of a killed sandbox")
    assert await settled(made.is_running()) is False


@pytest.mark.parametrize("kind", KINDS)
async def test_paused_is_not_running(create, kind):
    made = create()
    made.pause()
    token = made.connection_config.sandbox_headers["X-Access-Token"]
    for call in one_of_each(seen_by(kind, made.sandbox_id, token)).values():
        with pytest.raises(e2b.SandboxNotRunningException):
            await settled(call())


@pytest.mark.parametrize("kind", KINDS)
async def test_unreachable(kind):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nowhere = seen_by(kind, "nowhere", "x", sandbox_url=f"http://127.0.0.1:{port}")
    with pytest.raises(e2b.SandboxUnreachableException):  # one is enough: the SDK tries for seconds
        await settled(nowhere.commands.run("true"))


@pytest.mark.parametrize("kind", KINDS)
async def test_timeouts(sbx, kind):
    box = await settled(kind.connect(sbx.sandbox_id))
    with pytest.raises(e2b.TimeoutException) as late:
        await settled(box.commands.run("sleep 1000", timeout=1))
    assert not isinstance(late.value, (e2b.SandboxNotRunningException, e2b.SandboxUnreachableException))
    await settled(box.commands.run("test -p /tmp/pipe || mkfifo /tmp/pipe"))
    with pytest.raises(e2b.TimeoutException):  # no process writes to the pipe, so there is no answer
        await settled(box.commands.run("read < /tmp/pipe", timeout=1))
    assert await settled(box.is_running())


@pytest.mark.parametrize("kind", KINDS)
async def test_refusals(sbx, kind):
    box = await settled(kind.connect(sbx.sandbox_id))
    terminal = {"on_data": print} if kind is e2b.AsyncSandbox else {}
    mute = await settled(box.commands.run("sleep 1000", background=True))
    try:
        for wanted, match, call in (
            (e2b.InvalidArgumentException, "cwd '/none' does not exist", lambda: box.commands.run("true", cwd="/none")),
            (e2b.InvalidArgumentException, "cwd '/none' does not exist", lambda: box.pty.create(SIZE, cwd="/none", **terminal)),
            (e2b.AuthenticationException, "invalid username: 'x'", lambda: box.commands.run("true", user="x")),
            (e2b.AuthenticationException, "invalid username: 'x'", lambda: box.pty.create(SIZE, user="x", **terminal)),
            (e2b.AuthenticationException, "invalid username: 'x'", lambda: box.git.status("/tmp", user="x")),
            (e2b.NotFoundException, "not found", lambda: box.commands.connect(NOBODY)),
            (e2b.NotFoundException, "not found", lambda: box.pty.resize(NOBODY, SIZE)),
            (e2b.FileNotFoundException, "path '/none' does not exist", lambda: box.files.read("/none")),
            (e2b.CommandExitException, "exited with code 7", lambda: box.commands.run("exit 7")),
            (e2b.SandboxException, "stdin not enabled or closed", lambda: mute.send_stdin("x")),
            (e2b.SandboxException, "tty not started", lambda: box.pty.send_stdin(mute.pid, b"x")),
            (e2b.SandboxException, "tty not started", lambda: box.pty.resize(mute.pid, SIZE)),
        ):
            with pytest.raises(wanted, match=match):
                await settled(call())
    finally:
        await settled(mute.kill())


def test_too_many_watchers(sbx):
    sbx.files.make_dir("/tmp/watched")
    with contextlib.ExitStack() as stack:
        with pytest.raises(e2b.RateLimitException, match="watchers are open"):
            for _ in range(1000):
                stack.callback(sbx.files.watch_dir("/tmp/watched").stop)
    sbx.files.watch_dir("/tmp/watched").stop()


def test_paths(sbx):
    """Names and links that no file system takes."""
    files, loop = sbx.files, "/tmp/loop"
    sbx.commands.run(f"ln -sfn {loop} {loop}")
    long = f"/tmp/{'n' * 300}"
    for path in (f"{loop}/f", loop, long, f"{long}/f", "/tmp/" + "d/" * 3000):
        for call in (
            lambda: files.read(path),
            lambda: files.write(path, "x"),
            lambda: files.list(path),
            lambda: files.watch_dir(path),
        ):
            with pytest.raises(e2b.InvalidArgumentException):
                call()
        if path == loop:
            continue  # a link may be made a directory's or moved, as any other
        for call in (lambda: files.make_dir(path), lambda: files.rename("/etc/hostname", path)):
            with pytest.raises(e2b.InvalidArgumentException):
                call()
    assert files.get_info(loop).symlink_target
    files.remove(loop)
