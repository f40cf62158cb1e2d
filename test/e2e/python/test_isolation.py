"""The things that code inside a sandbox cannot reach, tried from inside.

The probe is one Python program: for every address it says whether a TCP
connection was made, and the table says which may be.
"""

import json
import os
import socket
import subprocess
import threading

import pytest

import world

PROBE = r"""
import json, socket, sys
out = {}
for target in json.loads(sys.argv[1]):
    host, port = target
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(3)
        scope = (port, 0, 2) if host.startswith("fe80") else (port,)
        s.connect((host, *scope) if len(scope) == 1 else (host, port, 0, scope[2]))
        out[f"{host} {port}"] = "open"
    except OSError as e:
        out[f"{host} {port}"] = f"closed: {e}"
print(json.dumps(out))
"""


def probe(sandbox, targets):
    sandbox.files.write("/tmp/probe.py", PROBE)
    text = json.dumps(targets)
    run = sandbox.commands.run(f"python3 /tmp/probe.py '{text}'", timeout=300)
    return json.loads(run.stdout)


def host_addresses():
    """Every address of this machine that is not loopback."""
    text = subprocess.run(["ip", "-j", "addr"], check=True, capture_output=True, text=True).stdout
    return [a["local"] for link in json.loads(text) for a in link.get("addr_info", [])
            if a["scope"] != "host"]


@pytest.fixture(scope="module")
def listener(eventually):
    """A service of the host that listens on every address, v4 and v6."""
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    accepted = []

    def serve():
        while True:
            try:
                connection, peer = server.accept()
            except OSError:
                return
            accepted.append(peer)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    # It answers the host itself, so a refusal below is the firewall's.
    socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=10).close()
    eventually(lambda: accepted)
    yield server.getsockname()[1], accepted
    server.close()


def test_host_is_closed(sbx, listener):
    port, accepted = listener
    before = len(accepted)
    gateway = sbx.commands.run("ip route show default | sed -E 's/.*via ([^ ]+).*/\\1/'").stdout.strip()
    addresses = {*host_addresses(), gateway} - {""}
    targets = [[a, p] for a in sorted(addresses) for p in (port, 22)]
    results = probe(sbx, targets)
    assert len(results) == len(targets)
    assert [k for k, v in results.items() if v == "open"] == []
    assert len(accepted) == before


def test_the_server_is_closed(sbx):
    """The server's own port leads a guest to public names of sandboxes, and never
    to the API: not by an address, and not by any name that a request gives."""
    server = world.Server()
    gateway = sbx.commands.run("ip route show default | sed -E 's/.*via ([^ ]+).*/\\1/'").stdout.strip()
    hosts = ["", f"localhost:{server.port}", f"api.{server.env['CAY_DOMAIN']}", f"sandbox.{server.env['CAY_DOMAIN']}"]
    asked = 0
    for address in sorted({*host_addresses(), gateway, "169.254.77.1"} - {""}):
        at = f"[{address}]" if ":" in address else address
        for scheme in ("http", "https"):
            for host in hosts:
                name = f"-H 'Host: {host}'" if host else ""
                run = sbx.commands.run(
                    f"curl -gsk -m 10 -o /dev/null -w '%{{http_code}}' -H 'X-API-Key: {os.environ['E2B_API_KEY']}' {name} "
                    f"{scheme}://{at}:{server.port}/sandboxes || true", timeout=60)
                assert run.stdout in ("000", "403"), (scheme, address, host, run.stdout)
                asked += 1
    assert asked >= 2 * len(hosts)


def test_private_ranges_and_metadata_are_closed(sbx):
    targets = [[a, 80] for a in (
        "169.254.169.254", "10.0.0.1", "10.255.255.1", "172.16.0.1", "192.168.0.1", "192.168.1.1",
        "100.64.0.1", "fd00::1", "fe80::1", "::ffff:169.254.169.254")]
    results = probe(sbx, targets)
    assert [k for k, v in results.items() if v == "open"] == []


def test_neighbour_is_closed(sbx, create):
    other = create()
    other.commands.run("python3 -m http.server 8000 --bind 0.0.0.0", background=True)
    wait = "for i in $(seq 300); do ss -Htln sport = :8000 | grep -q . && exit 0; sleep 0.1; done; exit 1"
    other.commands.run(wait, timeout=60)
    address = other.commands.run("hostname -I").stdout.split()
    assert address, "the neighbour has no address"
    assert other.commands.run(f"curl -s -o /dev/null -w '%{{http_code}}' http://{address[0]}:8000/").stdout == "200"
    results = probe(sbx, [[a, p] for a in address for p in (8000, 49983)])
    assert [k for k, v in results.items() if v == "open"] == []


def test_internet_works(sbx):
    """The package registries are the internet that every test machine has."""
    out = sbx.commands.run("pip download --no-deps --dest /tmp/dl cowsay 2>&1", timeout=300)
    assert "Saved" in out.stdout or "Successfully" in out.stdout


def test_internet_can_be_denied(create):
    sealed = create(allow_internet_access=False)
    run = sealed.commands.run(
        "timeout 30 pip download --no-deps --retries 0 --timeout 5 --dest /tmp/dl cowsay >/dev/null 2>&1; echo $?")
    assert run.stdout.strip() != "0"
    assert sealed.commands.run("echo still here").stdout == "still here\n"
