"""Models inside without a key: the official SDKs in a sandbox, and curl, through the
gateway at its edge, to stand-ins on this machine."""

import http.server
import io
import json
import subprocess
import sys
import tarfile
import threading
import time
import uuid

import e2b
import pytest

import cayv1
import world

sys.path.insert(0, str(world.ROOT / "test" / "models"))
import standin  # noqa: E402

SDKS = "pip install openai==3.57.0 anthropic==2.14.0"
KEY = "sk-the-teams-own"
CHAT = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = CHAT.replace('"m"', '"m","stream":true')
SAYS = '{"choices":[{"index":0,"message":{"role":"assistant","content":"ü"}}],"usage":{"prompt_tokens":11,"completion_tokens":7}}'

INSIDE = """
import anthropic, openai
client = openai.OpenAI(base_url="http://models.cay.internal/v1", api_key="none")
hello = [{"role": "user", "content": "say hello"}]
print(client.chat.completions.create(model="m", messages=hello).choices[0].message.content)
chunks = list(client.chat.completions.create(model="m", messages=hello, stream=True))
assert all(chunk.choices for chunk in chunks), chunks
print("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
chunks = list(client.chat.completions.create(model="m", messages=hello, stream=True, stream_options={"include_usage": True}))
assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0, chunks[-1]
print(client.responses.create(model="m", input="say hello").output_text)
events = list(client.responses.create(model="m", input="say hello", stream=True))
assert events[-1].type == "response.completed", events[-1]
print("".join(event.delta for event in events if event.type == "response.output_text.delta"))
print(len(client.embeddings.create(model="e", input="say hello").data[0].embedding))
print(sorted(model.id for model in client.models.list()))
try:
    client.chat.completions.create(model="none", messages=hello)
except openai.NotFoundError as err:
    print(err.body["message"])
client = anthropic.Anthropic(base_url="http://models.cay.internal", api_key="none")
print(client.messages.create(model="c", max_tokens=100, messages=hello).content[0].text)
with client.messages.stream(model="c", max_tokens=100, messages=hello) as stream:
    print("".join(stream.text_stream))
try:
    client.messages.create(model="none", max_tokens=100, messages=hello)
except anthropic.NotFoundError as err:
    print(err.body["error"]["message"])
"""


class Providers:
    """Servers of models on one port, told apart by the first part of the path."""

    def __init__(self):
        self.asked, self.go = [], threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                kind = self.path.split("/")[1]
                outer.asked.append((kind, self.path, self.headers.get("Authorization"), body.decode()))
                getattr(outer, "be_" + kind)(self)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer((world.Server().near, 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://%s:%d" % self.server.server_address
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def say(self, to, status, body, kind="application/json"):
        to.send_response(status)
        to.send_header("Content-Type", kind)
        to.send_header("Content-Length", str(len(body.encode())))
        to.end_headers()
        to.wfile.write(body.encode())

    def be_ok(self, to):
        self.say(to, 200, SAYS)

    def be_busy(self, to):
        self.say(to, 429, '{"error":{"message":"slow down"}}')

    def be_broken(self, to):
        self.say(to, 503, "out of order")

    def be_hanging(self, to):
        self.go.wait(30)
        to.close_connection = True

    def be_cut(self, to):
        """A stream that breaks."""
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream")
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        event = b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
        to.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        to.wfile.flush()
        to.close_connection = True

    def be_slow(self, to):
        """A stream that goes on until its reader leaves."""
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream")
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
        try:
            while True:
                to.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                to.wfile.flush()
                time.sleep(0.05)
        except OSError:
            self.go.set()


@pytest.fixture
def servers():
    made = Providers()
    yield made
    made.go.set()
    made.server.shutdown()
    made.server.server_close()


class Team:
    """A team of its own, with a secret."""

    def __init__(self):
        self.server = world.Server()
        self.name = f"models-{uuid.uuid4().hex[:8]}"
        self.key = json.loads(self.server.cay("team", "create", self.name, "--key", "owner", "--json").stdout)["key"]
        self.run = {**self.server.env, "E2B_API_KEY": self.key, "E2B_API_URL": self.server.url}

    def cay(self, *args, stdin=None):
        done = subprocess.run([str(world.CAY), *args], env=self.run, input=stdin, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def provider(self, name, url, *flags, key=KEY):
        return self.cay("model", "set", name, url, *flags, *(["--key-file", "-"] if key else []), stdin=key)

    def box(self, **kw):
        return e2b.Sandbox.create(timeout=300, api_key=self.key, **kw)

    def used(self):
        amounts = cayv1.call("GET", "/usage", key=self.key)["total"]["amounts"]
        return float(amounts["model_input_tokens"]), float(amounts["model_output_tokens"])


@pytest.fixture
def team():
    made = Team()
    yield made
    made.server.cay("team", "remove", made.name, "--force", check=False)


def ask(box, body=CHAT, path="/v1/chat/completions", flags=""):
    """Status, headers and body of a request of curl's, and how curl ended."""
    box.files.write("/tmp/body", body)
    out = box.commands.run(
        f"curl -s -m 60 {flags} -D /tmp/head -o /tmp/out -w '%{{http_code}}' -H 'Content-Type: application/json' --data-binary @/tmp/body "
        f"http://models.cay.internal{path}; echo \" $?\"").stdout.split()
    if out[0] == "000":
        return 0, {}, "", int(out[1])
    head = dict(line.lower().split(": ", 1) for line in box.files.read("/tmp/head").splitlines() if ": " in line)
    return int(out[0]), head, box.files.read("/tmp/out"), int(out[1])


def test_sdks_inside(team, tmp_path):
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"fixtures": [
        {"match": {"userMessage": "say hello"}, "response": {"content": "Hello from the stand-in."}},
        {"match": {"inputText": "say hello"}, "response": {"embedding": [0.1, 0.2, 0.3]}}]}))
    packages = standin.packages(SDKS)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(next(packages.glob("lib/python3*/site-packages")), "sdks", filter=lambda f: None if "__pycache__" in f.name or "/pip" in f.name else f)
    with standin.StandIn(answers, team.server.near) as model:
        team.provider("main", model.url + "/v1", "-m", "m=gpt-5", "-m", "e=text-embedding-3-small")
        team.provider("claude", model.url, "--wire", "anthropic", "-m", "c=claude-sonnet-5")
        box = team.box()
        box.files.write("/tmp/sdks.tar.gz", packed.getvalue())
        box.files.write("/tmp/inside.py", INSIDE)
        box.commands.run("tar xzf /tmp/sdks.tar.gz -C /tmp", timeout=120)
        said = box.commands.run("PYTHONPATH=/tmp/sdks python3 /tmp/inside.py", timeout=120)
    hello = "Hello from the stand-in."
    assert said.stdout.splitlines() == [
        hello, hello, hello, hello, "3", "['e', 'm']",
        'no provider of your team has the model "none"; GET /v1/models lists those that there are', hello, hello,
        'no provider of your team has the model "none"; GET /v1/models lists those that there are'], said
    assert min(team.used()) > 10
    assert KEY not in box.commands.run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true").stdout


def test_providers_that_fail(team, servers):
    team.provider("backup", servers.url + "/ok/v1", "--order", "1")
    box = team.box()
    for kind, why in (("busy", "429 too many requests"), ("broken", "503 service unavailable"), ("hanging", "no answer in time")):
        team.provider("main", f"{servers.url}/{kind}/v1", "--timeout", "1s")
        servers.asked.clear()
        status, head, body, _ = ask(box)
        assert (status, body) == (200, SAYS)
        assert head["x-cay-provider"] == "backup" and head["x-cay-provider-passed-over"] == f"main: {why}"
        assert [(kind, key) for kind, _, key, _ in servers.asked] == [(kind, f"Bearer {KEY}"), ("ok", f"Bearer {KEY}")]
        assert servers.asked[0][3] == CHAT
    assert team.used() == (33, 21)
    # A stream that breaks is not asked for again, and curl sees that it is not whole.
    team.provider("main", servers.url + "/cut/v1")
    servers.asked.clear()
    status, head, body, ended = ask(box, STREAM)
    assert (status, head["x-cay-provider"], ended) == (200, "main", 18) and body.endswith("\n\n"), (status, head, ended)
    assert [kind for kind, *_ in servers.asked] == ["cut"]
    # All of them.
    team.provider("main", servers.url + "/busy/v1")
    team.cay("model", "rm", "backup")
    status, head, body, _ = ask(box)
    assert (status, head["x-cay-provider"], body) == (429, "main", '{"error":{"message":"slow down"}}')


def test_bounds_and_budgets(team, servers, eventually):
    team.provider("main", servers.url + "/ok/v1", key=None)
    box = team.box()
    team.server.cay("team", "limits", "set", team.name, "sandboxModelTokens=30")
    assert ask(box)[0] == 200
    assert ask(box)[0] == 200
    status, head, body, _ = ask(box)
    assert status == 429 and head["x-should-retry"] == "false", body
    assert "has exchanged 36 tokens" in json.loads(body)["error"]["message"]
    team.server.cay("team", "limits", "set", team.name, "sandboxModelTokens=default")
    budget = cayv1.call("POST", "/budgets", {"meter": "model_output_tokens", "limit": "20", "period": "day", "action": "pause"}, key=team.key)
    box.commands.run("curl -s --data-binary @/tmp/body http://models.cay.internal/v1/chat/completions", background=True)  # the 21st token uses it up
    eventually(lambda: box.get_info().state == e2b.SandboxState.PAUSED)
    assert team.used() == (33, 21)
    with pytest.raises(e2b.RateLimitException):
        box.connect(timeout=300)
    cayv1.call("PATCH", f"/budgets/{budget['id']}", {"limit": "100"}, key=team.key)
    box.connect(timeout=300)
    assert ask(box)[0] == 200


def test_life_with_models(team, servers, eventually):
    team.provider("main", servers.url + "/slow/v1")
    box = team.box()
    box.files.write("/tmp/streamed", STREAM)
    box.commands.run("curl -sN -o /tmp/stream -d @/tmp/streamed http://models.cay.internal/v1/chat/completions; echo $? > /tmp/ended", background=True)
    eventually(lambda: "choices" in box.commands.run("cat /tmp/stream 2>/dev/null; true").stdout)
    forks = box.fork(count=2, timeout=300)
    box.pause()
    assert servers.go.wait(30)  # the provider's side of the stream ends with the pause
    eventually(lambda: team.used()[1] > 0)  # and what came is counted
    team.provider("main", servers.url + "/ok/v1")
    box.connect(timeout=300)
    eventually(lambda: box.commands.run("cat /tmp/ended 2>/dev/null; true").stdout.strip() not in ("", "0"))
    for each in (box, *forks):
        assert ask(each)[:1] == (200,)
        each.kill()


def test_policies(team, servers):
    team.provider("main", servers.url + "/ok/v1")
    alone = team.box(network={"deny_out": [e2b.ALL_TRAFFIC], "allow_out": ["models.cay.internal"]})
    assert ask(alone)[0] == 200
    closed = team.box(network={"deny_out": ["models.cay.internal"]})
    status, _, body, _ = ask(closed, flags="--resolve models.cay.internal:80:169.254.77.1")
    assert status == 403 and "denyOut models.cay.internal" in json.loads(body)["error"]["message"]
    assert ask(closed)[3] == 6  # it has no address
    none = team.box(allow_internet_access=False)
    assert ask(none, flags="--resolve models.cay.internal:80:169.254.77.1")[0] in (0, 403)
    other = Team()
    try:
        status, _, body, _ = ask(other.box(), path="/v1/messages")
        assert status == 404 and json.loads(body)["type"] == "error"
    finally:
        other.server.cay("team", "remove", other.name, "--force", check=False)
    assert len(servers.asked) == 1
