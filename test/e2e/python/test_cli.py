"""The command line tool, as a person or a script uses it."""

import json

import pytest

import world


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture
def made(server):
    sandbox = json.loads(server.cay("sandbox", "create", "--json").stdout)["sandboxID"]
    yield sandbox
    server.cay("sandbox", "kill", sandbox, check=False)


def test_life_of_a_sandbox(server, made):
    assert made in server.cay("sandbox", "list").stdout
    assert made in [s["sandboxID"] for s in json.loads(server.cay("sandbox", "list", "--json").stdout)]
    assert server.cay("sandbox", "exec", made, "--", "echo", "hi there").stdout == "hi there\n"
    failed = server.cay("sandbox", "exec", made, "--", "sh", "-c", "echo oops >&2; exit 7", check=False)
    assert (failed.returncode, failed.stderr) == (7, "oops\n")
    server.cay("sandbox", "kill", made)
    assert made not in server.cay("sandbox", "list").stdout
    gone = server.cay("sandbox", "kill", made, check=False)
    assert gone.returncode != 0
    assert made in gone.stderr


def test_templates(server):
    names = [name for t in json.loads(server.cay("template", "list", "--json").stdout) for name in t["names"]]
    assert {"base", "code-interpreter-v1"} <= {name.split("/")[-1] for name in names}
    table = server.cay("template", "list").stdout
    assert "base" in table and max(map(len, table.splitlines())) <= 200


def test_version_and_doctor(server):
    assert server.cay("version").stdout.startswith("cay ")
    assert "nftables" in server.cay("doctor", check=False).stdout


def test_a_second_server_says_who_holds_the_data(server):
    second = server.cay("server", check=False)
    assert second.returncode != 0
    assert len(second.stderr.strip().splitlines()) <= 3, second.stderr
