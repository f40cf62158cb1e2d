"""Kills the server, and processes of the engine, at random while four sandboxes
write to one volume; then counts what was lost and what was left.

    make chaos-volumes       200 kills of the server, some 100 of the engine
    CHAOS_KILLS=20 CHAOS_SEED=7 make chaos-volumes

A sandbox writes a record, syncs it, and tells. Every record that it told of must be in
the volume at the end, whatever was killed since: in its own log, and in a directory
of names that all four claim with O_EXCL, of which each has one owner. A sandbox
that lost a process of its engine is replaced. Exit status 1 says that something
was lost or left.
"""

import os
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

import e2b

import engines
import world

KILLS = int(os.environ.get("CHAOS_KILLS", "200"))
SEED = int(os.environ.get("CHAOS_SEED", str(int(time.time()))))
WRITERS = 4
VOLUME = "chaos"

# Runs inside: writes records, syncs each, and tells of it. A record that it told is on
# the disk. A claim is told only by the one that made the file, and with its
# directory synced.
WRITE = """
import os, sys
who, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = os.open("/mnt/v/log-" + who, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
claims = os.open("/mnt/v/claims", os.O_RDONLY)
for n in range(first, first + count):
    os.write(log, ("%s %08d %s\\n" % (who, n, "x" * 200)).encode())
    os.fsync(log)
    print("wrote", n, flush=True)
    try:
        claim = os.open("/mnt/v/claims/%08d" % n, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        continue
    os.write(claim, who.encode())
    os.fsync(claim)
    os.fsync(claims)
    os.close(claim)
    print("claimed", n, flush=True)
"""


class Writer(threading.Thread):
    """One sandbox at a time with the volume, and what it was told."""

    def __init__(self, number, up, killer):
        super().__init__(daemon=True)
        self.name_in_volume = f"w{number}"
        self.up = up  # set while the server serves
        self.killer = killer
        self.over = threading.Event()
        self.sandbox = None
        self.next = 0
        self.wrote, self.claimed = set(), set()
        self.boxes = 0
        self.lost = []

    def run(self):
        while not self.over.is_set():
            self.up.wait()
            try:
                if self.sandbox is None:
                    self.create()
                self.write()
            except e2b.NotFoundException as error:
                self.replace(error)
            except Exception:
                # The server went away in mid-call: what was told counts, the
                # rest is open. A sandbox without an engine is told of as gone
                # at the next call, or its time is over.
                time.sleep(0.05)

    def create(self):
        self.sandbox = e2b.Sandbox.create(
            timeout=3600, metadata={"chaos": "volumes"}, volume_mounts={"/mnt/v": VOLUME}, request_timeout=60)
        self.boxes += 1

    def replace(self, error):
        if not self.killer.hurt(self.sandbox.sandbox_id):
            self.lost.append(f"sandbox {self.sandbox.sandbox_id} is gone: {error}")
        self.sandbox = None

    def write(self):
        if not self.sandbox.is_running(request_timeout=30):
            e2b.Sandbox.connect(self.sandbox.sandbox_id, timeout=3600, request_timeout=60)
        first, self.next = self.next, self.next + 20
        self.sandbox.commands.run(
            f"python3 -c '{WRITE}' {self.name_in_volume} {first} 20", on_stdout=self.told, timeout=60, request_timeout=60)

    def told(self, text):
        for word, number in re.findall(r"(wrote|claimed) (\d+)\n", text):
            (self.wrote if word == "wrote" else self.claimed).add(int(number))


def check(server, writers, lost):
    """Compares what was told with what is in the volume."""
    with tempfile.TemporaryDirectory() as directory:
        top = pathlib.Path(directory) / "v"
        server.cay("volume", "cp", "-r", f"{VOLUME}:/", str(top), timeout=600)
        for w in writers:
            path = top / f"log-{w.name_in_volume}"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            found = {int(m[1]) for line in lines if (m := re.fullmatch(rf"{w.name_in_volume} (\d{{8}}) x{{200}}", line))}
            missing = sorted(w.wrote - found)
            if missing:
                lost.append(f"{len(missing)} records of {w.name_in_volume}, first {missing[0]}")
            for n in w.claimed:
                claim = top / "claims" / f"{n:08d}"
                if not claim.exists() or claim.read_text() != w.name_in_volume:
                    lost.append(f"claim {n} of {w.name_in_volume}")
    for n in set.union(*(w.claimed for w in writers)):
        owners = [w.name_in_volume for w in writers if n in w.claimed]
        if len(owners) > 1:
            lost.append(f"claim {n} has the owners {owners}")


def leftovers(server, ids):
    """The leftovers on this host after the server's end."""
    data, run = str(server.data), server.env["CAY_RUN_DIR"]
    mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
    found = [f"mount {m}" for m in mounts if m.startswith((run + "/", data + "/"))]
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = backing.read_text().strip()
        except OSError:
            continue
        if file.startswith(data + "/volumes/"):
            found.append(f"loop device {backing.parent.parent.name} of {file}")
    volumes = server.data / "volumes"
    if volumes.exists():
        found += [f"directory {p.name}" for p in volumes.iterdir() if any(id in p.name for id in ids)]
    instances = server.data / "instances"
    return found + [f"instance {p.name}" for p in instances.iterdir()]


def main():
    server = world.aside("chaos-volumes", 7182, "10.216.0.0/16", "cychv")
    server.start()
    os.environ.update(server.sdk_env(server.new_key()))
    server.env.update(server.sdk_env(os.environ["E2B_API_KEY"]))
    made = world.fresh_volume(server, VOLUME)
    setup = e2b.Sandbox.create(timeout=600, volume_mounts={"/mnt/v": VOLUME})
    setup.commands.run("mkdir /mnt/v/claims && sync")
    setup.kill()
    up = threading.Event()
    up.set()
    killer = engines.Killer(server, random.Random(SEED + 1))
    writers = [Writer(n, up, killer) for n in range(WRITERS)]
    for w in writers:
        w.start()
    moments, begun = random.Random(SEED), time.monotonic()
    for kill in range(1, KILLS + 1):
        time.sleep(moments.uniform(0.05, 1.5))
        if kill % 2 == 0:
            killer.kill_one()
            time.sleep(moments.uniform(0, 0.5))
        up.clear()
        server.kill9()
        server.start()
        up.set()
        if kill % 20 == 0:
            told = sum(len(w.wrote) for w in writers)
            print(f"{kill} kills, {told} records told, {time.monotonic() - begun:.0f} s", flush=True)
    for w in writers:
        w.over.set()
    for w in writers:
        w.join(180)
    lost = [text for w in writers for text in w.lost]
    pages = e2b.Sandbox.list()
    while pages.has_next:
        for sandbox in pages.next_items():
            e2b.Sandbox.kill(sandbox.sandbox_id)
    check(server, writers, lost)
    server.kill9()
    server.start()
    check(server, writers, lost)  # from the disk, by a server that has mounted it anew
    server.cay("volume", "delete", VOLUME)
    server.stop()
    server.cay("down")
    left = leftovers(server, [made])
    print(f"seed {SEED}: {KILLS} kills of the server, of the engine {killer.kills}; {sum(w.boxes for w in writers)} sandboxes "
          f"told of {sum(len(w.wrote) for w in writers)} records and {sum(len(w.claimed) for w in writers)} claims")
    print(f"{len(lost)} lost {lost[:5]}; {len(left)} left {left[:5]}")
    sys.exit(1 if lost or left else 0)


if __name__ == "__main__":
    main()
