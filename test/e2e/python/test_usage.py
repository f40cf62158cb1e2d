"""The use of sandboxes is counted, also by a server that is killed, and budgets stop them with their memory."""

import csv
import io
import json
import os
import time
import urllib.request
import uuid

import e2b
import pytest

import cayv1
import world


@pytest.fixture(scope="module")
def bill():
    """A key of metadata that is metered, and a value for this run."""
    value = uuid.uuid4().hex[:12]
    before = cayv1.call("GET", "/usage-labels")["labels"]
    cayv1.call("PUT", "/usage-labels", {"labels": [*before, "bill"]})
    yield value
    cayv1.call("PUT", "/usage-labels", {"labels": before})


def used(bill):
    rows = cayv1.call("GET", "/usage?group=label:bill")["rows"]
    return next((row["amounts"] for row in rows if row["labels"]["bill"] == bill), None)


def test_use_is_that_of_the_wall_clock(bill):
    server = world.running()
    begun = time.monotonic()
    sandbox = e2b.Sandbox.create(timeout=300, metadata={"bill": bill})
    runs = time.monotonic()
    cpus = sandbox.get_info().cpu_count
    sandbox.commands.run("timeout 2 sh -c 'while :; do :; done' || true")
    assert len(sandbox.commands.run("head -c 1000000 /dev/zero | base64 -w0").stdout) > 1_000_000
    server.kill9()
    server.start()
    sandbox.commands.run("sleep 1")
    before = time.monotonic()
    sandbox.kill()
    after = time.monotonic()
    got = used(bill)
    assert cpus * (before - runs - 0.1) <= got["vcpu_seconds"] <= cpus * (after - begun + 0.1)
    assert got["creates"] == 1
    assert got["memory_gib_seconds"] > 0
    # The server was killed before it counted once: what was used until then is read anew.
    assert 0 <= got["cpu_used_seconds"] <= got["vcpu_seconds"]
    assert used(bill) == got, "a sandbox that is over is counted on"


def test_processor_time_and_bytes(bill):
    sandbox = e2b.Sandbox.create(timeout=300, metadata={"bill": bill + "-busy"})
    sandbox.commands.run("timeout 2 sh -c 'while :; do :; done' || true")
    sandbox.commands.run("head -c 1000000 /dev/zero | base64 -w0")
    sandbox.kill()
    got = used(bill + "-busy")
    assert got["cpu_used_seconds"] > 0.3  # of two seconds; the machine may be busy
    assert got["egress_bytes"] > 1_000_000


def test_a_budget_pauses_with_memory(bill, eventually, waits):
    value = bill + "-bound"
    sandbox = e2b.Sandbox.create(timeout=300, metadata={"bill": value})
    process = sandbox.commands.run("sleep 1000", background=True, timeout=0)
    budget = cayv1.call("POST", "/budgets", {"meter": "vcpu_seconds", "limit": "0.001", "period": "month", "metadata": {"bill": value}, "name": "tiny"})
    try:
        eventually(lambda: sandbox.get_info().state == e2b.SandboxState.PAUSED)
        for refused in (
            lambda: e2b.Sandbox.create(timeout=60, metadata={"bill": value}),
            lambda: e2b.Sandbox.connect(sandbox.sandbox_id),
        ):
            waits.clear()
            with pytest.raises(e2b.RateLimitException, match='budget "tiny"') as error:
                refused()
            assert "begins anew at" in str(error.value)
            assert set(waits) == {None}, "the SDK tried again"
        e2b.Sandbox.create(timeout=60, metadata={"bill": value + "-other"}).kill()
        events = cayv1.call("GET", "/events?type=budget.threshold&limit=1000")["events"]
        told = [event["data"]["percent"] for event in events if event["data"]["budget"] == budget["id"]]
        assert told == ["50", "80", "100"]

        raised = cayv1.call("PATCH", f"/budgets/{budget['id']}", {"limit": "100000"})
        assert not raised["exhausted"]
        again = e2b.Sandbox.connect(sandbox.sandbox_id)
        assert process.pid in [p.pid for p in again.commands.list()]
    finally:
        cayv1.call("DELETE", f"/budgets/{budget['id']}")
        e2b.Sandbox.kill(sandbox.sandbox_id)


def test_a_table(bill):
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + "/cay/v1/usage?group=day,label:bill",
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Accept": "text/csv"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.headers["Content-Type"] == "text/csv"
        rows = list(csv.DictReader(io.StringIO(reply.read().decode())))
    assert any(row["label:bill"] == bill and float(row["vcpu_seconds"]) > 0 for row in rows)
    table = world.running().cay("usage", "--by", "label:bill").stdout
    assert bill in table and "total" in table
    told = json.loads(world.running().cay("--json", "budget", "ls").stdout)
    assert [one for one in told if one["name"] == "tiny"] == []
