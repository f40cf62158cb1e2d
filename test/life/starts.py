"""Starts of very many at once in one sandbox, over one client of HTTP/2.

    make soak-starts                1,000 commands at once, short ones and of 10 s; 400 terminals; 300 watches
    SOAK_STARTS=100 make soak-starts

Each answers, or is refused before it starts with the reason, as E2B's clients have
it: RateLimitException. Nothing that has started is ended for what starts after it.
"""

import asyncio
import collections
import os
import sys
import time

import e2b
from e2b.sandbox.commands.command_handle import PtySize

import world

STARTS = int(os.environ.get("SOAK_STARTS", "1000"))
REASONS = ("not enough memory: ", "too many processes: ", "others that came before it", "watchers are open")


async def command(sandbox, line):
    result = await sandbox.commands.run(line, timeout=120, request_timeout=120)
    assert result.stdout == "k\n", result


async def terminal(sandbox, _):
    seen = bytearray()
    handle = await sandbox.pty.create(PtySize(24, 80), on_data=seen.extend, timeout=0, request_timeout=120)
    await sandbox.pty.send_stdin(handle.pid, b"echo $((6 * 7)); exit\n", request_timeout=120)
    await handle.wait()
    assert b"42" in seen, bytes(seen)


async def watch(sandbox, path):
    seen = asyncio.Event()
    handle = await sandbox.files.watch_dir(path, lambda _: seen.set(), timeout=0, request_timeout=120)
    try:
        await asyncio.wait_for(seen.wait(), 120)
    finally:
        await handle.stop()


async def at_once(title, sandbox, count, one, what, meanwhile=None):
    """Begins so many at once; returns what is neither an answer nor a refusal."""
    begun, bad, outcomes = time.monotonic(), [], collections.Counter()

    async def each():
        try:
            await one(sandbox, what)
            outcomes["done"] += 1
        except e2b.RateLimitException as refused:
            outcomes["refused"] += 1
            if not any(reason in str(refused) for reason in REASONS):
                bad.append(f"{title}: refused without a reason: {refused}")
        except Exception as error:
            bad.append(f"{title}: {type(error).__name__}: {error} {getattr(error, 'error', '')}")

    work = [asyncio.create_task(each()) for _ in range(count)]
    while meanwhile and not all(task.done() for task in work):
        await meanwhile()
        await asyncio.sleep(1)
    await asyncio.gather(*work)
    print(f"{title}: {dict(outcomes)}, {len(bad)} otherwise, in {time.monotonic() - begun:.1f} s", flush=True)
    return bad


async def all_of_them():
    bad = []
    for title, count, one, what in (
        ("short commands", STARTS, command, "echo k"),
        ("commands of 10 s", STARTS, command, "sleep 10; echo k"),
        ("a tenth of them", STARTS // 10, command, "sleep 10; echo k"),
        ("terminals", STARTS * 2 // 5, terminal, None),
        ("watches", STARTS * 3 // 10, watch, "/tmp"),
    ):
        sandbox = await e2b.AsyncSandbox.create("base", timeout=900)
        touch = (lambda sandbox=sandbox: sandbox.files.write("/tmp/touched", "x")) if one is watch else None
        bad += await at_once(title, sandbox, count, one, what, touch)
        answer = await sandbox.commands.run("echo k")
        assert answer.stdout == "k\n", answer
        await sandbox.kill()
    return bad


def main():
    server = world.aside("starts", 7187, "10.221.0.0/16", "cysts")
    server.start(templates=("base",))
    os.environ.update(server.sdk_env(server.new_key()))
    os.environ["E2B_SANDBOX_URL"] = f"https://localhost:{server.port}"  # by TLS clients agree on HTTP/2
    os.environ["SSL_CERT_FILE"] = str(server.data / "tls" / "bundle.pem")
    try:
        bad = asyncio.run(all_of_them())
    finally:
        server.cay("down")
    for text, times in collections.Counter(bad).most_common(20):
        print(f"- {times} × {text}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
