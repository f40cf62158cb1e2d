"""Limits of a team, as the official SDKs meet them."""

import concurrent.futures
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid

import e2b
import pytest

import world

JS = world.ROOT / "build" / "sdk" / "js"
CREATE = """
import { Sandbox } from 'e2b'
let name = ''
try {
  const sbx = await Sandbox.create({ timeoutMs: 60_000 })
  await sbx.kill()
} catch (error) { name = error.constructor.name }
console.log(JSON.stringify(name))
"""


class Team:
    """A team of its own: others are not bounded with it."""

    def __init__(self, server):
        self.server, self.name = server, "limits-" + uuid.uuid4().hex[:12]
        made = json.loads(server.cay("--json", "team", "create", self.name, "--key", "tests").stdout)
        self.key = made["key"]

    def limit(self, **limits):
        changes = [f"{name}={value}" for name, value in limits.items()]
        made = json.loads(self.server.cay("--json", "team", "limits", "set", self.name, *changes).stdout)
        if self.server.cluster:
            time.sleep(6)  # within five seconds the other nodes know it, and nothing tells when
        return made

    def create(self, **kw):
        return e2b.Sandbox.create(timeout=60, api_key=self.key, **kw)

    def javascript(self):
        """The error that a create of the JavaScript SDK raises; empty for nothing."""
        env = {**os.environ, **self.server.sdk_env(self.key)}
        run = subprocess.run(["node", "--input-type=module", "-e", CREATE], cwd=JS, env=env, text=True, capture_output=True, timeout=60)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def get(self, path):
        request = urllib.request.Request(self.server.url + path, headers={"X-API-Key": self.key})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.headers, json.load(reply)
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers, json.load(refused)


@pytest.fixture(scope="module")
def team():
    one = Team(world.Server())
    yield one
    one.server.cay("team", "remove", one.name, "--force")


def test_running_sandboxes(team, waits):
    team.limit(sandboxes=1, snapshotBytes=1)
    sbx = team.create()
    waits.clear()
    with pytest.raises(e2b.RateLimitException) as refused:
        team.create()
    assert set(waits) == {None}, "the SDK tries again what waiting does not cure"
    assert "maximum number of concurrent E2B sandboxes (1)" in str(refused.value)
    assert team.javascript() == "RateLimitError"
    with pytest.raises(e2b.RateLimitException):
        sbx.pause()
    assert sbx.commands.run("echo on").stdout == "on\n"
    team.limit(snapshotBytes="none")
    sbx.pause()
    assert team.javascript() == "", "a paused one counts"
    other = team.create()
    with pytest.raises(e2b.RateLimitException):
        sbx.connect(timeout=60)
    limits = team.limit(sandboxes=2)
    assert limits["sandboxes"] == {"limit": 2, "own": True, "used": 1}
    assert limits["snapshotBytes"]["used"] > 1 << 20 or team.server.cluster  # each node counts its own
    sbx.connect(timeout=60)
    assert sbx.commands.run("echo on").stdout == "on\n"
    team.limit(sandboxes="default")
    third = team.create()
    for one in (sbx, other, third):
        one.kill()
    text = team.server.cay("team", "limits", team.name).stdout
    assert "snapshotBytes" in text and "no limit" in text


def test_rates(team):
    team.limit(readsPerSecond=1, readBurst=2)
    status, headers, _ = team.get("/v2/sandboxes")
    assert (status, headers["RateLimit-Limit"], headers["RateLimit-Remaining"], headers["RateLimit-Reset"]) == (200, "2", "1", "1")
    for _ in range(9):  # a slow machine gives a token back meanwhile
        status, headers, body = team.get("/v2/sandboxes")
        if status == 429:
            break
    assert (status, headers["RateLimit-Remaining"], headers["Retry-After"], headers["Should-Retry"]) == (429, "0", "1", "true")
    assert body == {"code": 429, "message": "Rate limit exceeded", "error_code": "rate_limit_exceeded"}
    assert isinstance(listed(team, 0), e2b.RateLimitException) or isinstance(listed(team, 0), e2b.RateLimitException)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # by itself the SDK waits as long as it is told
        assert list(pool.map(lambda _: listed(team), range(3))) == [[], [], []]
    team.limit(readsPerSecond=1000)
    status, headers, _ = team.get("/v2/sandboxes")
    assert (status, headers["RateLimit-Limit"]) == (200, "2")
    team.limit(readsPerSecond="none", readBurst="default")
    status, headers, _ = team.get("/v2/sandboxes")
    assert (status, headers["RateLimit-Limit"]) == (200, None)


def listed(team, retries=None):
    """The sandboxes of a team, or why there are none."""
    try:
        return e2b.Sandbox.list(api_key=team.key, retries=retries).next_items()
    except e2b.RateLimitException as refused:
        return refused
