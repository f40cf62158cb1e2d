"""TLS and a domain: what the SDKs build from host names, with a private resolver and the server's own authority.

The resolver counts only in a mount namespace of the programs that are run
here, so nothing of the machine is changed.
"""

import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading

import pytest

import world

SDK = world.ROOT / "build" / "sdk"


def answer(question):
    """Says 127.0.0.1 for names below cay.test, and that nothing else is there."""
    end = 12
    labels = []
    while question[end]:
        labels.append(question[end + 1:end + 1 + question[end]])
        end += 1 + question[end]
    kind, = struct.unpack(">H", question[end + 1:end + 3])
    ours = labels[-2:] == [b"cay", b"test"]
    found = ours and kind == 1
    head = question[:2] + struct.pack(">HHHHH", 0x8180 if ours else 0x8183, 1, found, 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton("127.0.0.1") if found else b""
    return head + question[12:end + 5] + record


@pytest.fixture(scope="module")
def resolver(tmp_path_factory):
    """A name server of our own; what it yields starts programs that ask it."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:  # an address that no other test has
        address = f"127.{random.randint(10, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"
        try:
            server.bind((address, 53))
            break
        except OSError:
            continue
    over = threading.Event()

    def serve():
        while not over.is_set():
            question, client = server.recvfrom(4096)
            if len(question) > 12:
                server.sendto(answer(question), client)

    thread = threading.Thread(target=serve)
    thread.start()
    conf = tmp_path_factory.mktemp("resolver") / "resolv.conf"
    conf.write_text(f"nameserver {address}\n")
    yield ["unshare", "--mount", "--", "sh", "-c", 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"', str(conf)]
    over.set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.sendto(b"", (address, 53))
    thread.join()
    server.close()


@pytest.fixture(scope="module")
def env():
    """The words of `cay env`, and nothing else of where the server is."""
    said = json.loads(world.Server().cay("--json", "env").stdout)
    assert said["E2B_DOMAIN"] == world.Server().env["CAY_DOMAIN"]
    assert "E2B_API_URL" not in said
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SSL_", "NODE_"))}
    return {**kept, **said, "E2B_API_KEY": os.environ["E2B_API_KEY"]}


PYTHON = """
import urllib.request
import e2b, e2b_code_interpreter

def get(url, data=None, headers={}):
    request = urllib.request.Request(url, data, headers)
    return urllib.request.urlopen(request, timeout=60).read().decode()

box = e2b_code_interpreter.Sandbox.create("code-interpreter-python")
try:
    assert box.is_running()
    assert box.run_code("6 * 7").text == "42"
    box.files.write("site/index.html", "by name")
    box.commands.run("python3 -m http.server 3000 -d site", background=True, timeout=0)
    box.commands.run("for i in $(seq 300); do ss -Htln sport = :3000 | grep -q . && exit 0; sleep 0.1; done; exit 1")
    assert get("https://" + box.get_host(3000)) == "by name"
    assert get(box.download_url("site/index.html")) == "by name"
    form = b'--b\\r\\nContent-Disposition: form-data; name="file"; filename="up.txt"\\r\\n\\r\\nuploaded\\r\\n--b--\\r\\n'
    get(box.upload_url("up.txt"), form, {"Content-Type": "multipart/form-data; boundary=b"})
    assert box.files.read("up.txt") == "uploaded"
    assert get(box.download_url("up.txt", use_signature_expiration=60)) == "uploaded"
    assert box.get_mcp_url() == "https://" + box.get_host(50005) + "/mcp"
    print("all of it")
finally:
    box.kill()
"""


def test_python(resolver, env):
    run = subprocess.run([*resolver, sys.executable, "-c", PYTHON], env=env, text=True, capture_output=True, timeout=300)
    assert (run.stdout, run.returncode) == ("all of it\n", 0), run.stderr


JAVASCRIPT = """
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const box = await Sandbox.create()
try {
  await box.files.write('a.txt', 'by name')
  assert.equal(await (await fetch(await box.downloadUrl('a.txt'))).text(), 'by name')
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up.txt')
  assert.equal((await fetch(await box.uploadUrl('up.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal(await box.files.read('up.txt'), 'uploaded')
  const closed = await fetch(`https://${box.getHost(4567)}`)
  assert.equal((await closed.json()).message, 'The sandbox is running but port is not open')
  console.log('all of it')
} finally {
  await box.kill()
}
"""


def test_javascript(resolver, env):
    tests = SDK / "js" / "tests"
    tests.mkdir(exist_ok=True)
    script = tests / "tls.mjs"
    script.write_text(JAVASCRIPT)
    run = subprocess.run([*resolver, "node", str(script)], env=env, text=True, capture_output=True, timeout=300)
    assert (run.stdout, run.returncode) == ("all of it\n", 0), run.stderr


def test_cert(tmp_path):
    pem = world.Server().cay("cert", "--pem").stdout
    assert pem.startswith("-----BEGIN CERTIFICATE-----")
    lines = world.Server().cay("cert").stdout
    assert "update-ca-certificates" in lines
    trusted = next(line for line in lines.splitlines() if line.startswith("export SSL_CERT_FILE=")).split("=")[1]
    assert pem in pathlib.Path(trusted).read_text()


def test_sandboxes_trust_it(create):
    """Sandboxes trust the server's authority, by the system's bundle and by the variables that programs read."""
    pem = world.Server().cay("cert", "--pem").stdout.strip()
    box = create()
    assert pem in box.files.read("/etc/ssl/certs/ca-certificates.crt")
    read = "import os, ssl; ssl.create_default_context(); print([os.environ[v] for v in ('SSL_CERT_FILE', 'NODE_EXTRA_CA_CERTS')])"
    assert box.commands.run(f'python3 -c "{read}"').stdout.count("/etc/ssl/certs/ca-certificates.crt") == 2
    box.files.write("/tmp/own.pem", pem)
    verify = "openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt /tmp/own.pem"
    assert box.commands.run(verify).stdout == "/tmp/own.pem: OK\n"
