"""Networks that sandboxes of a team share, and how fast they may send."""

import json
import uuid

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture
def network():
    return f"net-{uuid.uuid4().hex[:8]}"


def serve(sandbox):
    sandbox.commands.run("python3 -m http.server 8000", background=True)


def reach(sandbox, host):
    run = sandbox.commands.run(
        f"curl -s -o /dev/null -w '%{{http_code}}' --retry 20 --retry-connrefused --retry-delay 1 -m 60 http://{host}:8000/ || true",
        timeout=90)
    return run.stdout


def closed(sandbox, host):
    run = sandbox.commands.run(f"curl -s -o /dev/null -m 60 http://{host}:8000/ || echo no", timeout=90)
    return run.stdout == "no\n"


def test_members_reach_each_other_by_name(server, create, network):
    made = server.cay("sandbox", "create", "--network", network, "--name", "db", "--timeout", "10m").stdout.strip()
    try:
        db = e2b.Sandbox.connect(made)
        serve(db)
        web = create(allow_internet_access=False)
        server.cay("network", "join", web.sandbox_id, network, "--name", "web")
        assert reach(web, "db.cay.internal") == "200" and reach(web, f"{made}.cay.internal") == "200"
        listed = json.loads(server.cay("--json", "network", "list").stdout)
        assert [(m["name"], m["sandboxID"]) for m in listed if m["network"] == network] == [("db", made), ("web", web.sandbox_id)]

        stranger = create()
        address = web.commands.run("getent hosts db.cay.internal").stdout.split()[0]
        assert closed(stranger, address) and closed(stranger, "db.cay.internal")

        # It is the sandbox that is a member, whichever instance it runs as.
        db.pause()
        db = e2b.Sandbox.connect(made)
        assert reach(web, "db.cay.internal") == "200"
        web.update_network({"deny_out": ["0.0.0.0/0"]})
        assert reach(web, "db.cay.internal") == "200"

        server.cay("network", "leave", web.sandbox_id)
        address = db.commands.run("hostname -I").stdout.split()[0]
        assert closed(web, "db.cay.internal") and closed(web, address)
    finally:
        server.cay("sandbox", "kill", made)


def test_bad_names(server, create):
    sandbox = create()
    for args in (["Net"], ["-net"], ["n" * 64], ["net", "--name", "a.b"], ["net", "--name", "x_y"]):
        bad = server.cay("network", "join", sandbox.sandbox_id, *args, check=False)
        assert bad.returncode in (1, 80), args
    assert "not found" in server.cay("network", "join", "i" + "0" * 20, "net", check=False).stderr


def test_bandwidth_is_kept(server, create):
    sandbox = create()
    server.cay("sandbox", "limit", sandbox.sandbox_id, "--up", "10M", "--down", "20M")
    server.cay("sandbox", "limit", sandbox.sandbox_id, "--down", "30M")
    sandbox.pause()
    sandbox = sandbox.connect()
    got = json.loads(server.cay("--json", "sandbox", "limit", sandbox.sandbox_id).stdout)
    assert got == {"up": 10 << 20, "down": 30 << 20}
    assert sandbox.commands.run("echo still here").stdout == "still here\n"
    bad = server.cay("sandbox", "limit", sandbox.sandbox_id, "--up", "1", check=False)
    assert bad.returncode == 1 and "up:" in bad.stderr
