"""The ways of our engine that gVisor's own lacks, and the agent's answers to gVisor's."""

import time

import e2b
import pytest

import cayv1

# A listener and a connection on the loopback of a network namespace of an
# account without privileges; each message that comes through is counted.
NESTED = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
n = 0
while True:
    other = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    for a, b in (client, server), (other, accepted):
        a.sendall(b"x")
        assert b.recv(1) == b"x"
    other.close(), accepted.close()
    n += 1
    with open("/tmp/count", "w") as f:
        f.write(str(n))
    time.sleep(0.05)
"""


def counts_on(box):
    """Waits until the count in a sandbox has risen."""
    def count():
        text = box.files.read("/tmp/count") if box.files.exists("/tmp/count") else ""
        return int(text or 0)

    first, deadline = count(), time.monotonic() + 60
    while count() <= first:
        assert time.monotonic() < deadline, f"the count stays at {first}"
        time.sleep(0.05)


def test_connections_in_a_network_namespace(create):
    box = create()
    box.files.write("/tmp/nested.py", NESTED)
    box.commands.run("exec unshare -Urn python3 /tmp/nested.py >/tmp/nested.log 2>&1", background=True, timeout=0)
    counts_on(box)

    node = cayv1.checkpoint(box)
    counts_on(box)
    saved = box.create_snapshot().snapshot_id
    counts_on(box)
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=300)
    counts_on(box)
    fork, = box.fork()
    try:
        counts_on(fork)
        counts_on(box)
    finally:
        fork.kill()
    cayv1.rollback(box, node)
    counts_on(box)
    made = e2b.Sandbox.create(saved, timeout=300)
    try:
        counts_on(made)
    finally:
        made.kill()
        e2b.Sandbox.delete_snapshot(saved)


def test_renames_in_tmp(sbx):
    out = sbx.commands.run("cd /tmp && echo 1 >n1 && echo 2 >n2 && mv n1 n3 && mv n2 n1 && cat n1 n3 && "
                           "echo old >n4 && sed -i~ s/old/new/ n4 && sed -i~ s/new/newer/ n4 && cat n4 n4~")
    assert out.stdout == "2\n1\nnewer\nnew\n"


def test_root_starts_at_home(sbx):
    assert sbx.commands.run("pwd; echo made >here", user="root").stdout == "/root\n"
    assert sbx.files.read("here", user="root") == "made\n"
    assert sbx.commands.run("pwd").stdout == "/home/user\n"
    assert sbx.commands.run("pwd", user="root", cwd="/srv").stdout == "/srv\n"


def test_a_command_that_is_too_long(sbx):
    assert sbx.commands.run(": " + "x" * 130_000).exit_code == 0
    with pytest.raises(e2b.SandboxException, match="too long.*at most 131071"):
        sbx.commands.run(": " + "x" * 131_072)


def test_a_login_shell_starts_no_program(sbx):
    assert "EUID" in sbx.files.read("/etc/profile")
    assert "/sbin" not in sbx.commands.run("echo $PATH").stdout
    assert "/sbin" in sbx.commands.run("echo $PATH", user="root").stdout


def test_a_stopped_process_stays_stopped(create, eventually):
    """The guard of the memory stops everything and lets go only what it stopped."""
    box = create()
    stopped = box.commands.run("sleep 100000", background=True, timeout=0)
    look = f"ps -o state= -p {stopped.pid}"
    # A stop that meets the shell's exec of sleep is lost, so it is sent until it holds.
    eventually(lambda: box.commands.run(f"kill -STOP {stopped.pid}; {look}").stdout.strip() == "T")
    with pytest.raises(e2b.CommandExitException) as killed:
        box.commands.run("exec python3 -c 'x = [b\"x\" * (1 << 20) for _ in range(8 << 10)]'", timeout=120)
    assert "out of memory" in killed.value.error
    assert box.commands.run(look).stdout.strip() == "T"
