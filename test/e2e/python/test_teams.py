"""Teams, people and scoped keys, with both official SDKs, the command line and SSH."""

import datetime
import json
import os
import subprocess
import urllib.error
import urllib.request
import uuid

import e2b
import pytest

import world

JS = world.ROOT / "build" / "sdk" / "js"
SCRIPT = """
import { Sandbox } from 'e2b'
const [id, viewer, full] = process.argv.slice(1)
const refused = await Sandbox.create({ apiKey: viewer }).then(() => 'made', (e) => e.message)
const sbx = await Sandbox.connect(id, { apiKey: full })
console.log(JSON.stringify([refused, (await sbx.commands.run('echo js')).stdout, await Sandbox.kill(id, { apiKey: full })]))
"""


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture(scope="module")
def team(server):
    """A team with a key, made by the operator, and removed with all that it has."""
    name = "t" + uuid.uuid4().hex[:12]
    made = json.loads(server.cay("--json", "team", "create", name, "--key", "first").stdout)
    yield name, made["teamID"], made["key"]
    server.cay("team", "remove", "--force", name)
    assert name not in server.cay("team", "list").stdout


def key(server, team, *options):
    return json.loads(server.cay("--json", "key", "create", "--team", team[0], "scoped", *options).stdout)


def ask(method, path, body=None, **headers):
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_teams_are_apart(server, team, create):
    theirs = create(api_key=team[2])
    assert theirs.commands.run("echo in").stdout == "in\n"
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.connect(theirs.sandbox_id)
    ours = create()
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.connect(ours.sandbox_id, api_key=team[2])
    listed = json.loads(server.cay("--json", "team", "show", team[0]).stdout)
    assert listed["has"]["running"] == 1 and listed["teamID"] == team[1]
    refused = server.cay("team", "remove", team[0], check=False)
    assert refused.returncode == 1 and "1 running sandboxes" in refused.stderr


def test_a_key_with_few_scopes(server, team, create):
    viewer = key(server, team, "--scope", "viewer")["key"]
    box = create(api_key=team[2])
    info = e2b.Sandbox.get_info(box.sandbox_id, api_key=viewer)
    assert info.sandbox_id == box.sandbox_id
    for refused in (lambda: e2b.Sandbox.create(api_key=viewer), lambda: e2b.Sandbox.kill(box.sandbox_id, api_key=viewer)):
        with pytest.raises(e2b.SandboxException, match="sandboxes:write"):
            refused()
    status, answer = ask("GET", f"/sandboxes/{box.sandbox_id}", **{"X-API-Key": viewer})
    assert status == 200 and "envdAccessToken" not in answer
    out = subprocess.run(["node", "--input-type=module", "-e", SCRIPT, box.sandbox_id, viewer, team[2]],
                         check=True, capture_output=True, text=True, timeout=60, cwd=JS).stdout
    refused, said, killed = json.loads(out)
    assert "sandboxes:write" in refused and said == "js\n" and killed is True


def test_a_key_that_is_kept_to_a_template(server, team, create):
    kept = key(server, team, "--template", "base", "--metadata", "app=shop")["key"]
    box = create("base", api_key=kept, metadata={"a": "b"})
    assert box.get_info().metadata == {"a": "b", "app": "shop"}
    with pytest.raises(e2b.SandboxException, match="none of those"):
        e2b.Sandbox.create("code-interpreter-v1", api_key=kept)
    with pytest.raises(e2b.SandboxException, match="app"):
        e2b.Sandbox.create("base", api_key=kept, metadata={"app": "other"})


def hold(server, box, key):
    """A connection into a sandbox by means of a key, and the first line from there."""
    env = {**server.env, "E2B_API_KEY": key["key"], "E2B_API_URL": server.url}
    process = subprocess.Popen([str(world.CAY), "sandbox", "ssh", box.sandbox_id, "echo in; exec sleep 600"], env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return process, process.stdout.readline()


def test_an_end_ends_what_a_key_holds_open(server, team, create):
    box = create(api_key=team[2])
    gone = key(server, team)
    removed, line = hold(server, box, gone)
    assert line == b"in\n"
    for seconds in (4, 30, 120):  # a busy machine needs a while to let it in
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        short = key(server, team, "--expires", end.isoformat(timespec="seconds").replace("+00:00", "Z"))
        expired, line = hold(server, box, short)
        if line == b"in\n":
            break
        expired.communicate(timeout=60)
    assert line == b"in\n"
    server.cay("key", "remove", "--team", team[0], gone["id"])
    for process in (removed, expired):
        assert process.wait(timeout=seconds + 60) != 0
    with pytest.raises(e2b.AuthenticationException, match="wrong"):
        e2b.Sandbox.create(api_key=gone["key"])
    with pytest.raises(e2b.AuthenticationException, match="expired"):
        e2b.Sandbox.create(api_key=short["key"])


def test_people(server, team):
    email = f"{uuid.uuid4().hex}@example.com"
    made = json.loads(server.cay("--json", "member", "add", "--team", team[0], email, "--role", "viewer", "--token", "laptop").stdout)
    person = {"Authorization": "Bearer " + made["token"]}
    status, teams = ask("GET", "/teams", **person)
    assert status == 200 and [t["teamID"] for t in teams] == [team[1]]
    person["X-Team-ID"] = team[1]
    assert ask("GET", "/v2/sandboxes", **person)[0] == 200
    status, answer = ask("POST", "/sandboxes", {"templateID": "base"}, **person)
    assert (status, answer["error_code"]) == (403, "scope_missing") and "sandboxes:write" in answer["message"]
    server.cay("member", "role", "--team", team[0], email, "admin")
    status, answer = ask("POST", "/api-keys", {"name": "mine"}, **person)
    assert status == 201 and answer["createdBy"]["email"] == email
    status, answer = ask("POST", "/access-tokens", {"name": "second"}, **person)
    assert status == 201 and answer["token"].startswith("sk_e2b_") and set(answer) == {"id", "name", "token", "mask", "createdAt"}
    assert ask("DELETE", f"/access-tokens/{answer['id']}", **person)[0] == 204
    server.cay("member", "remove", "--team", team[0], email)
    assert ask("GET", "/v2/sandboxes", **person)[0] == 404


def test_a_disabled_team(server, team):
    server.cay("team", "disable", team[0])
    try:
        with pytest.raises(e2b.SandboxException, match="disabled"):
            e2b.Sandbox.create(api_key=team[2])
    finally:
        server.cay("team", "enable", team[0])
    assert e2b.Sandbox.list(api_key=team[2]).next_items() is not None
