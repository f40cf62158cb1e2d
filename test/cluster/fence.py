"""A node is cut off while sandboxes send: what asked for it goes on elsewhere, and never sends from two nodes.

The judge is this machine: each packet says its sandbox and its count, and came from the node that
it left. On its way out a node hides its sandboxes behind its own address.
"""

import json
import socket
import threading
import time

import bench
import cluster

PORT = 7999
SEND = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n = 0
while True:
    n += 1
    try:
        out.sendto(f"{sys.argv[1]} {n}".encode(), (sys.argv[2], int(sys.argv[3])))
    except OSError:
        pass
    time.sleep(0.05)
"""


class Judge:
    """Notes what came, from where and when."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((f"{cluster.NET}.1", PORT))
        self.came = {}  # by the sandbox: (time, node's address, count)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                text, (source, _) = self.socket.recvfrom(200)
            except OSError:
                return
            box, count = text.decode().split()
            self.came.setdefault(box, []).append((time.monotonic(), source, int(count)))

    def last(self, box, source):
        return max((at for at, by, _ in self.came.get(box, []) if by == source), default=None)

    def first(self, box, but):
        return min((at for at, by, _ in self.came.get(box, []) if by != but), default=None)


def cut(up):
    """Cuts the last node from the records and the other nodes, but not from the judge, until others go on with what it had, and lets it back."""
    judge = Judge()
    try:
        boxes = [started(up, judge, resume) for resume in (True,) * 6 + (False,) * 3]
        lost = up.nodes[-1]
        on = {box: bench.owner(up, box) for box, _ in boxes}
        there = [(box, resume) for box, resume in boxes if on[box] is lost]
        if not any(resume for _, resume in there):
            raise RuntimeError("none of the sandboxes is on the last node")
        sever(lost, up, "records", "bucket", "nodes")
        begun = time.monotonic()
        for box, resume in there:
            if resume:
                cluster.until(lambda box=box: judge.first(box, lost.address), 240, f"sandbox {box} sends from another node")
        mend(lost)
        cluster.until(lambda: lost.server.poll() is not None, 120, "the server of the node that was cut off ends")
        lost.start()
        time.sleep(5)  # in which nothing may come from there
        for box, resume in there:
            ended, again = judge.last(box, lost.address), judge.first(box, lost.address)
            if not resume:
                print(f"    sandbox {box}, which asked for nothing, sent on for {ended - begun:.1f} s", flush=True)
                continue
            assert ended < again, f"sandbox {box} sent from both nodes for {ended - again:.1f} s"
            assert ended - begun < 60, f"sandbox {box} sent for {ended - begun:.1f} s after its node was cut off"
            print(f"    sandbox {box} sent for {ended - begun:.1f} s after its node was cut off, and from another one {again - begun:.1f} s after", flush=True)
            told = [json.loads(line) for line in cay(up, "--json", "sandbox", "events", box).splitlines()]
            moment = [e for e in told if e["type"] == "sandbox.paused" and e.get("reason") == "host_lost"]
            assert moment and moment[0]["data"]["savedAt"], told
    finally:
        judge.socket.close()


def cay(up, *args):
    """Runs the command line against the first node, as a client does."""
    first = up.nodes[0]
    return cluster.run(*first.command(cluster.CAY, *args), env={**first.env, **up.environment(first)})


def started(up, judge, resume):
    """A sandbox that sends, with a checkpoint that the bucket has where it is to go on."""
    how = ["--on-host-loss", "resume"] if resume else []
    box = json.loads(cay(up, "--json", "sandbox", "create", "--timeout", "1h", *how))["sandboxID"]
    cay(up, "sandbox", "exec", box, "--", "sh", "-c", f"cat > /tmp/send.py <<'END'\n{SEND}\nEND\nsetsid nohup python3 /tmp/send.py {box} {cluster.NET}.1 {PORT} >/dev/null 2>&1 &")
    cluster.until(lambda: judge.came.get(box), 30, f"sandbox {box} sends")
    if resume:
        cay(up, "sandbox", "checkpoint", box)
        cluster.until(lambda: any(c.get("replicatedAt") for c in json.loads(cay(up, "--json", "sandbox", "tree", box))["checkpoints"]), 120, f"the bucket has a checkpoint of {box}")
    return box, resume


def sever(node, up, *what):
    """Drops what goes between a node and PostgreSQL, the bucket, the other nodes, or all."""
    others = ", ".join(n.address for n in up.nodes if n is not node)
    far = {"records": f"ip {{way}} {cluster.NET}.1 tcp {{port}} 5432", "bucket": f"ip {{way}} {cluster.NET}.1 tcp {{port}} 7480",
           "nodes": f"ip {{way}} {{{{ {others} }}}}", "all": "{by} eth0"}
    rules = ["add table inet cut"]
    for hook, way, port, by in ("output", "daddr", "dport", "oif"), ("input", "saddr", "sport", "iif"):
        rules.append(f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}")
        rules += [f"add rule inet cut {hook} {far[part].format(way=way, port=port, by=by)} drop" for part in what]
    node.inside("nft", "; ".join(rules))


def mend(node):
    node.inside("nft", "delete", "table", "inet", "cut")
