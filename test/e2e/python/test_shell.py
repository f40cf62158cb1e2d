"""`cay sandbox connect` on a real terminal, which is as before however it ends."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import termios
import threading
import time

import pytest

import world

PATIENCE = 60


@pytest.fixture(scope="module")
def server():
    return world.Server()


@pytest.fixture
def made(server):
    sandbox = json.loads(server.cay("sandbox", "create", "--json").stdout)["sandboxID"]
    yield sandbox
    server.cay("sandbox", "kill", sandbox, check=False)


class Wire:
    """Forwards to the server until it breaks, as if the server had died."""

    def __init__(self, server):
        self.to = (server.host, server.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{server.scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.ends = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            there = socket.create_connection(self.to)
            self.ends += [here, there]
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        for end in [self.listener, *self.ends]:
            with contextlib.suppress(OSError):  # it was cut before
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Shell:
    """The program on a terminal of its own."""

    def __init__(self, server, sandbox, url):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.seen = bytearray()
        env = {**server.env, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "TERM": "xterm"}
        # A signal that this run was told to ignore (nohup) would stay ignored.
        self.process = subprocess.Popen(
            ["env", "--default-signal", str(world.CAY), "sandbox", "connect", sandbox], env=env,
            stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True)

    def read(self):
        if select.select([self.master], [], [], 0.1)[0]:
            self.seen += os.read(self.master, 65536)

    def until(self, text):
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < deadline, bytes(self.seen)
            self.read()

    def type(self, text):
        os.write(self.master, text)

    def ends(self):
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, bytes(self.seen)
            self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def wire(server):
    it = Wire(server)
    yield it
    it.cut()


@pytest.fixture
def shell(server, made, wire):
    it = Shell(server, made, wire.url)
    yield it
    it.close()


def by_signal(number):
    return lambda shell, *_: shell.process.send_signal(number)


@pytest.mark.parametrize(("end", "code"), [
    pytest.param(lambda shell, *_: shell.type(b"exit 7\n"), 7, id="exit"),
    pytest.param(lambda _, server, made, wire: server.cay("sandbox", "kill", made), None, id="sandbox killed"),
    pytest.param(lambda _, server, made, wire: wire.cut(), None, id="server gone"),
    *(pytest.param(by_signal(getattr(signal, name)), 130, id=name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")),
])
def test_terminal_is_restored(server, made, wire, shell, end, code):
    shell.type(b"stty -echo; echo ready-$((40 + 2))\n")
    shell.until(b"ready-42")
    during = termios.tcgetattr(shell.slave)
    assert not during[3] & termios.ICANON, "the terminal is raw while the shell is open"
    end(shell, server, made, wire)
    ended = shell.ends()
    assert ended == code if code is not None else ended != 0, bytes(shell.seen)
    assert termios.tcgetattr(shell.slave) == shell.before
