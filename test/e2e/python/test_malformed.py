"""Requests that no SDK makes: each has a clear answer, and the agent lives on."""

import contextlib
import gzip
import http.client
import json
import os
import socket
import ssl
import struct
import urllib.parse

import pytest

SERVER = urllib.parse.urlsplit(os.environ["E2B_API_URL"])
JSON = {"Content-Type": "application/json"}
STREAM = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
OCTETS = {"Content-Type": "application/octet-stream"}


def routed(sbx):
    return {**sbx.connection_config.sandbox_headers, "E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "49983"}


def connect():
    """A connection to the server, over TLS where its address says so."""
    conn = socket.create_connection((SERVER.hostname, SERVER.port), timeout=120)
    if SERVER.scheme == "http":
        return conn
    return ssl.create_default_context().wrap_socket(conn, server_hostname=SERVER.hostname)


def call(sbx, method, path, body=b"", headers=None):
    connection = http.client.HTTPConnection(SERVER.netloc)
    with connect() as connection.sock:
        connection.request(method, path, body, {**routed(sbx), **(headers or {})})
        reply = connection.getresponse()
        return reply.status, reply.read()


def raw(sbx, method, path, headers, body, half_close=False):
    """Sends bytes as they are and returns the answer."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {SERVER.netloc}"]
    lines += [f"{k}: {v}" for k, v in {**routed(sbx), **headers}.items()]
    with connect() as conn:
        conn.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if half_close:
            socket.socket.shutdown(conn, socket.SHUT_WR)  # TCP's: that of ssl would end TLS both ways
        reply = http.client.HTTPResponse(conn)
        reply.begin()
        return reply.status, reply.read()


def envelope(message, flags=0, size=None):
    return struct.pack(">BI", flags, len(message) if size is None else size) + message


START = "/process.Process/Start"
LIST = "/process.Process/List"
FILES = "/files?path=/tmp/malformed"


@pytest.mark.parametrize(("method", "path", "headers", "body", "status", "text"), [
    # Connect, unary
    ("POST", LIST, JSON, b"{", 400, '"code":"invalid_argument"'),
    ("POST", LIST, JSON, b"", 400, '"code":"invalid_argument"'),
    ("POST", LIST, JSON, b'{"x":' * 20_000, 400, '"code":"invalid_argument"'),
    ("POST", LIST, {"Content-Type": "text/plain"}, b"{}", 415, ""),
    ("POST", LIST, {**JSON, "Content-Encoding": "br"}, b"{}", 501, '"code":"unimplemented"'),
    ("POST", LIST, {**JSON, "Content-Encoding": "gzip"}, b"{}", 400, '"code":"invalid_argument"'),
    ("POST", LIST, {**JSON, "Connect-Timeout-Ms": "soon"}, b"{}", 400, '"code":"invalid_argument"'),
    ("GET", LIST, {}, b"", 405, ""),
    ("POST", "/process.Process/None", JSON, b"{}", 404, '"code":404'),
    ("POST", "/process.Process/SendSignal", JSON, b'{"process":{"pid":1}}', 404, '"code":"not_found"'),
    ("POST", "/process.Process/SendSignal", JSON, b'{"process":{"pid":-1}}', 400, '"code":"invalid_argument"'),
    ("POST", "/filesystem.Filesystem/Stat", JSON, b'{"path":"/a\\u0000b"}', 400, '"code":"invalid_argument"'),
    # Connect, streams: the error comes in the last frame
    ("POST", START, STREAM, b"", 200, '"code":"unimplemented"'),
    ("POST", START, STREAM, b"{}", 200, "incomplete envelope"),
    ("POST", START, STREAM, envelope(b"{"), 200, '"code":"invalid_argument"'),
    ("POST", START, STREAM, envelope(b"{}", size=100), 200, "promised 100 bytes"),
    ("POST", START, STREAM, envelope(b"{}", size=2**32 - 1), 200, '"code":"resource_exhausted"'),
    ("POST", START, STREAM, envelope(b"{}", flags=1), 200, '"code":"internal"'),
    ("POST", START, STREAM, envelope(b"{}"), 200, "no command given"),
    # files
    ("POST", FILES, {"Content-Type": "text/plain"}, b"x", 400, '"code":400'),
    ("POST", FILES, {"Content-Type": "multipart/form-data"}, b"x", 400, '"code":400'),
    ("POST", FILES, FORM, b"--b\r\nnonsense", 400, '"code":400'),
    ("POST", FILES, FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut off', 400, '"code":400'),
    ("POST", FILES, {**OCTETS, "Content-Encoding": "gzip"}, b"not gzip", 400, '"code":400'),
    ("POST", FILES, {**OCTETS, "Content-Encoding": "gzip"}, gzip.compress(b"x" * 100, mtime=0)[:-9], 400, '"code":400'),
    ("POST", FILES, {**OCTETS, "Content-Encoding": "br"}, b"x", 400, '"code":400'),
    ("POST", FILES, {**OCTETS, "X-Metadata-K": "v" * 5000}, b"x", 400, '"code":400'),
    ("GET", "/files?path=%00", {}, b"", 400, '"code":400'),
    ("GET", "/files?path=/etc/passwd&username=%ff", {}, b"", 401, "invalid username"),
    ("GET", "/files?path=/etc/passwd", {"Range": "bytes=9999999-"}, b"", 416, ""),
    ("PUT", FILES, {}, b"x", 405, '"code":405'),
    ("GET", "/none", {}, b"", 404, '"code":404'),
])
def test_malformed(sbx, method, path, headers, body, status, text):
    got = call(sbx, method, path, body, headers)
    assert (got[0], text in got[1].decode()) == (status, True), got
    assert call(sbx, "GET", "/health")[0] == 204
    assert not sbx.files.exists("/tmp/malformed")


@pytest.mark.parametrize(("headers", "body"), [
    ({"Content-Length": "1000000"}, b"x" * 1000),
    ({"Content-Length": "100000000"}, b"x" * 5_000_000),
    ({"Transfer-Encoding": "chunked"}, b"fffff\r\n" + b"x" * 1000),
    ({"Transfer-Encoding": "chunked"}, b"not hex\r\n"),
])
def test_short_body(sbx, eventually, headers, body):
    status, text = raw(sbx, "POST", FILES, {**OCTETS, **headers}, body, half_close=True)
    assert (status, json.loads(text)["code"]) == (400, 400), text
    # The proxy answers as soon as it knows; the agent learns it a moment later.
    eventually(lambda: not sbx.files.exists("/tmp/malformed"))


def test_endless_header(sbx):
    """The answer comes long before the header's gigabyte."""
    with connect() as conn:
        conn.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        sent = 0
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # the server stops reading
            while sent < 1 << 30:
                sent += conn.send(b"x" * 65536)
        assert sent < 64 << 20
    long = {"X-Long": "x" * (3 << 20)}
    with contextlib.suppress(ConnectionError):  # which may overtake the answer
        assert raw(sbx, "GET", "/health", long, b"")[0] == 431
    assert call(sbx, "GET", "/health", headers={"X-Long": "x" * 500_000})[0] == 204


def test_the_agent_lived_on(sbx):
    assert sbx.commands.run("echo fine").stdout == "fine\n"
