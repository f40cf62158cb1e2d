"""Volumes inside of sandboxes: each way that a sandbox begins or goes back, and what several see of one."""

import json
import urllib.error
import urllib.request
import uuid

import e2b
import pytest

import cayv1

PATH = "/mnt/data"


@pytest.fixture
def volume():
    made = e2b.Volume.create(f"mounts-{uuid.uuid4().hex[:8]}")
    yield made
    e2b.Volume.destroy(made.volume_id)


@pytest.fixture
def mounted(volume, create):
    """Creates sandboxes with the volume; they end before it."""

    def make(**kw):
        return create(volume_mounts={PATH: volume}, **kw)

    return make


def create_with(mounts):
    """A sandbox with what only the REST API takes of mounts."""
    config = e2b.ConnectionConfig()
    request = urllib.request.Request(
        config.api_url + "/sandboxes", data=json.dumps({"templateID": "base", "timeout": 300, "volumeMounts": mounts}).encode(),
        headers={"X-API-Key": config.api_key, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return e2b.Sandbox.connect(json.load(reply)["sandboxID"], timeout=300)


def run(box, command, **kw):
    return box.commands.run(command, timeout=120, **kw).stdout


def fails(box, command, **kw):
    with pytest.raises(e2b.CommandExitException) as failed:
        box.commands.run(command, timeout=120, **kw)
    return failed.value.stderr


def test_forks_share_it(mounted):
    box = mounted()
    run(box, f"echo one > {PATH}/one")
    forks = box.fork(count=2, timeout=300)
    try:
        for i, fork in enumerate(forks):
            assert run(fork, f"cat {PATH}/one") == "one\n"
            run(fork, f"echo {i} > {PATH}/fork{i}")
        assert run(box, f"cat {PATH}/fork0 {PATH}/fork1") == "0\n1\n"
        run(box, f"rm {PATH}/one")
        for fork in forks:
            assert "No such file" in fails(fork, f"cat {PATH}/one")
    finally:
        for fork in forks:
            fork.kill()


def test_a_rollback_keeps_what_is_in_it(mounted):
    box = mounted()
    run(box, f"echo then | tee {PATH}/f ~/f")
    first = cayv1.checkpoint(box)
    run(box, f"echo now | tee {PATH}/f ~/f; echo new > {PATH}/new")
    cayv1.rollback(box, first)
    assert run(box, "cat ~/f") == "then\n"
    assert run(box, f"cat {PATH}/f {PATH}/new") == "now\nnew\n"
    run(box, f"echo after > {PATH}/f && sync {PATH}/f")


def test_a_boot_from_files_mounts_it(mounted):
    box = mounted()
    run(box, f"echo kept > {PATH}/f")
    box.pause(mode="filesystem")
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert run(box, f"cat {PATH}/f && mountpoint -q {PATH} && echo mounted") == "kept\nmounted\n"
    box.pause()
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")
    assert run(box, f"cat {PATH}/f") == "kept\n"


def test_files_that_went_while_it_was_paused(volume, mounted):
    """A program with open files of the volume goes on, whatever became of them."""
    box = mounted()
    run(box, f"cd {PATH} && echo a > gone && echo b > kept && mkdir dir && echo c > dir/c")
    holder = box.commands.run(
        f"cd {PATH}/dir && exec 3<../gone 4<../kept && sleep 100000", background=True, timeout=0)
    run(box, f"until [ -e /proc/{holder.pid}/fd/4 ]; do sleep 0.05; done")
    box.pause()
    for name in ("/gone", "/dir"):
        volume.remove(name)
    volume.write_file("/gone", "another")
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    assert holder.pid in [p.pid for p in box.commands.list()]
    assert run(box, f"cat {PATH}/gone; ls {PATH}; cat /proc/{holder.pid}/fd/4") == "anothergone\nkept\nb\n"


def test_what_one_claims_another_does_not_get(mounted):
    boxes = [mounted(), mounted()]
    claim = f"n=0; for i in $(seq 200); do (set -C; : > {PATH}/claim$i) 2>/dev/null && n=$((n+1)); done; echo $n"
    running = [box.commands.run(claim, background=True, timeout=120) for box in boxes]
    assert sum(int(command.wait().stdout) for command in running) == 200


INSERT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("pragma journal_mode=" + sys.argv[2])
db.execute("create table if not exists rows (n)")
for n in range(40):
    db.execute("begin immediate")
    db.execute("insert into rows select coalesce(max(n), 0) + 1 from rows")
    db.execute("commit")
"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_rows_of_two_sandboxes(mounted, mode):
    """SQLite loses no row of two writers, as its locks exclude across sandboxes."""
    boxes = [mounted(), mounted()]
    for box in boxes:
        box.files.write("/tmp/insert.py", INSERT)
    running = [box.commands.run(f"python3 /tmp/insert.py {PATH}/db {mode}", background=True, timeout=120) for box in boxes]
    for command in running:
        command.wait()
    count = "select count(*), max(n) from rows"
    found = run(boxes[0], f"python3 -c \"import sqlite3; d = sqlite3.connect('{PATH}/db'); print(d.execute('pragma integrity_check').fetchone(), d.execute('{count}').fetchone())\"")
    assert found == "('ok',) (80, 80)\n"


HOLD = """
import fcntl, os, sys
lock, data = open(sys.argv[1] + "/lock", "w"), open(sys.argv[1] + "/data", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
for line in sys.stdin:
    try:
        os.write(data.fileno(), b"x")
        print("wrote", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_through_a_pause(mounted, taken):
    """A resume has the locks again, unless another sandbox had them meanwhile: then files
    that were open fail."""
    box, other = mounted(), mounted()
    box.files.write("/tmp/hold.py", HOLD)
    holder = box.commands.run(f"python3 /tmp/hold.py {PATH} > /tmp/out 2>&1", background=True, stdin=True, timeout=0)
    run(box, "until grep -q locked /tmp/out; do sleep 0.1; done")
    assert fails(other, f"flock -n {PATH}/lock echo mine") == ""
    box.pause()
    if taken:
        assert run(other, f"flock -w 60 {PATH}/lock echo mine") == "mine\n"  # its processes end after the answer
    box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    box.commands.send_stdin(holder.pid, "\n")
    assert run(box, "until [ $(wc -l < /tmp/out) = 2 ]; do sleep 0.1; done; tail -n 1 /tmp/out") == ("Input/output error\n" if taken else "wrote\n")
    if taken:
        assert run(other, f"flock -n {PATH}/lock echo mine") == "mine\n"
    else:
        fails(other, f"flock -n {PATH}/lock echo mine")


def test_what_one_moves_and_links_another_sees(mounted):
    a, b = mounted(), mounted()
    run(a, f"cd {PATH} && echo one > first && ln first linked && mkdir -p d/e && echo deep > d/e/f")
    assert run(b, f"cd {PATH} && stat -c '%h %s' first linked && cat d/e/f") == "2 4\n2 4\ndeep\n"
    run(a, f"cd {PATH} && mv first second && echo longer >> second && chmod 600 second && rm linked && mv d moved && mkdir d")
    seen = f"cd {PATH} && stat -c '%a %h %s' second && cat moved/e/f && ls d && [ ! -e first ] && [ ! -e linked ] && echo gone"
    assert run(b, seen) == "600 1 11\ndeep\ngone\n"


def test_a_name_that_is_not_utf8_and_a_file_of_100_gb(volume, mounted):
    """Both are as on any disk inside, and neither breaks a listing from outside."""
    a, b = mounted(), mounted()
    run(a, f"cd {PATH} && echo odd > $'\\xff\\xfe' && truncate -s 100G huge && printf x | dd of=huge bs=1 seek=107374182399 conv=notrunc status=none")
    assert run(b, f"cd {PATH} && cat $'\\xff\\xfe' && stat -c %s huge && tail -c 1 huge") == "odd\n107374182400\nx"
    listed = {entry.name: entry.size for entry in volume.list("/")}
    assert listed.pop("huge") == 100 << 30
    assert list(listed.values()) == [4] and "\ufffd" in list(listed)[0]
    run(b, f"cd {PATH} && rm huge $'\\xff\\xfe'")
    assert run(a, f"ls {PATH}") == ""


def test_read_only_and_a_directory_of_it(volume, create):
    volume.write_file("/f", "top")
    boxes = []
    try:
        boxes.append(create_with([{"name": volume.name, "path": "/ro", "readOnly": True},
                                  {"name": volume.name, "path": "/sub", "subPath": "a/b"}]))
        box = boxes[0]
        assert run(box, "cat /ro/f") == "top"
        for refused in ("touch /ro/g", "rm /ro/f", "chmod 777 /ro/f", "mount -o remount,rw /ro && touch /ro/g"):
            assert fails(box, refused, user="root")
        run(box, "echo below > /sub/g")
        assert volume.read_file("/a/b/g") == "below\n"
        assert run(box, "cat /ro/a/b/g; ls -a /sub/.. | grep -c '^f$' || true") == "below\n0\n"
        box.pause()
        box = e2b.Sandbox.connect(box.sandbox_id, timeout=300)
        assert fails(box, "touch /ro/g", user="root") and run(box, "cat /sub/g") == "below\n"
    finally:
        for box in boxes:
            box.kill()


def test_links_lead_nowhere_outside(volume, mounted):
    """A sub-path that is a link of a guest's is refused, and no sandbox begins."""
    box = mounted()
    run(box, f"ln -s / {PATH}/root; ln -s ../../.. {PATH}/up; ln -s /etc {PATH}/etc; touch {PATH}/file")
    for path in ("root", "up", "etc", "file", "root/tmp"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            create_with([{"name": volume.name, "path": "/x", "subPath": path}])
        assert refused.value.code == 400 and b"volumeMounts[0]" in refused.value.read()


def test_a_path_that_is_a_file(volume):
    with pytest.raises(urllib.error.HTTPError) as refused:
        create_with([{"name": volume.name, "path": "/etc/passwd"}])
    assert refused.value.code == 400 and b"/etc/passwd" in refused.value.read()


def test_a_volume_that_is_gone(create):
    made = e2b.Volume.create(f"gone-{uuid.uuid4().hex[:8]}")
    source = create(volume_mounts={PATH: made})
    run(source, "echo kept > ~/note")
    saved = source.create_snapshot()
    try:
        source.kill()
        assert e2b.Volume.destroy(made.volume_id)
        with pytest.raises(e2b.SandboxException, match=made.name):
            create(saved.snapshot_id)
    finally:
        e2b.Sandbox.delete_snapshot(saved.snapshot_id)


def test_a_full_one_inside(create):
    made = cayv1.call("POST", "/volumes", {"name": f"full-{uuid.uuid4().hex[:8]}", "sizeMB": 64})
    try:
        box = create(volume_mounts={PATH: made["name"]})
        assert "No space left" in fails(box, f"head -c 100M /dev/zero > {PATH}/big")
        run(box, f"rm {PATH}/big && echo goes on > {PATH}/f && sync {PATH}/f")
        box.kill()
    finally:
        cayv1.call("DELETE", f"/volumes/{made['name']}")
