"""Verbs of the SDK at the edge of time: requests before, at and after the moment when a sandbox's time is over.

    make soak-edges                 2,000 requests for each verb and fate
    SOAK_EDGES=100 make soak-edges

Requests follow each other from 200 ms before the end of a sandbox's time until 500 ms
after that came true. A success means done, and for a renewal alive; a command runs at
most once; an answer about a paused sandbox says that it is paused; with auto-resume every request
succeeds but for those that the pause met under way, and a command stream that the pause
ends says so and does not wake the sandbox.
"""

import asyncio
import collections
import os
import random
import sys
import time

import e2b
import httpx
from e2b.sandbox.commands.command_handle import PtySize

import world

REQUESTS = int(os.environ.get("SOAK_EDGES", "2000"))
AT_ONCE = int(os.environ.get("SOAK_AT_ONCE", "4"))
PORT = 8000
# A server of the sandbox's user: what is PUT, events without an end, and an echo.
SERVER = f"""
import asyncio
async def serve(r, w):
    head = (await r.readuntil(b"\\r\\n\\r\\n")).decode()
    method, path = head.split()[:2]
    if path == "/events":
        w.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\ndata: 1\\n\\n")
        await r.read()
    elif path == "/socket":
        w.write(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n" + await r.readline())
        await r.read()
    else:
        open("/tmp/marks/" + path[1:], "a").write("ran\\n")
        w.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    await w.drain()
    w.close()
async def main():
    async with await asyncio.start_server(serve, "0.0.0.0", {PORT}) as s: await s.serve_forever()
asyncio.run(main())
"""
FATES = {
    "kill": {},
    "pause": {"lifecycle": {"on_timeout": "pause"}},
    "auto-resume": {"lifecycle": {"on_timeout": "pause", "auto_resume": True}},
}


class Edge:
    """A sandbox whose time is nearly over."""

    def __init__(self, sandbox, pty):
        self.sandbox, self.pty = sandbox, pty
        self.headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(PORT)}

    async def port(self, path):
        async with httpx.AsyncClient(timeout=60) as client, client.stream(
                "GET", os.environ["E2B_SANDBOX_URL"] + path, headers=self.headers) as answer:
            if answer.status_code != 200:
                raise RuntimeError((await answer.aread()).decode())
            async for piece in answer.aiter_raw():
                return piece

    async def socket(self, mark):
        host, port = os.environ["E2B_SANDBOX_URL"].rsplit("/", 1)[1].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            lines = [f"GET /socket HTTP/1.1\r\nHost: {host}", *(f"{k}: {v}" for k, v in self.headers.items()), "Connection: Upgrade", "Upgrade: websocket"]
            writer.write(("\r\n".join(lines) + f"\r\n\r\n{mark}\n").encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head:
                raise RuntimeError((await reader.read()).decode())
            assert await reader.readline() == f"{mark}\n".encode()
        finally:
            writer.close()


async def renew(edge, _):
    await edge.sandbox.set_timeout(60)
    info = await edge.sandbox.get_info()
    assert info.state == e2b.SandboxState.RUNNING, f"renewed, and {info.state}"


async def execute(edge, mark):
    await edge.sandbox.commands.run(f"echo ran >> /tmp/marks/{mark}", request_timeout=60)


async def read(edge, _):
    assert await edge.sandbox.files.read("/tmp/read") == "to be read"


async def write(edge, mark):
    await edge.sandbox.files.write(f"/tmp/marks/{mark}", "ran\n")


async def http(edge, mark):
    assert await edge.port("/" + mark) == b"ok"


async def events(edge, _):
    assert await edge.port("/events") == b"data: 1\n\n"


async def pty(edge, mark):
    await edge.sandbox.pty.send_stdin(edge.pty, f"echo ran >> /tmp/marks/{mark}\n".encode(), request_timeout=60)


VERBS = {"renew": renew, "exec": execute, "read": read, "write": write, "HTTP": http, "SSE": events,
         "WebSocket": lambda edge, mark: edge.socket(mark), "PTY input": pty}
MARKS = ("exec", "write", "HTTP", "PTY input")


async def lives(sandbox):
    """The state of a sandbox and the end of its time."""
    try:
        info = await sandbox.get_info()
        return info.state, info.end_at
    except e2b.NotFoundException:
        return None, None


async def begin(fate):
    sandbox = await e2b.AsyncSandbox.create("base", timeout=60, **FATES[fate])
    await sandbox.commands.run("mkdir /tmp/marks; echo -n to be read > /tmp/read")
    await sandbox.files.write("/tmp/server.py", SERVER)
    await sandbox.commands.run("python3 /tmp/server.py", background=True, timeout=0)
    terminal = await sandbox.pty.create(PtySize(24, 80), on_data=lambda _: None, timeout=0)
    edge = Edge(sandbox, terminal.pid)
    while True:  # the server has begun
        try:
            await edge.port("/begun")
            break
        except RuntimeError:
            await asyncio.sleep(0.05)
    return edge


async def stream(sandbox):
    """Follows a command that a pause meets; how it ended."""
    try:
        await sandbox.commands.run("sleep 600", timeout=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def life(fate, verb, counts, bad):
    """One sandbox, and requests across the end of its time; how many there were."""
    edge = await begin(fate)
    sandbox, made, done = edge.sandbox, 0, []
    following = asyncio.create_task(stream(sandbox))
    await sandbox.set_timeout(3)
    state, end = await lives(sandbox)
    until = end.timestamp() - 0.2 + (random.random() * 0.7 if verb == "renew" else 0)
    await asyncio.sleep(max(until - time.time(), 0))
    over, stop, last = False, None, time.time() + 60
    while time.time() < (stop or last):
        mark, made = f"m{made}", made + 1
        try:
            await VERBS[verb](edge, mark)
            done.append(mark)
            counts[fate, verb, "done"] += 1
        except Exception as error:
            counts[fate, verb, "refused"] += 1
            text = f"{type(error).__name__}: {error}"
            broken = verb == "WebSocket" and isinstance(error, (OSError, EOFError))
            # The SDK adds words of its own, which speak of ends.
            if fate != "kill" and "paused" not in text and not broken or fate == "auto-resume" and "no request resumes" in text:
                counts[fate, verb, "wrong"] += 1
                bad.append(f"{fate}, {verb}, {time.time() - end.timestamp():+.3f} s: {text}")
        if verb == "renew":
            break
        now, then = await lives(sandbox)
        if not over and (now != e2b.SandboxState.RUNNING or then != end):
            over, stop = True, time.time() + 0.5
    if fate == "kill":
        following.cancel()
    else:
        if verb == "renew":
            following.cancel()
        elif "paused" not in (said := str(await asyncio.wait_for(following, 60))):
            bad.append(f"{fate}, {verb}: the command's stream ended with {said}")
        if verb in MARKS and done:
            sandbox = await sandbox.connect(timeout=60)
            marks = dict(line.split(":", 1) for line in (await sandbox.commands.run("sleep 0.3; grep -c ran /tmp/marks/*", timeout=60)).stdout.split())
            ran = {name.rsplit("/", 1)[1]: int(times) for name, times in marks.items()}
            bad += [f"{fate}, {verb}: {mark} succeeded and ran {ran.get(mark, 0)} times" for mark in done if ran.get(mark) != 1]
            bad += [f"{fate}, {verb}: {mark} ran {times} times" for mark, times in ran.items() if times > 1 and mark not in done]
    try:
        await sandbox.kill()
    except e2b.SandboxException as error:
        bad.append(f"{fate}, {verb}: kill: {error}")
    return made


async def stays_paused(bad):
    """A command stream that a pause ends does not wake the sandbox."""
    for _ in range(max(REQUESTS // 200, 1)):
        sandbox = await e2b.AsyncSandbox.create("base", timeout=5, **FATES["auto-resume"])
        said = await asyncio.wait_for(stream(sandbox), 60)
        await asyncio.sleep(1)
        state, _ = await lives(sandbox)
        if state != e2b.SandboxState.PAUSED or "paused" not in str(said):
            bad.append(f"a command's stream at a pause: {said}; then the sandbox is {state}")
        await sandbox.kill()


async def all_of_them():
    counts, bad, turns = collections.Counter(), [], asyncio.Semaphore(AT_ONCE)

    async def one(fate, verb):
        made = 0
        while made < REQUESTS:
            async with turns:
                made += await life(fate, verb, counts, bad)

    await stays_paused(bad)
    await asyncio.gather(*(one(fate, verb) for fate in FATES for verb in VERBS))
    for (fate, verb, outcome), times in sorted(counts.items()):
        print(f"{fate:12} {verb:10} {outcome:8} {times}")
    return bad


def main():
    server = world.aside("edges", 7188, "10.222.0.0/16", "cyedg")
    server.start(templates=("base",))
    os.environ.update(server.sdk_env(server.new_key()))
    try:
        bad = asyncio.run(all_of_them())
    finally:
        server.cay("down")
    for text in bad[:40]:
        print(f"- {text}")
    print(f"{len(bad)} wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
