"""The addresses that sandboxes may reach, with the SDK, changed while they run."""

import json
import os
import pathlib
import subprocess
import uuid

import e2b
import pytest
from e2b import ALL_TRAFFIC

import world
from internet import Internet


@pytest.fixture(scope="module")
def internet():
    with Internet() as world:
        yield world


def get(sandbox, address, host=None):
    """The status and body of a request, or "refused"."""
    header = f"-H 'Host: {host}'" if host else ""
    run = sandbox.commands.run(
        f"curl -sS -m 30 -w '\\n%{{http_code}}' {header} http://{address}/ || echo refused", timeout=60)
    return run.stdout.strip()


def echo(sandbox, address):
    """Whether an arbitrary protocol gets through."""
    run = sandbox.commands.run(
        "python3 - <<'E'\n"
        "import socket\n"
        f"s = socket.create_connection(('{address}', 9000), timeout=30)\n"
        "s.sendall(b'ping')\n"
        "print(s.recv(4))\n"
        "E", timeout=60)
    return "ping" in run.stdout


def blocked(sandbox, address):
    with pytest.raises(e2b.CommandExitException):
        echo(sandbox, address)
    return True


def test_update_network_addresses(create, internet):
    first, second = internet.addresses
    sandbox = create()
    assert get(sandbox, first).endswith("200") and echo(sandbox, second)
    sandbox.update_network({"allow_out": [first], "deny_out": [ALL_TRAFFIC]})
    assert echo(sandbox, first) and blocked(sandbox, second)
    info = sandbox.get_info()
    assert info.network["allow_out"] == [first] and info.network["deny_out"] == [ALL_TRAFFIC]
    answer = get(sandbox, second)
    assert answer.endswith("403"), answer
    reason = json.loads(answer.rsplit("\n", 1)[0])
    assert reason["rule"] == f"denyOut {ALL_TRAFFIC}" and reason["sandboxId"] == sandbox.sandbox_id
    sandbox.update_network({"deny_out": [f"{first}/32"]})
    assert blocked(sandbox, first) and echo(sandbox, second)
    sandbox.update_network({"allow_internet_access": False})
    assert blocked(sandbox, first) and blocked(sandbox, second)
    sandbox.update_network({})
    assert echo(sandbox, first) and echo(sandbox, second)


def test_network_outlives_pause_and_fork(create, internet):
    first, second = internet.addresses
    sandbox = create(network={"allow_out": [first], "deny_out": [ALL_TRAFFIC]})
    assert echo(sandbox, first) and blocked(sandbox, second)
    sandbox.update_network({"allow_out": [second], "deny_out": [ALL_TRAFFIC]})
    sandbox.pause()
    sandbox = sandbox.connect()
    assert echo(sandbox, second) and blocked(sandbox, first)


def test_bad_policies(create):
    sandbox = create()
    for update in (
        {"allow_out": ["not a domain"]},
        {"allow_out": ["example.com"]},
        {"deny_out": ["example.com"]},
        {"rules": {"*": [{"transform": {"headers": {"a": "b"}}}]}},
        {"rules": {"a.example": [{"transform": {"headers": {"Host": "b"}}}]}},
    ):
        with pytest.raises(e2b.SandboxException) as e:
            sandbox.update_network(update)
        assert "network." in str(e.value)


def test_domains_answer_only_what_is_allowed(create, internet):
    first, _ = internet.addresses
    sandbox = create(network={"allow_out": ["allowed.example"], "deny_out": [ALL_TRAFFIC]})
    answer = get(sandbox, first, "other.example")
    assert answer.endswith("403") and ALL_TRAFFIC in answer
    # No name server has said that the name is at this address.
    answer = get(sandbox, first, "allowed.example")
    assert answer.endswith("403") and "not the name's" in answer
    run = sandbox.commands.run("getent ahosts other.example || echo unknown", timeout=60)
    assert run.stdout.strip() == "unknown"


def test_rules_set_headers(create, internet):
    first, _ = internet.addresses
    sandbox = create(network={"rules": {"plain.example": [{"transform": {"headers": {"X-Plain": "yes"}}}]}})
    answer = get(sandbox, first, "elsewhere.example")
    assert "plain=None" in answer and answer.endswith("200")
    info = sandbox.get_info()
    assert info.network["rules"]["plain.example"][0]["transform"]["headers"] == {"X-Plain": "yes"}


def test_denials_are_told(create, internet, eventually):
    _, second = internet.addresses
    sandbox = create(network={"deny_out": [second]})
    assert get(sandbox, second, "secret.example").endswith("403")
    cay = [str(world.CAY), "--json", "sandbox"]
    tried = json.loads(subprocess.run([*cay, "egress", sandbox.sandbox_id], check=True, capture_output=True, text=True).stdout)
    assert tried[-1]["rule"] == f"denyOut {second}" and tried[-1]["name"] == "secret.example" and not tried[-1]["allowed"]

    def told():
        out = subprocess.run([*cay, "events", sandbox.sandbox_id], check=True, capture_output=True, text=True).stdout
        events = [json.loads(line) for line in out.splitlines()]
        return [e for e in events if e["type"] == "egress.denied" and e["data"]["rule"] == f"denyOut {second}"]

    eventually(told)


def test_secrets_are_never_told(create):
    name, value = f"key-{uuid.uuid4().hex[:8]}", f"value-{uuid.uuid4().hex}"
    made = e2b.Secret.create(name, value, metadata={"for": "test"})
    try:
        assert made.name == name and made.version == 1
        assert e2b.Secret.update(name, value + "2").version == 2
        assert e2b.Secret.get_info(name).metadata == {"for": "test"} and e2b.Secret.exists(name)
        assert name in [s.name for s in e2b.Secret.list().next_items()]
        sandbox = create(
            envs={"ENV": value + "3"},
            network={"rules": {"api.example": [{"transform": {"headers": {"Authorization": e2b.Secret.fill(name)}}}]}})
        inside = sandbox.commands.run("env; cat /proc/1/environ | tr '\\0' '\\n'; ls -R /.cay 2>/dev/null || true").stdout
        assert value + "2" not in inside
        # Neither secrets nor environments are in the database in clear.
        files = [file for file in world.Server().records() if file.exists()]
        assert files
        for file in files:
            assert value.encode() not in file.read_bytes(), file
    finally:
        assert e2b.Secret.destroy(name)
    assert not e2b.Secret.exists(name) and not e2b.Secret.destroy(name)


def test_the_authority_is_trusted_inside(create):
    authority = pathlib.Path(world.Server().data, "authority", "egress.crt").read_text().strip()
    sandbox = create()
    assert authority in sandbox.files.read("/etc/ssl/certs/ca-certificates.crt")
    run = sandbox.commands.run(
        "python3 -c 'import ssl; print([c for c in ssl.create_default_context().get_ca_certs() if \"Cay\" in str(c)])'")
    assert "Cay egress" in run.stdout
