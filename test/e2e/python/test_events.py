"""Events, why sandboxes ended, logs: Cay's own routes, beside the SDK's calls."""

import json
import os
import threading
import urllib.error
import urllib.request

import e2b
import pytest

import world


def ask(path, **headers):
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + path, headers={"X-API-Key": os.environ["E2B_API_KEY"], **headers})
    return urllib.request.urlopen(request, timeout=120)


def get(path):
    with ask(path) as reply:
        return json.load(reply)


def follow(path, **headers):
    """Yields the events of a stream until it ends."""
    with ask(path, Accept="text/event-stream", **headers) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: "):])


def told(events):
    return [f"{e['type']} {e.get('reason', '')}" for e in events]


def test_a_life_is_told_while_it_happens():
    sandbox = e2b.Sandbox.create(timeout=300)
    path = f"/cay/v1/sandboxes/{sandbox.sandbox_id}/events"
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(follow(path)))
    reader.start()
    sandbox.set_timeout(600)
    sandbox.pause()
    sandbox = sandbox.connect(timeout=300)
    sandbox.create_snapshot()
    sandbox.kill()
    reader.join(60)
    assert not reader.is_alive(), "the stream ends with the sandbox"
    copied = "sandbox.replicated "  # of a server with a bucket, at any moment after the pause
    assert [what for what in told(seen) if what != copied] == [
        "sandbox.created asked", "sandbox.running asked", "sandbox.timeout_changed asked",
        "sandbox.pausing asked", "sandbox.paused asked", "sandbox.resuming asked", "sandbox.resumed asked",
        "sandbox.checkpointed asked", "sandbox.killed asked",
    ]
    assert get(path)["events"] == seen
    assert list(follow(path, **{"Last-Event-ID": str(seen[3]["seq"])})) == seen[4:]
    listed = get(f"/cay/v1/events?after={seen[0]['seq'] - 1}&limit=1000")["events"]
    assert [e for e in listed if e["sandboxID"] == sandbox.sandbox_id] == seen

    end = get(f"/cay/v1/sandboxes/{sandbox.sandbox_id}/end")
    assert (end["reason"], end["by"]) == ("asked", seen[-1]["data"]["by"])
    assert end["snapshotID"]
    with pytest.raises(e2b.NotFoundException):
        sandbox.get_info()
    e2b.Sandbox.delete_snapshot(end["snapshotID"])


def test_timeout_and_out_of_memory_say_why():
    server = world.Server()
    short = e2b.Sandbox.create(timeout=300)
    waiting = follow(f"/cay/v1/sandboxes/{short.sandbox_id}/events")
    short.set_timeout(1)
    assert told(waiting)[-1] == "sandbox.killed timeout"
    assert get(f"/cay/v1/sandboxes/{short.sandbox_id}/end")["reason"] == "timeout"
    text = server.cay("sandbox", "why", short.sandbox_id).stdout
    assert "its time was over" in text
    assert "sandbox.killed (timeout)" in server.cay("sandbox", "events", short.sandbox_id, "--follow").stdout
    with pytest.raises(urllib.error.HTTPError) as failed:
        get("/cay/v1/sandboxes/inever/end")
    assert failed.value.code == 404


def test_create_can_be_repeated():
    headers = {"Idempotency-Key": f"e2e {os.urandom(8).hex()}"}
    first = e2b.Sandbox.create(timeout=300, metadata={"a": "b"}, headers=headers)
    again = e2b.Sandbox.create(timeout=300, metadata={"a": "b"}, headers=headers)
    assert again.sandbox_id == first.sandbox_id
    assert again.commands.run("echo hi").stdout == "hi\n"
    with pytest.raises(e2b.SandboxException, match="another request"):
        e2b.Sandbox.create(timeout=301, headers=headers)
    first.kill()


HOG = "python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 24))'"


def test_a_guarded_process_is_an_event_and_a_log_line(eventually):
    sandbox = e2b.Sandbox.create(timeout=300)
    path = f"/cay/v1/sandboxes/{sandbox.sandbox_id}/events?type=process.killed"
    seen = []

    def wait():
        for event in follow(path):
            seen.append(event)
            return

    reader = threading.Thread(target=wait)
    reader.start()
    with pytest.raises(e2b.CommandExitException) as killed:
        sandbox.commands.run(HOG, timeout=120)
    assert killed.value.error.startswith("signal: killed: out of memory: process ")
    reader.join(60)
    (event,) = seen
    assert event["reason"] == "out_of_memory"
    assert event["data"]["name"].startswith("python3")
    assert int(event["data"]["pid"]) > 1
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    # The event may be a moment older than its line.
    warned = eventually(lambda: get(f"/v2/sandboxes/{sandbox.sandbox_id}/logs?level=warn")["logs"])
    assert "out of memory" in warned[0]["message"]

    def ended():  # the log may be a second old
        lines = [json.loads(log["line"]) for log in get(f"/sandboxes/{sandbox.sandbox_id}/logs")["logs"]]
        assert all(line["level"] and line["logger"] for line in lines)
        found = [line for line in lines if line["message"] == "process ended"]
        return len(found) == 2 and found

    hog, echo = eventually(ended)
    assert "out of memory" in hog["cause"]
    assert echo["status"] == "exit status 0"
    sandbox.kill()
    after = get(f"/v2/sandboxes/{sandbox.sandbox_id}/logs")["logs"]
    assert after[0]["message"] == "sandbox killed"
    assert any(log["message"] == "process ended" for log in after), "logs outlive their sandbox"


def test_the_diary_is_closed_to_the_outside(sbx):
    request = urllib.request.Request(
        os.environ["E2B_SANDBOX_URL"] + "/diary?after=0",
        headers={"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": sbx._envd_access_token})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 404
    assert b"reserved for the E2B control plane" in refused.value.read()


def test_keys_of_a_team():
    (team,) = get("/teams")
    assert team["apiKey"] == os.environ["E2B_API_KEY"]
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + "/api-keys", data=b'{"name": "e2e made"}', method="POST",
        headers={"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 201
        made = json.load(reply)
    assert e2b.Sandbox.list(api_key=made["key"]).next_items() is not None
    assert "e2e made" in [key["name"] for key in get("/api-keys")]
    request = urllib.request.Request(
        f"{os.environ['E2B_API_URL']}/api-keys/{made['id']}", method="DELETE", headers={"X-API-Key": made["key"]})
    assert urllib.request.urlopen(request, timeout=60).status == 204
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.list(api_key=made["key"]).next_items()
    samples = get(f"/teams/{team['teamID']}/metrics")
    assert samples[-1]["concurrentSandboxes"] >= 0
