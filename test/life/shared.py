"""Three sandboxes do random things to the files of one volume; then each of them,
and the host, must see the same.

    make stress-volumes                              30 s of it
    STRESS_SECONDS=600 STRESS_SEED=7 make stress-volumes
    STRESS_KEEP=1 make stress-volumes            a call that does not return stays as it is

In rounds: three programs in each sandbox make, write, read, rename, link and remove
for some seconds, all of them by the same few names, so that directories become files
and links while others are on their way through them. Then all are still, and each
sandbox and the host list the volume: names, types, modes, owners, links, sizes and
contents. The engine's caches stay from round to round. In the
middle one sandbox is paused and resumed. Exit status 1 says that views differed,
that a call did not return or that an instance died. With STRESS_KEEP, the server
and the sandboxes are left alone after a call that did not return, to be looked at:
the run directory and the sandboxes' names are told, then nothing is done any more.
"""

import concurrent.futures
import errno
import json
import os
import random
import subprocess
import sys
import time

import e2b

import world

SECONDS = int(os.environ.get("STRESS_SECONDS", "30"))
SEED = int(os.environ.get("STRESS_SEED", str(int(time.time()))))
KEEP = os.environ.get("STRESS_KEEP") == "1"
ROUND = 5  # seconds between two comparisons
SANDBOXES, PROGRAMS = 3, 3
VOLUME, TOP = "stress", "/mnt/volume"

# Runs inside, as a user: seed, seconds. It tells how often each thing succeeded.
CHANGE = r'''
import collections, errno, json, os, random, shutil, sys, time

draw, end = random.Random(int(sys.argv[1])), time.monotonic() + float(sys.argv[2])
top, held, done = "/mnt/volume", [], collections.Counter()

def path():
    return "/".join([top] + draw.choices("abc", k=draw.randint(1, 4)))

def write(at, mode="w"):
    with open(at, mode) as f:
        f.write("x" * draw.randint(0, 5000))
        f.flush()
        os.fstat(f.fileno())

def hold(at):
    """Keeps a file open, and writes to one that is kept, which may be removed by now."""
    held.append(os.open(at, os.O_RDWR | os.O_CREAT, 0o644))
    os.pwrite(draw.choice(held), b"held", draw.randint(0, 100))
    if len(held) > 8:
        os.close(held.pop(0))

def replace(at, to):
    other = "%s.%d" % (at, os.getpid())
    write(other)
    os.rename(other, to)

def again(at):
    """A directory goes, and one of the same name comes."""
    os.rmdir(at)
    os.mkdir(at)

def read(at):
    with open(at, "rb") as f:
        f.read()

acts = {
    "mkdir": (4, lambda a, b: os.makedirs(a, exist_ok=True)),
    "write": (4, lambda a, b: write(a)),
    "append": (2, lambda a, b: write(a, "a")),
    "truncate": (1, lambda a, b: os.truncate(a, draw.randint(0, 100))),
    "read": (2, lambda a, b: read(a)),
    "stat": (2, lambda a, b: os.stat(a)),
    "list": (2, lambda a, b: os.listdir(a)),
    "rename": (4, os.rename),
    "replace": (2, replace),
    "remove": (2, lambda a, b: os.unlink(a)),
    "again": (2, lambda a, b: again(a)),
    "rmtree": (1, lambda a, b: shutil.rmtree(a)),
    "chmod": (2, lambda a, b: os.chmod(a, draw.choice([0o755, 0o750, 0o700]))),
    "symlink": (1, lambda a, b: os.symlink(draw.choice([a, "a", "../b", path()]), b)),
    "link": (4, os.link),
    "hold": (2, lambda a, b: hold(a)),
}
names, weights = list(acts), [w for w, _ in acts.values()]
while time.monotonic() < end:
    name = draw.choices(names, weights)[0]
    try:
        acts[name][1](path(), path())
        done[name] += 1
    except shutil.Error:
        pass
    except OSError as error:
        if error.errno == errno.EIO:
            raise
print(json.dumps(done))
'''

# Runs inside as root, and on the host: all that is below a directory, as JSON.
LIST = r'''
import hashlib, json, os, stat, sys

def walk(at, name):
    for entry in sorted(os.listdir(at)):
        full, below = os.path.join(at, entry), name + b"/" + entry
        try:
            s = os.lstat(full)
            what = [oct(s.st_mode), s.st_uid, s.st_gid]
            if stat.S_ISREG(s.st_mode):
                with open(full, "rb") as f:
                    what += [s.st_nlink, s.st_size, hashlib.sha256(f.read()).hexdigest()[:16]]
            elif stat.S_ISLNK(s.st_mode):
                what.append(os.fsdecode(os.readlink(full)))
        except OSError as error:
            what = [repr(error)]
            s = None
        seen[os.fsdecode(below)] = what
        if s and stat.S_ISDIR(s.st_mode):
            try:
                walk(full, below)
            except OSError as error:
                seen[os.fsdecode(below) + "/"] = [repr(error)]

seen = {}
walk(os.fsencode(sys.argv[1]), b"")
print(json.dumps(seen))
'''


def seen_by(sandbox):
    return json.loads(sandbox.commands.run(f"python3 /tmp/list.py {TOP}", user="root", timeout=60).stdout)


def seen_by_host(server, volume):
    """The volume by its own file system."""
    at = world.mounted(server, volume)
    return json.loads(subprocess.run([sys.executable, "-c", LIST, at], check=True, capture_output=True, text=True).stdout)


def shut(view):
    """The paths that a sandbox sees and cannot open until it forgets them: another
    sandbox has replaced a directory above while a program here removed in it. The
    documents tell of it (docs/use/volumes.md)."""
    return [name.rstrip("/") for name, what in view.items() if what == [repr(OSError(errno.EINVAL, os.strerror(errno.EINVAL)))]]


def differ(views):
    """The entries that not all views show alike, with each view's version, and the
    number of shut ones: the views of the others are compared there."""
    closed = {by: shut(view) for by, view in views.items()}
    found = []
    for name in sorted(set().union(*views.values())):
        row = {by: view.get(name) for by, view in views.items()
               if not any(name == at or name.startswith(at + "/") for at in closed[by])}
        if len({json.dumps(what) for what in row.values()}) > 1:
            found.append((name, row))
    return found, sum(map(len, closed.values()))


def change(sandbox, seeds):
    """One round in one sandbox; the sum of what succeeded."""
    programs = " & ".join(f"python3 /tmp/change.py {seed} {ROUND}" for seed in seeds)
    return sandbox.commands.run(f"{programs} & wait", timeout=ROUND + 60, request_timeout=ROUND + 90).stdout


def paused_and_resumed(sandbox):
    sandbox.pause()
    return e2b.Sandbox.connect(sandbox.sandbox_id, timeout=3600)


def leave(server, boxes, bad):
    """Ends this process, and nothing else."""
    print(*bad, f"run directory: {server.env['CAY_RUN_DIR']}, server: {server.process.pid}",
          *[f"sandbox {i}: {box.sandbox_id}" for i, box in enumerate(boxes)], sep="\n", flush=True)
    os._exit(1)


def main():
    server = world.aside("stress-volumes", 7183, "10.217.0.0/16", "cystv")
    server.cay("down", check=False)  # what an earlier run has left
    server.start()
    os.environ.update(server.sdk_env(server.new_key()))
    server.env.update(server.sdk_env(os.environ["E2B_API_KEY"]))
    volume = world.fresh_volume(server, VOLUME)
    boxes = [e2b.Sandbox.create(timeout=3600, volume_mounts={TOP: VOLUME}) for _ in range(SANDBOXES)]
    for box in boxes:
        box.files.write("/tmp/change.py", CHANGE)
        box.files.write("/tmp/list.py", LIST)
    seeds, done, bad, entries, never_opened = random.Random(SEED), {}, [], 0, 0
    rounds = max(2, SECONDS // ROUND)
    with concurrent.futures.ThreadPoolExecutor(SANDBOXES) as pool:
        for number in range(rounds):
            work = [pool.submit(change, box, [seeds.randrange(1 << 30) for _ in range(PROGRAMS)]) for box in boxes]
            for place, one in enumerate(work):
                try:
                    for line in one.result().splitlines():
                        for name, count in json.loads(line).items():
                            done[name] = done.get(name, 0) + count
                except Exception as error:
                    bad.append(f"round {number}, sandbox {place}: {error!r}")
            if bad:
                if KEEP:
                    leave(server, boxes, bad)
                break
            views = {"host": seen_by_host(server, volume), **{f"sandbox {i}": seen_by(box) for i, box in enumerate(boxes)}}
            found, closed = differ(views)
            bad += [f"round {number}: {name}: {row}" for name, row in found]
            entries, never_opened = entries + len(views["host"]), never_opened + closed
            if number == rounds // 2:
                boxes[0] = paused_and_resumed(boxes[0])
    for box in boxes:
        box.kill()
    server.cay("volume", "delete", VOLUME)
    server.stop()
    server.cay("down")
    print(f"seed {SEED}: {rounds} rounds, {sum(done.values())} changes and looks: {done}")
    print(f"{entries} entries compared, {never_opened} shut for one sandbox; {len(bad)} differ", *bad[:20], sep="\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
