"""Checkpoints: going back in place, forks from the past, promotion, undo."""

import concurrent.futures
import json
import os
import subprocess
import sys
import time
import urllib.request

import e2b
import e2b_code_interpreter
import pytest

import cayv1
import world


def fork(node, count=1):
    """Sandboxes made of a checkpoint, as the SDK knows them."""
    made = cayv1.call("POST", f"/checkpoints/{node['checkpointID']}/fork", {"count": count, "timeout": 300})
    assert all("error" not in m for m in made), made
    return [e2b_code_interpreter.Sandbox.connect(m["sandbox"]["sandboxID"], timeout=300) for m in made]


def fetch(box, port):
    url = box.connection_config.get_sandbox_url(box.sandbox_id, box.sandbox_domain)
    request = urllib.request.Request(url, headers={
        "E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def test_back_with_memory_and_files(create, eventually):
    box = create(kind=e2b_code_interpreter.Sandbox)
    box.run_code("import os, random, ssl; random.seed(42); x = 1; first = random.random(); ssl.RAND_bytes(1)")
    box.files.write("/home/user/note", "one")
    box.commands.run("cd /home/user && python3 -m http.server 8000", background=True)
    assert eventually(lambda: box.commands.run(
        "curl -s http://127.0.0.1:8000/note || true").stdout) == "one"
    info = box.get_info()
    node = cayv1.checkpoint(box, label="one")
    assert node["kind"] == "memory" and node["sizeBytes"] > 0 and "parentID" not in node

    box.run_code("x = 2; random.seed(7)")
    box.files.write("/home/user/note", "two")
    box.files.write("/home/user/more", "new")
    running = box.commands.run("sleep 1000", background=True)
    moved = cayv1.rollback(box, node)
    assert moved["state"] == "running" and moved["checkpoint"]["label"] == "one"

    # The same object, with its tokens, still opens it.
    assert box.run_code("x").text == "1"
    want = "r = random.Random(42); r.random() == first and random.random() == r.random()"
    assert box.run_code(want).text == "True"  # a user's own seed goes on
    assert box.files.read("/home/user/note") == "one"
    assert not box.files.exists("/home/user/more")
    assert running.pid not in [p.pid for p in box.commands.list() if "1000" in p.args]
    assert fetch(box, 8000) and fetch(box, 8000).startswith("<!DOCTYPE")
    after = box.get_info()
    assert (after.started_at, after.end_at, after.state) == (info.started_at, info.end_at, e2b.SandboxState.RUNNING)
    said = []
    terminal = box.pty.create(e2b.PtySize(24, 80), timeout=120)
    box.pty.send_stdin(terminal.pid, b"echo wor''ks; exit\n")
    terminal.wait(on_pty=said.append)
    assert b"works" in b"".join(said)

    # Twice to the same place, and on from there. State that must never repeat does
    # not, and it is still the same machine.
    fresh = "print(ssl.RAND_bytes(16).hex(), os.getrandom(16).hex())"
    drawn = box.run_code(fresh).logs.stdout[0].split()
    same = box.commands.run("cat /etc/machine-id /run/cay/generation /proc/sys/kernel/random/boot_id").stdout
    cayv1.rollback(box, node)
    assert box.run_code("x += 10; x").text == "11"
    assert not set(drawn) & set(box.run_code(fresh).logs.stdout[0].split())
    assert box.commands.run("cat /etc/machine-id /run/cay/generation /proc/sys/kernel/random/boot_id").stdout == same
    clock = float(box.run_code("import time; time.time()").text)
    assert abs(clock - time.time()) < 60


def test_a_paused_one_goes_back(create):
    box = create()
    box.files.write("/home/user/note", "one")
    node = cayv1.checkpoint(box)
    box.files.write("/home/user/note", "two")
    box.pause()
    with pytest.raises(cayv1.Failed, match="409"):
        cayv1.checkpoint(box)
    assert cayv1.rollback(box, node)["state"] == "paused"
    assert box.get_info().state == e2b.SandboxState.PAUSED
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.files.read("/home/user/note") == "one"
    box.pause()
    assert e2b.Sandbox.connect(box.sandbox_id, timeout=300).files.read("/home/user/note") == "one"


def test_branches(create):
    box = create(kind=e2b_code_interpreter.Sandbox, envs={"GIVEN": "to all"})
    box.run_code("x = 1")
    first = cayv1.checkpoint(box, label="first")
    box.run_code("x = 2")
    forks = fork(first, 3)
    try:
        assert [f.run_code("x").text for f in forks] == ["1"] * 3
        assert len({f.run_code("import random; random.getrandbits(64)").text for f in forks}) == 3
        assert forks[0].commands.run("echo $GIVEN $E2B_SANDBOX_ID").stdout == f"to all {forks[0].sandbox_id}\n"
        forks[1].run_code("x = 'the best'")
        forks[1].files.write("/home/user/note", "of the best")
        mine = cayv1.checkpoint(forks[1])
        assert mine["parentID"] == first["checkpointID"]
        tree = cayv1.tree(box)
        assert tree["root"] == box.sandbox_id and len(tree["checkpoints"]) == 2
        assert {b["sandboxID"] for b in tree["branches"]} == {f.sandbox_id for f in (box, *forks)}

        with pytest.raises(cayv1.Failed, match="409.*branch"):
            cayv1.rollback(box, mine)
        with pytest.raises(cayv1.Failed, match="409.*in use"):
            cayv1.call("DELETE", f"/checkpoints/{first['checkpointID']}")
        cayv1.promote(box, forks[1])
        assert box.run_code("x").text == "the best"
        assert box.files.read("/home/user/note") == "of the best"
        assert box.commands.run("echo $E2B_SANDBOX_ID; cat /run/e2b/.E2B_SANDBOX_ID").stdout.split() == [box.sandbox_id] * 2
        assert not forks[1].is_running()
        cayv1.rollback(box, first)  # what it comes from is still there
        assert box.run_code("x").text == "1"
    finally:
        for f in forks:
            f.kill()
    cayv1.call("DELETE", f"/checkpoints/{mine['checkpointID']}")
    left = cayv1.tree(box)["checkpoints"]
    assert first["checkpointID"] in [n["checkpointID"] for n in left]


def test_undo_by_command(create):
    box = create(kind=e2b_code_interpreter.Sandbox)
    cayv1.call("PUT", f"/sandboxes/{box.sandbox_id}/auto-checkpoints", {"beforeCommands": True, "keep": 3})
    with pytest.raises(cayv1.Failed, match="no checkpoint"):
        cayv1.undo(box)
    box.commands.run("echo one > note")
    box.run_code("x = 1")
    box.commands.run("echo two > note")
    assert [n["auto"] for n in cayv1.tree(box)["checkpoints"]] == [True] * 3
    cayv1.undo(box)  # before the last command
    assert box.files.read("/home/user/note") == "one\n"
    cayv1.undo(box)  # before run_code
    cayv1.undo(box)  # before the first
    assert not box.files.exists("/home/user/note")
    with pytest.raises(cayv1.Failed, match="oldest"):
        cayv1.undo(box)
    box.commands.run("echo again > note")
    cayv1.undo(box)
    assert not box.files.exists("/home/user/note")
    for _ in range(3):
        box.commands.run("true")
    assert len(cayv1.tree(box)["checkpoints"]) <= 4  # what is stood on stays beside those to keep
    cayv1.call("PUT", f"/sandboxes/{box.sandbox_id}/auto-checkpoints", {})
    newest = cayv1.tree(box)["checkpoints"][-1]["checkpointID"]
    box.commands.run("true")
    assert cayv1.tree(box)["checkpoints"][-1]["checkpointID"] == newest


def test_checkpoints_by_time(create, eventually):
    box = create()
    cayv1.call("PUT", f"/sandboxes/{box.sandbox_id}/auto-checkpoints", {"everySeconds": 1, "keep": 2})
    first = eventually(lambda: cayv1.tree(box)["checkpoints"])[0]
    eventually(lambda: first["checkpointID"] not in [n["checkpointID"] for n in cayv1.tree(box)["checkpoints"]])
    assert len(cayv1.tree(box)["checkpoints"]) <= 3


def test_racing_rollbacks_get_an_order(create):
    box = create()
    nodes = []
    for text in ("one", "two"):
        box.files.write("/home/user/note", text)
        nodes.append(cayv1.checkpoint(box))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: cayv1.rollback(box, n), nodes * 2))
    at = [b for b in cayv1.tree(box)["branches"] if b["sandboxID"] == box.sandbox_id][0]["checkpointID"]
    assert box.files.read("/home/user/note") == ("one" if at == nodes[0]["checkpointID"] else "two")


def test_strangers_see_nothing(create):
    box, other = create(), create()
    node, foreign = cayv1.checkpoint(box), cayv1.checkpoint(other)
    with pytest.raises(cayv1.Failed, match="409.*not in the tree"):
        cayv1.rollback(box, foreign)
    with pytest.raises(cayv1.Failed, match="404"):
        cayv1.rollback(box, {"checkpointID": "snothing"})
    with pytest.raises(cayv1.Failed, match="401"):
        cayv1.call("POST", f"/checkpoints/{node['checkpointID']}/fork", {}, key="e2b_" + "0" * 40)


def test_what_a_kill_keeps(create):
    box = create()
    box.files.write("/home/user/note", "kept")
    named, plain = cayv1.checkpoint(box, label="kept"), cayv1.checkpoint(box)
    box.kill()
    left = [n["checkpointID"] for n in cayv1.tree(box)["checkpoints"]]
    assert left == [named["checkpointID"]]
    with pytest.raises(cayv1.Failed, match="404"):
        cayv1.call("POST", f"/checkpoints/{plain['checkpointID']}/fork", {})
    again = fork(named)[0]
    assert again.files.read("/home/user/note") == "kept"
    again.kill()
    cayv1.call("DELETE", f"/checkpoints/{named['checkpointID']}")
    with pytest.raises(cayv1.Failed, match="404"):
        cayv1.tree(box)


def test_the_example():
    run = subprocess.run(
        [sys.executable, str(world.ROOT / "examples" / "tree-search" / "search.py")],
        env={**os.environ, "BRANCHES": "4"}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 6 and "degree 7" in lines[4] and lines[5].endswith("False"), run.stdout


def test_from_the_command_line(create):
    server = world.Server()
    box = create().sandbox_id

    def cay(*args):
        return server.cay(*args).stdout.strip()

    cay("sandbox", "exec", box, "--", "sh", "-c", "echo one > note")
    node = cay("sandbox", "checkpoint", box, "--label", "first")
    cay("sandbox", "exec", box, "--", "sh", "-c", "echo two > note")
    drawn = cay("sandbox", "tree", box)
    assert drawn.startswith(box) and node in drawn and '"first"' in drawn and "● main " + box in drawn
    child = cay("sandbox", "fork", box, "--from", "first")
    assert cay("sandbox", "exec", child, "--", "cat", "note") == "one"
    assert cay("sandbox", "rollback", box, "first") == node
    assert cay("sandbox", "exec", box, "--", "cat", "note") == "one"
    cay("sandbox", "exec", child, "--", "sh", "-c", "echo best > note")
    assert cay("sandbox", "promote", child) == box
    assert cay("sandbox", "exec", box, "--", "cat", "note") == "best"
    assert cay("sandbox", "exec", box, "--", "sh", "-c", "echo worse > note") == ""
    cay("undo", box)
    assert cay("sandbox", "exec", box, "--", "cat", "note") == "best"
    tree = json.loads(cay("--json", "sandbox", "tree", box))
    assert tree["root"] == box and len(tree["checkpoints"]) == 2
    assert cay("sandbox", "label", node, "renamed") == node and '"renamed"' in cay("sandbox", "tree", box)
    assert cay("sandbox", "rm-checkpoint", node) == node
