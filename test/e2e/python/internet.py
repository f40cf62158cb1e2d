"""An internet of one namespace, for tests of what sandboxes may reach.

Its addresses are of 192.88.99.0/24, the range that 6to4 relays had: it
is out of use. Everything is served by one program inside the namespace. With an
authority it speaks TLS too, with a certificate for the names in NAMES.
"""

import os
import socket
import subprocess
import sys
import threading

SERVER = r"""
import hashlib, http.server, json, socket, ssl, sys, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"hello from {self.headers.get('Host')} plain={self.headers.get('X-Plain')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        # Says what came, and repeats a key as a careless server would; backwards
        # it is what no masking finds, for the tests' own eyes.
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Authorization", "")
        answer = json.dumps({"host": self.headers.get("Host"), "key": key, "digest": hashlib.sha256(key.encode()).hexdigest(),
                             "body": hashlib.sha256(body).hexdigest(), "backwards": key[::-1]}).encode()
        self.send_response(200)
        self.send_header("X-Key", key)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *args):
        pass

def echo(port):
    s = socket.create_server(("0.0.0.0", port))
    while True:
        c, _ = s.accept()
        threading.Thread(target=lambda c=c: (c.sendall(c.recv(100)), c.close()), daemon=True).start()

threading.Thread(target=echo, args=(9000,), daemon=True).start()
server = http.server.ThreadingHTTPServer(("0.0.0.0", 80), Handler)
if len(sys.argv) > 1:
    secure = http.server.ThreadingHTTPServer(("0.0.0.0", 443), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    threading.Thread(target=secure.serve_forever, daemon=True).start()
print("ready", flush=True)
server.serve_forever()
"""


def ip(*args, check=True):
    subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


class Internet:
    """Use as a context; addresses are its two public ones."""

    def __init__(self, certificate=None):
        self.certificate = certificate
        place = int(os.environ.get("CAY_E2E_PLACE", "0"))
        self.name = f"cye2w{place}"
        self.near, self.host = f"100.103.{place}.0", f"100.103.{place}.1"
        # Go's tests, which may run beside this, have those of one more than a multiple of four (internal/machine/vnet/nettest).
        self.addresses = [f"192.88.99.{4 * place + 2}", f"192.88.99.{4 * place + 3}"]

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
            ["ip", "netns", "exec", self.name, sys.executable, "-c", SERVER, *([self.certificate] if self.certificate else [])], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.remove()

    def remove(self):
        ip("netns", "del", self.name, check=False)
        ip("link", "del", self.name, check=False)


NAMES = ["api.upstream.example", "other.upstream.example"]


def openssl(*args, stdin=None):
    subprocess.run(["openssl", *args], check=True, capture_output=True, text=True, input=stdin)


def certificate(directory):
    """An authority and a certificate of it for NAMES, with its key: the paths of both."""
    key, ca, leaf = directory / "ca.key", directory / "ca.pem", directory / "leaf.pem"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-subj", "/CN=Upstream", "-keyout", str(key), "-out", str(ca))
    openssl("req", "-x509", *new, "-subj", f"/CN={NAMES[0]}", "-CA", str(ca), "-CAkey", str(key),
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES),
            "-keyout", str(directory / "leaf.key"), "-out", str(leaf))
    leaf.write_text(leaf.read_text() + (directory / "leaf.key").read_text())
    return ca, leaf


class Names:
    """A name server on the loopback that knows names at one address, and nothing else."""

    def __init__(self, zone):
        self.zone, self.asked = zone, set()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                query, who = self.socket.recvfrom(4096)
            except OSError:
                return
            self.socket.sendto(self.answer(query), who)

    def answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, kind = ".".join(labels).lower(), query[at + 1:at + 3]
        self.asked.add(name)
        known = self.zone.get(name)
        found = known and kind == b"\0\1"
        head = query[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1" + (b"\0\1" if found else b"\0\0") + bytes(4)
        record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(known) if found else b""
        return head + query[12:at + 5] + record

    def close(self):
        self.socket.close()
