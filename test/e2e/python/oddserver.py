"""A server of tools that does what servers must not, in a repository of the sandbox itself."""

CODE = r'''
import json, os, sys
def say(m): print(json.dumps(m), flush=True)
TOOLS = [{"name": n, "inputSchema": {"type": "object"}} for n in ("env", "crash", "big", "hang", "get")] + [{"name": "lie", "inputSchema": 7}]
print("a banner", flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    def text(t): say({"jsonrpc": "2.0", "id": m["id"], "result": {"content": [{"type": "text", "text": t}]}})
    if m["method"] == "initialize":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}})
    elif m["method"] == "tools/list":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": TOOLS}})
    elif m["method"] == "ping":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {}})
    elif m["method"] == "tools/call":
        name = m["params"]["name"]
        if name == "env": text(json.dumps({"env": dict(os.environ), "uid": os.getuid()}))
        if name == "crash": sys.exit("out of luck")
        if name == "big": text("x" * 100_000_000)
    else:
        say({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "none"}})
'''


def install(box):
    """Has GitHub's o/odd lead to it: no test needs GitHub."""
    box.files.write("/srv/o/odd/server.py", CODE, user="root")
    box.commands.run("cd /srv/o/odd && git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm x && mv /srv/o/odd /srv/o/odd.git && "
                     "git config --system --add safe.directory '*' && git config --system url.file:///srv/.insteadOf https://github.com/", user="root")
