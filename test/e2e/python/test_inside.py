"""The rows of docs/use/inside.md that work, before and after a pause and a resume.

Rows that install Debian packages need a mirror and minutes, so they run with
CAY_E2E_INSIDE=1, as in `make test-inside`.
"""

import os

import e2b
import pytest

installs = pytest.mark.skipif(not os.environ.get("CAY_E2E_INSIDE"), reason="make test-inside installs packages")


def output(box, command, user="user"):
    return box.commands.run(command, user=user, timeout=120).stdout.strip()


def resumed(box):
    """Pauses a sandbox and resumes it."""
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=900)


def installed(create, *packages):
    """A sandbox with Debian packages, installed as a user installs them."""
    box = create(timeout=900)
    box.commands.run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "
                     + " ".join(packages), user="root", timeout=600)
    return box


# An account without privileges is root in namespaces of its own: a process id,
# a file system and a host name that the rest of the sandbox does not see.
NAMESPACES = (
    "unshare -Urmpf --uts --mount-proc sh -ec "
    "'hostname inner; mount -t tmpfs none /mnt; echo x >/mnt/f; echo $(id -u) $$ $(hostname) $(cat /mnt/f)'; ls /mnt"
)


def test_namespaces_of_an_account(create):
    box = create()
    assert output(box, NAMESPACES) == "0 1 inner x"
    # One that lives through the pause keeps its own file system.
    box.commands.run("exec unshare -Urm sh -ec 'mount -t tmpfs none /mnt; echo kept >/mnt/f; "
                     "mkfifo /tmp/ask /tmp/say; while read line </tmp/ask; do cat /mnt/f >/tmp/say; done'",
                     background=True, timeout=0)
    ask = "until [ -p /tmp/say ]; do sleep 0.05; done; echo >/tmp/ask; cat /tmp/say; ls /mnt"
    assert output(box, ask) == "kept"
    resumed(box)
    assert output(box, ask) == "kept"
    assert output(box, NAMESPACES) == "0 1 inner x"


@installs
def test_bubblewrap(create):
    box = installed(create, "bubblewrap")
    # No network, no process and no writable file of the sandbox, as coding agents ask for it.
    command = (
        "echo outer >/tmp/outer; bwrap --unshare-all --die-with-parent --ro-bind / / --tmpfs /tmp --proc /proc --dev /dev sh -c '"
        "ls /tmp; ls -d /proc/[0-9]* | wc -l; touch /home/user/f 2>/dev/null || echo read-only; "
        'python3 -c "import socket; socket.create_connection((\\"1.1.1.1\\", 53), 5)" 2>&1 | tail -n1\''
    )
    for _ in range(2):
        lines = output(box, command).splitlines()
        assert int(lines[0]) <= 6
        assert lines[1:] == ["read-only", "OSError: [Errno 101] Network is unreachable"]
        resumed(box)


@installs
def test_services(create):
    box = installed(create, "postgresql", "redis-server", "nginx-light", "curl")
    # An installation starts nothing: base has no init system.
    assert output(box, "pgrep -c 'postgres|redis|nginx' || true", "root") == "0"
    for name in "postgresql", "redis-server", "nginx":
        box.commands.run(f"service {name} start", user="root", timeout=120)
    box.commands.run("until redis-cli ping; do sleep 0.1; done && redis-cli set kept yes", timeout=60)
    ask = ("redis-cli get kept; curl -so /dev/null -w '%{http_code}\\n' http://localhost; "
           "cd / && su postgres -c 'psql -tAc \"select 6*7\"'")
    for _ in range(2):
        assert output(box, ask, "root").splitlines() == ["yes", "200", "42"]
        resumed(box)
    box.commands.run("service nginx stop && service redis-server restart", user="root", timeout=60)
    box.commands.run("until redis-cli ping; do sleep 0.1; done", timeout=60)
    assert output(box, "curl -so /dev/null http://localhost; echo $?") == "7"


@installs
def test_debuggers(create):
    box = installed(create, "gdb", "strace", "gcc", "libc6-dev")
    box.files.write("/tmp/p.c", "int f(int x) { return x + 1; }\nint main(void) { return f(41) - 42; }\n")
    box.commands.run("cc -g -O0 -o /tmp/p /tmp/p.c")
    for _ in range(2):
        assert "x=41" in output(box, "gdb -q -batch -ex 'break f' -ex run -ex bt /tmp/p 2>&1")
        assert "exited with 0" in output(box, "strace -o /tmp/t /tmp/p; cat /tmp/t")
        resumed(box)
