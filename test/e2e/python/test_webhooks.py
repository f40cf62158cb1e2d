"""Webhooks: what real receivers get, checked by libraries of others."""

import base64
import hashlib
import http.server
import json
import os
import queue
import subprocess
import threading
import urllib.error
import urllib.request

import e2b
import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

import world

JS = world.ROOT / "build" / "sdk" / "webhooks"
VERIFY = """
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";
const { secret, body, headers } = JSON.parse(readFileSync(0));
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
"""


class Receiver:
    """An HTTP server that keeps what it got. It refuses the next request about each sandbox of refuse."""

    def __init__(self):
        self.got, self.refuse = queue.Queue(), set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                about = json.loads(body).get("sandboxId")
                self.send_response(503 if about in outer.refuse else 200)
                outer.refuse.discard(about)
                self.send_header("Content-Length", "0")
                self.end_headers()
                outer.got.put((dict(self.headers.items()), body))

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((world.Server().near, 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = "http://%s:%d/hook?a=b" % self.server.server_address

    def next(self, **about):
        """The next request whose body has these fields: other tests make events at the same time."""
        while True:
            headers, body = self.got.get(timeout=60)
            if about.items() <= json.loads(body).items():
                return {name.lower(): value for name, value in headers.items()}, body


@pytest.fixture
def receiver():
    one = Receiver()
    yield one
    one.server.shutdown()
    one.server.server_close()


def call(method, path, body=None):
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        text = reply.read()
        return json.loads(text) if text else None


@pytest.fixture
def hook(receiver):
    """Makes webhooks at the receiver, and removes them."""
    made = []

    def make(events, **more):
        made.append(call("POST", "/events/webhooks", {"name": "tests", "url": receiver.url, "events": events, **more}))
        return made[-1]

    yield make
    for one in made:
        call("DELETE", "/events/webhooks/" + one["id"])


def node(secret, headers, body):
    """The event that the library for JavaScript reads from a request."""
    run = subprocess.run(
        ["node", "--input-type=module", "-e", VERIFY], cwd=JS, text=True, capture_output=True, timeout=60,
        input=json.dumps({"secret": secret, "body": body.decode(), "headers": headers}))
    return json.loads(run.stdout) if run.returncode == 0 else run.stderr


LIFE = [f"sandbox.lifecycle.{word}" for word in ("created", "updated", "paused", "resumed", "checkpointed", "killed")]


def test_a_life_is_told_to_a_webhook(receiver, hook):
    made = hook(LIFE)
    secret = made["signatureSecret"]
    sandbox = e2b.Sandbox.create(timeout=300, metadata={"user": "ann"})
    mine = sandbox.sandbox_id
    seen = []

    def told(kind):
        """The next event of the sandbox, which is of a kind."""
        headers, body = receiver.next(sandboxId=mine)
        event = Webhook(secret).verify(body, headers)
        hashed = hashlib.sha256(secret.encode() + body).digest()
        assert headers["e2b-signature"] == base64.urlsafe_b64encode(hashed).rstrip(b"=").decode()
        assert headers["e2b-signature-version"] == "v1" and headers["e2b-webhook-id"] == made["id"]
        assert event["id"] == headers["webhook-id"] and event["version"] == "v2"
        assert event["type"] == f"sandbox.lifecycle.{kind}"
        assert event["eventData"]["sandbox_metadata"] == {"user": "ann"}
        seen.append(event)
        return event, headers, body

    _, headers, body = told("created")
    assert node(secret, headers, body) == seen[0]
    assert "No matching signature" in node("whsec_" + base64.b64encode(b"another").decode(), headers, body)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body + b" ", headers)
    sandbox.set_timeout(900)
    assert "set_timeout" in told("updated")[0]["eventData"]
    call("PUT", f"/sandboxes/{mine}/network", {"denyOut": ["203.0.113.0/24"]})
    assert told("updated")[0]["eventData"]["network_egress"] == {"denied_cidrs": ["203.0.113.0/24"]}
    sandbox.pause()
    ran = told("paused")[0]["eventData"]["execution"]
    assert ran["vcpu_count"] >= 1 and ran["memory_mb"] > 0 and ran["execution_time"] > 0
    sandbox.connect(timeout=300)
    assert told("resumed")[0]["sandboxExecutionId"] != seen[0]["sandboxExecutionId"]
    sandbox.create_snapshot()
    told("checkpointed")
    sandbox.kill()
    end = told("killed")[0]
    assert end["eventData"]["kill_reason"] == "request"
    assert end["eventData"]["execution"]["started_at"] == seen[4]["timestamp"], "of the last run"
    assert call("GET", f"/events/sandboxes/{mine}?orderAsc=true&limit=100") == seen
    assert len({e["id"] for e in seen}) == len(seen)


def test_a_failed_event_comes_again(receiver, hook, eventually):
    made = hook(["sandbox.lifecycle.killed"], signatureSecret="a secret that is plain text")
    path = f"/events/webhooks/{made['id']}"
    sandbox = e2b.Sandbox.create(timeout=60)
    mine = sandbox.sandbox_id
    receiver.refuse.add(mine)
    sandbox.kill()
    first, _ = receiver.next(sandboxId=mine)
    second, body = receiver.next(sandboxId=mine)  # five seconds later
    assert first["webhook-id"] == second["webhook-id"] and first["e2b-delivery-id"] != second["e2b-delivery-id"]
    plain = "whsec_" + base64.b64encode(b"a secret that is plain text").decode()
    event = Webhook(plain).verify(body, second)

    def delivery():
        found = [d for d in call("GET", path + "/deliveries?limit=100")["data"] if d["eventId"] == event["id"]]
        return found and len(found[0]["attempts"]) > 1 and found[0]

    attempts = eventually(delivery)["attempts"]
    assert [a["status"] for a in attempts] == ["failed", "success"] and attempts[0]["responseHttpStatusCode"] == 503
    assert call("GET", path + "/stats")["failed"] >= 1
    call("POST", f"/cay/v1/webhooks/{made['id']}/deliveries/{event['id']}/redeliver")
    again, same = receiver.next(sandboxId=mine)
    assert again["webhook-id"] == event["id"] and same == body


def test_what_may_not_be_a_webhook(hook):
    for url in ["http://10.0.0.1/", "http://169.254.169.254/latest/", "ftp://example.com/", "http://[fd00::1]/"]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            hook(["*"], url=url)
        assert refused.value.code == 400


def test_webhooks_by_the_command_line(receiver):
    server = world.Server()
    server.env.update(os.environ)
    made = json.loads(server.cay("webhook", "create", receiver.url, "-e", "sandbox.forked", "--name", "mine", "--json").stdout)
    try:
        secret = made["signatureSecret"]
        assert server.cay("webhook", "test", made["id"]).stdout.startswith("200 ")
        headers, body = receiver.next(type="webhook.test")
        assert Webhook(secret).verify(body, headers)["data"]["data"]["webhook"] == made["id"]
        new = server.cay("webhook", "rotate", made["id"]).stdout.strip()
        server.cay("webhook", "test", made["id"])
        headers, body = receiver.next(type="webhook.test")
        for one in (secret, new):
            assert Webhook(one).verify(body, headers) == node(one, headers, body)
        assert "mine" in server.cay("webhook", "list").stdout
        assert len(json.loads(server.cay("webhook", "deliveries", made["id"], "--json").stdout)) >= 2
        assert "off" in server.cay("webhook", "update", made["id"], "--disable").stdout
        assert json.loads(server.cay("webhook", "show", made["id"], "--json").stdout)["enabled"] is False
        assert secret not in server.cay("webhook", "show", made["id"], "--json").stdout
    finally:
        server.cay("webhook", "remove", made["id"])
    assert made["id"] not in server.cay("webhook", "list").stdout
