"""Runs every end-to-end suite against one real server and says what failed.

    scripts/test e2e          all of them
    CAY_E2E_RUN=files …       only Python tests whose names match
    CAY_E2E_WORKERS=1 …       one Python file after the other, instead of three at once
    run.py fast               the first steps with each SDK alone
    run.py templates          none: builds the templates that they use
    run.py cluster            all but what is of one machine, through a node of three that does not lead

Order matters once: the suites that restart and end the server come last.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import world

HERE = pathlib.Path(__file__).resolve().parent
SDK = world.ROOT / "build" / "sdk"


GB = 1 << 30
TEMPLATES = 9 * GB  # the data directory with the templates that Cay brings
# A guest fills its disk of 10 GB (test_hostile), which the host's disk gives; a
# save beside it, the server's reserve and what the other suites left come on top.
FULL_DISK = 13 * GB


def room(server, need):
    """Ends the run before it begins where the disk lacks the room that its tests need."""
    at = server.data
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free
    has = sum(f.lstat().st_blocks * 512 for f in server.data.rglob("*")) if server.data.exists() else 0
    lacks = need - min(has, TEMPLATES) - free
    if lacks > 0:
        sys.exit(f"the disk of {server.data} has {free / GB:.1f} GB free, and the end-to-end tests need {lacks / GB:.1f} GB more: "
                 f"{need / GB:.0f} GB in all, {TEMPLATES / GB:.0f} of them for templates")


def pytest(env, *args):
    select = os.environ.get("CAY_E2E_RUN")
    args = [*args, *(["-k", select] if select else [])]
    code = subprocess.call(
        [str(SDK / "python" / "bin" / "python"), "-m", "pytest", "-q", "-rs", "--tb=short",
         "-p", "no:cacheprovider", "--durations=8", *args],
        cwd=HERE / "python", env=env)
    return code in (0, 5 if select else 0)


def node(env, modules, files="*.test.mjs", leave=()):
    """Runs JavaScript tests with the SDKs of one node_modules directory, but those of leave.

    Imports resolve from the test's own folder, so the tests are copied
    beside the packages.
    """
    target = SDK / modules / "tests"
    target.mkdir(exist_ok=True)
    for old in target.glob("*.mjs"):
        old.unlink()
    names = []
    for file in sorted((HERE / "js").glob("*.mjs")):
        (target / file.name).write_bytes(file.read_bytes())
        if file.match(files) and file.name not in leave:
            names.append(file.name)
    # Connections that the SDK keeps open would hold each file's process for seconds.
    return subprocess.run(
        ["node", "--test", "--test-force-exit", "--test-concurrency=1", "--test-reporter=spec", *names],
        cwd=target, env=env, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def all_sdks(env, *args, leave=()):
    """The Python tests and, beside them, JavaScript's with the newest SDKs and the oldest that is promised, but the files of leave: all mostly wait."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = [(modules, pool.submit(node, env, modules, leave=leave)) for modules in ("js", "js-2.45")]
        passed = pytest(env, *args)
        for modules, run in runs:
            print(f"{modules}:\n{run.result().stdout}", flush=True)
            passed = passed and run.result().returncode == 0
    return passed


def first_steps(server):
    """The tests that a change breaks first, in minutes."""
    env = {**server.env, **server.sdk_env(server.new_key()), "PYTHONPATH": str(HERE), "NO_COLOR": "1"}
    yield "Python SDKs", lambda: pytest(env, "test_quickstart.py", "test_sandbox.py", "test_life.py", "-n", "2")

    def javascript():
        run = node(env, "js", "[qs]*.test.mjs")  # quickstart and sandbox
        print(run.stdout, flush=True)
        return run.returncode == 0

    yield "JavaScript SDKs", javascript


def suites(server):
    env = {**server.env, **server.sdk_env(server.new_key()), "PYTHONPATH": str(HERE), "NO_COLOR": "1"}
    # One after the other: what takes all of the machine that it can get, counts
    # what is on it, harms it or waits for it to be calm, as the warm pool does,
    # then what restarts and ends the server.
    alone = ["test_warm.py", "test_hostile.py", "test_lives.py", "test_host.py"]
    last = ["test_names.py", "test_loading.py", "test_operating.py", "test_injection.py", "test_sso.py", "test_packages.py", "test_usage.py", "test_postgres.py", "test_restart.py", "test_down.py", "test_build_limits.py"]
    selected = os.environ.get("CAY_E2E_RUN")
    shared = [".", *[f"--ignore={name}" for name in alone + last], "-n", os.environ.get("CAY_E2E_WORKERS", "3"), "--dist", "loadfile"]
    yield "Python SDKs" + ("" if selected else ", JavaScript SDKs newest and 2.45.0"), lambda: (pytest if selected else all_sdks)(env, *shared)
    yield "hostile guests, lives, hosts in trouble, crash, restart and down", lambda: pytest(env, *alone, *last)


# The Python tests that are of one machine, and not of what a cluster serves as one does: volumes,
# which a cluster refuses; private networks, whose members are on one node; what a machine runs, has and
# is full of; its own addresses, settings and end.
ONE_MACHINE = [
    "test_volumes.py", "test_volume_builds.py", "test_volume_cli.py", "test_volume_content.py", "test_volume_mounts.py", "test_private.py",
    "test_build_limits.py", "test_down.py", "test_engine.py", "test_examples.py", "test_host.py", "test_hostile.py", "test_injection.py", "test_inside.py",
    "test_lives.py", "test_loading.py", "test_names.py", "test_operating.py", "test_packages.py", "test_postgres.py", "test_restart.py",
    "test_sso.py", "test_tls.py", "test_usage.py", "test_warm.py",
]


def clustered():
    """Runs the tests of a cluster through its last node; whether all passed."""
    sys.path.insert(0, str(world.ROOT / "test" / "cluster"))
    import cluster

    # Guests' names are of a domain, as one machine's in these tests, and by path.
    near, registry = f"{cluster.NET}.1", f"{cluster.NET}.1:{7290 + cluster.PLACE}"
    with cluster.Cluster(CAY_DOMAIN=f"cay.test:{cluster.PORT}", CAY_PATHS="on", CAY_PLAIN_REGISTRIES=registry,
                         CAY_WEBHOOK_OPEN=f"{near}/32", CAY_MODEL_OPEN=f"{near}/32") as up:
        node = up.nodes[-1]
        os.environ["CAY_E2E_NODE"] = json.dumps({
            "host": node.address, "port": cluster.PORT, "log": str(node.log), "inside": node.command(), "near": near, "registry": registry,
            "env": {k: v for k, v in node.env.items() if k not in os.environ or k.startswith("CAY_")},
            "cluster": {"lead": up.nodes[0].command(), "run": up.nodes[0].env["CAY_RUN_DIR"],
                        "data": [str(n.data) for n in up.nodes], "records": str(cluster.DATABASE / "data")}})
        env = {**node.env, **up.environment(node), "PYTHONPATH": str(HERE)}
        try:
            some = ".", *[f"--ignore={name}" for name in ONE_MACHINE], "-n", os.environ.get("CAY_E2E_WORKERS", "2"), "--dist", "loadfile"
            if os.environ.get("CAY_E2E_RUN"):
                return pytest(env, *some)
            return all_sdks(env, *some, leave=["volume.test.mjs"])
        finally:
            del os.environ["CAY_E2E_NODE"]


def templates(server):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    try:
        server.start()
    finally:
        server.stop()
        server.cay("down", check=False)


def main():
    if sys.argv[1:] == ["cluster"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
        return 0 if clustered() else 1
    server = world.Server()
    if server.healthy():
        sys.exit(f"something already answers on {server.url}: end it first")
    if sys.argv[1:] == ["templates"]:
        room(server, TEMPLATES)
        return templates(server)
    # A selection says itself what it needs: tests that need more fail.
    room(server, TEMPLATES if sys.argv[1:] or os.environ.get("CAY_E2E_RUN") else TEMPLATES + FULL_DISK)
    begun = time.monotonic()
    print("▸ server and templates", flush=True)
    server.start()
    print(f"✓ server and templates ({time.monotonic() - begun:.0f} s)", flush=True)
    failed = []
    try:
        for name, suite in (first_steps if sys.argv[1:] == ["fast"] else suites)(server):
            print(f"▸ {name}", flush=True)
            begun = time.monotonic()
            ok = suite()
            print(f"{'✓' if ok else '✗'} {name} ({time.monotonic() - begun:.0f} s)", flush=True)
            if not ok:
                failed.append(name)
    finally:
        server.cay("down", check=False)
    if failed:
        print("\nthe server's last lines:\n" + server.tail(), flush=True)
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    sys.exit(main())
