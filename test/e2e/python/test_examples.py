"""The examples, as their readers run them; those with models are in test/models."""

import os
import subprocess
import sys
import uuid

import e2b
from standardwebhooks.webhooks import Webhook

import world
from test_webhooks import Receiver


def test_two_teams():
    server, receiver = world.running(), Receiver()
    first, second = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("acme", "globex"))
    try:
        run = subprocess.run(
            [str(world.ROOT / "examples" / "two-teams" / "setup.sh"), receiver.url],
            env={**server.env, "CAY": str(world.CAY), "FIRST": first, "SECOND": second},
            capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        teams = [dict(entry.split("=", 1) for entry in line.split()) for line in run.stdout.splitlines()]
        assert [team["team"] for team in teams] == [first, second]
        sandbox = e2b.Sandbox.create(timeout=60, api_key=teams[0]["agents"])
        assert sandbox.get_info().metadata == {"app": "agents"}
        headers, body = receiver.next()
        event = Webhook(teams[0]["webhook"]).verify(body, headers)
        assert (event["type"], event["sandboxId"]) == ("sandbox.lifecycle.created", sandbox.sandbox_id)
        # The other team has nothing of it.
        assert e2b.Sandbox.list(api_key=teams[1]["owner"]).next_items() == []
        sandbox.kill()
        budgets = server.cay("budget", "ls", "--team", first).stdout
        assert "a month" in budgets and "agents, a day" in budgets and "app=agents" in budgets
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        for team in (first, second):
            server.cay("team", "remove", team, "--force", check=False)


def test_a_function_call_of_a_model():
    """One example of make examples; another result of its sandbox must make it fail."""
    server = world.running()
    run = subprocess.run(
        [sys.executable, str(world.ROOT / "test" / "models" / "run.py")],
        env={**os.environ, "CAY_E2E_DATA": str(server.data), "EXAMPLES": "openai_chat.mjs", "EXAMPLES_MODEL": "",
             "PYTHONPATH": str(world.ROOT / "test" / "e2e")},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    states = [line[28:].split()[-2] for line in run.stdout.splitlines()[-2:]]
    assert states == ["ok", "ok"], run.stdout
