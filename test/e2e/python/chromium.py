"""A real browser, in a network namespace of its own.

Chromium drops what it is loading whenever an address of the machine comes or
goes, and addresses come and go with every sandbox. In its namespace nothing
changes: the server is reached through a relay, which listens there and connects
here.
"""

import contextlib
import ctypes
import os
import pathlib
import socket
import subprocess
import threading
import uuid

from playwright.sync_api import sync_playwright

NEW_NETWORK = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def enter(path):
    """Moves the calling thread to a network namespace."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(fd, NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(fd)


def listener(namespace, port):
    """A socket that listens in another namespace, made by a thread that ends there."""
    made = []

    def make():
        enter(f"/run/netns/{namespace}")
        made.append(socket.create_server(("127.0.0.1", port), backlog=100))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def pour(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def relay(server, host, port):
    """Joins every connection to one of this namespace, until the listener is closed; one
    that comes while the server is away is closed."""
    with contextlib.suppress(OSError):
        while True:
            inner, _ = server.accept()
            try:
                outer = socket.create_connection((host, port))
            except OSError:
                inner.close()
                continue
            for pair in ((inner, outer), (outer, inner)):
                threading.Thread(target=pour, args=pair, daemon=True).start()


@contextlib.contextmanager
def launched(port, home=None, also=(), host="127.0.0.1"):
    """A browser whose own machine has a host's port, others that are named, and nothing
    else; of a user with that home directory."""
    name = f"cay-browser-{uuid.uuid4().hex[:8]}"
    program = pathlib.Path(f"/tmp/{name}")
    program.write_text(f'#!/bin/sh\nexec ip netns exec {name} chromium "$@"\n')
    program.chmod(0o700)
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        servers = [listener(name, at) for at in (port, *also)]
        for server, at in zip(servers, (port, *also)):
            threading.Thread(target=relay, args=(server, host, at), daemon=True).start()
        with sync_playwright() as play:
            browser = play.chromium.launch(
                executable_path=str(program), timeout=60_000, env={**os.environ, **({"HOME": str(home)} if home else {})},
                args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
            yield browser
            browser.close()
        for server in servers:
            server.close()
    finally:
        program.unlink()
        subprocess.run(["ip", "netns", "del", name], check=False)
