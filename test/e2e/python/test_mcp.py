"""Sandboxes as tools of the Model Context Protocol: what needs a program inside."""

import base64
import itertools
import json
import os
import subprocess
import time
import uuid

import e2b
import httpx
import pytest

import world

NEW = "2026-07-28"


class Model:
    """A client of the protocol, by its newest revision unless told otherwise."""

    def __init__(self, key=None, name=None, version=NEW, path="/mcp"):
        self.version, self.ids, self.path = version, itertools.count(1), path
        self.name = name or f"e2e-{uuid.uuid4().hex[:8]}"
        self.http = httpx.Client(base_url=os.environ["E2B_API_URL"], timeout=120, headers={
            "Authorization": f"Bearer {key or os.environ['E2B_API_KEY']}", "MCP-Client-Name": self.name,
            "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version})

    def message(self, method, params, number):
        if self.version >= NEW:
            params = {**params, "_meta": {
                **params.get("_meta", {}),
                "io.modelcontextprotocol/protocolVersion": self.version,
                "io.modelcontextprotocol/clientInfo": {"name": self.name, "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {}}}
        headers = {"Mcp-Method": method, **({"Mcp-Name": params["name"]} if "name" in params else {})}
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}, headers

    def stream(self, method, params):
        body, headers = self.message(method, params, next(self.ids))
        return self.http.stream("POST", self.path, json=body, headers=headers)

    def ask(self, method, params, told=None):
        with self.stream(method, params) as answer:
            if answer.headers["content-type"] == "application/json":  # of an error, in the newest revision
                return json.loads(answer.read())
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                message = json.loads(line[len("data: "):])
                if "id" in message:
                    return message
                if told is not None:
                    told.append(message["params"])
        raise AssertionError("no answer came")

    def call(self, tool, **arguments):
        answer = self.ask("tools/call", {"name": tool, "arguments": arguments})
        return answer["result"]

    def text(self, tool, **arguments):
        result = self.call(tool, **arguments)
        text = "".join(c["text"] for c in result["content"] if c["type"] == "text")
        assert not result.get("isError"), text
        return text

    def out(self, tool, **arguments):
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    def error(self, tool, **arguments):
        result = self.call(tool, **arguments)
        assert result.get("isError"), result
        return result["content"][0]["text"]


@pytest.fixture(scope="module")
def model():
    m = Model()
    yield m
    m.call("destroy_sandbox")


def test_code(model):
    assert model.text("run_code", code="x = 20\nprint('hello')\nx + 1") == "hello\n21\n"
    assert model.out("run_code", code="x * 2")["results"] == ["40"]  # what was there is there
    other = model.out("run_code", code="'x' in globals()", context_id="new")
    assert other["results"] == ["False"]
    assert model.out("run_code", code="y = 1; y", context_id=other["context_id"])["results"] == ["1"]
    assert "ZeroDivisionError" in model.out("run_code", code="1/0")["error"]
    assert model.text("run_code", code="echo $((6 * 7))", language="bash") == "42\n"
    assert "rust" in model.error("run_code", code="1", language="rust")
    assert "interrupted" in model.out("run_code", code="import time\ntime.sleep(60)", timeout=1)["error"]
    large = model.out("run_code", code="print('so far')\n'y' * 9_000_000")  # more than the server holds of a guest's
    assert large["cut"] and large["stdout"] == "so far\n" and "are left out" in large["results"][0], large
    assert model.text("run_code", code="x") == "20\n"  # and goes on
    chart = model.call("run_code", code="import matplotlib.pyplot as p\np.plot([1, 2]); p.show()")
    image = next(c for c in chart["content"] if c["type"] == "image")
    assert image["mimeType"] == "image/png" and base64.b64decode(image["data"])[:4] == b"\x89PNG"
    assert "structuredContent" not in chart  # which some clients take instead of the image


def test_commands_and_their_bounds(model):
    done = model.out("execute_command", command="echo out; echo err >&2; exit 3")
    assert (done["stdout"], done["stderr"], done["exit_code"]) == ("out\n", "err\n", 3)
    assert model.text("execute_command", command="pwd; id -un", cwd="/tmp", user="root") == "/tmp\nroot\n"
    assert model.out("execute_command", command="cat", timeout=5)["exit_code"] == 0  # its input is empty
    large = model.out("execute_command", command="yes 0123456789abcde | head -c 104857600; echo the end")
    assert large["cut"] and len(large["stdout"]) < 25_000 and large["stdout"].endswith("the end\n")
    assert "bytes are left out" in large["stdout"]
    odd = model.out("execute_command", command=r"printf 'a\xff\xc3\x28\0b'")["stdout"]
    assert odd == "a\ufffd\ufffd(\0b"
    late = model.out("execute_command", command="sleep 61.25 & sleep 60.25", timeout=1)
    assert "ended after 1s" in late["status"] and "exit_code" not in late
    assert model.text("execute_command", command="pgrep -fc 'sleep 6[01].2[5]'; true") == "0\n"
    assert model.ask("tools/call", {"name": "nope", "arguments": {}})["error"]["code"] == -32602


def test_processes_in_the_background(model):
    process = model.out("execute_command", command="echo begun; while read line; do echo got $line; done; exit 4", background=True)["process_id"]
    first = model.out("process_output", process_id=process, wait=10)
    assert first["output"] == "begun\n" and first["running"]
    model.call("process_input", process_id=process, input="grün\n")
    second = model.out("process_output", process_id=process, cursor=first["next_cursor"], wait=10)
    assert second["output"] == "got grün\n"
    model.call("process_input", process_id=process, close=True)
    last = model.out("process_output", process_id=process, cursor=second["next_cursor"], wait=10)
    assert not last["running"] and last["exit_code"] == 4 and last["size"] == second["next_cursor"]
    assert "has ended" in model.error("process_signal", process_id=process)
    # Pages hold all of the output, and no character is cut in two.
    process = model.out("execute_command", command="for i in $(seq 5000); do printf 'ü€'; done", background=True)["process_id"]
    text, cursor = "", 0
    while True:
        page = model.out("process_output", process_id=process, cursor=cursor, wait=10)
        text, cursor = text + page["output"], page["next_cursor"]
        if not page["running"] and cursor == page["size"]:
            break
    assert text == "ü€" * 5000
    # A signal is for all that it started. A bash that is just about to fork drops a TERM.
    process = model.out("execute_command", command="bash -c 'echo up; exec sleep 62.25' & wait", background=True)["process_id"]
    up = model.out("process_output", process_id=process, wait=10)
    assert up["output"] == "up\n"
    model.text("process_signal", process_id=process, signal="kill")
    ended = model.out("process_output", process_id=process, cursor=up["next_cursor"], wait=10)
    assert not ended["running"] and ended["exit_code"] == 137
    assert model.text("execute_command", command="pgrep -fc 'sleep 62.2[5]'; true") == "0\n"
    assert "is not in sandbox" in model.error("process_output", process_id="aaaaaaaaaa-1")


def test_files(model):
    entry = model.out("upload_file", path="notes/a.txt", content="grün\n" * 6000)["entry"]
    assert entry["path"] == "/home/user/notes/a.txt" and entry["size"] == 36_000
    page = model.out("download_file", path="notes/a.txt")
    rest = model.out("download_file", path="notes/a.txt", offset=page["next_offset"])
    assert page["content"] + rest["content"] == "grün\n" * 6000 and "next_offset" not in rest
    link = httpx.get(os.environ["E2B_SANDBOX_URL"] + page["url"].split(f":{world.Server().port}", 1)[1],
                     headers={"E2b-Sandbox-Id": page["sandbox_id"], "E2b-Sandbox-Port": "49983"})
    assert link.text == "grün\n" * 6000
    raw = bytes(range(256)) * 100
    model.call("upload_file", path="raw", content=base64.b64encode(raw).decode(), encoding="base64")
    got, offset = b"", 0
    while offset is not None:
        page = model.out("download_file", path="raw", offset=offset)
        assert page["encoding"] == "base64"
        got, offset = got + base64.b64decode(page["content"]), page.get("next_offset")
    assert got == raw
    dot = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
    model.call("upload_file", path="dot.png", content=base64.b64encode(dot).decode(), encoding="base64")
    shown = model.call("download_file", path="dot.png")["content"]
    assert shown[0]["type"] == "image" and base64.b64decode(shown[0]["data"]) == dot and shown[1]["type"] == "resource_link"
    names = [e["name"] for e in model.out("list_files", path="/home/user", depth=2)["entries"]]
    assert {"notes", "a.txt", "raw", "dot.png"} <= set(names)
    assert model.out("move_file", source="raw", destination="moved")["entry"]["path"] == "/home/user/moved"
    assert model.out("create_folder", path="made/deep")["entry"]["dir"]
    assert model.out("create_folder", path="made/deep")["entry"]["dir"]  # again
    assert model.out("get_file_info", path="moved")["entry"]["size"] == len(raw)
    model.text("delete_file", path="made")
    for tool in ("delete_file", "get_file_info", "download_file"):
        assert "made" in model.error(tool, path="made")
    assert "is a directory" in model.error("download_file", path="notes")


def test_checkpoints_forks_and_ends(model):
    model.text("run_code", code="state = 'good'")
    point = model.out("checkpoint", label="before")["checkpoint_id"]
    model.text("run_code", code="state = 'bad'; open('harm', 'w').write('x')")
    changes = model.out("diff", from_checkpoint_id=point)
    assert any(c["path"] == "/home/user/harm" and c["change"] == "added" for c in changes["changes"])
    assert model.out("rollback", checkpoint_id=point)["checkpoint_id"] == point
    assert model.out("run_code", code="state")["results"] == ["good"]
    copies = model.out("fork")["sandbox_ids"]
    assert len(copies) == 1
    for copy in copies:
        assert model.out("run_code", code="state", sandbox_id=copy)["results"] == ["good"]
        model.text("destroy_sandbox", sandbox_id=copy)
        assert model.out("why", sandbox_id=copy)["reason"] == "asked"
        assert "not found" in model.error("run_code", code="1", sandbox_id=copy)
    assert "has no screen" in model.error("screenshot")
    link = model.out("preview_link", port=8000)
    assert link["url"].startswith("https://8000-" + link["sandbox_id"])


def test_a_client_that_leaves_ends_its_command(model):
    for version in (NEW, "2025-06-18"):
        leaving = Model(name=model.name, version=version)
        leaving.http.timeout = httpx.Timeout(120, read=0.5)
        with pytest.raises(httpx.ReadTimeout):
            leaving.call("execute_command", command="sleep 63.25")
        deadline = time.monotonic() + 30
        while model.text("execute_command", command="pgrep -fc 'sleep 63.2[5]'; true") != "0\n":
            assert time.monotonic() < deadline, version
    told = []
    model.ask("tools/call", {"name": "execute_command", "_meta": {"progressToken": "p"},
                             "arguments": {"command": "echo one; sleep 1.2; echo two"}}, told)
    assert told[0]["message"] == "one" and told[0]["progressToken"] == "p"


def test_a_paused_default_sandbox_wakes_with_its_variables(model):
    box = model.out("run_code", code="kept = 5")["sandbox_id"]
    assert e2b.Sandbox.pause(box) is not None
    assert model.out("run_code", code="kept")["results"] == ["5"]


def test_standard_streams(model):
    """cay mcp, as clients start it."""
    env = {**world.running().env, **{k: v for k, v in os.environ.items() if k.startswith("E2B_")}}
    with subprocess.Popen([str(world.CAY), "mcp", "--name", model.name], env=env, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        ids = itertools.count(1)

        def ask(method, params, until=True):
            number = next(ids)
            program.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            program.stdin.flush()
            seen = []
            while until:
                message = json.loads(program.stdout.readline())
                if message.get("id") == number:
                    return message, seen
                seen.append(message)
            return number

        hello, _ = ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "claude-code", "version": "2"}})
        assert hello["result"]["protocolVersion"] == "2025-06-18" and "sandbox" in hello["result"]["instructions"]
        program.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        program.stdin.write('{"jsonrpc":"2.0","id":"bare","method":"tools/list"}\n')
        program.stdin.flush()
        assert json.loads(program.stdout.readline())["id"] == "bare"
        assert len(ask("tools/list", {})[0]["result"]["tools"]) == len(model.ask("tools/list", {})["result"]["tools"])
        box = model.out("run_code", code="5")["sandbox_id"]
        call, seen = ask("tools/call", {"name": "execute_command", "arguments": {"command": "echo one; sleep 1.2; echo two"}, "_meta": {"progressToken": 9}})
        assert call["result"]["structuredContent"] == {"sandbox_id": box, "exit_code": 0, "status": "exit status 0", "stdout": "one\ntwo\n"}
        assert [m["params"]["message"] for m in seen if m.get("method") == "notifications/progress"][0] == "one"
        assert "did you mean run_code" in ask("tools/call", {"name": "runcode", "arguments": {}})[0]["error"]["message"]
        number = ask("tools/call", {"name": "execute_command", "arguments": {"command": "sleep 64.25"}}, until=False)
        while model.text("execute_command", command="pgrep -fc 'sleep 64.2[5]'; true") == "0\n":
            pass
        program.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}) + "\n")
        program.stdin.flush()
        deadline = time.monotonic() + 30
        while model.text("execute_command", command="pgrep -fc 'sleep 64.2[5]'; true") != "0\n":
            assert time.monotonic() < deadline
        program.stdin.close()
        assert program.wait(timeout=20) == 0 and program.stderr.read() == ""
    wrong = subprocess.run([str(world.CAY), "mcp"], env={**env, "E2B_API_KEY": "e2b_" + "0" * 40}, text=True,
                           input="", capture_output=True, timeout=60)
    assert wrong.returncode == 1 and wrong.stdout == "" and "key" in wrong.stderr


def test_what_a_sandbox_has_is_no_key(model):
    """Neither its own token opens the tools, nor does the server answer it inside."""
    box = e2b.Sandbox.connect(model.out("preview_link", port=1)["sandbox_id"])
    for header in ({"Authorization": f"Bearer {box._envd_access_token}"}, {"X-API-Key": box._envd_access_token}):
        answer = httpx.post(os.environ["E2B_API_URL"] + "/mcp", json={}, headers=header)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_programs_over_the_api():
    model = Model(path="/mcp/code")
    for language, code in (("python", "print('ü', len(cay.get('/v2/sandboxes', limit=100)) > 0)"),
                           ("javascript", "console.log('ü', cay.get('/v2/sandboxes', {limit: 100}).length > 0)")):
        said = str(model.call("execute", code=code, language=language))
        assert "ü True" in said or "ü true" in said, said
    # It is a real sandbox, without a network and without a key; gVisor's streams carry a megabyte.
    said = str(model.call("execute", code="""
import os, subprocess, urllib.request
try:
    cay.post("/cay/v1/approvals", {"title": "x", "body": "y" * 900_000})
except CayError as e:
    print("refused", e.status)
print(subprocess.run("grep -rlc e2b_ /proc/*/environ 2>/dev/null | wc -l", shell=True, capture_output=True, text=True).stdout.strip(), "processes know a key")
try:
    urllib.request.urlopen("http://1.1.1.1", timeout=5)
except OSError as e:
    print("no network")
"""))
    assert "refused 400" in said and "0 processes know a key" in said and "no network" in said, said
    assert not [box for box in e2b.Sandbox.list().next_items() if "cay.mcp.code" in box.metadata]  # other tests have some of their own
