"""Hooks and schedules, in real sandboxes and by the command line."""

import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def cay():
    server = world.Server()
    server.env.update(os.environ)
    return server.cay


def post(made, body, **headers):
    """Posts to a hook. Its address has the server's name, which Python does not find below localhost."""
    url = os.environ["E2B_API_URL"] + urllib.parse.urlsplit(made["url"]).path
    request = urllib.request.Request(url, data=body, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def over(cay, run):
    """Waits for the end of a run."""
    for _ in range(600):
        shown = json.loads(cay("hook", "log", run, "--json").stdout)
        if shown["state"] not in ("waiting", "running"):
            return shown
        time.sleep(0.1)
    raise AssertionError(shown)


def made_for(cay, *create):
    """A sandbox and what is made for it: of a cluster, one of the node that leads, which has the sandboxes of hooks and schedules."""
    while True:
        box = e2b.Sandbox.create(timeout=300)
        done = cay(*create, "--sandbox", box.sandbox_id, "--json", check=False)
        if done.returncode == 0:
            return box, json.loads(done.stdout)
        box.kill()
        assert world.Server().cluster and "not found" in done.stderr, done.stderr


def test_a_push_runs_a_command(cay):
    command = """python3 -c 'import json, os; print(json.load(open(os.environ["CAY_PAYLOAD"]))["ref"], os.environ["CAY_EVENT"], os.environ["TOKEN"])'; id -un; pwd; exit 4"""
    made = json.loads(cay("hook", "create", "push", command, "--proof", "github", "--event", "push", "-f", "ref=refs/heads/*", "-e", "TOKEN=of ours", "--json").stdout)
    try:
        body = json.dumps({"ref": "refs/heads/ü", "n": 2**70}).encode()
        signed = {"X_Hub_Signature_256": "sha256=" + hmac.new(made["secret"].encode(), body, hashlib.sha256).hexdigest(), "X_GitHub_Event": "push", "X_GitHub_Delivery": "one"}
        status, answer = post(made, body, **signed)
        assert status == 202, answer
        status, again = post(made, body, **signed)
        assert status == 200 and again["repeated"] and again["runID"] == answer["runID"], again
        assert post(made, body + b" ", **signed)[0] == 401
        run = over(cay, answer["runID"])
        assert (run["state"], run["exitCode"], run["output"]) == ("failed", 4, "refs/heads/ü push of ours\nuser\n/home/user\n"), run
        with pytest.raises(e2b.SandboxNotFoundException):
            e2b.Sandbox.connect(run["sandboxID"])
        assert made["secret"] not in cay("hook", "show", "push", "--json").stdout
    finally:
        cay("hook", "remove", "push")


def test_a_sandbox_that_sleeps_is_woken_and_sleeps_again(cay):
    box, _ = made_for(cay, "schedule", "create", "yearly", "0 0 1 1 *", "cat kept; cat $CAY_PAYLOAD; ls /tmp/cay-run-*")
    try:
        try:
            box.files.write("kept", "of before\n")
            box.pause()
            run = json.loads(cay("schedule", "run", "yearly", "--json").stdout)
            assert run["state"] == "succeeded" and run["output"] == "of before\n{}/tmp/cay-run-" + run["id"] + "\n", run
            assert e2b.Sandbox.get_info(box.sandbox_id).state == e2b.SandboxState.PAUSED
            assert "yearly" in cay("schedule", "list").stdout and "succeeded" in cay("schedule", "runs", "yearly").stdout
            box = e2b.Sandbox.connect(box.sandbox_id)
            assert box.commands.run("ls /tmp/cay-run-* || true").stdout == ""
        finally:
            cay("schedule", "remove", "yearly")
    finally:
        box.kill()


def test_a_run_is_cancelled_inside(cay):
    box, made = made_for(cay, "hook", "create", "long", "echo begun; exec sleep 1000")
    try:
        try:
            status, answer = post(made, b"", Authorization="Bearer " + made["secret"])
            assert status == 202, answer
            for _ in range(300):
                if "sleep 1000" in box.commands.run("ps ax").stdout:
                    break
                time.sleep(0.1)
            cay("hook", "cancel", answer["runID"])
            run = over(cay, answer["runID"])
            assert (run["state"], run["output"]) == ("cancelled", "begun\n"), run
            assert "sleep 1000" not in box.commands.run("ps ax").stdout
        finally:
            cay("hook", "remove", "long")
    finally:
        box.kill()
