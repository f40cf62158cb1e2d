"""Hunts tests that fail only now and then: runs the unit tests of packages again and again beside a load, then once
with the process of the tests stopped at random moments, as a host without processor time stops it.

    hunt.py                    every package below internal, and the root's
    hunt.py ./internal/auth …  those packages

HUNT_RUNS (20) is how often each runs, HUNT_STOPS (200) how often it is stopped at most, HUNT_AT_ONCE (4) how many
packages run beside each other; HUNT_LOAD (one for each processor) is how many processes are busy beside them, none on
a machine that others load. Programs of tests are below build/hunt.
The first failure of each package is shown, and the exit status is 1 when there was any.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "hunt"
RUNS = int(os.environ.get("HUNT_RUNS", "20"))
STOPS = int(os.environ.get("HUNT_STOPS", "200"))
AT_ONCE = int(os.environ.get("HUNT_AT_ONCE", "4"))
LOAD = int(os.environ.get("HUNT_LOAD", os.cpu_count() or 1))
SETTINGS = {**os.environ, "CAY_TEST_POSTGRES": "must", "CAY_TEST_PYTHON": str(ROOT / "build/pyenv/bin/python")}  # as scripts/test
BUSY = "while True: pass"


@contextlib.contextmanager
def load():
    """Keeps the processors busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def program(package):
    """Compiles the tests of a package; None where it has none."""
    out = HOME / (package.replace("/", "-") + ".test")
    subprocess.run(["go", "test", "-c", "-vet=off", "-o", str(out), package], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return out if out.exists() else None


def stop_at_random(process, ended, seed):
    """Stops a process for up to half a second, again and again, until it has ended."""
    moments = random.Random(seed)
    for _ in range(STOPS):
        if ended.wait(moments.expovariate(4)):
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            ended.wait(moments.uniform(0.01, 0.5))
            process.send_signal(signal.SIGCONT)


def run(tests, directory, stopped=None):
    """Runs the tests once; returns what they said when they failed."""
    process = subprocess.Popen([str(tests), "-test.timeout=30m"], cwd=directory, env=SETTINGS, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended = threading.Event()
    if stopped is not None:
        stopper = threading.Thread(target=stop_at_random, args=(process, ended, stopped))
        stopper.start()
    said, _ = process.communicate()
    ended.set()
    if stopped is not None:
        stopper.join()
    return said if process.returncode else None


def size(directory):
    """The bytes of a package's tests: the longest are to begin first, so that none is left to run alone."""
    return sum(file.stat().st_size for file in pathlib.Path(directory).glob("*_test.go"))


def hunt(package, directory, seed):
    """Runs the tests of a package RUNS times, then once stopped; returns whether none failed."""
    tests = program(package)
    if tests is None:
        return True
    begun = time.monotonic()
    failures = [said for _ in range(RUNS) if (said := run(tests, directory))]
    stopped = run(tests, directory, seed)
    tests.unlink()
    lines = [f"{'✗' if failures or stopped else '✓'} {package}: {len(failures)} of {RUNS} failed beside a load"
             + (", and the one that was stopped" if stopped else "") + f" ({time.monotonic() - begun:.0f} s)"]
    for said in (failures + [stopped])[:1]:
        lines += said.splitlines()[-40:] if said else []
    print("\n".join(lines), flush=True)
    return not failures and not stopped


def main():
    HOME.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["go", "list", "-f", "{{.ImportPath}} {{.Dir}}", *(sys.argv[1:] or [".", "./internal/..."])],
                            cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
    packages = sorted((line.split(" ", 1) for line in listed.splitlines()), key=lambda one: -size(one[1]))
    seed = random.randrange(1 << 30)
    print(f"stops are those of seed {seed}", flush=True)
    with load(), concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        passed = list(pool.map(lambda one: hunt(*one, seed), packages))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
