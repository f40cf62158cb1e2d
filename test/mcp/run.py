"""Clients of the Model Context Protocol that people use, against a real server.

    make test-mcp                        with a data directory of its own
    CAY_E2E_DATA=DIR … make test-mcp     with that one

The SDKs speak the newest revision that they know, the conformance suite those of
2025. Its other scenarios need a server that exists for the suite alone.

Each line that `cay mcp --print` prints is taken as it is. Claude Code and Codex list
the tools by theirs, and Claude Code has a model run code: the stand-in of `make
examples`, which says the number alone if the tool gave it. (It cannot call tools as
Codex has its models do.) The settings of Cursor and VS Code are held to the form of
their documents, and their server is asked by the official SDK with the headers that
they have; neither of the two runs without a screen.
"""

import http.client
import http.server
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading

import world

sys.path.append(str(world.ROOT / "test" / "models"))
from standin import ANSWERS, StandIn  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SDK = world.ROOT / "build" / "sdk"
NODE = SDK / "mcp-js" / "node_modules" / "node" / "bin"
SCENARIOS = ["server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection"]


class WithKey(http.server.BaseHTTPRequestHandler):
    """Adds the key to requests of the conformance suite, which has no option for it."""

    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        onward = http.client.HTTPConnection("localhost", self.server.port, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
        onward.request(self.command, self.path, body, {**headers, "X-API-Key": self.server.key})
        answer = onward.getresponse()
        text = answer.read()
        self.send_response(answer.status)
        for name in ("Content-Type", "Allow"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = do_OPTIONS = pass_on

    def log_message(self, *args):
        pass


def run(command, env, cwd=None):
    return subprocess.run([str(word) for word in command], env=env, cwd=cwd, text=True, timeout=180,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def need(done, *texts):
    assert done.returncode == 0 and all(t in done.stdout for t in texts), f"{done.returncode}: {done.stdout[-2000:]}"


def sdks(env):
    copy = SDK / "mcp-js" / "sdk.mjs"
    copy.write_bytes((HERE / "sdk.mjs").read_bytes())
    for way in ("http", "stdio"):
        yield f"Python SDK, {way}", lambda: need(run([SDK / "mcp" / "bin" / "python", HERE / "sdk.py", way], env))
        yield f"TypeScript SDK, {way}", lambda: need(run([NODE / "node", copy, way], env, copy.parent))


def inspector(env):
    base = [NODE / "node", SDK / "mcp-js" / "node_modules" / ".bin" / "mcp-inspector", "--cli", env["CAY_MCP_URL"], "--transport", "http",
            "--header", f"Authorization: Bearer {env['E2B_API_KEY']}"]
    for era in ("legacy", "modern"):
        words = [*base, "--protocol-era", era, "--method"]
        yield f"inspector, list, {era}", lambda: need(run([*words, "tools/list"], env), '"run_code"')
        yield f"inspector, call, {era}", lambda: need(
            run([*words, "tools/call", "--tool-name", "run_code", "--tool-arg", "code=6 * 7"], env), '"42\\n"')


def conformance(env, url):
    program = SDK / "mcp-js" / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    for name in SCENARIOS:
        yield f"conformance, {name}", lambda: need(run([NODE / "node", program, "server", "--url", url, "--scenario", name], env, tempfile.gettempdir()))


QUESTION = "What is the sum of the squares of all primes below 10000? Compute it with run_code."
SUM = "37546387960"


def printed(env, client):
    return world.Server.cay(env["server"], "mcp", "--print", client).stdout


def claude(env, home):
    line = printed(env, "claude").splitlines()[-1]
    program = SDK / "mcp-clients" / "node_modules" / ".bin" / "claude"
    words = shlex.split(line.replace("$E2B_API_KEY", env["key"]))
    need(run([program, *words[1:]], env["all"], home))
    need(run([program, "mcp", "list"], env["all"], home), "cay", "Connected")
    with StandIn(ANSWERS / "mcp.json") as model:
        asking = {**env["all"], "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "stand-in", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        need(run([program, "-p", QUESTION, "--allowedTools", "mcp__cay__run_code"], asking, home), SUM)


def codex(env, home):
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(printed(env, "codex"))
    program = SDK / "mcp-clients" / "node_modules" / ".bin" / "codex"
    with subprocess.Popen([str(program), "app-server"], env=env["all"], cwd=home,
                          text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        def send(message):
            running.stdin.write(json.dumps(message) + "\n")
            running.stdin.flush()

        def ask(number, method, params):
            send({"id": number, "method": method, "params": params})
            while True:
                message = json.loads(running.stdout.readline())
                if message.get("id") == number:
                    return message["result"]

        ask(1, "initialize", {"clientInfo": {"name": "cay", "title": "cay", "version": "1"}})
        send({"method": "initialized"})
        servers = ask(2, "mcpServerStatus/list", {})["data"]
        running.kill()
    assert [s["name"] for s in servers] == ["cay"] and "run_code" in servers[0]["tools"], servers


def read(printed):
    """The JSON that is printed, without the note before it."""
    note, text = printed.split("\n", 1)
    assert note.startswith("// "), note
    return json.loads(text)


def asked(env, server, secrets):
    """Asks a server as a client does that fills secrets in for their placeholders."""
    def filled(value):
        for placeholder, secret in secrets.items():
            value = value.replace(placeholder, secret)
        assert "${" not in value, value
        return value

    headers = {name: filled(value) for name, value in server["headers"].items()}
    need(run([SDK / "mcp" / "bin" / "python", HERE / "sdk.py", "http"], {
        **env["all"], "CAY_MCP_URL": server["url"], "CAY_MCP_HEADERS": json.dumps(headers)}))


def cursor(env, home):
    config = read(printed(env, "cursor"))
    assert set(config) == {"mcpServers"} and set(config["mcpServers"]) == {"cay"}, config
    server = config["mcpServers"]["cay"]
    assert set(server) == {"url", "headers"} and server["headers"]["MCP-Client-Name"] == "cursor", server
    asked(env, server, {"${env:E2B_API_KEY}": env["key"]})


def vscode(env, home):
    config = read(printed(env, "vscode"))
    assert set(config) == {"inputs", "servers"} and set(config["servers"]) == {"cay"}, config
    secret, = config["inputs"]
    assert secret["type"] == "promptString" and secret["password"] is True and secret["description"], secret
    server = config["servers"]["cay"]
    assert set(server) == {"type", "url", "headers"} and server["type"] == "http" and server["headers"]["MCP-Client-Name"] == "vscode", server
    asked(env, server, {"${input:%s}" % secret["id"]: env["key"]})


def parts(server):
    key = server.new_key()
    env = {**server.env, **server.sdk_env(key), "CAY": str(world.CAY), "CAY_MCP_URL": server.url + "/mcp",
           "PATH": f"{NODE}:{os.environ['PATH']}", "NO_COLOR": "1"}
    yield from sdks(env)
    yield from inspector(env)
    adding = http.server.ThreadingHTTPServer(("localhost", 0), WithKey)
    adding.port, adding.key = server.port, key
    threading.Thread(target=adding.serve_forever, daemon=True).start()
    yield from conformance(env, f"http://localhost:{adding.server_port}/mcp")
    for name, client in (("Claude Code", claude), ("Codex", codex), ("Cursor's settings", cursor), ("VS Code's settings", vscode)):
        with tempfile.TemporaryDirectory(dir=world.ROOT / "build") as home:
            home = pathlib.Path(home)
            both = {"server": server, "key": key, "all": {**env, "HOME": str(home)}}
            yield f"{name}, by the printed lines", lambda: client(both, home)


def main():
    server = world.aside("mcp", 7189, "10.223.0.0/16", "cymcp")
    failed = []
    server.start()
    try:
        for name, work in parts(server):
            try:
                work()
                print(f"✓ {name}", flush=True)
            except Exception as err:
                failed.append(name)
                print(f"✗ {name}: {err}", flush=True)
    finally:
        server.cay("down", check=False)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
