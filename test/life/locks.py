"""Two sandboxes share one volume and do the same thing to it, in every way that programs
keep each other out.

    make locks                                   100 operations of each program
    LOCKS_OPERATIONS=10000 LOCKS_KINDS=flock,sqlite-wal make locks

Two programs in each sandbox add to one number, in a file and in shared memory, under
flock, fcntl and OFD locks and under a file made with O_EXCL, claim names by rename,
insert rows with SQLite and records with LMDB, and commit with git; dpkg meets the lock
of the other sandbox; npm fills one cache.
Every operation that succeeded must be there in the end. Exit status 1 says that
something was lost, or that a lock did not exclude. At the end, a commit of SQLite on the
volume is measured beside one on the sandbox's own disk and a sync of the host's.
"""

import concurrent.futures
import json
import os
import statistics
import sys
import time

import e2b

import world

OPERATIONS = int(os.environ.get("LOCKS_OPERATIONS", "100"))
PROGRAMS = 2  # in each of the two sandboxes
VOLUME, TOP = "locks", "/mnt/volume"

# Runs inside, as a user: kind, who, number of operations. It prints how many
# succeeded.
WORK = r'''
import contextlib, fcntl, os, sqlite3, struct, subprocess, sys, time

kind, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
top = "/mnt/volume/" + kind

def add(path):
    with open(path, "r+") as f:
        n = int(f.read() or 0)
        f.seek(0)
        f.write(str(n + 1))

@contextlib.contextmanager
def flock(f):
    fcntl.flock(f, fcntl.LOCK_EX)
    yield
    fcntl.flock(f, fcntl.LOCK_UN)

@contextlib.contextmanager
def posix(f):
    fcntl.lockf(f, fcntl.LOCK_EX)
    yield
    fcntl.lockf(f, fcntl.LOCK_UN)

@contextlib.contextmanager
def ofd(f, wait=38):
    for command, kind in ((wait, fcntl.F_WRLCK), (wait - 1, fcntl.F_UNLCK)):
        fcntl.fcntl(f, command, struct.pack("hhqqixxxx", kind, 0, 0, 0, 0))
        if kind == fcntl.F_WRLCK:
            yield

def locked(how):
    with open(top + "/lock", "r+") as f:
        for _ in range(count):
            with how(f):
                add(top + "/number")
            yield

def shared():
    """The number is in shared memory, under a lock."""
    import mmap
    with open(top + "/number", "r+b") as f, mmap.mmap(f.fileno(), 8) as memory:
        for _ in range(count):
            with posix(f):
                memory[:8] = struct.pack("q", struct.unpack("q", memory[:8])[0] + 1)
            yield

def excl():
    for _ in range(count):
        while True:
            try:
                os.close(os.open(top + "/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
            except FileExistsError:
                time.sleep(0.001)
        add(top + "/number")
        os.unlink(top + "/lock")
        yield

def rename():
    """Each name is claimed once, by the first rename."""
    for n in range(count):
        try:
            os.rename("%s/%06d" % (top, n), "%s/%s-%06d" % (top, who, n))
        except FileNotFoundError:
            continue
        yield

def sqlite(mode):
    db = sqlite3.connect(top + "/db", timeout=120, isolation_level=None)
    if db.execute("pragma journal_mode=" + mode).fetchone()[0] != mode:
        raise SystemExit("no journal mode " + mode)
    for n in range(count):
        db.execute("begin immediate")
        (last,) = db.execute("select coalesce(max(n), 0) from t").fetchone()
        db.execute("insert into t values (?, ?, ?)", (last + 1, who, n))
        db.execute("commit")
        yield
    db.close()

def lmdb():
    import lmdb
    env = lmdb.open(top + "/db", map_size=64 << 20)
    for n in range(count):
        with env.begin(write=True) as change:
            change.put(("%s-%d" % (who, n)).encode(), b"x")
        yield

def git():
    for n in range(count):
        while subprocess.run(["git", "-C", top, "commit", "-q", "--allow-empty", "-m", "%s-%d" % (who, n)],
                             stderr=subprocess.DEVNULL).returncode:
            time.sleep(0.02)
        yield

def npm():
    for n in range(count):
        at = "/tmp/npm-%s-%d" % (who, n)
        os.makedirs(at)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--cache", top + "/cache",
                        "--prefix", at, top + "/one-1.0.0.tgz"], check=True, stdout=subprocess.DEVNULL)
        if not os.path.exists(at + "/node_modules/one/package.json"):
            raise SystemExit("npm installed nothing")
        yield

done = sum(1 for _ in {
    "flock": lambda: locked(flock), "fcntl": lambda: locked(posix), "ofd": lambda: locked(ofd), "shared": shared, "excl": excl,
    "rename": rename, "sqlite-delete": lambda: sqlite("delete"), "sqlite-wal": lambda: sqlite("wal"),
    "lmdb": lmdb, "git": git, "npm": npm,
}[kind]())
print(done)
'''

# A commit of SQLite, and a sync, in milliseconds: the median.
COMMIT = r'''
import os, sqlite3, statistics, sys, time
at = sys.argv[1]
db = sqlite3.connect(at + "/commits", isolation_level=None)
db.execute("create table if not exists t (n)")
took = []
for n in range(50):
    begin = time.perf_counter()
    db.execute("insert into t values (?)", (n,))
    took.append((time.perf_counter() - begin) * 1000)
print(statistics.median(took))
'''


def number(kind):
    """A number in a file, and the file with its lock."""
    return (f"mkdir {TOP}/{kind} && cd {TOP}/{kind} && printf 0 > number" + ("" if kind == "excl" else " && touch lock"),
            f"cat {TOP}/{kind}/number")


def database(kind):
    mode = kind.removeprefix("sqlite-")
    return (f"mkdir {TOP}/{kind} && python3 -c \"import sqlite3; d = sqlite3.connect('{TOP}/{kind}/db'); "
            f"d.execute('pragma journal_mode={mode}'); d.execute('create table t (n integer primary key, who, i)')\"",
            f"python3 -c \"import sqlite3; d = sqlite3.connect('{TOP}/{kind}/db'); "
            "assert d.execute('pragma integrity_check').fetchone() == ('ok',); "
            "print(d.execute('select count(*) from t').fetchone()[0])\"")


# How each kind begins, and how it is counted in the end.
KINDS = {
    "flock": number("flock"), "fcntl": number("fcntl"), "ofd": number("ofd"), "excl": number("excl"),
    "shared": (f"mkdir {TOP}/shared && head -c 8 /dev/zero > {TOP}/shared/number", f"od -An -td8 {TOP}/shared/number"),
    "rename": (f"mkdir {TOP}/rename && cd {TOP}/rename && seq -f %06g 0 {OPERATIONS - 1} | xargs touch",
               f"ls {TOP}/rename | grep -c -- -"),
    "sqlite-delete": database("sqlite-delete"), "sqlite-wal": database("sqlite-wal"),
    "lmdb": (f"mkdir -p {TOP}/lmdb/db",
             f"python3 -c \"import lmdb; print(lmdb.open('{TOP}/lmdb/db', map_size=64 << 20).stat()['entries'])\""),
    "git": (f"git init -q {TOP}/git && cd {TOP}/git && git config user.name n && git config user.email e@e && git commit -q --allow-empty -m first",
            f"cd {TOP}/git && git fsck --strict >&2 && expr $(git rev-list --count HEAD) - 1"),
    "npm": (f"mkdir -p {TOP}/npm/one && cd {TOP}/npm && echo '{{\"name\":\"one\",\"version\":\"1.0.0\"}}' > one/package.json && npm pack --silent ./one",
            f"npm cache verify --cache {TOP}/npm/cache >&2 && ls -d /tmp/npm-* | wc -l"),
}
FEW = {"git": 10, "npm": 30}  # these are processes, and take this many times as long


def both(boxes, kind):
    """The kind by all programs of both sandboxes: the operations that succeeded, and those that are there."""
    begin, end = KINDS[kind]
    if kind == "lmdb":  # of PyPI
        for box in boxes:
            run(box, "python3 -c 'import lmdb' 2>/dev/null || pip install --quiet --user --break-system-packages lmdb")
    count = max(1, OPERATIONS // FEW.get(kind, 1))
    run(boxes[0], begin)
    command = " & ".join(f"python3 /tmp/work.py {kind} $WHO{p} {count} 2>&1" for p in range(PROGRAMS)) + " & wait"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        said = pool.map(lambda at: run(boxes[at], command, {f"WHO{p}": f"{'ab'[at]}{p}" for p in range(PROGRAMS)}), range(2))
        lines = [line for text in said for line in text.splitlines()]
    done = [int(line) for line in lines if line.isdecimal()]
    if len(lines) != len(done):
        raise RuntimeError("; ".join(line for line in lines if not line.isdecimal())[-500:])
    there = sum(int(run(box, end)) for box in (boxes if kind == "npm" else boxes[1:]))
    return sum(done), there


def run(box, command, envs=None):
    return box.commands.run(command, envs=envs, timeout=3600, request_timeout=3700).stdout


def dpkg(boxes):
    """dpkg of one sandbox is refused at once while the other has its lock."""
    admin = f"{TOP}/dpkg"
    run(boxes[0], f"mkdir -p {admin}/updates {admin}/info {admin}/triggers && touch {admin}/status {admin}/available {admin}/lock")
    holder = boxes[0].commands.run(
        f"python3 -c \"import fcntl, time; f = open('{admin}/lock', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('has it', flush=True); time.sleep(600)\"",
        background=True, timeout=600)
    for out, _, _ in holder:
        if out and "has it" in out:
            break
    try:
        run(boxes[1], f"dpkg --admindir={admin} --clear-avail")
        return "dpkg took a lock that the other sandbox has"
    except e2b.CommandExitException as refused:
        if "lock" not in refused.stderr:
            return f"dpkg says {refused.stderr!r}"
    finally:
        holder.kill()
    run(boxes[1], f"dpkg --admindir={admin} --clear-avail")
    return None


def commits(server, boxes, volume):
    """Medians of a commit on the volume and on the sandbox's disk, and of a sync by the host on the volume's file system."""
    figures = {at: float(run(boxes[0], f"mkdir -p {at} && python3 /tmp/commit.py {at}")) for at in (f"{TOP}/commits", "/tmp/commits")}
    host, took = world.mounted(server, volume), []
    with open(host + "/sync", "wb") as f:
        for _ in range(50):
            begin = time.perf_counter()
            f.write(b"x" * 4096)
            f.flush()
            os.fsync(f.fileno())
            took.append((time.perf_counter() - begin) * 1000)
    return {"volume": figures[f"{TOP}/commits"], "own disk": figures["/tmp/commits"], "host's sync": statistics.median(took)}


def main():
    server = world.aside("locks", 7187, "10.221.0.0/16", "cylck")
    server.cay("down", check=False)  # what an earlier run has left
    server.start(templates=("base",))
    os.environ.update(server.sdk_env(server.new_key()))
    server.env.update(server.sdk_env(os.environ["E2B_API_KEY"]))
    volume = world.fresh_volume(server, VOLUME)
    boxes = [e2b.Sandbox.create(timeout=3600, volume_mounts={TOP: VOLUME}) for _ in range(2)]
    for box in boxes:
        box.files.write("/tmp/work.py", WORK)
        box.files.write("/tmp/commit.py", COMMIT)
    bad = []
    for kind in os.environ.get("LOCKS_KINDS", ",".join([*KINDS, "dpkg"])).split(","):
        begin = time.monotonic()
        try:
            if kind == "dpkg":
                error = dpkg(boxes)
            else:
                succeeded, there = both(boxes, kind)
                error = None if succeeded == there else f"{succeeded} succeeded, {there} are there"
        except Exception as failed:
            error = repr(failed)
        print(f"{kind}: {error or 'excludes'}, {time.monotonic() - begin:.1f} s", flush=True)
        bad += [kind] if error else []
    print(json.dumps({name: round(ms, 2) for name, ms in commits(server, boxes, volume).items()}), "ms a durable commit")
    for box in boxes:
        box.kill()
    server.cay("volume", "delete", VOLUME)
    server.stop()
    server.cay("down")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
