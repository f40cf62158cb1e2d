"""The speed bars, each figure beside its raw counterpart in the same run.

    make bench            prints raw samples, medians and a table; build/bench.json
    BENCH_N=50 make bench more samples; agent.py and life.py have their own settings
    BENCH_PARTS=life      only some: use, agent, interp, life, light, growth, edge, volumes, tools, memory, builds; models, packages, cores, bucket and docker only if named

Machines are shared and noisy: samples of a figure and of its counterpart are
taken in turns, and ratios of medians are what counts. A bar that is missed is
said, not hidden; the exit status is 0 all the same.
"""

import json
import os
import pathlib
import platform
import subprocess
import time

import e2b
import e2b_code_interpreter

import agent
import bucket
import builds
import cores
import docker
import edge
import growth
import interp
import life
import light
import memory as loading
import models
import packages
import tools
import volumes
import world
from figure import Figure, ms

N = int(os.environ.get("BENCH_N", "20"))
ALIVE = int(os.environ.get("BENCH_ALIVE", "50"))


def create_to_first_result(server):
    figure = Figure("create → first run_code", "ms", lambda raw: 1.3 * raw, "1.3 × one raw restore")
    for turn in range(N + 1):
        made = []

        def ours():
            made.append(e2b_code_interpreter.Sandbox.create())
            assert made[0].run_code("1").text == "1"

        took = ms(ours)
        made[0].kill()
        raw = json.loads(subprocess.run(
            [str(world.ROOT / "build" / "bench-raw"), "-data", str(server.data), "-run", "/run/cay-bench-raw",
             "-memory", "2048"],
            check=True, capture_output=True, text=True, env=server.env).stdout)["ms"]
        if turn:  # the first turn warms caches
            figure.ours.append(took)
            figure.raw.append(raw)
    return figure


IN_GUEST = """
import json, subprocess, time
out = []
for _ in range(%d):
    begun = time.perf_counter()
    subprocess.run(["bash", "-l", "-c", "true"], check=True)
    out.append((time.perf_counter() - begun) * 1000)
print(json.dumps(out))
"""


def command(_):
    figure = Figure('commands.run("true")', "ms", lambda raw: 1.5 * raw + 3, "1.5 × bash -l -c true inside + 3")
    sandbox = e2b.Sandbox.create()
    sandbox.files.write("/tmp/raw.py", IN_GUEST % 5)
    sandbox.commands.run("true")
    for _ in range(max(4, N // 5)):
        figure.ours += [ms(lambda: sandbox.commands.run("true")) for _ in range(5)]
        figure.raw += json.loads(sandbox.commands.run("python3 /tmp/raw.py").stdout)
    sandbox.kill()
    return figure


def memory(server):
    """PSS of all processes that a sandbox is on the host, ALIVE of them."""
    figure = Figure(f"idle base sandbox, {ALIVE} alive", "MB", lambda _: 30, "30 MB of PSS each")
    made = [e2b.Sandbox.create(timeout=900) for _ in range(ALIVE)]
    time.sleep(5)  # let creation settle: idle is what is measured
    total = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if server.env["CAY_RUN_DIR"].encode() in (process / "cmdline").read_bytes() and \
                    b"runsc" in (process / "cmdline").read_bytes():
                for line in (process / "smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            continue
    assert total, "no process of a sandbox was found"
    figure.ours.append(round(total / ALIVE / 1e6, 2))
    for sandbox in made:
        sandbox.kill()
    return figure


def recovery(_):
    """Worst time from a guest's misdeed to its sandbox answering again."""
    figure = Figure("answers after a fork bomb", "ms", lambda _: 5000, "5 s")
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
    for _ in range(3):
        sandbox = e2b.Sandbox.create()
        sandbox.files.write("/tmp/bomb.py", bomb)
        sandbox.commands.run("python3 /tmp/bomb.py", background=True, timeout=0)
        time.sleep(2)

        def answer():
            while True:
                try:
                    sandbox.commands.run("echo alive", user="root", timeout=20, request_timeout=20)
                    return
                except Exception:
                    continue

        figure.ours.append(ms(answer))
        sandbox.kill()
    return figure


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory_kb = int(open("/proc/meminfo").readline().split()[1])
    return {"cpu": model, "cores": os.cpu_count(), "memory_gib": round(memory_kb / 2**20), "kernel": platform.release(),
            "load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d")}


def figures(server):
    parts = os.environ.get("BENCH_PARTS", "use agent interp life light growth edge volumes tools memory builds").split()
    if "use" in parts:
        for measure in (create_to_first_result, command, memory, recovery):
            yield measure(server)
    if "agent" in parts:
        yield from agent.measure(server)
    if "interp" in parts:
        for measure in interp.MEASURES:
            yield measure(server)
    if "life" in parts:
        yield from life.measure(server)
    if "light" in parts:
        yield from light.measure(server)
    if "growth" in parts:
        yield from growth.measure(server)
    if "edge" in parts:
        yield from edge.measure(server)
    if "volumes" in parts:
        yield from volumes.measure(server)
    if "memory" in parts:
        yield from loading.measure(server)
    if "tools" in parts:
        yield from tools.measure(server)
    if "models" in parts:
        yield from models.measure(server)
    if "bucket" in parts:
        yield from bucket.measure(server)
    if "docker" in parts:
        yield from docker.measure(server)
    if "cores" in parts:
        yield from cores.measure(server)
    if "packages" in parts:
        yield from packages.measure(server)
    if "builds" in parts:
        yield from builds.measure(server)


def main():
    server = world.aside("bench", 7180, "10.208.0.0/16", "cybch")
    if "packages" in os.environ.get("BENCH_PARTS", ""):
        server.env.update(packages.SETTINGS)
    if "models" in os.environ.get("BENCH_PARTS", ""):
        server.env.update(models.SETTINGS)
    server.start()
    try:
        os.environ.update(server.sdk_env(server.new_key()))
        host, rows = machine(), []
        for figure in figures(server):
            row = figure.row()
            rows.append(row)
            print(f"{row['name']}: ours {row['samples']['ours']} raw {row['samples']['raw']}", flush=True)
    finally:
        server.cay("down", check=False)
    result = {"machine": host, "figures": rows}
    (world.ROOT / "build" / "bench.json").write_text(json.dumps(result, indent=1))
    print(f"\n{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, Linux {host['kernel']}, {host['date']}\n")
    print("| figure | ours | raw | bar | rule | met |\n|---|---|---|---|---|---|")
    for r in rows:
        raw = "–" if r["raw"] is None else f"{r['raw']} {r['unit']}"
        bar = "–" if r["bar"] is None else f"{r['bar']} {r['unit']}"
        met = {None: "–", True: "yes", False: "**no**"}[r["met"]]
        print(f"| {r['name']} | {r['ours']} {r['unit']} | {raw} | {bar} | {r['rule']} | {met} |")


if __name__ == "__main__":
    main()
