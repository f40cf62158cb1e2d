"""Sandboxes that load their memory by demand do all that others do."""

import concurrent.futures
import json
import uuid

import e2b
import e2b_code_interpreter
import pytest

import cayv1
import world

LOADED = """
import hashlib
data = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(200_000))
"""
SUM = "hashlib.sha256(data).hexdigest()"


@pytest.fixture(scope="module")
def server():
    with world.started_anew(CAY_MEMORY_LOADING="demand") as server:
        yield server


def interpreter(**options):
    return e2b_code_interpreter.Sandbox.create(timeout=600, **options)


def test_verbs_keep_memory(server):
    """Every verb, with the environment and the contents of memory compared."""
    box = interpreter(envs={"COLOUR": "blue"})
    ends = [box]
    try:
        box.run_code(LOADED)
        want = box.run_code(SUM).text

        def same(one):
            assert one.run_code(SUM).text == want
            assert one.run_code("import os; os.environ['COLOUR']").text == "blue"

        box.pause()
        box = e2b_code_interpreter.Sandbox.connect(box.sandbox_id, timeout=600)
        same(box)
        node = cayv1.checkpoint(box)
        box.run_code("data = b'changed'")
        cayv1.rollback(box, node)
        same(box)
        forks = box.fork(count=3, timeout=600)
        ends += forks
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(same, [box, *forks]))
        for fork in forks:  # one that writes is alone in that
            fork.run_code("data = data[::-1]")
        same(box)
        forks[0].pause()  # a fork of a fork, saved again
        back = e2b_code_interpreter.Sandbox.connect(forks[0].sandbox_id, timeout=600)
        assert back.run_code("hashlib.sha256(data[::-1]).hexdigest()").text == want
        server.kill9()  # a crash, and the next start
        server.start()
        same(box)
        assert back.run_code("len(data)").text == str(200_000 * 32)
    finally:
        for one in ends:
            one.kill()


def test_teams_do_not_find_each_others(server):
    """Another team neither starts from a snapshot nor hears of it."""
    box, team = interpreter(), "loading-" + uuid.uuid4().hex[:8]
    key = json.loads(server.cay("--json", "team", "create", team, "--key", "tests").stdout)["key"]
    try:
        named = box.create_snapshot()
        with pytest.raises(e2b.SandboxException):
            e2b.Sandbox.create(named.snapshot_id, api_key=key)
        theirs = interpreter(api_key=key)  # of the same template
        assert theirs.run_code("6 * 7").text == "42"
        assert e2b.Sandbox.delete_snapshot(named.snapshot_id)
        assert box.run_code("6 * 7").text == "42"
    finally:
        box.kill()
        server.cay("team", "remove", team, "--force")
