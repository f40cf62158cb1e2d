"""The price of a cluster: its bars, each beside one machine in the same run, by turns.

    make bench-cluster     BENCH_N (40) creates, ten times as many requests, a tenth of resumes
"""

import http.client
import json
import os
import pathlib
import re
import ssl
import statistics
import sys
import tempfile
import time
import urllib.parse

import cluster

sys.path.insert(0, str(cluster.ROOT / "test" / "bench"))
from figure import Figure, ms  # noqa: E402

N = int(os.environ.get("BENCH_N", "40"))
RATE = 100_000_000  # bytes a second, of a narrow link
TEMPLATE = "code-interpreter-v1"  # whose memory is a Jupyter's


class Alone(cluster.Node):
    """A machine that is no member, with its records in SQLite."""

    @property
    def env(self):
        shared = ("CAY_DATABASE_URL", "CAY_BUCKET", "CAY_CLUSTER_ADDRESS", "AWS_")
        return {name: value for name, value in super().env.items() if not name.startswith(shared)}


class Api:
    """A server, by one connection that is kept."""

    def __init__(self, node, key):
        trust = ssl.create_default_context(cafile=node.data / "tls" / "authority.crt")
        self.conn = http.client.HTTPSConnection(node.address, cluster.PORT, context=trust, timeout=120)
        self.key = key

    def ask(self, method, path, body=None, **headers):
        headers = {"X-API-Key": self.key, "Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        self.conn.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.conn.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text!r}")
        return json.loads(text) if text[:1] in (b"{", b"[") else text

    def create(self, template="base"):
        return self.ask("POST", "/v2/sandboxes", {"templateID": template, "timeout": 3600})["sandboxID"]

    def kill(self, box):
        self.ask("DELETE", f"/sandboxes/{box}")

    def look(self, box):
        """A request into a sandbox that its agent answers at once."""
        return self.ask("GET", "/health", E2b_Sandbox_Id=box, E2b_Sandbox_Port="49983")

    def pause(self, box):
        self.ask("POST", f"/sandboxes/{box}/pause", {"durable": True} if self.durable else {})

    durable = False

    def resume(self, box):
        self.ask("POST", f"/sandboxes/{box}/connect", {"timeout": 3600})
        self.look(box)


def key_of(node):
    return json.loads(node.cay("--json", "env", "--new-key", "bench"))["E2B_API_KEY"]


def owner(up, box):
    """The node that a sandbox runs on, by the journals."""
    for node in up.nodes:
        for journal in node.data.glob("instances/*/spec.json"):
            if box in journal.read_text():
                return node
    raise RuntimeError(f"sandbox {box} runs nowhere")


def creates(one, many):
    """Creates from the pool, by turns. A pause between them has the pools full again."""
    figures = [Figure("warm create through front, PostgreSQL and node, p50", "ms", lambda raw: 1.5 * raw, "1.5 × one machine with SQLite"),
               Figure("the same, p99", "ms", lambda raw: 2 * raw, "2 ×", at=0.99)]
    for n in range(N + 4):
        for api, samples in ((one, "raw"), (many, "ours")):
            made = []
            took = ms(lambda api=api, made=made: made.append(api.create()))
            api.kill(made[0])
            if n >= 4:  # the first ones fill the pools
                for figure in figures:
                    getattr(figure, samples).append(took)
            time.sleep(1)
    return figures


def requests(up, key):
    """Requests into a sandbox straight to its node and through another one, by turns."""
    apis = {node: Api(node, key) for node in up.nodes}
    box = apis[up.nodes[0]].create()
    at = owner(up, box)
    other = next(node for node in up.nodes if node is not at)
    figure = Figure("a request into a sandbox through a front, p50", "ms", lambda raw: raw + 0.5, "straight to its node + 0.5 ms", digits=2)
    for n in range(10 * N + 20):
        for node, samples in ((at, figure.raw), (other, figure.ours)):
            took = ms(lambda node=node: apis[node].look(box))
            if n >= 20:
                samples.append(took)
    apis[at].kill(box)
    return [figure]


class Ways:
    """The fronts' ways to sandboxes that move: what a stale one costs."""

    def __init__(self, up, key):
        self.apis = {node: Api(node, key) for node in up.nodes}
        self.at_once = self.later = 0

    def learn(self, box):
        """Has each front know where a sandbox is."""
        for api in self.apis.values():
            api.look(box)

    def moved(self, box):
        """Asks for a sandbox that has moved, at once and after a second: each answer must be right."""
        before = self.trips()
        self.learn(box)
        time.sleep(1)
        then = self.trips()
        for _ in range(20):
            self.learn(box)
        self.at_once, self.later = self.at_once + then - before, self.later + self.trips() - then

    def trips(self):
        return sum(int(node.metric("cay_front_moved_total")) for node in self.apis)


def moves(up, api, box):
    """Has a sandbox resume on another node than the one that it is paused on; how long that takes."""
    at = owner(up, box)
    api.pause(box)
    node = up.id(at)
    up.nodes[0].cay("node", "drain", node, "--wait", timeout=120)
    took = ms(lambda: api.resume(box))
    if owner(up, box) is at:
        raise RuntimeError("it resumed where it was")
    up.nodes[0].cay("node", "undrain", node)
    cluster.until(lambda: all(n["state"] == "ready" and not n.get("draining") for n in up.status()), 30, "all nodes take sandboxes")
    return took


def resumes(up, api, ways):
    """A Jupyter that was paused: on its node, and on another one."""
    figure = Figure("resume of a Jupyter on a cold node", "ms", lambda raw: 1.5 * raw, "1.5 × on its own")
    api.durable = True
    for _ in range(max(2, N // 10)):
        box = api.create(TEMPLATE)
        api.pause(box)
        figure.raw.append(ms(lambda box=box: api.resume(box)))
        ways.learn(box)
        figure.ours.append(moves(up, api, box))
        ways.moved(box)
        api.kill(box)
    return [figure]


def narrow(up, api):
    """The same over links of RATE, and a pause that answers when the bucket has its copy."""
    sizes = []

    def bar(raw):
        return raw + 1.2 * 1000 * statistics.median(sizes) / RATE
    rule = f"on its own + bytes / {RATE / 1e6:.0f} MB/s × 1.2"
    resume = Figure(f"resume of a Jupyter on a cold node at {RATE / 1e6:.0f} MB/s", "ms", bar, rule)
    pause = Figure(f"pause of a Jupyter until the bucket has it at {RATE / 1e6:.0f} MB/s", "ms", bar, rule)
    limit(up, RATE)
    try:
        for _ in range(max(2, N // 10)):
            box = api.create(TEMPLATE)
            for durable, samples in ((False, pause.raw), (True, pause.ours)):
                api.durable = durable
                samples.append(ms(lambda box=box: api.pause(box)))
                cluster.until(lambda box=box: api.ask("GET", f"/sandboxes/{box}")["replicated"], 60, "the copy in the bucket")
                resume.raw.append(ms(lambda box=box: api.resume(box)))
            sizes.append(newest(next((cluster.HOME / "bucket").rglob("snapshots"))))
            resume.ours.append(moves(up, api, box))
            api.kill(box)
    finally:
        limit(up, None)
    return [resume, pause]


def newest(snapshots):
    """The bytes that the newest copy takes in the bucket."""
    last = max(snapshots.iterdir(), key=lambda path: path.stat().st_mtime)
    return sum(path.stat().st_size for path in last.rglob("*") if path.is_file())


def limit(up, rate):
    """Limits what each node sends and gets, in bytes a second."""
    for node in up.nodes:
        for tc, device in ((node.inside, "eth0"), (cluster.run, node.name)):
            if rate is None:
                tc("tc", "qdisc", "delete", "dev", device, "root")
            else:
                tc("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{8 * rate}bit", "burst", "1mb", "latency", "50ms")


def commit(up):
    """How long a commit of one row waits for that disk of PostgreSQL, in ms, by pgbench at the
    rate of the creates. A commit of SQLite waits for none: with the power its machine's
    sandboxes are gone, too."""
    url = up.env["CAY_DATABASE_URL"]
    up.nodes[0].inside(up.programs / "psql", "-qc", "CREATE TABLE commits (n BIGINT)", url)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("INSERT INTO commits VALUES (1);\n")
        script.flush()
        out = up.nodes[0].inside(up.programs / "pgbench", "--no-vacuum", "--rate=2", f"--transactions={N}", f"--file={script.name}", url)
    lag = float(re.search(r"schedule lag: avg ([0-9.]+)", out)[1])
    return float(re.search(r"latency average = ([0-9.]+) ms", out)[1]) - lag


def rest():
    """Waits until the bucket has stopped to grow: images of Cay's templates are copied after a start."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < 15:
        time.sleep(1)
        now = sum(f.stat().st_size for f in (cluster.HOME / "bucket").rglob("*") if f.is_file())
        if now != size:
            size, since = now, time.monotonic()


def measure(up):
    alone = Alone(up, len(up.nodes) + 1)
    alone.boot()
    try:
        cluster.plant(alone)
        cluster.trust(alone)
        alone.start()
        alone.cay("template", "wait", timeout=1200)
        key = up.variables["E2B_API_KEY"]
        many = Api(up.nodes[-1], key)
        rest()
        ways = Ways(up, key)
        figures = [*creates(Api(alone, key_of(alone)), many), *requests(up, key), *resumes(up, many, ways), *narrow(up, many)]
        waits = commit(up)
    finally:
        alone.stop()
    print(f"\n| figure | ours | raw | bar | met |\n|---|---|---|---|---|")
    for row in (figure.row() for figure in figures):
        print(f"| {row['name']} | {row['ours']} {row['unit']} | {row['raw']} {row['unit']} | {row['rule']}: {row['bar']} | {'yes' if row['met'] else '**no**'} |")
    print(f"\nStale ways after moves: {ways.at_once} requests went to two nodes at once, {ways.later} after a second (bar 0); none was answered wrongly")
    print(f"\nA commit of one row of that PostgreSQL, by pgbench: {waits:.1f} ms")
    pathlib.Path(cluster.HOME / "bench.json").write_text(json.dumps([f.row() for f in figures], indent=1))
