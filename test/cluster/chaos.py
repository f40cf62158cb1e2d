"""Nodes fail in every way while clients work, and what the clients were answered is judged.

    make chaos-cluster     FAULTS="kill=200 stop=1 …" SEED=7: so many of each, in random order

| kill | the server of a node is killed, and started again |
| stop | it stands still until its node is gone, and goes on |
| records, nodes, all | the node is cut off from PostgreSQL, from the other nodes, from all, for 20 s; with -long behind it for 120 s |
| lose | the machine is gone with its processes and its disk; another one joins |

The clients (clients/main.go) write into the memory of a process of each sandbox and read it back.
After some kills, or one fault of another kind, all sandboxes are asked for once more, and each one's
history must be one that a sandbox on one machine could have: only what ran on a node that was declared
gone may be over, or go on from an older state where that was asked for. All the time, none may act on
two nodes by the journals and the cgroups of its instances.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import bench
import cluster
import fence

FAULTS = os.environ.get("FAULTS", "kill=200 stop=2 records=2 nodes=2 all=2 records-long=2 nodes-long=2 all-long=2 lose=5")
SEED = int(os.environ.get("SEED", str(int(time.time()))))
KILLS = 10  # in one round
GONE = 90  # seconds after which what ran on a lost node is over


class Load:
    """The clients, which do what they are told."""

    def __init__(self, up, *options):
        program = cluster.ROOT / "build" / "clients"
        cluster.run("go", "build", "-o", program, "./test/cluster/clients", cwd=cluster.ROOT)
        fronts = ",".join(node.url for node in up.nodes)
        self.process = subprocess.Popen([program, "-fronts", fronts, *options], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env={**os.environ, **up.environment(up.nodes[0])})

    def tell(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()


def journals(node):
    """The instances that a node has, by the sandbox; of its warm pool too, which no sandbox is yet."""
    found = {}
    for spec in node.data.glob("instances/*/spec.json"):
        try:
            found[json.loads(spec.read_text())["spec"]["sandbox"]] = spec.parent
        except (OSError, ValueError, KeyError):
            pass  # it ends, or is being written
    return found


def acts(node, journal):
    """Whether an instance has processes that are not frozen."""
    try:
        group = pathlib.Path("/sys/fs/cgroup")
        state = group / "freezer" / node.name / journal.name / "freezer.state"
        procs = group / "pids" / node.name / journal.name / "cgroup.procs"
        return bool(procs.read_text()) and not (state.exists() and state.read_text().strip() == "FROZEN")
    except OSError:
        return False


class Watch(threading.Thread):
    """Notes sandboxes that act on two nodes at once."""

    def __init__(self, up):
        super().__init__(daemon=True)
        self.up, self.twice, self.over = up, set(), threading.Event()

    def run(self):
        while not self.over.wait(0.1):
            seen = {}
            for node in self.up.nodes:
                for box, journal in journals(node).items():
                    # One that has just moved is seen on both: a second look at the first tells.
                    for other, old in seen.get(box, []):
                        if acts(other, old) and acts(node, journal) and acts(other, old):
                            self.twice.add(f"sandbox {box} acts on nodes {other.number} and {node.number}")
                    seen.setdefault(box, []).append((node, journal))


class Chaos:
    """Faults of a cluster under load."""

    def __init__(self, up):
        self.up, self.random = up, random.Random(SEED)
        self.names = {node: up.id(node) for node in up.nodes}
        self.wrong, self.slowest = [], 0

    def other(self, node):
        return self.random.choice([n for n in self.up.nodes if n is not node])

    def gone(self, node):
        """Waits until a node is declared gone."""
        by, name = self.other(node), self.names[node]
        cluster.until(lambda: next(n["state"] for n in self.up.status(by) if n["nodeID"] == name) == "gone", 150, f"node {node.number} is gone")

    def again(self, node):
        """Starts the server of a node that was gone: the one that was followed ends by itself."""
        try:
            cluster.until(lambda: node.server.poll() is not None, 90, f"the server of node {node.number}, which was followed, ends")
        except RuntimeError:
            os.kill(node.pid(), signal.SIGQUIT)  # its log has what it waits for
            time.sleep(5)
            raise
        node.start()

    def kill(self, node):
        os.kill(node.pid(), signal.SIGKILL)
        node.server.wait()
        node.start()

    def stop(self, node):
        pid = node.pid()
        os.kill(pid, signal.SIGSTOP)
        self.gone(node)
        time.sleep(self.random.uniform(0, 5))
        for one in pid, node.server.pid:  # nsenter stands still with its child
            os.kill(one, signal.SIGCONT)
        self.again(node)

    def cut(self, node, what, seconds):
        fence.sever(node, self.up, what)
        time.sleep(seconds)
        fence.mend(node)
        if self.lossy(what, seconds):
            self.again(node)

    @staticmethod
    def lossy(what, seconds):
        """Whether a node is declared gone that is cut off for so long."""
        return what != "nodes" and seconds > 75

    def lose(self, node):
        ran = [box for box in journals(node) if self.onward(box, node) is False]
        begun = time.monotonic()
        node.lose()
        for box in ran:
            cluster.until(lambda box=box: self.ended(box, node), GONE + 30, f"sandbox {box} is over, which ran on a lost node")
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, took)
        if ran and took > GONE:
            self.wrong.append(f"what ran on a lost node was over after {took:.0f} s")
        self.gone(node)
        self.other(node).cay("node", "remove", self.names[node])
        shutil.rmtree(node.data)
        node.boot()
        cluster.plant(node)
        self.up.join(node)
        self.names[node] = self.up.id(node)

    def onward(self, box, but):
        """Whether a sandbox that runs goes on when its machine is lost; None of one that does not run."""
        try:
            info = self.ask(but, "GET", f"/sandboxes/{box}")
        except RuntimeError:
            return None
        return info.get("onHostLoss") == "resume" if info["state"] == "running" else None

    def ended(self, box, but):
        try:
            self.ask(but, "GET", f"/cay/v1/sandboxes/{box}/end")
            return True
        except RuntimeError as error:
            if " 409 " not in str(error) and " 503 " not in str(error):
                raise
            return False

    def ask(self, but, method, path):
        """Asks a node other than one, by a connection of its own."""
        api = bench.Api(self.other(but), self.up.variables["E2B_API_KEY"])
        try:
            return api.ask(method, path)
        finally:
            api.conn.close()

    def do(self, fault, node):
        what, _, long = fault.partition("-")
        if what in ("records", "nodes", "all"):
            self.cut(node, what, 120 if long else 20)
            return self.lossy(what, 120 if long else 20)
        getattr(self, what)(node)
        return what in ("stop", "lose")


def settle(up):
    """Ends what creates made that were not answered, and waits until no instance of a sandbox is left."""
    api = bench.Api(up.nodes[0], up.variables["E2B_API_KEY"])
    boxes = api.ask("GET", "/v2/sandboxes?state=running,paused&limit=100")
    for box in boxes:
        api.kill(box["sandboxID"])
    api.conn.close()

    def left():
        return [str(j) for node in up.nodes for j in journals(node).values() if not (j / "pooled").exists()]
    cluster.until(lambda: not left(), 60, "no instance of a sandbox is left")
    return len(boxes)


def tell(what, wrong):
    """Prints what was done and what was wrong; whether nothing was."""
    print(f"{what}; {len(wrong)} wrong", *wrong, sep="\n", flush=True)
    return not wrong


def rounds(faults, moments):
    """The faults in random order, of which kills come several in one round."""
    out = []
    for fault, count in faults.items():
        each = KILLS if fault == "kill" else 1
        while count > 0:
            out.append([fault] * min(each, count))
            count -= each
    moments.shuffle(out)
    return out


def run(up):
    """Has the nodes of a cluster fail; whether nothing was wrong."""
    chaos, load, watch = Chaos(up), Load(up), Watch(up)
    watch.start()
    faults = {name: int(count) for name, count in (part.split("=") for part in FAULTS.split())}
    total, why, begun = {"faults": {}, "sandboxes": 0, "calls": 0, "unclear": 0}, {}, time.monotonic()
    try:
        for number, each in enumerate(rounds(faults, chaos.random), 1):
            load.tell("begin")
            for fault in each:
                time.sleep(chaos.random.uniform(0.5, 2.5) if fault == "kill" else 4)
                node = chaos.random.choice(up.nodes)
                load.tell("fault")
                print(f"    {time.strftime('%H:%M:%S')} {fault} of node {node.number}", flush=True)
                if chaos.do(fault, node):
                    load.tell("lose")
                total["faults"][fault] = total["faults"].get(fault, 0) + 1
            load.tell("rest")
            up.ready(180)
            told = load.tell("check")
            report = told["report"]
            wrong = [*(report["Wrong"] or []), *sorted(watch.twice), *chaos.wrong]
            watch.twice, chaos.wrong = set(), []
            unknown = settle(up)
            for key in "sandboxes", "calls", "unclear":
                total[key] += report[key.title()]
            for text, count in (told["why"] or {}).items():
                why[text] = why.get(text, 0) + count
            print(f"  round {number}, {time.monotonic() - begun:.0f} s: {report['Sandboxes']} sandboxes, {report['Calls']} calls, "
                  f"{report['Unclear']} without a clear answer, {unknown} of creates without one, {len(wrong)} wrong", flush=True)
            for text in wrong:
                print(text, flush=True)
            total["wrong"] = total.get("wrong", 0) + len(wrong)
    finally:
        watch.over.set()
        load.end()
        (cluster.HOME / "why.json").write_text(json.dumps(why, indent=1))
    print(f"seed {SEED}, {time.monotonic() - begun:.0f} s: {total}; what ran on a lost node was over after {chaos.slowest:.0f} s at most")
    return total.get("wrong", 0) == 0


if __name__ == "__main__":
    sys.exit("make chaos-cluster")
