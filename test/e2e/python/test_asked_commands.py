"""Commands and code that a person is asked about, with the SDK, over SSH, by a hook and as tools of a model."""

import concurrent.futures
import json
import os
import subprocess
import urllib.request

import e2b
import e2b_code_interpreter
import pytest

import cayv1
import world
from test_injection import approvals, waiting
from test_triggers import post


@pytest.fixture(scope="module")
def cay():
    server = world.Server()
    server.env.update(os.environ)
    return server.cay


@pytest.fixture
def asking(cay):
    """Makes sandboxes with patterns, and kills them."""
    made = []

    def make(*patterns, template="base", kind=e2b.Sandbox):
        words = [word for pattern in patterns for word in ("--ask-command", pattern)]
        made.append(json.loads(cay("sandbox", "create", template, *words, "--json").stdout)["sandboxID"])
        return kind.connect(made[-1], timeout=300)

    yield make
    for box in made:
        e2b.Sandbox.kill(box)


@pytest.fixture
def beside():
    """Calls that wait, beside the test."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield lambda call, *args, **kw: pool.submit(call, *args, **kw)


def test_commands_wait_for_a_yes(asking, beside, eventually):
    box = asking("*deploy*", "*stripe*")
    assert box.commands.run("echo free").stdout == "free\n"
    line = "echo deploy > said; cat said; id -un"
    run = beside(box.commands.run, line, user="root", cwd="/tmp", envs={"TOKEN": "hidden"})
    question = waiting(box, eventually)
    assert question["kind"] == "command" and question["body"].endswith("\n\n" + line) and 'user: "root"' in question["body"], question
    assert '"TOKEN"' in question["body"] and "hidden" not in str(question)
    assert not box.files.exists("/tmp/said")
    own = subprocess.run([str(world.CAY), "approvals", "approve", question["id"]], capture_output=True, text=True)
    assert own.returncode == 1 and "cannot decide" in own.stderr, own
    approvals("approve", question["id"])
    assert run.result().stdout == "deploy\nroot\n"

    run = beside(box.commands.run, line)
    approvals("deny", waiting(box, eventually)["id"], "--note", "not on a Friday")
    with pytest.raises(e2b.SandboxException, match="denied: not on a Friday"):
        run.result()
    with pytest.raises(e2b.SandboxException, match="denied"):  # the same one, at once
        box.commands.run(line)

    # A terminal is asked about whatever is typed there; what is sent to one that runs is not.
    terminal = beside(box.pty.create, e2b.PtySize(24, 80))
    approvals("approve", waiting(box, eventually)["id"])
    terminal.result().kill()


def test_one_yes_starts_one(asking, beside, eventually):
    box = asking("*")
    runs = [beside(box.commands.run, "echo x >> /tmp/ran") for _ in range(5)]
    for done in range(1, 4):
        approvals("approve", waiting(box, eventually)["id"])
        eventually(lambda: sum(run.done() for run in runs) == done)
        assert box.files.read("/tmp/ran") == "x\n" * done
    approvals("deny", waiting(box, eventually)["id"])
    failed = [run for run in runs if run.exception()]
    assert len(failed) == 2 and all("denied" in str(run.exception()) for run in failed), failed
    assert box.files.read("/tmp/ran") == "x\n" * 3


def test_life_while_a_command_waits(asking, beside, eventually):
    box = asking("*touch*")
    run = beside(box.commands.run, "touch /tmp/ran")
    question = waiting(box, eventually)
    box.pause()
    assert run.exception() is not None  # the connection is cut, and nothing ran
    approvals("approve", question["id"])  # while it sleeps
    box = box.connect()
    assert not box.files.exists("/tmp/ran")
    box.commands.run("touch /tmp/ran")  # the yes is for the next one
    assert box.files.exists("/tmp/ran")

    node = cayv1.checkpoint(box)
    run = beside(box.commands.run, "touch /tmp/more")
    question = waiting(box, eventually)
    fork, = box.fork(count=1, timeout=300)
    try:  # asks anew
        other = beside(fork.commands.run, "touch /tmp/fork")
        approvals("approve", waiting(fork, eventually)["id"])
        other.result()
        assert fork.files.exists("/tmp/fork") and not fork.files.exists("/tmp/more")
    finally:
        fork.kill()
    cayv1.rollback(box, node)
    assert run.exception() is not None
    assert approvals("show", question["id"])["state"] == "pending"
    run = beside(box.commands.run, "touch /tmp/more")  # joins it
    eventually(lambda: [q["id"] for q in approvals("list", "-s", box.sandbox_id)] == [question["id"]])
    approvals("approve", question["id"])
    run.result()

    run = beside(box.commands.run, "touch /tmp/never")
    question = waiting(box, eventually)
    box.kill()
    with pytest.raises(e2b.SandboxException):
        run.result()
    eventually(lambda: approvals("show", question["id"])["state"] == "expired")


def test_code_waits(asking, beside, eventually):
    box = asking("*stripe*", template="code-interpreter-v1", kind=e2b_code_interpreter.Sandbox)
    assert box.run_code("1 + 1").text == "2"
    run = beside(box.run_code, "stripe = 7\nstripe")
    question = waiting(box, eventually)
    assert question["body"] == 'code: "python"\n\nstripe = 7\nstripe', question
    approvals("approve", question["id"])
    assert run.result().text == "7"
    run = beside(box.run_code, "stripe")
    approvals("deny", waiting(box, eventually)["id"])
    with pytest.raises(e2b.SandboxException, match="denied"):
        run.result()


def of_the_lead(cay, asking, box):
    """A sandbox and a hook for it: in a cluster one of the node that leads, which has the sandboxes of hooks."""
    while True:
        done = cay("hook", "create", "touches", "touch /tmp/ran", "--proof", "bearer", "--sandbox", box.sandbox_id, "--json", check=False)
        if done.returncode == 0:
            return box, json.loads(done.stdout)
        assert world.Server().cluster and "not found" in done.stderr, done.stderr
        box = asking("*touch*")


def test_other_ways_to_start(cay, asking, beside, eventually):
    """SSH, the command line, a hook, and a model's tool: each waits, and says why nothing ran."""
    box = asking("*touch*")
    for words in (["sandbox", "ssh", box.sandbox_id, "touch /tmp/ran"], ["sandbox", "exec", box.sandbox_id, "--", "touch", "/tmp/ran"]):
        run = beside(cay, *words, check=False)
        approvals("deny", waiting(box, eventually)["id"])
        said = run.result()
        assert said.returncode != 0 and "denied" in said.stderr + said.stdout, said
        assert not box.files.exists("/tmp/ran")
    box, made = of_the_lead(cay, asking, box)
    try:
        status, answer = post(made, b"{}", Authorization="Bearer " + made["secret"])
        assert status == 202, answer
        approvals("deny", waiting(box, eventually)["id"])
        shown = eventually(lambda: (shown := json.loads(cay("hook", "log", answer["runID"], "--json").stdout))["state"] not in ("waiting", "running") and shown)
        assert shown["state"] == "failed" and "denied" in shown["error"], shown
    finally:
        cay("hook", "remove", "touches")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "execute_command", "arguments": {"command": "touch /tmp/ran # tool", "sandbox_id": box.sandbox_id}}}
    request = urllib.request.Request(os.environ["E2B_API_URL"] + "/mcp", json.dumps(call).encode(), {
        "Authorization": "Bearer " + os.environ["E2B_API_KEY"], "Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
    run = beside(lambda: urllib.request.urlopen(request, timeout=90).read().decode())
    approvals("deny", waiting(box, eventually)["id"])
    assert '"isError":true' in run.result() and "denied" in run.result(), run.result()
    assert not box.files.exists("/tmp/ran")
