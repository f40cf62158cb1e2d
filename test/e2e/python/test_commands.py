"""Every method of commands and pty, through the sync and the async SDK."""

import asyncio
import base64
import itertools
import json
import os
import threading
import time
import urllib.request
import uuid

import e2b
import pyte
import pytest

import conftest


@pytest.fixture
async def asbx(sbx):
    """The shared sandbox, seen by the async SDK."""
    return await e2b.AsyncSandbox.connect(sbx.sandbox_id)


# --- run ------------------------------------------------------------------


def test_run(sbx):
    out, err = [], []
    result = sbx.commands.run("echo out; echo err >&2", on_stdout=out.append, on_stderr=err.append)
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)
    assert ("".join(out), "".join(err)) == ("out\n", "err\n")


async def test_run_async(asbx):
    result = await asbx.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_run_fails(sbx):
    with pytest.raises(e2b.CommandExitException) as failed:
        sbx.commands.run("echo out; echo err >&2; exit 3")
    e = failed.value
    assert (e.stdout, e.stderr, e.exit_code, e.error) == ("out\n", "err\n", 3, "exit status 3")


def test_not_found_is_an_exit(sbx):
    with pytest.raises(e2b.CommandExitException) as failed:
        sbx.commands.run("no-such-command-at-all")
    assert failed.value.exit_code == 127


def test_characters_survive(sbx):
    text = "héllo 世界 🏝 " * 2000
    sbx.files.write("/tmp/text", text)
    assert sbx.commands.run("cat /tmp/text").stdout == text
    assert sbx.commands.run(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_much_output(sbx):
    assert len(sbx.commands.run("head -c 5000000 /dev/zero | tr '\\0' x").stdout) == 5_000_000


def test_user_directory_environment(sbx):
    run = sbx.commands.run
    assert run("whoami; pwd; echo $HOME $USER $LOGNAME").stdout == "user\n/home/user\n/home/user user user\n"
    assert run("whoami; echo $HOME", user="root").stdout == "root\n/root\n"
    assert run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert run("echo $A-$E2B_SANDBOX", envs={"A": "b c"}).stdout == "b c-true\n"
    assert run("echo $A").stdout == "\n", "a call's environment does not stay"
    assert run("sudo whoami").stdout == "root\n"


def test_run_refuses(sbx):
    with pytest.raises(e2b.InvalidArgumentException, match="cwd '/not/here' does not exist"):
        sbx.commands.run("true", cwd="/not/here")
    with pytest.raises(e2b.AuthenticationException, match="invalid username: 'root123'"):
        sbx.commands.run("true", user="root123")


async def test_run_refuses_async(asbx):
    with pytest.raises(e2b.InvalidArgumentException, match="cwd '/not/here' does not exist"):
        await asbx.commands.run("true", cwd="/not/here")
    with pytest.raises(e2b.AuthenticationException, match="invalid username: 'root123'"):
        await asbx.commands.run("true", user="root123")


def test_timeout_kills(sbx, eventually):
    tag = uuid.uuid4().hex
    with pytest.raises(e2b.TimeoutException):
        sbx.commands.run(f"exec -a {tag} sleep 1000", timeout=1)
    eventually(lambda: all(tag not in " ".join(p.args) for p in sbx.commands.list()))


async def test_timeout_async(asbx):
    with pytest.raises(e2b.TimeoutException):
        await asbx.commands.run("sleep 1000", timeout=1)


def test_daemon_does_not_hold_the_end(sbx):
    assert sbx.commands.run("(sleep 1000 &) ; echo started").stdout == "started\n"
    sbx.commands.run("pkill -x sleep")


async def test_many_at_once(asbx):
    results = await asyncio.gather(*(asbx.commands.run(f"echo {i}") for i in range(30)))
    assert [r.stdout for r in results] == [f"{i}\n" for i in range(30)]


# --- background -----------------------------------------------------------


def test_list_and_kill(sbx):
    handle = sbx.commands.run("sleep 1000", background=True, envs={"A": "b"}, cwd="/tmp")
    found = next(p for p in sbx.commands.list() if p.pid == handle.pid)
    assert (found.cmd, found.args, found.cwd, found.envs) == ("/bin/bash", ["-l", "-c", "sleep 1000"], "/tmp", {"A": "b"})
    assert sbx.commands.kill(handle.pid) is True
    with pytest.raises(e2b.CommandExitException):  # it is gone at once
        sbx.commands.run(f"kill -0 {handle.pid}", user="root")
    assert sbx.commands.kill(handle.pid) is False
    assert handle.pid not in [p.pid for p in sbx.commands.list()]
    with pytest.raises(e2b.CommandExitException) as ended:
        handle.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")


def test_handle(sbx):
    handle = sbx.commands.run("cat", background=True, stdin=True)
    handle.send_stdin("one\n")
    sbx.commands.send_stdin(handle.pid, b"two\n")
    sbx.commands.stream_input(handle.pid, iter(["three\n", b"four\n"]))
    handle.close_stdin()
    assert handle.wait().stdout == "one\ntwo\nthree\nfour\n"


async def test_handle_async(asbx):
    handle = await asbx.commands.run("cat", background=True, stdin=True)
    await handle.send_stdin("one\n")
    await asbx.commands.send_stdin(handle.pid, "two\n")
    async with asbx.commands.stream_input(handle.pid) as stream:
        await stream.send("three\n")
        await stream.send(b"four\n")
    await asbx.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "one\ntwo\nthree\nfour\n"
    assert await asbx.commands.kill(handle.pid) is False


async def test_list_and_kill_async(asbx):
    handle = await asbx.commands.run("cat", background=True, stdin=True)
    assert handle.pid in [p.pid for p in await asbx.commands.list()]
    await handle.close_stdin()
    assert (await handle.wait()).exit_code == 0
    handle = await asbx.commands.run("sleep 1000", background=True)
    assert await handle.kill() is True
    with pytest.raises(e2b.CommandExitException) as ended:
        await handle.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")


async def test_disconnect_and_connect_async(asbx):
    handle = await asbx.commands.run("read line; echo got $line", background=True, stdin=True)
    await handle.disconnect()
    again = await asbx.commands.connect(handle.pid)
    await asbx.commands.send_stdin(handle.pid, "hello\n")
    assert (await again.wait()).stdout == "got hello\n"


def test_stdin_is_closed_unless_wanted(sbx):
    assert sbx.commands.run("cat; echo end").stdout == "end\n"
    handle = sbx.commands.run("sleep 1000", background=True)
    with pytest.raises(e2b.SandboxException):
        handle.send_stdin("x")
    assert handle.kill() is True


def test_unknown_process(sbx):
    pid = 2**31 - 1
    for call in (
        lambda: sbx.commands.connect(pid),
        lambda: sbx.commands.send_stdin(pid, "x"),
        lambda: sbx.commands.close_stdin(pid),
        lambda: sbx.commands.stream_input(pid, iter(["x"])),
        lambda: sbx.pty.connect(pid),
        lambda: sbx.pty.send_stdin(pid, b"x"),
        lambda: sbx.pty.resize(pid, e2b.PtySize(24, 80)),
    ):
        with pytest.raises(e2b.NotFoundException, match="not found"):
            call()
    assert sbx.commands.kill(pid) is False
    assert sbx.pty.kill(pid) is False


def test_disconnect_and_connect(sbx):
    handle = sbx.commands.run("read line; echo got $line", background=True, stdin=True)
    handle.disconnect()
    again = sbx.commands.connect(handle.pid)
    sbx.commands.send_stdin(handle.pid, "hello\n")
    assert again.wait().stdout == "got hello\n"
    # The end is kept for a while, the output is not.
    late = sbx.commands.connect(handle.pid).wait()
    assert (late.exit_code, late.stdout) == (0, "")


async def test_several_followers(asbx):
    handle = await asbx.commands.run("read line; echo got $line", background=True, stdin=True)
    others = [await asbx.commands.connect(handle.pid) for _ in range(3)]
    await handle.send_stdin("hello\n")
    for one in [handle, *others]:
        assert (await one.wait()).stdout == "got hello\n"


def test_leftovers_are_buried(sbx, eventually):
    sbx.commands.run("for i in 1 2 3; do (true &); done")
    eventually(lambda: "Z" not in sbx.commands.run("ps -eo stat=").stdout)


# --- pty ------------------------------------------------------------------


def read_until(handle, text, seen):
    """Takes a terminal's output until text is in it."""
    for _, _, data in handle:
        if data is not None:
            seen.extend(data)
        if text in seen:
            return
    raise AssertionError(f"the terminal ended: {bytes(seen)!r}")


def test_pty(sbx):
    handle = sbx.pty.create(e2b.PtySize(rows=33, cols=101), envs={"A": "b"}, cwd="/tmp", timeout=120)
    seen = bytearray()
    sbx.pty.send_stdin(handle.pid, b"stty size; echo $TERM-$A-$PWD; tty\n")
    read_until(handle, b"xterm-256color-b-/tmp", seen)
    assert b"33 101" in seen
    sbx.pty.resize(handle.pid, e2b.PtySize(rows=20, cols=90))
    sbx.pty.send_stdin(handle.pid, b"stty size\n")
    read_until(handle, b"20 90", seen)
    handle.disconnect()
    again = sbx.pty.connect(handle.pid)
    sbx.pty.send_stdin(handle.pid, b"echo back-$((40 + 2))\n")
    sbx.pty.stream_input(handle.pid, iter([b"echo streamed-", b"$((40 + 3))\n"]))
    read_until(again, b"streamed-43", bytearray())
    assert sbx.pty.kill(handle.pid) is True
    with pytest.raises(e2b.CommandExitException) as ended:
        again.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")


async def test_pty_async(asbx):
    seen, ready = bytearray(), asyncio.Event()

    async def take(data):
        seen.extend(data)
        if b"41 100" in seen:
            ready.set()

    handle = await asbx.pty.create(e2b.PtySize(rows=40, cols=100), on_data=take)
    await asbx.pty.resize(handle.pid, e2b.PtySize(rows=41, cols=100))
    await asbx.pty.send_stdin(handle.pid, b"stty size\n")
    await asyncio.wait_for(ready.wait(), 60)
    await handle.disconnect()
    handle = await asbx.pty.connect(handle.pid, on_data=take)
    stream = asbx.pty.stream_input(handle.pid)
    await stream.send(b"exit 7\n")
    await stream.close()
    with pytest.raises(e2b.CommandExitException) as ended:
        await handle.wait()
    assert ended.value.exit_code == 7
    handle = await asbx.pty.create(e2b.PtySize(rows=40, cols=100), on_data=take)
    assert await asbx.pty.kill(handle.pid) is True


class Display(pyte.Screen):
    """A screen that ignores what vim asks of xterm alone."""

    def select_graphic_rendition(self, *attrs, private=False):
        if not private:
            super().select_graphic_rendition(*attrs)


class Screen:
    """The view that a person has of a terminal."""

    def __init__(self, sbx, rows, cols):
        self.pty, self.screen = sbx.pty, Display(cols, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.handle = sbx.pty.create(e2b.PtySize(rows=rows, cols=cols), timeout=300)
        self.output = iter(self.handle)

    def type(self, keys):
        self.pty.send_stdin(self.handle.pid, keys)

    def resize(self, rows, cols):
        self.screen.resize(rows, cols)
        self.pty.resize(self.handle.pid, e2b.PtySize(rows=rows, cols=cols))

    def until(self, shows):
        """Follows the output until the screen shows something."""
        while not shows(self.screen.display):
            try:
                _, _, data = next(self.output)
            except StopIteration:
                raise AssertionError("the terminal ended:\n" + "\n".join(self.screen.display)) from None
            self.stream.feed(data or b"")


@pytest.fixture
def screen(sbx):
    it = Screen(sbx, 24, 80)
    yield it
    sbx.pty.kill(it.handle.pid)


def test_vim(sbx, screen):
    sbx.files.write("/tmp/vimmed", "".join(f"line {i}\n" for i in range(100)))
    # On its way out vim drops what was typed ahead, so the line holds both.
    screen.type(b"vim /tmp/vimmed; echo done-$((1 + 1))\n")
    screen.until(lambda rows: rows[0].startswith("line 0") and rows[22].startswith("line 22"))
    screen.resize(40, 100)
    screen.until(lambda rows: rows[38].startswith("line 38"))
    screen.type(b"Otyped by hand\x1b:wq\n")
    screen.until(lambda rows: any(row.startswith("done-2") for row in rows))
    assert sbx.files.read("/tmp/vimmed").startswith("typed by hand\nline 0\n")


def test_less(sbx, screen):
    sbx.files.write("/tmp/lessed", "".join(f"line {i}\n" for i in range(1000)))
    screen.type(b"less /tmp/lessed; echo done-$((1 + 1))\n")
    screen.until(lambda rows: rows[0].startswith("line 0 ") and "/tmp/lessed" in rows[23])
    screen.type(b" ")
    screen.until(lambda rows: rows[0].startswith("line 23 "))
    screen.resize(30, 60)
    screen.until(lambda rows: any(row.startswith("line 51 ") for row in rows))
    screen.type(b"G")
    screen.until(lambda rows: rows[28].startswith("line 999") and "END" in rows[29])
    screen.type(b"q")
    screen.until(lambda rows: any(row.startswith("done-2") for row in rows))


def test_top(screen):
    screen.type(b"top -d 1; echo done-$((1 + 1))\n")
    screen.until(lambda rows: any("PID USER" in row for row in rows) and any("bash" in row for row in rows))
    screen.resize(30, 120)
    screen.until(lambda rows: any("PID USER" in row for row in rows))
    screen.type(b"q")
    screen.until(lambda rows: any(row.startswith("done-2") for row in rows))


# --- time -------------------------------------------------------------------


def test_life_does_not_pass_while_paused(create, eventually):
    """A command's time is bounded without a client, and counts running time only."""
    life = 9  # most of it is for a machine that is slow to pause
    sandbox = create()
    handle = sandbox.commands.run(
        "while true; do echo $EPOCHSECONDS >> /tmp/ticks; sleep 0.2; done", background=True, timeout=life)
    handle.disconnect()
    eventually(lambda: sandbox.files.exists("/tmp/ticks"))
    sandbox.pause()
    time.sleep(life)  # were this time counted, nothing would be left
    sandbox = e2b.Sandbox.connect(sandbox.sandbox_id)
    eventually(lambda: handle.pid not in [p.pid for p in sandbox.commands.list()])
    ticks = [int(tick) for tick in sandbox.files.read("/tmp/ticks").split()]
    gap, resumed = max((b - a, i) for i, (a, b) in enumerate(itertools.pairwise(ticks), 1))
    assert gap >= life - 1 and len(ticks) - resumed > 3, ticks


# --- the end of the sandbox -----------------------------------------------


def test_sandbox_killed_while_a_command_runs(create):
    sandbox = create()
    handle = sandbox.commands.run("sleep 1000", background=True)
    threading.Timer(0.5, sandbox.kill).start()
    with pytest.raises(e2b.TimeoutException):
        handle.wait()
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("true")


def test_every_method_was_called(uncalled):
    missing = uncalled(*conftest.COMMANDS)
    assert not missing, missing


def shown(box, pid, until, **headers):
    """The bytes that a viewer of a terminal reads until a text is in them, and the head of its answer."""
    body = json.dumps({"process": {"pid": pid}}).encode()
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + "/process.Process/Connect", method="POST", data=b"\0" + len(body).to_bytes(4, "big") + body,
        headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": box._envd_access_token,
                 "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", **headers})
    text = b""
    with urllib.request.urlopen(request, timeout=60) as answer:
        while until not in text:
            size = int.from_bytes(answer.read(5)[1:], "big")
            event = json.loads(answer.read(size)).get("event", {})
            text += base64.b64decode(event.get("data", {}).get("pty", ""))
            assert "end" not in event, text
        return text, answer.headers


def test_a_terminal_shows_what_it_showed():
    """Also what it printed without a viewer, and before a pause; its questions are not
    asked again. An SDK that follows it sees what comes from then on."""
    replay = {"Cay-Replay": "1"}
    box = e2b.Sandbox.create("base", timeout=600)
    handle = box.pty.create(e2b.PtySize(rows=33, cols=101))
    pid = handle.pid
    box.pty.send_stdin(pid, b"stty -echo; PS1=; echo $((6*7))-first\n")
    assert b"42-first" in shown(box, pid, b"42-first", **replay)[0]
    handle.disconnect()
    box.pty.send_stdin(pid, b"seq -f row-%g 1 40000; printf 'x\\033[c\\033[6n\\033]52;c;eA==\\007y\\n'; echo all-$((6*7)); touch done\n")
    while not box.files.exists("done"):
        time.sleep(0.05)

    def look():
        text, head = shown(box, pid, b"all-42\r\n", **replay)
        assert head["Cay-Terminal-Size"] == "101x33" and 200_000 < int(head["Cay-Replay"]) <= 256 << 10
        assert b"\nxy\r\n" in text and b"\x1b[c" not in text and b"\x1b[6n" not in text and b"]52" not in text
        # The newest rows are there without a gap; the first that is kept may be cut.
        rows = [int(row[4:]) for row in text.split(b"\r\n") if row.startswith(b"row-")][1:]
        assert rows == list(range(rows[0], 40_001)) and len(rows) > 10_000

    look()
    box.pause()
    box = e2b.Sandbox.connect(box.sandbox_id)
    look()
    follower, seen = box.pty.connect(pid), bytearray()
    box.pty.send_stdin(pid, b"echo then-$((6*7))\n")
    read_until(follower, b"then-42", seen)
    assert b"row-" not in seen and b"all-42" not in seen
    box.kill()
