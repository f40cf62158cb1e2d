"""Models inside: what the gateway adds to the time of a first token.

A program in a sandbox asks one stand-in, which streams at once, in turns straight and
through the gateway. The stand-in has an address that the server's network opens.
"""

import json
import os
import subprocess
import sys
import urllib.request

import e2b

from figure import Figure
from internet import Internet, ip

N = int(os.environ.get("BENCH_N", "20"))
ADDRESS = "10.253.77.1"
SETTINGS = {"CAY_NETWORK_OPEN": ADDRESS + "/32"}

STREAM = r"""
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers of models do: 40 ms else, of the host's delayed ACK
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        events = [b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'] * 20 + [b"data: [DONE]\n\n"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler)
print("ready", flush=True)
server.serve_forever()
"""

# Prints the milliseconds to the first line of each answer.
INSIDE = r"""
import http.client, json, sys, time
body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 20000}]})
ways = {"raw": http.client.HTTPConnection(sys.argv[1], 8000), "ours": http.client.HTTPConnection("models.cay.internal")}
out = {name: [] for name in ways}
for turn in range(int(sys.argv[2]) + 3):
    for name, way in ways.items():
        begun = time.perf_counter()
        way.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = way.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.readline().startswith(b"data: ")
        took = (time.perf_counter() - begun) * 1000
        answer.read()
        if turn >= 3:  # the first turns warm both
            out[name].append(round(took, 2))
print(json.dumps(out))
"""


def measure(server):
    request = urllib.request.Request(
        server.url + "/cay/v1/models/bench", method="PUT", data=json.dumps({"wire": "openai", "url": f"http://{ADDRESS}:8000/v1"}).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()
    with Internet() as net:
        ip("-n", net.name, "addr", "add", ADDRESS + "/32", "dev", "lo")
        ip("route", "replace", ADDRESS + "/32", "via", net.near)
        stand_in = subprocess.Popen(["ip", "netns", "exec", net.name, sys.executable, "-c", STREAM], stdout=subprocess.PIPE, text=True)
        try:
            assert stand_in.stdout.readline() == "ready\n"
            box = e2b.Sandbox.create(timeout=600)
            box.files.write("/tmp/inside.py", INSIDE)
            took = json.loads(box.commands.run(f"python3 /tmp/inside.py {ADDRESS} {5 * N}", timeout=300).stdout)
            box.kill()
        finally:
            stand_in.kill()
            stand_in.wait()
    figure = Figure("first token of a model through the gateway", "ms", lambda raw: raw + 3, "the same straight to the model + 3 ms", digits=2)
    figure.ours, figure.raw = took["ours"], took["raw"]
    yield figure
