"""The package cache: pip, npm and a template's build, and again without a network.

The index is a server of our own, in the place of PyPI's and npm's hosts; the
server is started anew with a cache in front of it.
"""

import base64
import hashlib
import http.server
import io
import json
import tarfile
import re
import threading
import urllib.request
import uuid
import zipfile

import e2b
import pytest
from e2b import ALL_TRAFFIC, Template

import world

NAME = "cay-small"
MODULE = "cay_small"
PIP = f"pip install --disable-pip-version-check --no-cache-dir {NAME} && python3 -c 'import {MODULE}; print({MODULE}.SAYS)'"
DEB = f"pool/{NAME}_1.0_all.deb"
ONLY = "-o Dir::Etc::sourcelist=/tmp/own.list -o Dir::Etc::sourceparts=-"
APT = (f"echo 'deb [trusted=yes] http://deb.debian.org/own flat/' > /tmp/own.list && "
       f"apt-get {ONLY} update && apt-get {ONLY} install -y {NAME} && cat /opt/{NAME}")
NPM = f"cd $(mktemp -d) && npm install --no-audit --no-fund --cache $(mktemp -d) {NAME} && node -p 'require(\"{NAME}\")'"


def wheel(says):
    """A wheel of one module."""
    files = {
        f"{MODULE}.py": f"SAYS = {says!r}\n",
        f"{MODULE}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{MODULE}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{MODULE}-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def tarball(says):
    """The archive that npm packs of a package of one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in {
            "package.json": json.dumps({"name": NAME, "version": "1.0.0", "main": "index.js"}),
            "index.js": f"module.exports = {says!r}",
        }.items():
            info = tarfile.TarInfo("package/" + name)
            info.size, info.mode = len(text), 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def deb(says):
    """A Debian package of one file, and its entry in an index."""
    packed = []
    control = f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@localhost>\nDescription: small\n"
    for name, text in ("./control", control), (f"./opt/{NAME}", says):
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w:gz") as archive:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
        packed.append(tar.getvalue())
    out = b"!<arch>\n"
    for name, data in zip(("debian-binary", "control.tar.gz", "data.tar.gz"), (b"2.0\n", *packed)):
        out += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out, f"{control}Filename: {DEB}\nSize: {len(out)}\nSHA256: {hashlib.sha256(out).hexdigest()}\n"


class Index(http.server.ThreadingHTTPServer):
    """PyPI, npm and Debian with a package each, which counts what it is asked for."""

    daemon_threads = True

    def __init__(self, says):
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = []
        whl, tgz = wheel(says), tarball(says)
        self.deb, listed = deb(says)
        digest = hashlib.blake2b(whl, digest_size=32).hexdigest()
        path = f"/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{MODULE}-1.0-py3-none-any.whl"
        page = f'<a href="https://files.pythonhosted.org{path}#sha256={hashlib.sha256(whl).hexdigest()}">{path.rsplit("/", 1)[1]}</a>'
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tgz).digest()).decode()
        dist = {"tarball": f"https://registry.npmjs.org/{NAME}/-/{NAME}-1.0.0.tgz", "integrity": integrity}
        self.pages = {
            f"/simple/{NAME}/": ("text/html", page.encode()),
            path: ("application/octet-stream", whl),
            f"/{NAME}": ("application/json", json.dumps({
                "name": NAME, "dist-tags": {"latest": "1.0.0"},
                "versions": {"1.0.0": {"name": NAME, "version": "1.0.0", "main": "index.js", "dist": dist}}}).encode()),
            f"/{NAME}/-/{NAME}-1.0.0.tgz": ("application/octet-stream", tgz),
            "/own/flat/Packages": ("text/plain", listed.encode()),
        }
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self):
        self.shutdown()
        self.server_close()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        kind, body = self.server.pages.get(self.path, ("text/plain", b""))
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        status = 200 if body else 404
        if body and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    """The server with a package cache in front of an index; as before after."""
    says = uuid.uuid4().hex
    index = Index(says)
    hosts = ",".join(f"{host}={index.url}" for host in ("pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "deb.debian.org"))
    try:
        metrics = f"127.0.0.1:{world.Server().port + 360}"
        with world.started_anew(CAY_PACKAGE_CACHE="256MiB", CAY_PACKAGE_HOSTS=hosts, CAY_METRICS_LISTEN=metrics) as server:
            server.cay("cache", "clear")
            server.index, server.says = index, says
            yield server
    finally:
        index.close()


def status(server):
    return json.loads(server.cay("cache", "status", "--json").stdout)


def test_it_is_no_way_around_the_policy(server, create):
    page = f"curl -sS -m 60 https://pypi.org/simple/{NAME}/"
    past = "--resolve pypi.org:443:169.254.77.1"
    code = lambda sandbox, line: sandbox.commands.run(f"{line} -o /tmp/page -w '%{{http_code}}' 2>&1 || true", timeout=90).stdout

    shut = create(allow_internet_access=False)
    assert code(shut, page).endswith("000")
    assert code(shut, f"{page} {past}").endswith("000")
    assert code(shut, f"curl -sS -m 60 -H 'Host: pypi.org' http://169.254.77.1/simple/{NAME}/").endswith("403")

    named = create(network={"allow_out": ["pypi.org"], "deny_out": [ALL_TRAFFIC]})
    assert code(named, page) == "200"
    assert code(named, f"curl -sS -m 60 --resolve registry.npmjs.org:443:169.254.77.1 https://registry.npmjs.org/{NAME}").endswith("000")

    # And it leads nowhere but to its hosts.
    free = create()
    assert code(free, page) == "200"
    assert code(free, "curl -sSk -m 60 --resolve example.com:443:169.254.77.1 https://example.com/").endswith("000")
    for host in "localhost", "example.com", "127.0.0.1":
        assert code(free, f"curl -sS -m 60 -H 'Host: {host}' http://169.254.77.1/") == "403"
    assert code(free, f"curl -sS -m 60 --path-as-is https://pypi.org/../../etc/passwd").endswith(("400", "404", "502"))


def test_a_damaged_package_is_replaced(server, create):
    """One that came damaged at its full length without TLS is refused by apt, and the next try has it whole."""
    path = f"/own/{DEB}"
    server.index.pages[path] = ("application/octet-stream", server.index.deb[:-1] + b"?")
    sandbox = create()
    failed = sandbox.commands.run(APT + " 2>&1 || echo refused", user="root", timeout=300).stdout
    assert "Hash Sum mismatch" in failed and failed.endswith("refused\n"), failed
    server.index.pages[path] = ("application/octet-stream", server.index.deb)
    assert sandbox.commands.run(APT, user="root", timeout=300).stdout.endswith(server.says)
    assert server.index.asked.count(path) == 2


def test_installs_and_builds_without_a_network_what_it_did_before(server, create):
    server.cay("cache", "clear")
    before = status(server)
    first = create()
    for line in PIP, NPM:
        assert server.says in first.commands.run(line, timeout=300).stdout
    got = status(server)
    assert got["files"] == 4 and got["misses"] - before["misses"] == 4, (before, got)

    server.index.close()
    second = create()
    for line in PIP, NPM:
        assert server.says in second.commands.run(line, timeout=300).stdout
    lines, alias = [], f"packages-{uuid.uuid4().hex[:8]}"
    Template.build(Template().from_template("base").run_cmd(f": {alias}; {PIP}"), alias, cpu_count=1, memory_mb=512,
                   on_build_logs=lambda e: lines.append(e.message))
    assert any(server.says in line for line in lines), lines
    after = status(server)
    # Stale are the three pages, and the tarball: its digest is not in its path and it came without TLS.
    assert after["misses"] == got["misses"] and after["stale"] - got["stale"] == 4, (got, after)
    metrics = urllib.request.urlopen(f"http://{server.env['CAY_METRICS_LISTEN']}/metrics", timeout=60).read().decode()
    found = re.findall(r"^cay_package_cache_(\w+) (\S+)$", metrics, re.MULTILINE)
    told = {name: float(value) for name, value in found}
    assert (told["files"], told["misses_total"], told["stale_total"]) == (4, after["misses"], after["stale"]), told
    assert told["served_bytes_total"] >= after["servedBytes"] > 0 and told["limit_bytes"] == 256 << 20, told
    server.cay("template", "delete", alias)
