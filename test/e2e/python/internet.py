"""An internet of one namespace, for tests of what sandboxes may reach.

Its addresses are of 192.88.99.0/24, the range that 6to4 relays had: nobody
uses it now. Everything is served by one program inside the namespace.
"""

import os
import subprocess
import sys

SERVER = r"""
import http.server, socket, sys, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"hello from {self.headers.get('Host')} plain={self.headers.get('X-Plain')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

def echo(port):
    s = socket.create_server(("0.0.0.0", port))
    while True:
        c, _ = s.accept()
        threading.Thread(target=lambda c=c: (c.sendall(c.recv(100)), c.close()), daemon=True).start()

threading.Thread(target=echo, args=(9000,), daemon=True).start()
server = http.server.ThreadingHTTPServer(("0.0.0.0", 80), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def ip(*args, check=True):
    subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


class Internet:
    """Use as a context; addresses are its two public ones."""

    def __init__(self):
        place = int(os.environ.get("CAY_E2E_PLACE", "0"))
        self.name = f"cye2w{place}"
        self.near, self.host = f"100.103.{place}.0", f"100.103.{place}.1"
        self.addresses = [f"192.88.99.{2 * place + 2}", f"192.88.99.{2 * place + 3}"]

    def __enter__(self):
        self.remove()
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.host}/31", "dev", self.name)
        ip("link", "set", self.name, "up")
        inside = ["-n", self.name]
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "link", "set", "eth0", "up")
        ip(*inside, "addr", "add", f"{self.near}/31", "dev", "eth0")
        ip(*inside, "route", "add", "default", "via", self.host)
        for address in self.addresses:
            ip(*inside, "addr", "add", f"{address}/32", "dev", "lo")
            ip("route", "replace", f"{address}/32", "via", self.near)
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.remove()

    def remove(self):
        ip("netns", "del", self.name, check=False)
        ip("link", "del", self.name, check=False)
