"""The server that the end-to-end tests talk to.

One real `cay server` with names of its own, so that it disturbs no other on
this machine. Tests reach it through the official SDKs; the few that must kill
or start it use Server.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAY = ROOT / "bin" / "cay"


class Server:
    """A `cay server` process and how to reach it."""

    def __init__(self):
        # Trees tested side by side take a place each: its number is in every name.
        place = int(os.environ.get("CAY_E2E_PLACE", "0"))
        self.port = 7170 + place
        self.data = pathlib.Path(os.environ.get("CAY_E2E_DATA", ROOT / "build" / "e2e" / "data"))
        self.log = self.data.parent / "server.log"
        # Where the tests' own image registry listens.
        self.registry = f"127.0.0.1:{7290 + place}"
        # Where the server reaches what the tests serve.
        self.near = "127.0.0.1"
        self.env = {
            **os.environ,
            "CAY_PLAIN_REGISTRIES": self.registry,
            "CAY_DATA_DIR": str(self.data),
            "CAY_RUN_DIR": f"/run/cay-e2e{place or ''}",
            "CAY_LISTEN": f"127.0.0.1:{self.port}",
            # TLS is there for who asks for it; without, and by path, it goes on as well.
            "CAY_TLS": "local",
            "CAY_DOMAIN": f"cay.test:{self.port}",
            "CAY_PATHS": "on",
            "CAY_SSH_LISTEN": f"127.0.0.1:{7410 + place}",
            "CAY_NETWORK": f"10.{207 + place}.0.0/16",
            "CAY_NETWORK_NAME": f"cye2{place or 'e'}",
            "CAY_WEBHOOK_OPEN": "127.0.0.0/8",  # receivers of the tests
            "CAY_MODEL_OPEN": "127.0.0.0/8",  # and stand-ins for models
        }
        self.process = None
        self.binary = CAY
        self.inside = []  # begins commands on the server's machine
        self.cluster = None  # of a node: what else its cluster has
        self.scheme, self.host = "http", "localhost"
        # run.py cluster has them talk to a node of a cluster instead.
        if node := json.loads(os.environ.get("CAY_E2E_NODE", "null")):
            self.scheme, self.host, self.port = "https", node["host"], node["port"]
            self.data, self.log = pathlib.Path(node["env"]["CAY_DATA_DIR"]), pathlib.Path(node["log"])
            self.env.update(node["env"])
            self.inside, self.near = node["inside"], node["near"]
            self.registry, self.cluster = node["registry"], node["cluster"]

    @property
    def url(self):
        return f"{self.scheme}://{self.host}:{self.port}"

    def leads(self):
        """The server that builds templates and keeps what is of all: of a cluster, another node than this."""
        lead = Server()
        if self.cluster:
            lead.inside, lead.data = self.cluster["lead"], pathlib.Path(self.cluster["data"][0])
            lead.env.update(CAY_DATA_DIR=str(lead.data), CAY_RUN_DIR=self.cluster["run"])
        return lead

    def all_data(self):
        """The data directories of all nodes."""
        return [pathlib.Path(data) for data in self.cluster["data"]] if self.cluster else [self.data]

    def records(self):
        """The files of the records."""
        return files_of(self.cluster["records"]) if self.cluster else list(self.data.glob("cay.db*"))

    def logs(self):
        return list(self.log.parent.glob("*.log"))

    def cay(self, *args, check=True, timeout=120, **kw):
        """Runs the command line tool against this server."""
        return subprocess.run(
            [*self.inside, str(self.binary), *args], env=self.env, check=check, timeout=timeout,
            text=True, stdin=subprocess.DEVNULL, capture_output=True, **kw)

    def start(self, timeout=1200, templates=()):
        """Starts the server and waits until it serves and has built its templates,
        or those named, which takes minutes the first time."""
        self.data.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), "server"], env=self.env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + timeout
        while not self.healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server is not ready after {timeout} s:\n{self.tail()}")
            time.sleep(0.1)
        self.cay("template", "wait", *templates, timeout=timeout)

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return reply.status in (200, 204)
        except (urllib.error.URLError, OSError):
            return False

    def kill9(self):
        """Kills the server as a crash would; its sandboxes live on."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def new_key(self):
        """Makes an API key the way a user does."""
        text = self.cay("env", "--new-key", "e2e").stdout
        found = re.search(r"e2b_[0-9a-f]{40}", text)
        if not found:
            raise RuntimeError(f"`cay env` printed no key: {text!r}")
        return found.group()

    def sdk_env(self, key):
        """The environment that points an official SDK here."""
        return {"E2B_API_KEY": key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_VOLUME_API_URL": self.url}

    def tail(self, lines=40):
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def files_of(top):
    """Every file below a directory, as far as it stays."""
    return [pathlib.Path(at, name) for at, _, names in os.walk(top) for name in names]


def threads(pid):
    """How many threads of a process there are, its zombie leader counted."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


class Adopted:
    """A process that run.py started."""

    def __init__(self, pid):
        self.pid = pid

    def send_signal(self, number):
        assert b"cay" in pathlib.Path(f"/proc/{self.pid}/cmdline").read_bytes()
        os.kill(self.pid, number)

    def wait(self, timeout=60):
        deadline = time.monotonic() + timeout
        while True:
            try:
                state = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                return
            # Threads of a killed process end one by one, and the last closes its files,
            # the lock of the data directory among them.
            if state == "Z" and threads(self.pid) <= 1:
                return
            assert time.monotonic() < deadline, f"process {self.pid} does not end"
            time.sleep(0.02)


def running():
    """The server that runs already, found by the pid in its lock file."""
    server = Server()
    server.process = Adopted(int((server.data / "lock").read_text().split()[0]))
    return server


@contextlib.contextmanager
def started_anew(**env):
    """The running server, killed and started with other settings; as before after."""
    server = running()
    usual = dict(server.env)
    server.kill9()
    try:
        server.env.update(env)
        server.start()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.kill9()
        server.env = usual
        server.start()


def aside(name, port, network, network_name):
    """A server with a data directory and names of its own, for long runs; those
    of CAY_E2E_DATA where that is set."""
    server = Server()
    if os.environ.get("CAY_E2E_DATA"):
        return server
    server.port, server.data = port, ROOT / "build" / name / "data"
    server.log = server.data.parent / "server.log"
    server.env.update(
        CAY_DATA_DIR=str(server.data), CAY_RUN_DIR=f"/run/cay-{name}", CAY_LISTEN=f"127.0.0.1:{port}",
        CAY_DOMAIN=f"cay.test:{port}", CAY_SSH_LISTEN=f"127.0.0.1:{port + 300}",
        CAY_NETWORK=network, CAY_NETWORK_NAME=network_name)
    return server


def mounted(server, volume):
    """Where the host has a volume's file system mounted."""
    for line in open("/proc/self/mountinfo"):
        at = line.split()[4]
        if at.startswith(str(server.data)) and f"/{volume}" in at:
            return at
    raise SystemExit(f"the volume {volume} is not mounted on the host")


def fresh_volume(server, name):
    """Makes a volume of 1 GB in place of one of this name that an earlier run left; its id."""
    for old in json.loads(server.cay("volume", "list", "--json").stdout) or []:
        if old["name"] == name:
            server.cay("volume", "delete", name)
    return server.cay("volume", "create", name, "--size", "1GB").stdout.strip()
