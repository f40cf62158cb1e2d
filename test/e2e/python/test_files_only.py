"""Sandboxes that are saved without their memory, and boot from their files."""

import os
import urllib.error
import urllib.request

import e2b
import e2b_code_interpreter
import pytest

from saved import BOOT_ID, saved_as

# One of everything that a file system may hold, made as root.
SHAPE = r"""
set -e
mkdir -p /srv/deep/er && cd /srv
echo one > one && ln one two && ln one deep/three && ln -s ../nowhere dangling
head -c 3000000 /dev/urandom > big && truncate -s 3G hole && echo end >> hole
cp /bin/true set && chown user:root set && chmod 6755 set && chmod 1777 deep && chmod 000 two
python3 -c 'import os; os.setxattr("/srv/one", "user.note", b"kept")'
rm /etc/issue && rm -r /usr/share/common-licenses && mkdir /usr/share/common-licenses
useradd -m -u 1234 ann && su ann -c 'echo hers > ~/file'
echo 'echo changed' > /usr/local/bin/mine && chmod +x /usr/local/bin/mine
"""
LIST = r"""
cd / && find srv etc home usr/share/common-licenses usr/local/bin -printf '%p %y %m %u %g %n %l\n' |
    grep -v -e machine-id -e '/\.cay' | sort
find srv home usr/local/bin -type f -size -100M | sort | xargs -d '\n' sha256sum
python3 -c 'import os; print(os.getxattr("/srv/one", "user.note"))'
tail -c 4 /srv/hole; stat -c %s /srv/hole
"""


def status(box, port, path):
    """Asks a port of a sandbox as any stranger could, and returns the status."""
    url = box.connection_config.get_sandbox_url(box.sandbox_id, box.sandbox_domain)
    request = urllib.request.Request(url + path, headers={
        "E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_files_survive_and_processes_do_not(create):
    box = create(metadata={"who": "files"}, envs={"GIVEN": "at creation"})
    box.commands.run(SHAPE, user="root")
    before = box.commands.run(LIST, user="root").stdout
    process = box.commands.run("sleep 100000", background=True)
    boot = box.commands.run(BOOT_ID).stdout
    machine = box.commands.run("cat /etc/machine-id").stdout

    assert box.pause(mode="filesystem") is True
    assert box.pause(mode="filesystem") is False
    assert not box.is_running()
    assert box.get_info().state == e2b.SandboxState.PAUSED

    for _ in range(2):  # what booted from files is saved and booted like any other
        again = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
        assert again.sandbox_id == box.sandbox_id
        assert box.is_running()
        assert box.commands.run(BOOT_ID).stdout != boot  # the old tokens open it
        assert box.commands.run(LIST, user="root").stdout == before
        assert process.pid not in [p.pid for p in box.commands.list()]
        said = box.commands.run("echo $GIVEN $E2B_SANDBOX_ID; whoami; pwd; mine; echo $LANG").stdout.split("\n")
        assert said[:4] == [f"at creation {box.sandbox_id}", "user", "/home/user", "changed"]
        assert box.commands.run("cat /etc/machine-id").stdout == machine
        assert box.commands.run("cat /home/ann/file", user="ann").stdout == "hers\n"
        assert box.get_info().metadata == {"who": "files"}
        box.pause(mode="filesystem")


def test_memory_is_left_when_asked(create):
    box = create()
    box.files.write("/home/user/note", "kept")
    process = box.commands.run("sleep 100000", background=True)
    boot = box.commands.run(BOOT_ID).stdout
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")
    assert box.files.read("/home/user/note") == "kept"
    assert box.commands.run(BOOT_ID).stdout != boot
    assert process.pid not in [p.pid for p in box.commands.list()]
    boot = box.commands.run(BOOT_ID).stdout
    e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")  # it runs: nothing happens
    assert box.commands.run(BOOT_ID).stdout == boot
    process = box.commands.run("sleep 100000", background=True)
    box.pause()  # and has a memory to keep again
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.commands.run(BOOT_ID).stdout == boot
    assert process.pid in [p.pid for p in box.commands.list()]


def test_kernels_start_anew(create):
    box = create(kind=e2b_code_interpreter.Sandbox, envs={"GIVEN": "at creation"})
    box.run_code("x = 41; open('/home/user/x', 'w').write('41')")
    box.pause(mode="filesystem")
    box = e2b_code_interpreter.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.run_code("x").error.name == "NameError"
    assert box.run_code("import os; open('/home/user/x').read() + os.environ['GIVEN']").text == "41at creation"


def test_timeout_saves_files(create, eventually):
    box = create(timeout=300, lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}})
    assert box.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    box.files.write("/home/user/note", "kept")
    boot = box.commands.run(BOOT_ID).stdout
    box.set_timeout(0)
    eventually(lambda: e2b.Sandbox.get_info(box.sandbox_id).state == e2b.SandboxState.PAUSED)
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.files.read("/home/user/note") == "kept"
    assert box.commands.run(BOOT_ID).stdout != boot


def test_traffic_does_not_wake_what_has_no_memory(create):
    box = create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    box.pause(mode="filesystem")
    assert status(box, 49983, "/health") == 502
    assert box.get_info().state == e2b.SandboxState.PAUSED
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert status(box, 49983, "/health") == 204


def test_snapshot_of_files(create):
    box = create()
    box.files.write("/home/user/note", "first")
    box.commands.run("sleep 100000", background=True)
    snapshot = box.create_snapshot(mode="filesystem")
    try:
        box.files.write("/home/user/note", "second")
        clones = [create(snapshot.snapshot_id) for _ in range(2)]
        assert [c.files.read("/home/user/note") for c in clones] == ["first", "first"]
        ids = {b.commands.run("cat /etc/machine-id").stdout for b in [box, *clones]}
        assert len(ids) == 3
        assert [c.commands.run("pgrep -c sleep || true").stdout for c in clones] == ["0\n", "0\n"]
        fork = clones[0].fork()[0]
        fork.kill()
        for clone in clones:
            clone.kill()
    finally:
        e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)


def flip(path):
    """Changes one byte in the middle of a file, and back."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_damage_is_named_and_never_resumed(create):
    box = create()
    box.files.write("/home/user/note", "kept")
    process = box.commands.run("sleep 100000", background=True)
    box.pause()
    snapshot = saved_as(box)
    flip(snapshot / "pages.img")
    with pytest.raises(e2b.SandboxException, match=f"snapshot {snapshot.name} is damaged.*pages.img"):
        e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert box.get_info().state == e2b.SandboxState.PAUSED
    flip(snapshot / "pages.img")  # as it was
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert process.pid in [p.pid for p in box.commands.list()]

    box.pause()  # its memory may be lost, its files are not
    flip(saved_as(box) / "checkpoint.img")
    with pytest.raises(e2b.SandboxException, match="is damaged.*memory set to false"):
        e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")
    assert box.files.read("/home/user/note") == "kept"
