"""kill -9 of the server at work: sandboxes live, leftovers of a crash go."""

import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import shutil
import subprocess
import time
import uuid

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def server():
    """The running server, found by the pid in its lock file."""
    return world.running()


def test_a_crash_in_mid_build_leaves_nothing(server, eventually):
    """A build borrows an instance, whose journal has no mark: the next server ends it."""
    name = "t-" + uuid.uuid4().hex[:12]
    listed = lambda *parts: {p.name for p in pathlib.Path(*parts).iterdir()}
    instances = lambda: listed(server.data, "instances") | listed(server.env["CAY_RUN_DIR"], "reserved")
    before = instances()
    template = e2b.Template().from_template("base").run_cmd("true").run_cmd("echo begun; sleep 1000")
    build = e2b.Template.build_in_background(template, name, cpu_count=1, memory_mb=512)
    told = lambda: [entry.message for entry in e2b.Template.get_build_status(build).log_entries]
    eventually(lambda: any(line.endswith("begun") for line in told()))
    borrowed, images = instances() - before, listed(server.data, "building")
    assert borrowed, "the build has no journal"
    server.kill9()
    server.start()
    assert not borrowed & instances()
    assert not images & listed(server.data, "building")
    processes = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [one for one in borrowed if one in processes]
    server.cay("template", "delete", name, check=False)


def test_a_waiting_build_survives_a_crash(server, eventually):
    """Two builds run and end with their server; the third waits for them, and is built by the next server."""
    tag = uuid.uuid4().hex[:12]
    names = [f"t-{tag}-{i}" for i in range(3)]

    def start(name, command):
        template = e2b.Template().from_template("base").run_cmd(command)
        return e2b.Template.build_in_background(template, name, cpu_count=1, memory_mb=512)

    state = lambda build: e2b.Template.get_build_status(build)
    told = lambda build, text: any(entry.message.endswith(text) for entry in state(build).log_entries)
    try:
        running = [start(name, f"echo begun; sleep 1000 # {name}") for name in names[:2]]
        for build in running:
            eventually(lambda: told(build, "begun"))
        waiting = start(names[2], f"echo {tag} > /home/user/waited")
        assert (state(waiting).status.value, state(waiting).log_entries) == ("building", [])
        server.kill9()
        server.start()
        for build in running:
            assert state(build).status.value == "error"
            assert "the server stopped while the template was built" in state(build).reason.message
        eventually(lambda: state(waiting).status.value != "building", 300)
        assert state(waiting).status.value == "ready", state(waiting).reason
        sandbox = e2b.Sandbox.create(names[2], timeout=120)
        assert sandbox.files.read("/home/user/waited").strip() == tag
        assert sandbox.kill()
    finally:
        for name in names:
            server.cay("template", "delete", name, check=False)


def test_a_crash_in_mid_pause_loses_nothing(server):
    sandbox = e2b.Sandbox.create(timeout=900)
    paused = e2b.Sandbox.create(timeout=900)
    try:
        paused.files.write("note.txt", "saved")
        paused.pause()
        sandbox.files.write("note.txt", "kept")
        sleeper = sandbox.commands.run("sleep 3600", background=True, timeout=0)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(sandbox.pause)
            server.kill9()  # whether the pause has begun, is under way or is done
            asked.exception()
        server.start()

        assert paused.get_info().state == e2b.SandboxState.PAUSED
        for box, text in ((sandbox, "kept"), (paused, "saved")):
            assert box.connect(timeout=900).files.read("note.txt") == text
        assert sleeper.pid in [p.pid for p in sandbox.commands.list()]
        assert sandbox.pause() is True
    finally:
        sandbox.kill()
        paused.kill()


def owned(server):
    """The instances on this machine but those that wait in the pool."""
    found = []
    for journal in (server.data / "instances").iterdir():
        try:
            if json.loads((journal / "spec.json").read_text())["spec"]["team"] == "":
                continue
        except OSError:  # begun this moment, or gone
            pass
        found.append(journal.name)
    return found


def reboot(server):
    """Takes from a host what a reboot takes, with the server dead already."""
    run, name = server.env["CAY_RUN_DIR"], server.env["CAY_NETWORK_NAME"]
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"--root={run}/".encode() in path.read_bytes():
                os.kill(int(path.parent.name), 9)
        except OSError:
            pass  # it has just ended
    mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    namespaces = [str(p) for p in pathlib.Path("/run/netns").glob(f"{name}-*")]
    for point in reversed([m for m in mounts if m.startswith(run + "/")] + namespaces):
        subprocess.run(["umount", "-l", point], check=True)
    for path in namespaces:
        os.unlink(path)  # its interfaces go with it
    shutil.rmtree(run)
    for _ in range(200):  # a cgroup is busy until its last process is buried
        groups = [p for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/*") for p in glob.glob(f"{root}/{name}/**/", recursive=True)]
        for group in sorted(groups, reverse=True):
            with contextlib.suppress(OSError):
                os.rmdir(group)
        if not groups:
            break
        time.sleep(0.1)
    subprocess.run(["nft", "delete", "table", "inet", name], check=False, stderr=subprocess.DEVNULL)


def test_paused_sandboxes_survive_a_reboot(server):
    memory, files, running = [e2b.Sandbox.create(timeout=900) for _ in range(3)]
    try:
        for box in (memory, files, running):
            box.files.write("note.txt", "kept")
        sleeper = memory.commands.run("sleep 3600", background=True, timeout=0)
        memory.pause()
        files.pause(mode="filesystem")
        server.kill9()
        reboot(server)
        server.start()
        assert memory.get_info().state == files.get_info().state == e2b.SandboxState.PAUSED
        with pytest.raises(e2b.NotFoundException):
            running.get_info()
        for box in (memory, files):
            assert e2b.Sandbox.connect(box.sandbox_id, timeout=900).files.read("note.txt") == "kept"
        assert sleeper.pid in [p.pid for p in memory.commands.list()]
        assert e2b.Sandbox.create(timeout=60).kill()
    finally:
        for box in (memory, files, running):
            box.kill()


def test_leftovers_of_a_crash_are_gone(server, eventually):
    """Creates are under way when the server dies; after a start nothing is
    left that the list of sandboxes does not name."""
    creating = [subprocess.Popen(
        ["python3", "-c", f"import urllib.request as u;u.urlopen(u.Request('{server.url}/sandboxes',"
         "b'{\"templateID\":\"base\"}',{'X-API-KEY':'" + os.environ["E2B_API_KEY"] +
         "','Content-Type':'application/json'}))"], stderr=subprocess.DEVNULL) for _ in range(4)]
    creating[0].wait(timeout=120)  # one is made, others are on their way
    server.kill9()
    for process in creating:
        process.wait(timeout=60)
    server.start()
    alive = json.loads(server.cay("sandbox", "list", "--json").stdout)
    eventually(lambda: len(owned(server)) == len(alive))
    for sandbox in alive:
        server.cay("sandbox", "kill", sandbox["sandboxID"])
    eventually(lambda: owned(server) == [])


def test_a_crash_leaves_nothing_of_a_pool(server, eventually):
    """Sandboxes in the pool wait on, or are gone; those that were handed over live."""
    def waiting():
        return {m.parent.name for m in (server.data / "instances").glob("*/pooled")}

    def mounted():
        text = pathlib.Path("/proc/mounts").read_text()
        return {line.split()[1].rsplit("/", 1)[1] for line in text.splitlines()
                if line.split()[1].startswith(server.env["CAY_RUN_DIR"] + "/reserved/")}

    sandbox = e2b.Sandbox.create(timeout=600)
    try:
        eventually(waiting, 120)
        server.kill9()
        server.start()
        assert sandbox.commands.run("echo here").stdout == "here\n"
        # Nothing is on this machine but what a journal knows of.
        eventually(lambda: mounted() == {d.name for d in (server.data / "instances").iterdir()})
        again = e2b.Sandbox.create(timeout=600)
        assert again.commands.run("echo and here").stdout == "and here\n"
        again.kill()
    finally:
        sandbox.kill()
