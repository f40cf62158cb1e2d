"""Compares what the server counts of sandboxes' use with the wall clock, while
they are made, paused, resumed, rolled back and killed, and the server is killed
in between.

    make soak-usage                   10 minutes, four sandboxes at a time
    USAGE_SECONDS=120 make soak-usage

A sandbox is used between two moments that no client knows: within the call that
starts it, and within the call that ends it. So there are a least and a most
time; what was counted must lie between them, and no more than 1 % beside.
Exit status 1 says that it does not.
"""

import contextlib
import json
import os
import random
import sys
import threading
import time
import urllib.request
import uuid

import e2b

import world

SECONDS = int(os.environ.get("USAGE_SECONDS", "600"))
ALIVE = int(os.environ.get("USAGE_SANDBOXES", "4"))
SEED = int(os.environ.get("USAGE_SEED", str(int(time.time()))))
KILL_EVERY = 30  # seconds between two kills of the server
REST = min(60, SECONDS / 10)  # how long a sandbox runs or is paused, at most
MARGIN = 0.01


class Gate:
    """Calls of clients go through it side by side; a kill of the server, alone."""

    def __init__(self):
        self.changed, self.inside, self.closed = threading.Condition(), 0, False

    @contextlib.contextmanager
    def call(self):
        with self.changed:
            self.changed.wait_for(lambda: not self.closed)
            self.inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.changed.notify_all()

    @contextlib.contextmanager
    def alone(self):
        with self.changed:
            self.closed = True
            self.changed.wait_for(lambda: self.inside == 0)
        try:
            yield
        finally:
            with self.changed:
                self.closed = False
                self.changed.notify_all()


class Client(threading.Thread):
    """Has one sandbox after another, and knows for how long each was used."""

    def __init__(self, gate, moments, bill, until):
        super().__init__()
        self.gate, self.random, self.bill, self.until = gate, moments, bill, until
        self.least = self.most = 0.0  # of processors, in seconds
        self.made, self.error = 0, None

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.live()
        except Exception as error:
            self.error = error

    def timed(self, call):
        """When a call was sent and when it was answered, and its answer."""
        with self.gate.call():
            sent = time.monotonic()
            out = call()
            return sent, time.monotonic(), out

    def rest(self):
        time.sleep(max(0, min(self.random.uniform(REST / 3, REST), self.until - time.monotonic())))

    def used(self, began, ended, cpus):
        self.least += cpus * (ended[0] - began[1])
        self.most += cpus * (ended[1] - began[0])

    def live(self):
        *began, sandbox = self.timed(lambda: e2b.Sandbox.create(timeout=3600, metadata={"bill": self.bill}, request_timeout=120))
        self.made += 1
        cpus = self.timed(sandbox.get_info)[2].cpu_count
        id = sandbox.sandbox_id
        for _ in range(self.random.randint(0, 2)):
            self.rest()
            *ended, _ = self.timed(lambda: e2b.Sandbox.pause(id, request_timeout=120))
            self.used(began, ended, cpus)
            self.rest()
            *began, _ = self.timed(lambda: e2b.Sandbox.connect(id, timeout=3600, request_timeout=120))
        self.rest()
        *ended, _ = self.timed(lambda: e2b.Sandbox.kill(id))
        self.used(began, ended, cpus)


def call(server, method, path, body=None):
    request = urllib.request.Request(
        server.url + "/cay/v1" + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read() or "null")


def main():
    server = world.aside("usage", 7184, "10.217.0.0/16", "cyusg")
    server.start()
    wrong = []
    try:
        os.environ.update(server.sdk_env(server.new_key()))
        call(server, "PUT", "/usage-labels", {"labels": ["bill"]})
        gate, bill, kills = Gate(), uuid.uuid4().hex[:12], 0
        until = time.monotonic() + SECONDS
        clients = [Client(gate, random.Random(SEED + n), bill, until) for n in range(ALIVE)]
        for c in clients:
            c.start()
        while time.monotonic() + KILL_EVERY < until:
            time.sleep(KILL_EVERY)
            with gate.alone():
                server.kill9()
                server.start()
                kills += 1
        for c in clients:
            c.join()
        wrong += [f"a client failed: {c.error!r}" for c in clients if c.error]
        rows = call(server, "GET", "/usage?group=label:bill")["rows"]
        got = next(row["amounts"] for row in rows if row["labels"]["bill"] == bill)
        least, most, made = sum(c.least for c in clients), sum(c.most for c in clients), sum(c.made for c in clients)
        if not least * (1 - MARGIN) <= got["vcpu_seconds"] <= most * (1 + MARGIN):
            wrong.append("the time that was counted is not that of the clock")
        if got["creates"] != made:
            wrong.append(f"{got['creates']} creates were counted")
        middle = (least + most) / 2
        print(f"seed {SEED}: {made} sandboxes, {kills} kills of the server; {least:.1f} to {most:.1f} seconds of processors "
              f"by the clock, {got['vcpu_seconds']:.1f} counted: {100 * (got['vcpu_seconds'] / middle - 1):+.2f} % of the middle")
    finally:
        server.cay("down", check=False)
    print(f"{len(wrong)} wrong {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
