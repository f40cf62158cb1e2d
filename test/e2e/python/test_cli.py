"""The command line tool, as a person or a script uses it."""

import hashlib
import json
import os

import pytest

import world


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture
def made(server):
    sandbox = json.loads(server.cay("sandbox", "create", "--json").stdout)["sandboxID"]
    yield sandbox
    server.cay("sandbox", "kill", sandbox, check=False)


def test_life_of_a_sandbox(server, made):
    assert made in server.cay("sandbox", "list").stdout
    assert made in [s["sandboxID"] for s in json.loads(server.cay("sandbox", "list", "--json").stdout)]
    assert server.cay("sandbox", "exec", made, "--", "echo", "hi there").stdout == "hi there\n"
    failed = server.cay("sandbox", "exec", made, "--", "sh", "-c", "echo oops >&2; exit 7", check=False)
    assert (failed.returncode, failed.stderr) == (7, "oops\n")
    server.cay("sandbox", "kill", made)
    assert made not in server.cay("sandbox", "list").stdout
    gone = server.cay("sandbox", "kill", made, check=False)
    assert gone.returncode != 0
    assert made in gone.stderr


def tree(top):
    """The entries below a directory: kinds, modes and contents by name."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("dir", path.stat().st_mode)
        else:
            found[name] = ("file", path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def test_directories_up_and_down(server, made, tmp_path):
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep" / "er" / "é b.bin").write_bytes(os.urandom(3_000_000))
    (source / "nothing").write_text("")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/er")
    (source / "dangling").symlink_to("/no/such/file")
    for i in range(300):
        (source / "deep" / f"file{i}").write_text(f"{i}\n")

    def cp(*args, **kw):
        return server.cay("sandbox", "cp", *args, **kw)

    cp("-r", str(source), f"{made}:work")
    assert server.cay("sandbox", "exec", made, "--", "work/run.sh").stdout == "ran\n"
    cp("-r", f"{made}:work", str(tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(source)

    # A directory that is there gets the copy under its own name; "/." means
    # the contents.
    cp("-r", str(source), f"{made}:work")
    cp("-r", f"{made}:work/source", str(tmp_path))
    assert tree(tmp_path / "source") == tree(source)
    cp("-r", f"{made}:work/source/.", str(tmp_path / "back" / "empty"))
    assert tree(tmp_path / "back" / "empty") == tree(source)

    cp(str(source / "run.sh"), f"{made}:work")
    cp(f"{made}:work/run.sh", str(tmp_path))
    assert (tmp_path / "run.sh").read_text() == (source / "run.sh").read_text()


@pytest.mark.parametrize(("args", "said"), [
    (("{here}", "{made}:x"), "cp -r"),
    (("{made}:/etc", "{here}"), "cp -r"),
    (("-r", "{here}/none", "{made}:x"), "no such file"),
    (("-r", "{made}:none", "{here}"), "/home/user/none"),
    (("-r", "{here}", "{made}:/etc/passwd"), "/etc/passwd"),
    (("-r", "-u", "nobody-here", "{here}", "{made}:x"), "nobody-here"),
    (("-r", "{here}", "{here}"), "in a sandbox"),
])
def test_copies_that_fail_say_why(server, made, tmp_path, args, said):
    failed = server.cay("sandbox", "cp", *(a.format(here=tmp_path, made=made) for a in args), check=False)
    assert failed.returncode == 1
    assert said in failed.stderr
    assert len(failed.stderr.strip().splitlines()) <= 2, failed.stderr


def test_templates(server):
    names = [name for t in json.loads(server.cay("template", "list", "--json").stdout) for name in t["names"]]
    assert {"base", "code-interpreter-v1"} <= {name.split("/")[-1] for name in names}
    table = server.cay("template", "list").stdout
    assert "base" in table and max(map(len, table.splitlines())) <= 200


def test_version_and_doctor(server):
    assert server.cay("version").stdout.startswith("cay ")
    assert "nftables" in server.cay("doctor", check=False).stdout


def test_a_second_server_says_who_holds_the_data(server):
    second = server.cay("server", check=False)
    assert second.returncode != 0
    assert len(second.stderr.strip().splitlines()) <= 3, second.stderr
