"""A node is drained, and all nodes are replaced, while clients work that ask again where they are told to.

    make drain-cluster                  DRAIN_SANDBOXES (50), half of them busy, leave their node
    make upgrade-cluster BEFORE=PATH    PATH is a program of before, whose nodes are replaced one by one

None of the clients' calls may fail, and no sandbox may be over or forget what its process has in memory.
"""

import os
import time

import chaos
import cluster

SANDBOXES = int(os.environ.get("DRAIN_SANDBOXES", "50"))
MINUTES = 5  # in which a node is empty
PATIENT = ("-own", "-patience", "60s")


def judged(up, load):
    """Ends a load; its calls that failed, and its histories that nothing explains."""
    told = load.tell("check")
    report = told["report"]
    why = told["why"] or {}
    print(f"    {report['Sandboxes']} sandboxes, {report['Calls']} calls, {len(told['failed'] or [])} failed, {sum(why.values())} asked again: {why}", flush=True)
    chaos.settle(up)
    return [*(report["Wrong"] or []), *(told["failed"] or [])]


def drain(up):
    """Drains the last node, which has all sandboxes; whether all went well."""
    node, others = up.nodes[-1], up.nodes[:-1]
    for other in others:
        up.nodes[0].cay("node", "drain", up.id(other), timeout=120)
    busy = SANDBOXES // 2
    load, watch = chaos.Load(up, *PATIENT, "-workers", str(busy), "-most", "1", "-idle", str(SANDBOXES - busy), "-longest", "1000000",
                             "-whats", "write,read", "-pace", "500ms"), chaos.Watch(up)
    try:
        load.tell("begin")
        cluster.until(lambda: len(load.tell("count")) == SANDBOXES, 600, f"{SANDBOXES} sandboxes run")
        for other in others:
            up.nodes[0].cay("node", "undrain", up.id(other))
        cluster.until(lambda: not any(n.get("draining") for n in up.status()), 30, "the others take sandboxes")
        time.sleep(5)  # they have told so
        watch.start()
        begun = time.monotonic()
        up.nodes[0].cay("node", "drain", up.id(node), timeout=60 * MINUTES)
        took = time.monotonic() - begun
        load.tell("rest")
        left = [box for box in load.tell("count") if box in chaos.journals(node)]
        wrong = [*judged(up, load), *watch.twice, *[f"sandbox {box} is on the drained node" for box in left]]
    finally:
        watch.over.set()
        load.end()
    return chaos.tell(f"{SANDBOXES} sandboxes, {busy} of them busy, left their node in {took:.0f} s", wrong)


def upgrade(up):
    """Replaces the nodes of a cluster by today's program; whether all went well."""
    load, watch = chaos.Load(up, *PATIENT), chaos.Watch(up)
    try:
        load.tell("begin")
        watch.start()
        for node in up.nodes:
            time.sleep(10)
            ran = set(chaos.journals(node))
            node.end()
            node.program = cluster.CAY
            node.start()
            up.ready(1200)  # as the documents say: it builds templates where the program has other ones
            versions = [n["version"] for n in up.status()]
            print(f"    node {node.number} is replaced, which had {len(ran)} instances: {versions}", flush=True)
        time.sleep(10)
        load.tell("rest")
        wrong = [*judged(up, load), *watch.twice]
    finally:
        watch.over.set()
        load.end()
    return chaos.tell("all nodes are replaced", wrong)
