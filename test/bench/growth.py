"""How a life's acts grow: with memory, with files, with the depth of the tree.

    BENCH_PARTS=growth make bench
    BENCH_GROWTH=0,100,300    megabytes

Each size is a sandbox of its own. The time of the engine alone is measured on
the very snapshot that was taken, so that both do the same work.
"""

import os

import e2b

from figure import Figure, ms
from life import Rest, raw

SIZES = [int(text) for text in os.environ.get("BENCH_GROWTH", "0,100,300").split(",")]
TURNS = int(os.environ.get("BENCH_GROWTH_N", "3"))
DEPTHS = (1, 10, 30)

HOLD = """
import os, sys, time
memory = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]
print("full", flush=True)
time.sleep(3600)
"""


class Node:
    """One sandbox and what is asked of it."""

    def __init__(self, server):
        self.server, self.rest = server, Rest(server)
        self.box = e2b.Sandbox.create(timeout=3600)
        self.id = self.box.sandbox_id

    def checkpoint(self, **body):
        return self.rest.call("POST", f"/cay/v1/sandboxes/{self.id}/checkpoints", body)["checkpointID"]

    def rollback(self, node):
        self.rest.call("POST", f"/cay/v1/sandboxes/{self.id}/rollback", {"checkpointID": node})

    def tree(self):
        return self.rest.call("GET", f"/cay/v1/sandboxes/{self.id}/checkpoints")

    def sample(self, figure, act, work, node):
        figure.ours.append(ms(act))
        figure.raw.append(raw(self.server, work, snapshot=node)["ms"])


def by_memory(server):
    for size in SIZES:
        node = Node(server)
        node.box.files.write("/tmp/hold.py", HOLD)
        said = iter(node.box.commands.run(f"exec python3 /tmp/hold.py {size}", background=True, timeout=0))
        assert "full" in "".join(str(part) for part in next(said))
        first = node.checkpoint()
        save = Figure(f"checkpoint with {size} MB in memory", "ms", None, "the engine's own, synced")
        back = Figure(f"rollback to {size} MB in memory", "ms", None, "the engine's own restore")
        for _ in range(TURNS):
            node.sample(save, node.checkpoint, "checkpoint", first)
            node.sample(back, lambda: node.rollback(first), "restore", first)
        node.box.kill()
        yield from (save, back)


def by_files(server):
    for size in SIZES:
        node = Node(server)
        node.box.commands.run(f"head -c {size}M /dev/urandom > /home/user/file", timeout=300)
        first = node.checkpoint()
        save = Figure(f"checkpoint of files alone, {size} MB of them", "ms", None, "the engine's own")
        for _ in range(TURNS):
            node.sample(save, lambda: node.checkpoint(kind="files"), "files", first)
        node.box.kill()
        yield save


def by_depth(server):
    node, depth = Node(server), 0
    first = node.checkpoint()
    for wanted in DEPTHS:
        save = Figure(f"checkpoint at depth {wanted}", "ms", None, "the engine's own")
        look = Figure(f"the tree of {wanted}", "ms", None, "–")
        while depth < wanted:
            took, depth = ms(node.checkpoint), depth + 1
        save.ours.append(took)
        for _ in range(TURNS - 1):
            save.ours.append(ms(node.checkpoint))
            depth += 1
        look.ours = [ms(node.tree) for _ in range(TURNS)]
        save.raw = [raw(server, "checkpoint", snapshot=first)["ms"] for _ in range(TURNS)]
        yield from (save, look)
    node.box.kill()


def measure(server):
    for part in (by_memory, by_files, by_depth):
        yield from part(server)
