"""A small image registry and the images that tests put into it.

It speaks the part of the distribution API that pulling needs, over plain http, and wants a password when it has one.
"""

import base64
import hashlib
import http.server
import io
import json
import pathlib
import tarfile
import threading


def layer(*entries):
    """A layer of (name, content, mode) files, which may have attributes in a fourth place, (name,) directories, (name, target, kind) links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, *rest in entries:
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            body = b""
            if not rest:
                info.type = tarfile.DIRTYPE
            elif isinstance(rest[1], int):
                body, info.mode, *attributes = rest
                info.pax_headers = dict(*attributes)
                info.size = len(body)
            else:
                info.linkname, info.type = rest
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def tiny(busybox):
    """Two layers of a system with a layout of its own: busybox and nothing else."""
    names = """sh ls cat cp mv rm mkdir chmod chown id awk sed grep find ln echo env sleep test [ true false
        touch stat tr cut head sort uniq wc date readlink dirname basename whoami""".split()
    # The setting by which Docker would let every program here bind low ports.
    capability = {"SCHILY.xattr.security.capability": "\1\0\0\2\0\4\0\0" + 12 * "\0"}
    one = layer(
        *[(d,) for d in "bin sbin etc usr usr/bin usr/local root home tmp var old".split()],
        ("bin/busybox", pathlib.Path(busybox).read_bytes(), 0o755, capability),
        *[(f"bin/{name}", "/bin/busybox", tarfile.SYMTYPE) for name in names],
        ("etc/os-release", b'NAME="Tiny"\nID=tiny\nID_LIKE="alpine"\n', 0o644),
        ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644),
        ("etc/group", b"root:x:0:\n", 0o644),
        ("old/gone", b"x", 0o644), ("old/kept", b"kept", 0o644), ("greeting", b"one", 0o644),
        ("usr/bin/raised", b"#!/bin/sh\n", 0o4755),
        ("usr/bin/hard", "usr/bin/raised", tarfile.LNKTYPE))
    two = layer(("old/.wh.gone", b"", 0o644), ("greeting", b"two", 0o644))
    return [one, two]


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config_of(layers, **config):
    return json.dumps({
        "os": "linux", "architecture": "amd64", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]}}).encode()


def saved(name, layers, **config):
    """The archive that docker save writes of an image."""
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [f"{i}.tar" for i in range(len(layers))]}]
    return layer(
        ("manifest.json", json.dumps(manifest).encode(), 0o644),
        ("config.json", config_of(layers, **config), 0o644),
        *[(f"{i}.tar", one, 0o644) for i, one in enumerate(layers)])


class Registry:
    """Serves images by name:tag until it is closed."""

    def __init__(self, host, port, password=None):
        self.blobs, self.manifests, self.password = {}, {}, password
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(True)

            def do_HEAD(self):
                self.reply(False)

            def reply(self, with_body):
                status, kind, body = registry.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="test"')
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 200 and "/manifests/" in self.path:
                    self.send_header("Docker-Content-Digest", digest(body))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer((host, port), Handler)
        self.host = f"{host}:{port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path, authorization):
        if self.password:
            want = "Basic " + base64.b64encode(f"robot:{self.password}".encode()).decode()
            if authorization != want:
                return 401, "application/json", b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        if path == "/v2/":
            return 200, "application/json", b"{}"
        what, _, name = path.rpartition("/")
        if what.endswith("/blobs") and name in self.blobs:
            return 200, "application/octet-stream", self.blobs[name]
        if what.endswith("/manifests"):
            for key in (f"{what[len('/v2/'):-len('/manifests')]}:{name}", name):
                if key in self.manifests:
                    return 200, "application/vnd.oci.image.manifest.v1+json", self.manifests[key]
        return 404, "application/json", b'{"errors":[{"code":"NAME_UNKNOWN"}]}'

    def add(self, name, layers, **config):
        """Puts an image in; returns the name to pull it by."""
        text = config_of(layers, **config)
        describe = lambda kind, data: {"mediaType": kind, "digest": digest(data), "size": len(data)}
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe("application/vnd.oci.image.config.v1+json", text),
            "layers": [describe("application/vnd.oci.image.layer.v1.tar", one) for one in layers]}).encode()
        for data in [text, *layers]:
            self.blobs[digest(data)] = data
        self.manifests[name] = self.manifests[digest(manifest)] = manifest
        return f"{self.host}/{name}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
