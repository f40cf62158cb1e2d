"""Sandboxes out of the pool: made before a client asked, and no client can tell."""

import json
import urllib.error
import urllib.request

import e2b
import e2b_code_interpreter
import pytest

import world
from test_models import ask, servers, team  # noqa: F401 (fixtures)

SERVER = world.Server()


def pooled(template):
    """The ids that sandboxes in the pool of a template will have."""
    ids = set()
    for mark in (SERVER.data / "instances").glob("*/pooled"):
        try:
            spec = json.loads((mark.parent / "spec.json").read_text())["spec"]
        except OSError:  # claimed, or ended, this moment
            continue
        if spec["template"] == template:
            ids.add(spec["sandbox"])
    return ids


@pytest.fixture
def warm(create, eventually):
    """Creates sandboxes that come from the pool."""

    def make(template="base", kind=e2b.Sandbox, **kw):
        first = create(template, kind=kind)  # asks for more of the kind
        of = first.get_info().template_id
        for _ in range(20):
            before = eventually(lambda: pooled(of), 120)
            sandbox = create(template, kind=kind, **kw)
            if sandbox.sandbox_id in before:
                return sandbox
        raise AssertionError("no sandbox came from the pool")

    return make


def test_identity(warm, create):
    one = warm(envs={"COLOUR": "blue"}, metadata={"who": "one"})
    other = create("base")
    assert one.commands.run("echo $COLOUR $E2B_SANDBOX_ID").stdout.split() == ["blue", one.sandbox_id]
    assert one.files.read("/run/e2b/.E2B_SANDBOX_ID") == one.sandbox_id
    assert one.get_info().metadata == {"who": "one"}
    look = "cat /etc/machine-id; cat /proc/sys/kernel/random/uuid; date +%s"
    mine, theirs = one.commands.run(look).stdout.split(), other.commands.run(look).stdout.split()
    assert len(mine[0]) == 32 and mine[0] != theirs[0] and mine[1] != theirs[1]
    assert abs(int(mine[2]) - int(theirs[2])) < 60
    assert other.commands.run("echo $COLOUR").stdout == "\n"


def test_only_its_token_opens_it(warm):
    sandbox = warm(secure=True)
    request = urllib.request.Request(
        f"{SERVER.url}/envs", headers={"e2b-sandbox-id": sandbox.sandbox_id, "e2b-sandbox-port": "49983"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 401
    assert sandbox.commands.run("echo open").stdout == "open\n"


def test_network_policy(warm):
    closed = warm(allow_internet_access=False)
    assert closed.commands.run("getent hosts example.com || echo closed").stdout == "closed\n"
    assert closed.get_info().sandbox_id == closed.sandbox_id


def test_models_are_those_of_the_team(team, servers, warm):  # noqa: F811
    team.provider("main", servers.url + "/ok/v1")
    taken = warm(api_key=team.key)
    status, head, _, _ = ask(taken)
    assert (status, head["x-cay-provider"], team.used()) == (200, "main", (11, 7))
    status, _, body, _ = ask(warm())
    assert status == 404, body


def test_kernels_draw_apart(warm, create):
    draw = "import random, numpy; f'{random.random()} {numpy.random.random()}'"
    kind = e2b_code_interpreter.Sandbox
    one = warm(None, kind=kind, envs={"COLOUR": "blue"})
    other = create(None, kind=kind)
    assert one.run_code(draw).text != other.run_code(draw).text
    assert one.run_code("import os; os.environ['COLOUR']").text == "blue"


def test_a_removed_template_empties_its_pool(create, eventually):
    source = create("base")
    source.files.write("mark.txt", "mine")
    snapshot = source.create_snapshot().snapshot_id
    child = create(snapshot)
    of = child.get_info().template_id
    eventually(lambda: pooled(of), 120)
    again = create(snapshot)
    assert again.files.read("mark.txt") == "mine"
    child.kill()
    again.kill()
    e2b.Sandbox.delete_snapshot(snapshot)
    eventually(lambda: not pooled(of))  # one may have been on its way


def test_doctor_counts_it(warm):
    warm()
    checks = json.loads(SERVER.cay("doctor", "--json", check=False).stdout)
    assert "warm sandboxes wait" in next(c["detail"] for c in checks if c["name"] == "pool")
