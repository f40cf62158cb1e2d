"""The way to a sandbox: through the proxy, straight, and through nginx. And what
a long policy costs.

nginx is Debian's package, unpacked below build/ and not installed. It proxies to
the address of the same sandbox, with connections kept, as the proxy does.
"""

import json
import os
import pathlib
import subprocess
import time
import urllib.request

import e2b

import life
import world
from figure import Figure, ms

TURNS = int(os.environ.get("BENCH_EDGE_TURNS", "9"))
WEBSOCKETS = int(os.environ.get("BENCH_WEBSOCKETS", "5000"))
EDGE = world.ROOT / "build" / "bench-edge"
PORT = 3000

NGINX = """
daemon off; pid {here}/pid; error_log {here}/error.log; worker_processes auto;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
  fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
  upstream box {{ server {address}:{port}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{listen};
    location / {{ proxy_pass http://box; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; }}
  }}
}}
"""


class Box:
    """A sandbox with the answering server, and the ways to it."""

    def __init__(self, server):
        self.sandbox = e2b.Sandbox.create(timeout=3600)
        with open(EDGE, "rb") as program:
            self.sandbox.files.write("/tmp/edge", program)
        self.sandbox.commands.run(f"chmod +x /tmp/edge && exec /tmp/edge -serve 0.0.0.0:{PORT}", background=True, timeout=0)
        self.address = self.sandbox.commands.run("hostname -I").stdout.split()[0]
        self.host = f"{PORT}-{self.sandbox.sandbox_id}.localhost"
        self.proxy = server.url.replace("localhost", "127.0.0.1") + "/"
        self.straight = f"http://{self.address}:{PORT}/"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(self.straight, timeout=5).read()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server inside does not answer"
                time.sleep(0.1)

    def measure(self, *args):
        said = subprocess.run([EDGE, "-host", self.host, "-turns", str(TURNS), *args], check=True, capture_output=True, text=True)
        return json.loads(said.stdout)


def latency(box):
    figure = Figure("a request of 1 KB, p50", "ms", lambda raw: raw + 0.3, "straight to the address + 0.3", digits=3)
    figure.ours, figure.raw = box.measure(box.proxy, box.straight)
    return figure


def unpack_nginx():
    """Debian's nginx, without installing it."""
    here = world.ROOT / "build" / "nginx"
    program = here / "usr" / "sbin" / "nginx"
    if not program.exists():
        here.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", "nginx"], cwd=here, check=True, capture_output=True)
        for package in here.glob("nginx_*.deb"):
            subprocess.run(["dpkg", "-x", package, here], check=True)
    return program


def rate(box):
    """Requests a second, upside down: a bar is an upper bound."""
    figure = Figure("a request of 1 KB, 16 connections at once", "ms", lambda raw: raw / 0.6, "nginx's requests a second × 0.6", digits=3)
    program = unpack_nginx()
    here = pathlib.Path("/tmp") / f"cay-bench-nginx-{os.getpid()}"
    here.mkdir()
    listen = int(box.proxy.split(":")[2].strip("/")) + 1000
    (here / "conf").write_text(NGINX.format(here=here, address=box.address, port=PORT, listen=listen))
    with subprocess.Popen([program, "-p", here, "-c", here / "conf", "-e", here / "error.log"]) as nginx:
        try:
            time.sleep(1)
            assert nginx.poll() is None, (here / "error.log").read_text()
            ours, raw = box.measure("-length", "2s", box.proxy, f"http://127.0.0.1:{listen}/")
            figure.ours, figure.raw = [1000 / n for n in ours], [1000 / n for n in raw]
        finally:
            nginx.terminate()
    subprocess.run(["rm", "-r", here], check=True)
    return figure


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("no VmRSS")


def websockets(server, box):
    figure = Figure(f"{WEBSOCKETS} idle websockets", "MB", lambda _: 200, "200 MB more in the server")
    before = resident(server.process.pid)
    with subprocess.Popen([EDGE, "-host", box.host, "-hold", str(WEBSOCKETS), box.proxy],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout.readline() == "held\n"
        figure.ours.append(resident(server.process.pid) - before)
        time.sleep(10)  # and when garbage was collected
        figure.ours.append(resident(server.process.pid) - before)
        held.stdin.close()
    return figure


NOTHING = {"allowOut": [], "denyOut": ["0.0.0.0/0"]}
DOMAINS = {"allowOut": [f"host-{n}.example-{n % 50}.com" for n in range(500)], "denyOut": ["0.0.0.0/0"]}


def policies(server):
    """The time that 500 domains add to a create from the pool, and what putting them in
    force takes; beside the same without them."""
    rest = life.Rest(server)
    created = Figure("create with a policy of 500 domains", "ms", lambda raw: raw + 1, "the same with none + 1", digits=2)
    put = Figure("PUT of a policy of 500 domains", "ms", lambda _: 20, "20 ms", digits=2)
    for turn in range(2 * TURNS + 2):
        for figure, policy in ((created.raw, NOTHING), (created.ours, DOMAINS)):
            body = json.dumps({"templateID": "base", "timeout": 600, "network": policy})
            made = []
            took = ms(lambda: made.append(rest.call("POST", "/v2/sandboxes", body)["sandboxID"]))
            time.sleep(2 * life.REST)  # until the pool is full again
            rest.kill(made[0])
            if turn > 1:  # the first ones fill the pool
                figure.append(took)
    sandbox = rest.create("base")
    for _ in range(3 * TURNS):
        for samples, policy in ((put.raw, NOTHING), (put.ours, DOMAINS)):
            samples.append(ms(lambda: rest.call("PUT", f"/sandboxes/{sandbox}/network", policy)))
    rest.kill(sandbox)
    return created, put


def measure(server):
    yield from policies(server)
    box = Box(server)
    yield latency(box)
    yield rate(box)
    yield websockets(server, box)
    box.sandbox.kill()
