"""Sandbox.create(mcp=…), getMcpUrl and getMcpToken of E2B's SDK, with the SDK of the Model Context Protocol as the agent's."""

import asyncio
import contextlib
import json
import os
import subprocess
import urllib.parse

import e2b
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

import cayv1
import oddserver
import world

# Servers of the catalogue that need no account, and a tool that answers without a network.
SERVERS = {
    "arxiv": ({"storagePath": "/home/user/papers"}, None),
    "context7": ({"apiKey": "none"}, None),
    "desktopCommander": ({"paths": ["/home/user"]}, None),
    "duckduckgo": ({}, None),
    "effect": ({}, None),
    "fetch": ({}, None),
    "filesystem": ({"paths": ["/home/user"]}, ("list_allowed_directories", {}, "/home/user")),
    "git": ({"paths": ["/home/user"]}, None),
    "github": ({"personalAccessToken": "none"}, None),
    "markitdown": ({"paths": ["/home/user"]}, ("convert_to_markdown", {"uri": "data:text/html,<h1>x</h1>"}, "# x")),
    "memory": ({}, ("create_entities", {"entities": [{"name": "n", "entityType": "t", "observations": ["seen"]}]}, "seen")),
    "notion": ({"internalIntegrationToken": "none"}, None),
    "openbnbAirbnb": ({}, None),
    "sequentialthinking": ({}, ("sequentialthinking", {"thought": "t", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}, "thoughtNumber")),
    "slack": ({"botToken": "none", "teamId": "none"}, None),
    "sqlite": ({}, ("write_query", {"query": "CREATE TABLE t (a)"}, "[")),
    "time": ({}, ("get_current_time", {"timezone": "UTC"}, "UTC")),
    "wikipedia": ({}, None),
}

@contextlib.asynccontextmanager
async def agent(box, token=None):
    """A client of the gateway, at the URL that the SDK gives, by the port of the server."""
    url = urllib.parse.urlsplit(box.get_mcp_url())
    assert url.scheme == "https" and url.hostname.startswith(f"50005-{box.sandbox_id}."), url
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {token or box.get_mcp_token()}", "Host": url.netloc})
    async with streamable_http_client(os.environ["E2B_SANDBOX_URL"] + url.path, http_client=http) as streams:
        async with mcp.ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield session


async def ask(session, tool, **arguments):
    result = await session.call_tool(tool, arguments)
    return "".join(part.text for part in result.content if part.type == "text"), result.is_error


def inside(box, work):
    async def run():
        async with agent(box) as session:
            return await work(session)
    return asyncio.run(run())


def gateway(box, config):
    """Runs the command of Sandbox.create in a sandbox that is there already."""
    return box.commands.run("mcp-gateway --config '" + json.dumps(config).replace("'", "'\\''") + "'", user="root", envs={"GATEWAY_ACCESS_TOKEN": "chosen"})


def test_create_and_a_life(box):
    """The token and the URL of the SDK serve, after pause and resume, in a fork, and after a rollback to when it was there."""
    async def work(session):
        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"get_current_time", "read_text_file"} <= tools, tools
        text, failed = await ask(session, "get_current_time", timezone="UTC")
        assert not failed and "UTC" in text, text

    token = box.get_mcp_token()
    inside(box, work)
    other = e2b.Sandbox.connect(box.sandbox_id)
    assert other.get_mcp_token() == token
    node = cayv1.checkpoint(box)
    box.pause()
    inside(e2b.Sandbox.connect(box.sandbox_id), work)
    fork, = box.fork(count=1)
    try:
        inside(fork, work)
    finally:
        fork.kill()
    box.commands.run("kill $(cat /run/mcp-gateway.pid)", user="root")
    with pytest.raises(Exception):
        inside(box, work)
    cayv1.rollback(box, node)
    inside(box, work)
    assert "GATEWAY" not in box.commands.run("cat /proc/$(cat /run/mcp-gateway.pid)/cmdline | tr '\\0' ' '", user="root").stdout
    assert token not in box.files.read("/var/log/mcp-gateway/gateway.log", user="root")


@pytest.fixture(scope="module")
def box():
    sandbox = e2b.Sandbox.create(mcp={"time": {}, "filesystem": {"paths": ["/home/user"]}}, timeout=900)
    yield sandbox
    sandbox.kill()


def test_asynchronous():
    async def run():
        sandbox = await e2b.AsyncSandbox.create(mcp={"time": {}}, timeout=300)
        try:
            token = await sandbox.get_mcp_token()
            async with agent(sandbox, token) as session:
                assert not (await ask(session, "get_current_time", timezone="UTC"))[1]
        finally:
            await sandbox.kill()
    asyncio.run(run())


@pytest.mark.parametrize("config, words", [
    ({"fetsh": {}}, "there is fetch"),
    ({"tavily": {}}, "apiKey is missing"),
    ({"github/o/r": {"run_cmd": "true", "install_cmd": "exit 3"}}, "github/o/r cannot be installed"),
])
def test_what_cannot_start_says_why(config, words):
    before = len(e2b.Sandbox.list().next_items())
    with pytest.raises(e2b.SandboxException, match=words):
        e2b.Sandbox.create(mcp=config, timeout=300)
    assert len(e2b.Sandbox.list().next_items()) == before


def test_another_token_opens_nothing(box):
    url = urllib.parse.urlsplit(box.get_mcp_url())
    other = e2b.Sandbox.create(mcp={"time": {}}, timeout=300)
    try:
        for header in ([], ["-H", "Authorization: Bearer another"], ["-H", f"Authorization: Bearer {other.get_mcp_token()}"]):
            done = box.commands.run("curl -s -o /dev/null -w '%{http_code}' -X POST " + " ".join(f"'{h}'" for h in header) + f" http://localhost:50005{url.path}")
            assert done.stdout == "401", done
    finally:
        other.kill()


def test_servers_that_misbehave():
    """A server of a repository: as the user, without the token, its faults are its own."""
    box = e2b.Sandbox.create("mcp-gateway", timeout=600)
    try:
        oddserver.install(box)
        config = {"time": {}, "github/o/odd": {"run_cmd": "python3 server.py", "install_cmd": "touch installed", "envs": {"KEY": "${e2b.secrets.none}"}},
                  "cay": {"timeout": 20, "tools": {"github/o/odd": ["env", "crash", "big", "hang", "lie"]}}}
        gateway(box, config)
        assert box.get_mcp_token() == "chosen"

        async def work(session):
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert "env" in names and not names & {"lie", "get"}, names
            told = json.loads((await ask(session, "env"))[0])
            assert told["uid"] == 1000 and told["env"]["HOME"] == "/home/user" and "GATEWAY_ACCESS_TOKEN" not in told["env"], told
            assert told["env"]["KEY"] == "${e2b.secrets.none}", told
            for tool, words in (("hang", "does not answer within 20s"), ("big", "longer than 8 MiB"), ("crash", "ended before it answered")):
                text, failed = await ask(session, tool)
                assert failed and words in text and "github/o/odd" in text, text
                assert not (await ask(session, "get_current_time", timezone="UTC"))[1]
                while (await ask(session, "env"))[1]:
                    await asyncio.sleep(0.1)
        inside(box, work)
        log = box.files.read("/var/log/mcp-gateway/gateway.log", user="root")
        assert "out of luck" in log, log
        gateway(box, {"time": {}})  # in place of it
        assert inside(box, lambda s: s.list_tools()).tools
    finally:
        box.kill()


def approvals(*args):
    run = subprocess.run([str(world.CAY), "--json", "approvals", *args, "--team", "default"], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def test_a_call_that_asks():
    box = e2b.Sandbox.create(mcp={"time": {}, "cay": {"ask": {"time": ["get_current_time"]}}}, timeout=300)
    try:
        async def work(session):
            assert not (await ask(session, "convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"))[1]
            for decision, failed in (("approve", False), ("deny", True)):
                call = asyncio.create_task(ask(session, "get_current_time", timezone="UTC"))
                while not (waiting := approvals("list", "-s", box.sandbox_id)):
                    await asyncio.sleep(0.1)
                question, = waiting
                assert question["kind"] == "tool" and "get_current_time" in question["title"] and '"UTC"' in question["body"], question
                approvals(decision, question["id"])
                text, gone = await call
                assert gone == failed and (not failed or "denied" in text), text
        inside(box, work)
    finally:
        box.kill()


def test_fifteen_servers():
    """Servers of npm and PyPI, by name: installed, started, and asked what they have."""
    box = e2b.Sandbox.create("mcp-gateway", timeout=1800)
    ran, lacking = [], []
    try:
        for name, (config, call) in SERVERS.items():
            try:
                box.commands.run(f"mcp-gateway pull {name}", user="root", timeout=300)
                gateway(box, {name: config})
            except e2b.CommandExitException as err:
                lacking.append(f"{name}: {err.stderr[-400:]}")
                continue

            async def work(session):
                assert (await session.list_tools()).tools, name
                if call:
                    text, failed = await ask(session, call[0], **call[1])
                    assert not failed and call[2] in text, (name, text)
            inside(box, work)
            ran.append(name)
            print(f"✓ {name}", flush=True)
    finally:
        box.kill()
    assert not lacking and len(ran) >= 15, lacking


def test_servers_in_a_build():
    """addMcpServer: what was pulled in a build starts without a network."""
    name = "gateway-with-sqlite"
    e2b.Template.build(e2b.Template().from_template("mcp-gateway").add_mcp_server(["sqlite"]), name)
    box = e2b.Sandbox.create(name, mcp={"sqlite": {}}, allow_internet_access=False, timeout=300)
    try:
        assert "list_tables" in {tool.name for tool in inside(box, lambda s: s.list_tools()).tools}
    finally:
        box.kill()
