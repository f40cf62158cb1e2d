"""Lives under load leave nothing: CAY_E2E_LIVES of them (20)."""

import concurrent.futures
import http.client
import os
import pathlib
import subprocess
import urllib.parse

import e2b

import world

LIVES = int(os.environ.get("CAY_E2E_LIVES", "20"))
AT_ONCE = 4
NETWORK = {"allow_out": ["allowed.example", "1.1.1.1"], "deny_out": ["0.0.0.0/0"]}


def life(_):
    """A sandbox that is asked, by the agent's port and by one on which nothing listens, and killed."""
    box = e2b.Sandbox.create(timeout=300, network=NETWORK)
    try:
        box.commands.run("true")
        server = urllib.parse.urlparse(os.environ["E2B_API_URL"])
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
        connection.request("GET", "/", headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "3999"})
        assert connection.getresponse().status == 502
        connection.close()
    finally:
        box.kill()


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def held():
    """The things of this machine that a server holds, counted."""
    server = world.Server()
    name = server.env["CAY_NETWORK_NAME"]
    pid = (server.data / "lock").read_text().split()[0]
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "namespaces": sum(n.startswith(name + "-") for n in os.listdir("/run/netns")),
        "interfaces": said("ip", "-o", "link").count(f" {name}-"),
        "routes": said("ip", "route").count(f" dev {name}-"),
        "rules": said("nft", "-a", "list", "table", "inet", name).count(" handle "),
        "elements": said("nft", "list", "table", "inet", name).count(server.env["CAY_NETWORK"].split(".0.0/")[0] + "."),
        "instances": len(list((server.data / "instances").iterdir())),
        "run": sum(len(d) + len(f) for _, d, f in os.walk(server.env["CAY_RUN_DIR"])),
        "mounts": pathlib.Path("/proc/self/mounts").read_text().count(server.env["CAY_RUN_DIR"]),
    }


def lives(n):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(life, i) for i in range(n)]:
            done.result()


def test_nothing_is_left(eventually):
    lives(AT_ONCE)  # fills what is kept for the next ones: slots, the pool, connections
    before = held()
    lives(LIVES)
    # The pool comes and goes by a sandbox or two, each of a dozen files. Each life would leave one at least.
    slack = {"run": 40}

    def whole():
        more = {kind: (before[kind], n) for kind, n in held().items() if n > before[kind] + slack.get(kind, 12)}
        print(more)
        return not more

    eventually(whole, 120)
