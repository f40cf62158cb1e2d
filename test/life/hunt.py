"""Hunts tests that fail only now and then: runs the unit tests of packages again and again beside a load, then once
with the process of the tests stopped at random moments, as a host without processor time stops it.

    hunt.py                    every package below internal, and the root's
    hunt.py ./internal/auth …  those packages

HUNT_RUNS (20) is how often each runs, HUNT_STOPS (200) how often it is stopped at most. Programs of tests are below
build/hunt. The first failure of each package is shown, and the exit status is 1 when there was any.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "hunt"
RUNS = int(os.environ.get("HUNT_RUNS", "20"))
STOPS = int(os.environ.get("HUNT_STOPS", "200"))
BUSY = "while True: pass"


@contextlib.contextmanager
def load():
    """Keeps every processor busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
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
    process = subprocess.Popen([str(tests), "-test.timeout=10m"], cwd=directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended = threading.Event()
    if stopped is not None:
        stopper = threading.Thread(target=stop_at_random, args=(process, ended, stopped))
        stopper.start()
    said, _ = process.communicate()
    ended.set()
    if stopped is not None:
        stopper.join()
    return said if process.returncode else None


def main():
    HOME.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["go", "list", "-f", "{{.ImportPath}} {{.Dir}}", *(sys.argv[1:] or [".", "./internal/..."])],
                            cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
    seed, failed = random.randrange(1 << 30), 0
    print(f"stops are those of seed {seed}", flush=True)
    for package, directory in (line.split(" ", 1) for line in listed.splitlines()):
        tests = program(package)
        if tests is None:
            continue
        with load():
            failures = [said for _ in range(RUNS) if (said := run(tests, directory))]
        stopped = run(tests, directory, seed)
        print(f"{'✗' if failures or stopped else '✓'} {package}: {len(failures)} of {RUNS} failed beside a load"
              + (", and the one that was stopped" if stopped else ""), flush=True)
        for said in (failures + [stopped])[:1]:
            if said:
                print("\n".join(said.splitlines()[-40:]), flush=True)
        failed += bool(failures or stopped)
        tests.unlink()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
