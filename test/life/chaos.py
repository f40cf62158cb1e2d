"""Kills the server, and processes of the engine, at random while clients make,
write, pause, resume, fork, checkpoint, roll back and kill sandboxes; then
counts what was lost and what was left.

    make chaos              200 kills of the server, some 100 of the engine
    CHAOS_KILLS=20 CHAOS_SEED=7 make chaos

All that the server acknowledged must be there: a sandbox that was created and not
killed, and every file that it acknowledged. All else may be there or not, but whole. A sandbox that lost a process of its engine may be over, with a
record that says so; nothing else may. Exit status 1 says that something was
lost or left.
"""

import json
import os
import pathlib
import random
import sys
import threading
import time

import e2b

import cayv1
import engines
import world

KILLS = int(os.environ.get("CHAOS_KILLS", "200"))
SEED = int(os.environ.get("CHAOS_SEED", str(int(time.time()))))
CLIENTS = 3


class Lost(Exception):
    """Something acknowledged is not there."""


class Over(Exception):
    """A sandbox ended because its engine was killed, and its record says so."""


class Client(threading.Thread):
    """One user with at most one sandbox, who knows what must be true of it."""

    def __init__(self, number, up, killer):
        super().__init__(daemon=True)
        self.killer = killer
        self.random = random.Random(f"{SEED}-{number}")
        self.up = up  # set while the server serves
        self.id = None
        self.files = {}
        self.written = 0
        self.nodes = {}  # checkpoints that were acknowledged: what was written before each
        self.over = threading.Event()
        self.counts = {}
        self.lost = []

    def run(self):
        while not self.over.is_set():
            self.up.wait()
            step = self.create if self.id is None else self.random.choice(
                [self.write, self.write, self.check, self.pause, self.fork, self.checkpoint, self.rollback, self.fork_node, self.kill])
            try:
                step()
                self.counts[step.__name__] = self.counts.get(step.__name__, 0) + 1
            except Lost as error:
                self.lost.append(str(error))
                self.id = None
            except Over:
                self.counts["over"] = self.counts.get("over", 0) + 1
                self.id = None
            except Exception:
                # The server went away in mid-call, or has not come back: the
                # outcome is open, and the next check must find all that was
                # acknowledged before.
                time.sleep(0.05)

    def create(self):
        sandbox = e2b.Sandbox.create(timeout=3600, metadata={"chaos": "yes"}, request_timeout=30)
        self.id, self.files, self.nodes = sandbox.sandbox_id, {}, {}

    def connect(self):
        """The sandbox, resumed if it is paused."""
        for _ in range(200):
            try:
                return e2b.Sandbox.connect(self.id, timeout=3600, request_timeout=30)
            except e2b.NotFoundException as error:
                self.account(error)
            except Exception:
                if self.over.is_set():
                    raise
                time.sleep(0.1)
        raise Lost(f"sandbox {self.id} cannot be reached")

    def account(self, error):
        """Why a sandbox is gone: only a killed engine is a reason."""
        if not self.killer.hurt(self.id):
            raise Lost(f"sandbox {self.id} is gone: {error}") from error
        reason = cayv1.call("GET", f"/sandboxes/{self.id}/end")["reason"]
        if reason not in ("engine_crash", "host_lost"):
            raise Lost(f"sandbox {self.id} lost its engine, and its record says {reason}") from error
        raise Over(self.id) from error

    def write(self):
        name, content = f"/home/user/{self.written}", self.random.randbytes(2000).hex()
        self.written += 1
        self.connect().files.write(name, content, request_timeout=30)
        self.files[name] = content

    def check(self):
        self.compare(self.connect())

    def compare(self, sandbox, files=None):
        for name, content in (self.files if files is None else files).items():
            try:
                found = sandbox.files.read(name, request_timeout=30)
            except e2b.FileNotFoundException as error:
                raise Lost(f"{name} of {sandbox.sandbox_id} is gone") from error
            if found != content:
                raise Lost(f"{name} of {sandbox.sandbox_id} differs")

    def pause(self):
        self.connect().pause(request_timeout=30)

    def fork(self):
        children = self.connect().fork(count=1, timeout=600, request_timeout=30)
        for child in children:
            sandbox = child if isinstance(child, e2b.Sandbox) else getattr(child, "sandbox", None)
            if sandbox is not None:
                self.compare(sandbox)
                sandbox.kill(request_timeout=30)

    def checkpoint(self):
        self.connect()
        node = cayv1.call("POST", f"/sandboxes/{self.id}/checkpoints", {})["checkpointID"]
        self.nodes[node] = dict(self.files)

    def rollback(self):
        """Goes back to a checkpoint. Where the answer is lost it is either what
        it was or what it was then, and its tree says which."""
        if not self.nodes:
            return
        node = self.random.choice(sorted(self.nodes))
        try:
            cayv1.call("POST", f"/sandboxes/{self.id}/rollback", {"checkpointID": node})
        except cayv1.Failed as error:
            if error.status == 404:
                self.missing(node, error)
            self.settle(node)
            raise
        except Exception:
            self.settle(node)
            raise
        self.files = dict(self.nodes[node])

    def missing(self, node, error):
        """A node that is gone: with its sandbox, or lost."""
        self.connect()
        raise Lost(f"checkpoint {node} of {self.id} is gone: {error}") from error

    def settle(self, node):
        """Finds out what a rollback has come to whose answer was lost."""
        sandbox = self.connect()
        try:
            self.compare(sandbox)
        except Lost:
            then = self.files
            self.files = dict(self.nodes[node])
            try:
                self.compare(sandbox)
            except Lost as error:
                raise Lost(f"{self.id} is neither what it was ({sorted(then)}) nor as at {node}: {error}") from error

    def fork_node(self):
        if not self.nodes:
            return
        node = self.random.choice(sorted(self.nodes))
        try:
            forks = cayv1.call("POST", f"/checkpoints/{node}/fork", {"count": 1, "timeout": 600})
        except cayv1.Failed as error:
            if error.status == 404:
                self.missing(node, error)
            raise
        for fork in forks:
            if "sandbox" in fork:
                sandbox = e2b.Sandbox.connect(fork["sandbox"]["sandboxID"], timeout=600, request_timeout=30)
                self.compare(sandbox, self.nodes[node])
                sandbox.kill(request_timeout=30)

    def kill(self):
        sandbox = self.id
        self.id = None  # whether it was acknowledged or not, it may be gone
        e2b.Sandbox.kill(sandbox, request_timeout=30)


def leftovers(server):
    """The leftovers on this host after every sandbox was killed."""
    found = [f"instance {p.name}" for p in (server.data / "instances").iterdir()]
    run = server.env["CAY_RUN_DIR"].encode()
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = process.read_bytes()
        except OSError:
            continue
        if run in text and b"cay-runsc" in text or run in text and b"gvisor_sentry" in text:
            found.append(f"process {process.parent.name}")
    for cgroup in pathlib.Path("/sys/fs/cgroup").glob(f"**/{server.env['CAY_NETWORK_NAME']}/n*"):
        if len(cgroup.name) == 21:
            found.append(f"cgroup {cgroup}")
    found += [f"file {p}" for p in (server.data / "snapshots").glob(".tmp-*")]
    return found


def leftovers_of_down(server):
    """The leftovers on this host after the server's end."""
    run, name = server.env["CAY_RUN_DIR"], server.env["CAY_NETWORK_NAME"]
    found = [f"mount {line.split()[1]}" for line in open("/proc/mounts") if line.split()[1].startswith((run + "/", str(server.data)))]
    return found + [f"namespace {p.name}" for p in pathlib.Path("/run/netns").glob(f"{name}-*")]


def snapshots(server):
    """Snapshots of sandboxes on the disk."""
    found = set()
    for record in (server.data / "snapshots").glob("*/snapshot.json"):
        if json.loads(record.read_text()).get("sandbox"):
            found.add(record.parent.name)
    return found


def kill_all():
    pages = e2b.Sandbox.list()
    killed = 0
    while pages.has_next:
        for sandbox in pages.next_items():
            e2b.Sandbox.kill(sandbox.sandbox_id)
            killed += 1
    return killed


def main():
    server = world.aside("chaos", 7181, "10.215.0.0/16", "cychs")
    server.start()
    before = snapshots(server)  # of a directory that was used before
    os.environ.update(server.sdk_env(server.new_key()))
    up = threading.Event()
    up.set()
    killer = engines.Killer(server, random.Random(SEED + 1))
    clients = [Client(n, up, killer) for n in range(CLIENTS)]
    for client in clients:
        client.start()
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
            print(f"{kill} kills, {time.monotonic() - begun:.0f} s", flush=True)
    for client in clients:
        client.over.set()
    for client in clients:
        client.join(120)
    lost = [text for client in clients for text in client.lost]
    for client in clients:
        if client.id:
            try:
                client.compare(client.connect())
            except Over:
                pass
            except Exception as error:
                lost.append(str(error))
    killed = kill_all()
    server.stop()
    server.env["CAY_POOL_MEMORY"] = "0"
    server.start()  # what a crash left is removed at a start, and what a pool held
    left = leftovers(server) + [f"snapshot {s}" for s in sorted(snapshots(server) - before)]
    server.cay("down")
    left += leftovers_of_down(server)
    done = {k: sum(c.counts.get(k, 0) for c in clients) for k in sorted({k for c in clients for k in c.counts})}
    print(f"seed {SEED}: {KILLS} kills of the server, of the engine {killer.kills}; done {done}; {killed} sandboxes at the end")
    print(f"{len(lost)} lost {lost[:5]}; {len(left)} left {left[:5]}")
    sys.exit(1 if lost or left else 0)


if __name__ == "__main__":
    main()
