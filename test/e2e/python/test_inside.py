"""The rows of docs/use/inside.md that work, before and after a pause and a resume.

Rows that install Debian packages need a mirror and minutes, so they run with
CAY_E2E_INSIDE=1, as in `make test-inside`.
"""

import os
import uuid

import cayv1
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


# A service that counts its starts, as a person writes one.
COUNTER = """[Unit]
Description=A counter
[Service]
User=user
StateDirectory=counter
Environment=PORT=8123
ExecStartPre=/bin/sh -c 'echo start >>/var/lib/counter/starts'
ExecStart=/usr/bin/python3 -u -c 'import os, http.server as h; print("serving as", os.getuid()); \\
  h.test(h.SimpleHTTPRequestHandler, port=int(os.environ["PORT"]), bind="127.0.0.1")'
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""


def test_units(create, eventually):
    box = create()
    box.files.write("/etc/systemd/system/counter.service", COUNTER, user="root")
    output(box, "systemctl daemon-reload && systemctl enable --now counter 2>&1", "root")

    def answers(box):
        ask = "curl -so /dev/null --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 60 -w '%{http_code}' http://localhost:8123"
        assert output(box, ask) == "200"
        assert output(box, "systemctl is-active counter; systemctl is-enabled counter; cat /var/lib/counter/starts | wc -l").split()[:2] == ["active", "enabled"]
        return int(output(box, "wc -l </var/lib/counter/starts")), output(box, "systemctl show -p MainPID --value counter")

    first = answers(box)
    assert first[0] == 1
    assert "serving as 1000" in output(box, "journalctl -u counter -o cat -n 50", "root")
    with pytest.raises(e2b.CommandExitException, match="try sudo"):
        box.commands.run("systemctl stop counter")
    node = cayv1.checkpoint(box)
    box.commands.run(f"kill -9 {first[1]}", user="root")
    eventually(lambda: output(box, "wc -l </var/lib/counter/starts") == "2")
    again = answers(box)
    assert again[1] != first[1]
    # It goes on where a sandbox goes on; one that boots from files starts it.
    resumed(box)
    assert answers(box) == again
    fork, = box.fork()
    assert answers(fork) == again
    fork.kill()
    cayv1.rollback(box, node)
    assert answers(box) == first
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")
    booted = answers(box)
    assert booted[0] == 2
    status = output(box, "systemctl stop counter && systemctl status counter || echo $?", "root")
    assert "inactive (dead)" in status and status.endswith("3")


# The answers of the three services of a usual web application.
ASK = ("redis-cli get kept; curl -so /dev/null -w '%{http_code}\\n' http://localhost; "
       "cd / && su postgres -c 'psql -tAc \"select 6*7\"'")


@installs
def test_services(create, eventually):
    box = installed(create, "postgresql", "redis-server", "nginx-light", "curl", "procps")
    box.commands.run("redis-cli set kept yes", timeout=60)  # the installation started all three
    for _ in range(2):
        assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
        assert output(box, "systemctl is-active postgresql postgresql@15-main redis-server nginx").split() == ["active"] * 4
        resumed(box)
    fork, = box.fork()
    assert output(fork, ASK, "root").splitlines() == ["yes", "200", "42"]
    fork.kill()
    box.commands.run("service nginx stop && systemctl restart postgresql && systemctl reload redis-server || true; redis-cli save", user="root", timeout=120)
    assert output(box, "curl -so /dev/null http://localhost; echo $?") == "7"
    # A unit that Cay cannot start says so, also to a package that starts it quietly.
    box.files.write("/etc/systemd/system/x.socket", "[Socket]\nListenStream=/run/x\n", user="root")
    assert "systemctl start x.service" in output(box, "systemctl --quiet start x.socket 2>&1 || true", "root")
    box.commands.run("systemctl start nginx && systemctl reload nginx && systemctl disable --now redis-server", user="root", timeout=60)
    assert output(box, "systemctl is-enabled redis-server nginx || true").split() == ["disabled", "enabled"]
    # A kill of a main process is a restart where the unit asks for one.
    before = output(box, "systemctl enable --now redis-server 2>/dev/null; systemctl show -p MainPID --value redis-server", "root")
    box.commands.run(f"kill -9 {before}", user="root")
    eventually(lambda: output(box, "redis-cli ping || true") == "PONG")
    assert output(box, "systemctl show -p MainPID --value redis-server") != before
    # A boot from its files starts what is enabled.
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=900, on_resume="reboot")
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
    # The real systemd beside it changes nothing.
    box.commands.run("DEBIAN_FRONTEND=noninteractive apt-get install -qy systemd systemd-sysv libpam-systemd cron && "
                     "DEBIAN_FRONTEND=noninteractive apt-get install -qy --reinstall systemd nginx-light", user="root", timeout=600)
    assert output(box, "readlink /bin/systemctl /bin/journalctl; systemctl is-active cron nginx; /sbin/runlevel; systemctl is-system-running").splitlines() == [
        "/usr/lib/cay/cay-agent", "/usr/lib/cay/cay-agent", "active", "active", "N 5", "running"]
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
    resumed(box)
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]


@installs
def test_services_of_a_template(create):
    name = "t-" + uuid.uuid4().hex[:12]
    template = (
        e2b.Template().from_template("base").set_user("root")
        .run_cmd("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends postgresql redis-server nginx-light curl")
        # A later step finds them up, and what it does is kept.
        .run_cmd("su postgres -c 'createdb kept' && redis-cli set kept yes")
        .set_user("user")
    )
    try:
        e2b.Template.build(template, name, cpu_count=2, memory_mb=1024)
        for _ in range(2):
            box = create(name)
            assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
            assert output(box, "cd / && su postgres -c 'psql -tAc \"select 7\" kept'", "root") == "7"
            box.kill()
    finally:
        cayv1.delete_template(name)


@installs
def test_debuggers(create):
    box = installed(create, "gdb", "strace", "gcc", "libc6-dev")
    box.files.write("/tmp/p.c", "int f(int x) {\n  int y = x + 1;\n  return y;\n}\nint main(void) { return f(41) - 42; }\n")
    box.commands.run("cc -g -O0 -o /tmp/p /tmp/p.c")
    for _ in range(2):
        assert "x=41" in output(box, "gdb -q -batch -ex 'break f' -ex run -ex bt /tmp/p 2>&1")
        # Steps stay in the program: into a function, over its lines, out of it.
        steps = output(box, "gdb -q -batch -ex 'break main' -ex run -ex step -ex next -ex 'print y' -ex finish -ex 'info frame' /tmp/p 2>&1")
        assert "y = x + 1" in steps and "$1 = 42" in steps and "Value returned is $2 = 42" in steps and "in main" in steps
        assert "exited with 0" in output(box, "strace -o /tmp/t /tmp/p; cat /tmp/t")
        resumed(box)
