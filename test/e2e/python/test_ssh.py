"""Sandboxes over SSH with OpenSSH's own programs, and ports of this machine."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import uuid

import e2b
import pytest

import world

pytestmark = pytest.mark.skipif(not shutil.which("sftp"), reason="NOT TESTED HERE: OpenSSH's client is missing")

PATIENCE = 120


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture(scope="module")
def host(sbx, server, tmp_path_factory):
    """The lines that `--config` prints, in a file, and the host's name in it."""
    file = tmp_path_factory.mktemp("ssh") / "config"
    file.write_text(server.cay("sandbox", "ssh", sbx.sandbox_id, "--config").stdout)
    return ["-F", str(file)], f"cay-{sbx.sandbox_id}"


def run(*args, code=0, **kw):
    done = subprocess.run(args, capture_output=True, timeout=PATIENCE, **kw)
    assert code is None or done.returncode == code, (args, done)
    return done


def test_commands(sbx, server):
    out = server.cay("sandbox", "ssh", sbx.sandbox_id, "echo out; echo err >&2; whoami; exit 7", check=False)
    assert (out.returncode, out.stdout, out.stderr) == (7, "out\nuser\n", "err\n")
    assert server.cay("sandbox", "ssh", "-u", "root", sbx.sandbox_id, "whoami").stdout == "root\n"
    killed = server.cay("sandbox", "ssh", sbx.sandbox_id, "kill -9 $$", check=False)
    assert killed.returncode == 137


def test_input_and_output_of_megabytes(host):
    config, name = host
    data = os.urandom(8 << 20)
    out = run("ssh", *config, name, "cat", input=data)
    assert hashlib.sha256(out.stdout).digest() == hashlib.sha256(data).digest()


def test_terminal(host):
    config, name = host
    keys = b"stty size; tty | grep -o pts; exit 3\n"
    out = run("ssh", *config, "-tt", name, input=keys, code=3)
    assert b"\r\npts\r\n" in out.stdout


def test_files(host, sbx, tmp_path):
    config, name = host
    data = os.urandom(3 << 20)
    (tmp_path / "up").write_bytes(data)
    directory = f"dir-{uuid.uuid4().hex[:8]}"
    script = f"mkdir {directory}\ncd {directory}\nput up\nchmod 600 up\nln -s up link\nrename up moved\nls -l\nget moved down\nrm link\n"
    out = run("sftp", *config, "-b", "-", name, input=script.encode(), cwd=tmp_path)
    assert (tmp_path / "down").read_bytes() == data
    listed = sbx.commands.run(f"stat -c '%a %U %s' {directory}/moved; ls {directory}").stdout.split("\n")
    assert listed[:2] == [f"600 user {len(data)}", "moved"], (listed, out)
    run("sftp", *config, "-b", "-", name, input=f"ln -s moved {directory}/beside\n".encode())
    assert sbx.commands.run(f"readlink {directory}/beside").stdout == "moved\n"
    run("scp", *config, str(tmp_path / "up"), f"{name}:{directory}/by scp")
    assert sbx.files.read(f"{directory}/by scp", format="bytes") == data
    # The user inside decides what may be read.
    assert b"ermission denied" in run("sftp", *config, "-b", "-", name, input=b"get /etc/shadow\n", code=1).stderr


SERVICE = """
import socket
s = socket.create_server(("127.0.0.1", {port}))
while True:
    c, _ = s.accept()
    data = b""
    while piece := c.recv(65536):
        data += piece
    c.sendall(b"got %d bytes" % len(data))
    c.close()
"""


@pytest.fixture(scope="module")
def service(sbx, eventually):
    """A port on the sandbox's loopback; it answers when the caller has ended."""
    port = 4242
    sbx.files.write("service.py", SERVICE.format(port=port))
    sbx.commands.run("python3 service.py", background=True)
    probe = f"import socket; socket.create_connection(('127.0.0.1', {port})).close()"
    eventually(lambda: sbx.commands.run(f"python3 -c \"{probe}\" && echo yes || true").stdout)
    return port


def ask(address, data):
    if isinstance(address, tuple):
        c = socket.create_connection(address, timeout=PATIENCE)
    else:
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(PATIENCE)
        c.connect(address)
    with c:
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := c.recv(65536):
            answer += piece
        return answer


def test_ports_over_ssh(host, service):
    config, name = host
    for to in ("localhost", "127.0.0.1"):
        out = run("ssh", *config, "-W", f"{to}:{service}", name, input=b"x" * 100_000)
        assert out.stdout == b"got 100000 bytes", out
    for to in ("169.254.169.254:80", "10.0.0.1:22", "localhost:49983"):
        assert b"prohibited" in run("ssh", *config, "-o", "LogLevel=INFO", "-W", to, name, code=255).stderr
    assert run("ssh", *config, "-W", "localhost:9", name, code=255).stdout == b""


SOCKET = """
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("/tmp/there.sock")
s.listen()
while True:
    c, _ = s.accept()
    data = b""
    while piece := c.recv(65536):
        data += piece
    c.sendall(b"got %d bytes" % len(data))
    c.close()
"""


def test_sockets_over_ssh(host, sbx, eventually, tmp_path):
    """Editors' remote modes use these where they can, in place of a port."""
    config, name = host
    sbx.files.write("socket_service.py", SOCKET)
    sbx.commands.run("python3 socket_service.py", background=True)
    eventually(lambda: sbx.commands.run("test -S /tmp/there.sock && echo yes || true").stdout)
    here = tmp_path / "s"
    process = subprocess.Popen(["ssh", *config, "-N", "-L", f"{here}:/tmp/there.sock", name], stdin=subprocess.DEVNULL)
    try:
        eventually(here.exists)
        for size in (0, 300_000):
            assert ask(str(here), b"x" * size) == b"got %d bytes" % size
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def forwarded(server, sbx, service):
    process = subprocess.Popen(
        [str(world.CAY), "--json", "sandbox", "port-forward", sbx.sandbox_id, f"0:{service}", "0:9"],
        env=server.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    yield {line["port"]: tuple(line["address"].rsplit(":", 1)) for line in lines}
    process.terminate()
    assert process.wait(timeout=60) == 0


def test_port_forward(forwarded, service):
    assert ask(forwarded[service], b"x" * 300_000) == b"got 300000 bytes"
    assert ask(forwarded[service], b"") == b"got 0 bytes"
    try:
        answer = ask(forwarded[9], b"hello")
    except OSError:
        answer = b""
    assert answer == b""


@pytest.fixture
def direct(server, tmp_path):
    """Options for the server's own SSH port, and a key of ours."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key"))
    known = tmp_path / "known"
    address, port = server.env["CAY_SSH_LISTEN"].rsplit(":", 1)
    known.write_text(server.cay("sandbox", "ssh", "x", "--host-key").stdout)
    common = ["-F", "none", "-p", port, "-o", f"UserKnownHostsFile={known}", "-o", "HostKeyAlias=cay"]
    return tmp_path / "key", [*common, "-i", str(tmp_path / "key"), "-o", "IdentitiesOnly=yes"], address


def test_keys(direct, server, sbx):
    key, options, address = direct
    to = [*options, "-o", "BatchMode=yes", f"{sbx.sandbox_id}@{address}", "echo in"]
    assert b"Permission denied" in run("ssh", *to, code=255).stderr
    made = server.cay("ssh-key", "add", f"{key}.pub", "--name", "e2e").stdout.strip()
    try:
        assert run("ssh", *to).stdout == b"in\n"
        assert made in server.cay("ssh-key", "list").stdout
        unknown = [*options, "-o", "BatchMode=yes", f"i{'0' * 20}@{address}", "echo in"]
        assert b"Permission denied" in run("ssh", *unknown, code=255).stderr
    finally:
        server.cay("ssh-key", "remove", made)
    assert b"Permission denied" in run("ssh", *to, code=255).stderr
    assert server.cay("ssh-key", "add", str(key), check=False).returncode == 1, "a private key"


def test_api_key_as_password(direct, sbx, tmp_path):
    _, options, address = direct
    ask = tmp_path / "ask"
    ask.write_text('#!/bin/sh\nprintf "%s\\n" "$PASSWORD"\n')
    ask.chmod(0o700)
    to = [*options, "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1", f"{sbx.sandbox_id}@{address}", "echo in"]
    env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    assert run("ssh", *to, env={**env, "PASSWORD": os.environ["E2B_API_KEY"]}).stdout == b"in\n"
    assert run("ssh", *to, env={**env, "PASSWORD": "e2b_" + "0" * 40}, code=255).stdout == b""


def test_wakes_a_paused_sandbox(create, server):
    sandbox = create()
    sandbox.files.write("kept", "yes")
    sandbox.pause()
    assert server.cay("sandbox", "ssh", sandbox.sandbox_id, "cat kept").stdout == "yes"
    assert sandbox.get_info().state == e2b.SandboxState.RUNNING
    sandbox.kill()
    over = server.cay("sandbox", "ssh", sandbox.sandbox_id, "true", check=False)
    assert over.returncode == 1 and "not found" in over.stderr
