"""Many sandboxes alive at once, each of which answers a command at the end.

    make density                  COUNT=500 sandboxes of the template base
    COUNT=20 make density         as CI would
    TEMPLATE=code-interpreter-v1 make density
                                  of the interpreter, which answer run_code;
                                  CAY_MEMORY_LOADING=demand loads by demand

It grows in steps and says what each costs the host; it stops early when the
machine has less than LEAVE (2 GiB) of memory to spare, which is no failure of
Cay's but is said, and fails when a create or an answer does.
"""

import concurrent.futures
import os
import pathlib
import sys
import time

import e2b
import e2b_code_interpreter

import world

COUNT = int(os.environ.get("COUNT", "500"))
STEP = int(os.environ.get("STEP", "50"))
LEAVE = int(os.environ.get("LEAVE", str(2 << 30)))
TEMPLATE = os.environ.get("TEMPLATE", "base")
AT_ONCE = 4


def available():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no MemAvailable")


def tasks():
    return int(pathlib.Path("/proc/loadavg").read_text().split()[3].split("/")[1])


def resident(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


def create(_):
    # Those that fit the machine fit; a full one says so, and that is waited for.
    if TEMPLATE == "code-interpreter-v1":
        return e2b_code_interpreter.Sandbox.create(timeout=7200, request_timeout=300)
    return e2b.Sandbox.create(TEMPLATE, timeout=7200, request_timeout=300)


def answer(sandbox):
    if TEMPLATE == "code-interpreter-v1":
        return sandbox.run_code("6 * 7", request_timeout=300).text == "42"
    return sandbox.commands.run(f"echo {sandbox.sandbox_id}", timeout=300, request_timeout=300).stdout.strip() == sandbox.sandbox_id


def grow(server, pool):
    boxes, memory, host = [], available(), tasks()
    print(f"at the start: {memory >> 20} MiB to spare, {host} tasks", flush=True)
    while len(boxes) < COUNT and available() > LEAVE:
        begun = time.monotonic()
        try:
            boxes += pool.map(create, range(min(STEP, COUNT - len(boxes))))
        except e2b.exceptions.SandboxException as e:
            if "no room" not in str(e):
                raise
            print(f"the server refuses more: {e}", flush=True)
            break
        took = time.monotonic() - begun
        print(f"{len(boxes)} alive: {STEP / took:.1f} creates/s, {(memory - available()) / len(boxes) / 1e6:.1f} MB and "
              f"{(tasks() - host) / len(boxes):.1f} tasks each, server {resident(server)} MiB", flush=True)
    return boxes


def main():
    server = world.aside("density", 7182, "10.216.0.0/16", "cydns")
    server.env["CAY_POOL_MEMORY"] = "0"  # what is measured is what is asked for
    server.start()
    try:
        os.environ.update(server.sdk_env(server.new_key()))
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            boxes = grow(server, pool)
            begun = time.monotonic()
            good = sum(pool.map(answer, boxes))
            print(f"{good} of {len(boxes)} answered in {time.monotonic() - begun:.0f} s", flush=True)
            for _ in pool.map(lambda box: box.kill(), boxes):
                pass
    finally:
        server.cay("down", check=False, timeout=600)
    if len(boxes) < COUNT:
        print(f"this machine had no memory to spare for more than {len(boxes)} of {COUNT}")
    sys.exit(0 if good == len(boxes) else 1)


if __name__ == "__main__":
    main()
