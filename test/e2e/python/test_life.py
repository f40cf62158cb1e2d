"""Sandboxes that are paused, resumed, woken, forked and saved."""

import concurrent.futures
import os
import time
import urllib.error
import urllib.request

import e2b
import e2b_code_interpreter
import pytest

import cayv1
import world

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def refused(call):
    """Returns whether a call fails as one to a sandbox that is not there."""
    try:
        call()
    except e2b.SandboxException:
        return True
    return False


def get(box, port, path, **headers):
    """Asks a port of a sandbox as any stranger could, and returns the status."""
    by_name = "E2B_SANDBOX_URL" not in os.environ  # then a host's label says which port is meant
    url = "https://" + box.get_host(port) if by_name else os.environ["E2B_SANDBOX_URL"]
    request = urllib.request.Request(url + path, headers={
        "E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port), **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_pause_and_resume_keep_everything(create):
    box = create(metadata={"who": "paused"}, envs={"GIVEN": "at creation"})
    box.files.write("/home/user/note", "kept")
    process = box.commands.run("sleep 100000", background=True)
    boot = box.commands.run(BOOT_ID).stdout
    before = box.get_info()

    assert box.pause() is True
    assert box.pause() is False
    assert not box.is_running()
    paused = box.get_info()
    assert paused.state == e2b.SandboxState.PAUSED
    assert paused.started_at == before.started_at
    assert paused.end_at <= before.end_at
    assert box.sandbox_id in [
        s.sandbox_id for s in e2b.Sandbox.list(
            query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED], metadata={"who": "paused"})).next_items()]
    assert refused(lambda: box.commands.run("true"))
    assert refused(lambda: box.set_timeout(60))

    again = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert again.sandbox_id == box.sandbox_id
    assert again.is_running() and box.is_running()
    assert again.get_info().state == e2b.SandboxState.RUNNING
    assert box.commands.run(BOOT_ID).stdout == boot  # the old tokens open it
    assert box.files.read("/home/user/note") == "kept"
    assert box.commands.run("echo $GIVEN $E2B_SANDBOX_ID").stdout == f"at creation {box.sandbox_id}\n"
    assert process.pid in [p.pid for p in box.commands.list()]
    assert box.commands.kill(process.pid)
    assert again.get_info().metadata == {"who": "paused"}


def test_kernels_survive(create):
    box = create(kind=e2b_code_interpreter.Sandbox)
    box.run_code("import random; random.seed(42); x = {'answer': 41}; random.random()")
    for _ in range(2):  # what was resumed can be paused again
        box.pause()
        box = e2b_code_interpreter.Sandbox.connect(box.sandbox_id, timeout=300)
        box.run_code("x['answer'] += 1")
    assert box.run_code("x['answer']").text == "43"
    want = "import random; r = random.Random(42); r.random(); random.random() == r.random()"
    assert box.run_code(want).text == "True"  # a user's own seed


def test_kill_of_a_paused_one(create):
    box = create()
    box.pause()
    assert box.kill() is True
    assert box.kill() is False
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.connect(box.sandbox_id)


def test_pausing_what_is_not_there():
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.pause("inosuchsandbox")


def test_timeout_pauses(create, eventually):
    box = create(timeout=300, lifecycle={"on_timeout": "pause"})
    info = box.get_info()
    assert info.lifecycle == {"on_timeout": "pause", "auto_resume": False}
    box.files.write("/home/user/note", "kept")
    box.set_timeout(0)
    eventually(lambda: e2b.Sandbox.get_info(box.sandbox_id).state == e2b.SandboxState.PAUSED)
    assert not box.is_running()  # no request wakes it
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.files.read("/home/user/note") == "kept"


def test_traffic_wakes(create):
    box = create(timeout=420, lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert box.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
    box.commands.run("echo $$ > /home/user/pid; exec sleep 100000", background=True)
    box.pause()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # all wait for one resume
        said = [f.result() for f in [pool.submit(box.commands.run, f"echo {n}") for n in range(4)]]
    assert [r.stdout for r in said] == [f"{n}\n" for n in range(4)]
    info = box.get_info()
    assert info.state == e2b.SandboxState.RUNNING
    left = info.end_at.timestamp() - time.time()
    assert 300 < left <= 425  # as long as it was given when it was created
    assert box.commands.run("kill -0 $(cat /home/user/pid)").exit_code == 0


SITE = """
import http.server
class Site(http.server.ThreadingHTTPServer):
    request_queue_size = 200  # of connections that no program has accepted; Python's own 5 lose the others
Site(("", 3000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_one_wake_for_a_hundred(create):
    box = create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    box.files.write("/home/user/site.py", SITE)
    box.commands.run("exec python3 /home/user/site.py", background=True, timeout=0)
    box.commands.run("for i in $(seq 300); do ss -Htln sport = :3000 | grep -q . && exit 0; sleep 0.1; done; exit 1", timeout=60)
    box.pause()
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        said = [f.result() for f in [pool.submit(get, box, 3000, "/") for _ in range(100)]]
    assert said == [200] * 100
    events = [e["type"] for e in cayv1.call("GET", f"/sandboxes/{box.sandbox_id}/events")["events"]]
    assert (events.count("sandbox.resuming"), events.count("sandbox.resumed")) == (1, 1), events


def test_strangers_wake_nobody(create):
    box = create(lifecycle={"on_timeout": "pause", "auto_resume": True}, network={"allow_public_traffic": False})
    box.pause()
    assert get(box, 49983, "/health") == 403
    assert get(box, 49983, "/health", **{"X-Access-Token": "wrong"}) == 403
    assert get(box, 3000, "/") == 403
    assert get(box, 3000, "/", **{"e2b-traffic-access-token": "wrong"}) == 403
    assert box.get_info().state == e2b.SandboxState.PAUSED
    assert get(box, 3000, "/", **{"e2b-traffic-access-token": box.traffic_access_token}) == 502  # woken; nothing listens
    assert box.get_info().state == e2b.SandboxState.RUNNING


def test_forks(create):
    box = create(envs={"GIVEN": "to all"}, metadata={"family": "f"})
    box.files.write("/home/user/note", "of the source")
    process = box.commands.run("sleep 100000", background=True)
    forks = box.fork(count=3, timeout=300)
    try:
        assert len({f.sandbox_id for f in forks} | {box.sandbox_id}) == 4
        machines = set()
        for n, fork in enumerate(forks):
            assert fork.files.read("/home/user/note") == "of the source"
            assert fork.commands.run("echo $GIVEN $E2B_SANDBOX_ID").stdout == f"to all {fork.sandbox_id}\n"
            assert process.pid in [p.pid for p in fork.commands.list()]
            machines.add(fork.commands.run("cat /etc/machine-id").stdout)
            fork.files.write("/home/user/note", str(n))
        assert len(machines) == 3
        assert box.files.read("/home/user/note") == "of the source"
        assert [f.files.read("/home/user/note") for f in forks] == ["0", "1", "2"]
        files = "/files?path=/home/user/note"
        assert get(forks[0], 49983, files, **{"X-Access-Token": forks[0]._envd_access_token}) == 200
        assert get(forks[0], 49983, files, **{"X-Access-Token": box._envd_access_token}) == 401
        forks[0].pause()  # a fork lives like any other
        assert e2b.Sandbox.connect(forks[0].sandbox_id, timeout=300).files.read("/home/user/note") == "0"
    finally:
        for fork in forks:
            fork.kill()
    assert box.is_running()


def test_clones_draw_differently(create):
    box = create(kind=e2b_code_interpreter.Sandbox)
    box.run_code("import random; words = ['kept']; random.random()")
    forks = box.fork(count=3, timeout=300)
    try:
        draws = [f.run_code("print(random.getrandbits(64), *words)").logs.stdout[0] for f in forks]
        assert len(set(draws)) == 3 and all(d.endswith("kept\n") for d in draws)
    finally:
        for fork in forks:
            fork.kill()


def test_wrong_forks(create):
    box = create()
    for count in (0, 101):
        with pytest.raises(e2b.SandboxException):
            box.fork(count=count)
    box.pause()
    with pytest.raises(e2b.SandboxException):
        box.fork()
    box.kill()
    with pytest.raises(e2b.NotFoundException):
        box.fork()


def test_snapshots(create):
    box = create()
    box.files.write("/home/user/note", "one")
    snapshot = box.create_snapshot()
    assert box.is_running()
    box.files.write("/home/user/note", "two")
    assert snapshot.snapshot_id.endswith(":default")

    child = create(snapshot.snapshot_id)
    assert child.files.read("/home/user/note") == "one"
    child.files.write("/home/user/note", "child")
    assert box.files.read("/home/user/note") == "two"

    listed = e2b.Sandbox.list_snapshots(sandbox_id=box.sandbox_id).next_items()
    assert [s.snapshot_id for s in listed] == [snapshot.snapshot_id]
    child.kill()
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    assert e2b.Sandbox.list_snapshots(sandbox_id=box.sandbox_id).next_items() == []
    with pytest.raises(e2b.SandboxException):
        e2b.Sandbox.create(snapshot.snapshot_id)


def test_named_snapshots(create):
    box = create()
    name = "life-" + box.sandbox_id
    box.files.write("/home/user/note", "first")
    first = box.create_snapshot(name=name)
    assert name in first.snapshot_id and first.snapshot_id.endswith(":default")
    try:
        box.files.write("/home/user/note", "newest")
        second = box.create_snapshot(name=name)
        assert second.snapshot_id == first.snapshot_id and second.names == first.names
        child = create(name)
        assert child.files.read("/home/user/note") == "newest"
        # One that is in use stays.
        with pytest.raises(e2b.SandboxException):
            e2b.Sandbox.delete_snapshot(first.snapshot_id)
        child.kill()
    finally:
        assert e2b.Sandbox.delete_snapshot(first.snapshot_id) is True


async def test_async_life():
    box = await e2b.AsyncSandbox.create(timeout=300)
    try:
        await box.files.write("/home/user/note", "kept")
        assert await box.pause() is True
        assert await box.pause() is False
        assert not await box.is_running()
        box = await e2b.AsyncSandbox.connect(box.sandbox_id, timeout=300)
        assert await box.files.read("/home/user/note") == "kept"
        forks = await box.fork(timeout=300)
        assert await forks[0].files.read("/home/user/note") == "kept"
        await forks[0].kill()
    finally:
        await box.kill()


def test_from_the_command_line():
    server = world.Server()
    made = []

    def cay(*args, **kw):
        return server.cay("sandbox", *args, **kw).stdout.strip()

    try:
        made.append(cay("create", "--auto-pause", "--auto-resume"))
        box = made[0]
        assert e2b.Sandbox.get_info(box).lifecycle == {"on_timeout": "pause", "auto_resume": True}
        cay("exec", box, "--", "sh", "-c", "echo kept > note")
        assert cay("pause", box) == box
        assert "paused" in cay("list")
        twice = server.cay("sandbox", "pause", box, check=False)
        assert twice.returncode != 0 and "already paused" in twice.stderr
        assert cay("resume", box) == box
        made += cay("fork", box, "-n", "2").split()
        assert len(set(made)) == 3
        snapshot = cay("snapshot", box)
        made.append(cay("create", snapshot))
        for one in made:
            assert cay("exec", one, "--", "cat", "note") == "kept"
        cay("kill", made.pop())
        assert e2b.Sandbox.delete_snapshot(snapshot) is True
    finally:
        server.cay("sandbox", "kill", *made, check=False)
