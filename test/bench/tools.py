"""A tool of language models: what /mcp adds to the same requests over REST."""

import concurrent.futures
import os

import e2b_code_interpreter
import httpx

from figure import Figure, ms

N = int(os.environ.get("BENCH_N", "20"))
CLIENTS = int(os.environ.get("BENCH_MCP_CLIENTS", "200"))


class Ways:
    """The same work as a tool and over REST: the tokens of a sandbox, then its agent."""

    def __init__(self, url, key, box):
        self.box, self.http = box, httpx.Client(base_url=url, timeout=120)
        self.key = {"X-API-Key": key}

    def tool(self, name, **arguments):
        answer = self.http.post("/mcp", headers={**self.key, "Accept": "application/json, text/event-stream"}, json={
            "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {"sandbox_id": self.box, **arguments}}})
        assert answer.status_code == 200 and '"isError":true' not in answer.text, answer.text

    def rest(self, port, path, body, **headers):
        opened = self.http.post(f"/v2/sandboxes/{self.box}/connect", headers=self.key, json={"timeout": 600}).json()
        answer = self.http.post(path, json=body, headers={
            "E2b-Sandbox-Id": self.box, "E2b-Sandbox-Port": str(port), "X-Access-Token": opened["envdAccessToken"], **headers})
        assert answer.status_code == 200, answer.text

    def run_code(self):
        self.tool("run_code", code="1")

    def execute(self):
        self.rest(49999, "/execute", {"code": "1"})

    def file_info(self):
        self.tool("get_file_info", path="/etc/hostname")

    def stat(self):
        self.rest(49983, "/filesystem.Filesystem/Stat", {"path": "/etc/hostname"})


def measure(server):
    url, key = server.url, os.environ["E2B_API_KEY"]
    box = e2b_code_interpreter.Sandbox.create(timeout=1800)
    ways = Ways(url, key, box.sandbox_id)
    for name, ours, raw in (("run_code as a tool", ways.run_code, ways.execute), ("get_file_info as a tool", ways.file_info, ways.stat)):
        figure = Figure(name, "ms", lambda raw: raw + 5, "the same requests over REST + 5 ms", digits=2)
        for turn in range(N + 3):
            samples = ms(ours), ms(raw)
            if turn >= 3:  # the first turns warm both
                figure.ours.append(samples[0])
                figure.raw.append(samples[1])
        yield figure
    clients = [Ways(url, key, box.sandbox_id) for _ in range(CLIENTS)]
    figure = Figure(f"{CLIENTS} clients at once, 5 tool calls each", "ms", lambda raw: 2 * raw, "2 × the same over REST")
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for turn in range(4):
            samples = [ms(lambda: list(pool.map(lambda c: [getattr(c, way)() for _ in range(5)], clients))) for way in ("file_info", "stat")]
            if turn:
                figure.ours.append(samples[0])
                figure.raw.append(samples[1])
    yield figure
    box.kill()
