"""The gateway of tools in a sandbox of base, with a server that is odd; `make test-gateway` has the template and the SDKs' ways."""

import json
import os
import urllib.error
import urllib.request

import oddserver
import world


def ask(box, method, token="chosen", **params):
    """The answer that a client of the protocol gets at the sandbox's URL for it."""
    host = box.get_host(50005)
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + "/mcp", json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode(),
        {"Host": host, "Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            lines = reply.read().decode().splitlines()
    except urllib.error.HTTPError as err:
        return err.code
    return json.loads([line for line in lines if line.startswith("data: ")][-1][6:])["result"]


def call(box, tool):
    result = ask(box, "tools/call", name=tool, arguments={})
    return result["content"][0]["text"], result.get("isError", False)


def test_a_gateway(create):
    box = create()
    box.files.write("/usr/bin/mcp-gateway", (world.ROOT / "build" / "cay-mcp-gateway").read_bytes(), user="root")
    oddserver.install(box)
    config = {"github/o/odd": {"runCmd": "python3 server.py"}, "cay": {"tools": {"github/o/odd": ["env", "crash", "big", "lie"]}}}
    box.commands.run(f"chmod 755 /usr/bin/mcp-gateway && mcp-gateway --config '{json.dumps(config)}'", user="root", envs={"GATEWAY_ACCESS_TOKEN": "chosen"})
    assert box.get_mcp_token() == "chosen"
    assert ask(box, "tools/list", token="another") == 401
    assert {tool["name"] for tool in ask(box, "tools/list")["tools"]} == {"env", "crash", "big"}
    told = json.loads(call(box, "env")[0])
    assert told["uid"] == 1000 and "GATEWAY_ACCESS_TOKEN" not in told["env"], told
    text, failed = call(box, "big")  # 100 MB
    assert failed and "longer than 8 MiB" in text, text
    box.pause()
    box.connect()
    text, failed = call(box, "crash")
    assert failed and "github/o/odd" in text, text
    while call(box, "env")[1]:
        pass
