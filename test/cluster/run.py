"""A cluster of three nodes on this machine.

    make cluster         starts it, says how to use it, and ends it with Ctrl-C
    make cluster-down    ends one that runs elsewhere, and removes what a killed one left
    make try-cluster     starts one, tries the quickstart through each node, and loses a node
    make test-fence      starts one, and cuts a node off while sandboxes of it send (fence.py)
    make chaos-cluster   starts one, and has its nodes fail in every way while clients work (chaos.py)
    make drain-cluster   starts one, and drains a node (moves.py)
    make upgrade-cluster starts one of an earlier program, and replaces its nodes one by one
    make bench-cluster   starts one and a machine alone, and measures what the cluster costs (bench.py)
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import bench
import chaos
import cluster
import fence
import moves

SDK = cluster.ROOT / "build" / "sdk" / "python" / "bin" / "python"


def say(text):
    print(f"▸ {text}", flush=True)


def keep():
    """Runs a cluster until this process is told to end."""
    with cluster.Cluster() as up:
        print(f"""
A cluster of {len(up.nodes)} nodes runs, over PostgreSQL and {up.bucket}. Any node takes any request. Point an SDK at one:
""")
        for name, value in up.environment(up.nodes[-1]).items():
            print(f"export {name}={value}")
        first = up.nodes[0]
        own = [f"{name}={first.env[name]}" for name in ("CAY_DATA_DIR", "CAY_RUN_DIR", "CAY_LISTEN", "CAY_TLS")]
        print(f"""
Look at it, on node 1:

{' '.join(first.command("env", *own, cluster.CAY))} cluster status

Lose a node, with all that runs there. What is paused, and was for some seconds, so that the
bucket has it (`replicated` of a sandbox), resumes on another one after 75 s.
""")
        for node in up.nodes:
            print(f"kill -9 {node.machine.pid}   # node {node.number}, {node.url}, log {node.log.relative_to(cluster.ROOT)}")
        print("\nCtrl-C, or make cluster-down elsewhere, ends all of it.", flush=True)
        signal.pause()


def down():
    pid = cluster.running()
    if pid:
        os.kill(pid, signal.SIGTERM)
        cluster.until(lambda: not cluster.running(), 120, f"the end of process {pid}")
    cluster.clear()


def attempt(up):
    """The quickstart through each node, then the loss of one."""
    with tempfile.TemporaryDirectory() as place:
        script = pathlib.Path(place) / "quickstart.py"
        script.write_text(QUICKSTART)
        for node in up.nodes:
            begun = time.monotonic()
            out = subprocess.run([SDK, script], env={**os.environ, **up.environment(node)}, check=True, text=True, capture_output=True).stdout
            assert "hello world" in out, out
            say(f"the quickstart through node {node.number} ({time.monotonic() - begun:.1f} s)")
        script.write_text(LOSS)
        first = up.environment(up.nodes[0])
        told = subprocess.Popen([SDK, script], env={**os.environ, **first}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            lost = lose(up, told)
            print(told.stdout.read(), end="", flush=True)
            assert told.wait() == 0, "the clients of the lost node failed"
            say(f"node {lost.number} was lost; what was paused there is back, what ran there is over")
        finally:
            told.kill()


def lose(up, told):
    """Loses the node, other than the first, that has most of the paused sandboxes of which the client tells."""
    made = [line.split() for line in iter(told.stdout.readline, "made\n")]  # the state and the id of each
    paused = [s for state, s in made if state == "paused"]
    on = {node: [s for s in paused if f'msg="sandbox paused" sandbox={s}' in node.log.read_text()] for node in up.nodes[1:]}
    lost = max(on, key=lambda node: len(on[node]))
    if not on[lost]:
        raise RuntimeError(f"all paused sandboxes are on node 1: {made}")
    for s in on[lost]:
        cluster.until(lambda: re.search(f"is in the bucket.* sandbox={s}", lost.log.read_text()), 60, f"the copy of sandbox {s}")
    lost.lose()
    told.stdin.write("\n".join(on[lost]) + "\n")
    told.stdin.close()
    return lost


QUICKSTART = """
from e2b_code_interpreter import Sandbox
sbx = Sandbox.create()
print(sbx.run_code("print('hello world')").logs)
print(sbx.files.list("/"))
sbx.kill()
"""

# Eight sandboxes, of which half are paused; then those of one node are lost.
LOSS = """
import json, os, sys, time, urllib.request
from e2b import Sandbox
from e2b.exceptions import NotFoundException

made = [Sandbox.create(timeout=3600) for _ in range(8)]
for n, box in enumerate(made):
    box.files.write("/home/user/mine", box.sandbox_id)
    if n % 2:
        box.pause()
paused = {box.sandbox_id for n, box in enumerate(made) if n % 2}
for box in made:
    print("paused" if box.sandbox_id in paused else "ran", box.sandbox_id)
print("made", flush=True)
lost = sys.stdin.read().split()
begun = time.monotonic()

def back(id):
    while True:
        try:
            return Sandbox.connect(id, timeout=3600, request_timeout=30)
        except NotFoundException:
            raise
        except Exception:
            if time.monotonic() - begun > 180:
                raise
            time.sleep(1)

def end(id):
    request = urllib.request.Request(f"{os.environ['E2B_API_URL']}/cay/v1/sandboxes/{id}/end", headers={"X-API-Key": os.environ["E2B_API_KEY"]})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)["reason"]

for id in lost + [box.sandbox_id for box in made if box.sandbox_id not in lost]:
    try:
        box = back(id)
    except NotFoundException:
        assert id not in paused and end(id) == "host_lost", f"sandbox {id} is gone: {end(id)}"
        print(f"    sandbox {id} ran there, and is over", flush=True)
        continue
    assert box.files.read("/home/user/mine") == id
    if id in lost:
        print(f"    sandbox {id} is back after {time.monotonic() - begun:.0f} s", flush=True)
    box.kill()
"""


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        match sys.argv[1:]:
            case ["up"]:
                keep()
            case ["down"]:
                down()
            case ["try"]:
                with cluster.Cluster() as up:
                    attempt(up)
            case ["fence"]:
                with cluster.Cluster(CAY_NETWORK_OPEN=f"{cluster.NET}.1/32") as up:
                    fence.cut(up)
            case ["chaos"]:
                with cluster.Cluster() as up:
                    sys.exit(0 if chaos.run(up) else 1)
            case ["drain"]:
                with cluster.Cluster() as up:
                    sys.exit(0 if moves.drain(up) else 1)
            case ["upgrade"]:
                if not (before := os.environ.get("BEFORE")):
                    sys.exit("BEFORE names the program of before")
                with cluster.Cluster(program=pathlib.Path(before).resolve()) as up:
                    sys.exit(0 if moves.upgrade(up) else 1)
            case ["bench"]:
                with cluster.Cluster() as up:
                    bench.measure(up)
            case _:
                sys.exit(__doc__)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
