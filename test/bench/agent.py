"""The agent's speed: commands, transfers, output and listings.

Each is measured through the server's public port, in turns with its raw
counterpart: the same work inside the sandbox, or what a plain Go HTTP server
(plain/main.go) inside the same sandbox reaches over the same way.

    BENCH_BYTES=1e9   size of transfers and output
    BENCH_TURNS=3     samples of each
"""

import asyncio
import contextlib
import http.client
import json
import os
import struct
import urllib.parse

import e2b

import world
from figure import Figure, ms

BYTES = int(float(os.environ.get("BENCH_BYTES", "1e9")))
TURNS = int(os.environ.get("BENCH_TURNS", "3"))
AGENT, PLAIN = 49983, 8000
CHUNK = bytes(1 << 20)


class Wire:
    """Plain HTTP to a port of a sandbox, with as little client as can be."""

    def __init__(self, server, sandbox):
        self.server, self.sandbox = server, sandbox
        token = sandbox.connection_config.sandbox_headers
        self.headers = {**token, "E2b-Sandbox-Id": sandbox.sandbox_id, "Accept-Encoding": "identity"}

    def call(self, port, method, route, body=None, headers=None, **query):
        """Makes a request and returns the length of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        with contextlib.closing(connection):
            target = route + ("?" + urllib.parse.urlencode(query) if query else "")
            connection.request(method, target, body=body,
                               headers={**self.headers, "E2b-Sandbox-Port": str(port), **(headers or {})})
            reply = connection.getresponse()
            buffer, total = bytearray(1 << 20), 0
            while n := reply.readinto(buffer):
                total += n
            assert reply.status < 300, (reply.status, bytes(buffer[:500]))
            return total


@contextlib.contextmanager
def box(server):
    """A sandbox with the plain server in it."""
    sandbox = e2b.Sandbox.create(timeout=3000)
    try:
        with open(world.ROOT / "build" / "bench-plain", "rb") as program:
            sandbox.files.write("/tmp/plain", program)
        sandbox.commands.run(f"chmod +x /tmp/plain && PORT={PLAIN} exec /tmp/plain", background=True, timeout=0)
        sandbox.commands.run(f"until (exec 3<>/dev/tcp/127.0.0.1/{PLAIN}) 2>/dev/null; do sleep 0.1; done")
        yield sandbox, Wire(server, sandbox)
    finally:
        sandbox.kill()


def resident(sandbox):
    """The agent's resident memory, in MB."""
    text = sandbox.commands.run("cat /proc/1/status", user="root").stdout
    return next(int(line.split()[1]) * 1024 / 1e6 for line in text.splitlines() if line.startswith("VmRSS:"))


SHELL = """
import json, subprocess, time
begun = time.perf_counter()
subprocess.run(["bash", "-l", "-c", "true"], check=True)
print((time.perf_counter() - begun) * 1000)
"""


class Bare:
    """Runs bash through Start with one connection and no more of a client than that."""

    def __init__(self, server, sandbox, script):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.headers = {**sandbox.connection_config.sandbox_headers, "E2b-Sandbox-Id": sandbox.sandbox_id,
                        "E2b-Sandbox-Port": str(AGENT), "Content-Type": "application/connect+json",
                        "Connect-Protocol-Version": "1", "Connect-Timeout-Ms": "60000"}
        message = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", script]}, "stdin": False}).encode()
        self.body = struct.pack(">BI", 0, len(message)) + message

    def run(self):
        self.connection.request("POST", "/process.Process/Start", self.body, self.headers)
        reply = self.connection.getresponse().read()
        assert b"exit status 0" in reply, reply


def command(server):
    """The SDK's command and a bare client's, in turns with the raw one."""
    rule = "bash -l -c true inside + 2"
    sdk = Figure('commands.run("true")', "ms", lambda raw: raw + 2, rule)
    bare = Figure('the same, bare client', "ms", lambda raw: raw + 2, rule)
    sandbox = e2b.Sandbox.create(timeout=900)
    sandbox.files.write("/tmp/raw.py", SHELL)
    client = Bare(server, sandbox, "true")
    for turn in range(10 * TURNS + 2):
        took = ms(lambda: sandbox.commands.run("true")), ms(client.run)
        raw = float(sandbox.commands.run("python3 /tmp/raw.py").stdout)
        if turn > 1:  # the first turns warm caches
            for figure, ours in zip((sdk, bare), took):
                figure.ours.append(ours)
                figure.raw.append(round(raw, 2))
    sandbox.kill()
    return sdk, bare


def concurrent(_):
    figure = Figure("200 commands at once", "wrong", lambda _: 0, "each one right")

    async def all_at_once():
        sandbox = await e2b.AsyncSandbox.create(timeout=900)

        async def one(i):
            return (await sandbox.commands.run(f"echo {i}; echo {-i} >&2", timeout=300)).stdout == f"{i}\n"

        answers = await asyncio.gather(*(one(i) for i in range(200)), return_exceptions=True)
        await sandbox.kill()
        return sum(answer is not True for answer in answers)

    figure.ours += [asyncio.run(all_at_once()) for _ in range(TURNS)]
    return figure


def zeros():
    """BYTES of a body; what reads it knows its length."""
    left = BYTES
    while left:
        yield CHUNK[:min(left, len(CHUNK))]
        left -= min(left, len(CHUNK))


def transfer(name, server, ours, raw, prepare=""):
    """Compares two ways of moving BYTES; also notes the agent's memory."""
    figure = Figure(f"{name} of {BYTES / 1e9:g} GB", "ms", lambda raw: raw / 0.7, "plain server's speed × 0.7")
    with box(server) as (sandbox, wire):
        if prepare:
            sandbox.commands.run(prepare, timeout=300)
        for turn in range(TURNS + 1):
            for work, samples in ((ours, figure.ours), (raw, figure.raw)):
                took = ms(lambda: work(wire))
                if turn:
                    samples.append(took)
        MEMORY.append(round(resident(sandbox), 1))
    return figure


MEMORY = []


def upload(server):
    body = {"Content-Type": "application/octet-stream", "Content-Length": str(BYTES)}
    return transfer(
        "upload", server,
        lambda wire: wire.call(AGENT, "POST", "/files", zeros(), body, path="/tmp/file"),
        lambda wire: wire.call(PLAIN, "PUT", "/file", zeros(), body, path="/tmp/file"))


def download(server):
    def same(n):
        assert n == BYTES, n

    return transfer(
        "download", server,
        lambda wire: same(wire.call(AGENT, "GET", "/files", path="/tmp/file")),
        lambda wire: same(wire.call(PLAIN, "GET", "/file", path="/tmp/file")),
        prepare=f"head -c {BYTES} /dev/urandom > /tmp/file")


def start_request(script):
    """StartRequest{process: {cmd: "/bin/sh", args: ["-c", script]}} in an envelope."""
    def field(number, content):
        size, out = len(content), b""
        while size > 0x7F:
            out += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + out + bytes([size]) + content

    message = field(1, field(1, b"/bin/sh") + field(2, b"-c") + field(2, script.encode()))
    return struct.pack(">BI", 0, len(message)) + message


def output(server):
    script = f"dd if=/dev/zero bs=64k iflag=count_bytes count={BYTES} status=none"
    headers = {"Content-Type": "application/connect+proto", "Connect-Protocol-Version": "1"}

    def ours(wire):
        n = wire.call(AGENT, "POST", "/process.Process/Start", start_request(script), headers)
        assert BYTES < n < BYTES * 1.1, n

    def raw(wire):
        n = wire.call(PLAIN, "GET", "/output", script=script)
        assert n == BYTES, n

    return transfer("standard output", server, ours, raw)


def memory(_):
    figure = Figure("agent's memory after transfers", "MB", lambda _: 40, "40 MB resident")
    figure.ours.append(max(MEMORY))
    return figure


FIND = """
import subprocess, time
begun = time.perf_counter()
subprocess.run(["find", "/tmp/many", "-ls"], check=True, stdout=subprocess.DEVNULL)
print((time.perf_counter() - begun) * 1000)
"""


def listing(server):
    figure = Figure("listing 10,000 files", "ms", lambda raw: 2 * raw, "2 × find -ls inside")
    with box(server) as (sandbox, wire):
        sandbox.commands.run("mkdir /tmp/many && cd /tmp/many && seq 10000 | xargs touch", timeout=120)
        sandbox.files.write("/tmp/find.py", FIND)
        assert len(sandbox.files.list("/tmp/many")) == 10_000
        request = json.dumps({"path": "/tmp/many"})
        for turn in range(3 * TURNS + 1):
            ours = ms(lambda: wire.call(AGENT, "POST", "/filesystem.Filesystem/ListDir", request,
                                        {"Content-Type": "application/json"}))
            raw = float(sandbox.commands.run("python3 /tmp/find.py").stdout)
            if turn:
                figure.ours.append(ours)
                figure.raw.append(round(raw, 2))
    return figure


def measure(server):
    """All figures of this part, one after the other."""
    yield from command(server)
    for figure in (concurrent, upload, download, output, memory, listing):
        yield figure(server)
