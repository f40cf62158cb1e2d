"""A whole cluster on this machine: PostgreSQL, a bucket and nodes.

A node is a machine of its own but for the kernel and the disk: namespaces for its
network, mounts and processes, and a data directory. The nodes meet on a bridge, on
which PostgreSQL and the server of S3 listen too. All of them are children of this
process and end with it, also where it is killed. The bridge, the cgroups and the
directories outlive it then; clear removes them. Logs stay until the next start.
"""

import ctypes
import json
import os
import pathlib
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAY = ROOT / "bin" / "cay"
GATEWAY = ROOT / "build" / "versitygw"
TEMPLATES = pathlib.Path(os.environ.get("CAY_E2E_DATA", ROOT / "build" / "e2e" / "data"))

# Trees that are tested side by side take a place each: its number is in every name.
PLACE = int(os.environ.get("CAY_E2E_PLACE", "0"))
NAME = f"cyc{PLACE}"
NET = f"10.{230 + PLACE}.0"
HOME = ROOT / "build" / "cluster"
PID = HOME / "pid"
RUN = pathlib.Path("/run") / NAME  # the path of a socket is short
DATABASE = pathlib.Path("/var/tmp") / NAME  # which the user of PostgreSQL reaches
PORT, PEERS, SSH, METRICS = 7070, 7071, 7072, 7073

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def run(*command, **options):
    """Runs a command to its end; its output."""
    done = subprocess.run([str(c) for c in command], check=False, text=True, stdin=options.pop("stdin", subprocess.DEVNULL),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


def child(*command, log=None, **options):
    """Starts a process that is killed when this one ends, however it ends."""
    out = open(log, "ab") if log else subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), **options)
    finally:
        if log:
            out.close()


def until(true, seconds, what):
    """Waits until something is true; its value."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not after {seconds} s")
        time.sleep(0.05)
    return value


def only_child(pid, name):
    """The child of a process, once it is the program of that name."""
    try:
        found = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return found if pathlib.Path(f"/proc/{found}/comm").read_text().strip() == name else None
    except (OSError, IndexError):
        return None


def ended(process):
    """Ends a child, in good order if it can."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Node:
    """A machine of the cluster, and the server that runs there."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.name = f"{NAME}n{number}"
        self.address = f"{NET}.{10 + number}"
        self.url = f"https://{self.address}:{PORT}"
        self.data = HOME / f"node{number}"
        self.log = HOME / f"node{number}.log"
        self.program = cluster.program
        self.machine = self.server = self.init = None

    @property
    def env(self):
        return {
            **os.environ, **self.cluster.env,
            "CAY_DATA_DIR": str(self.data), "CAY_RUN_DIR": str(RUN / str(self.number)), "CAY_NETWORK_NAME": self.name,
            "CAY_LISTEN": f"0.0.0.0:{PORT}", "CAY_CLUSTER_ADDRESS": f"{self.address}:{PEERS}",
            # As the end-to-end tests have it: what templates trust is in their images.
            "CAY_TLS": "local", "CAY_TLS_NAMES": self.address,
            "CAY_SSH_LISTEN": f"{self.address}:{SSH}",
            "CAY_METRICS_LISTEN": f"{self.address}:{METRICS}",
            "CAY_POOL_MEMORY": "512",  # each node thinks that the memory is its own
        }

    def boot(self):
        """Makes the machine. Its process 1 collects the processes that lose their
        parents, and all of them are killed with it."""
        self.machine = child("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                             "env", "--ignore-signal=CHLD", "sleep", "infinity")
        self.init = until(lambda: only_child(self.machine.pid, "sleep"), 10, f"the namespaces of node {self.number}")
        # A namespace that has ended keeps its links until the kernel finds the time.
        subprocess.run(["ip", "link", "delete", self.name], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.init)
        run("ip", "link", "set", self.name, "master", NAME, "up")
        # /sys shows the interfaces of the namespace that it was mounted in, and has
        # the cgroups below it.
        self.inside("sh", "-ec", f"""
            mkdir -p /run/netns {RUN}/cgroup
            mount -t tmpfs tmpfs /run/netns
            mount --rbind /sys/fs/cgroup {RUN}/cgroup
            mount -t sysfs sysfs /sys
            mount --rbind {RUN}/cgroup /sys/fs/cgroup
            umount -R -l {RUN}/cgroup
            ip link set lo up
            ip address add {self.address}/24 dev eth0
            ip link set eth0 up
            ip route add default via {NET}.1""")

    def command(self, *command):
        return ["nsenter", "--target", str(self.init), "--net", "--mount", "--pid", "--", *map(str, command)]

    def inside(self, *command, **options):
        return run(*self.command(*command), env=self.env, **options)

    def cay(self, *args, **options):
        return self.inside(self.program, *args, **options)

    def start(self):
        """Starts the server, and returns when it answers."""
        self.server = child(*self.command(self.program, "server"), log=self.log, env=self.env)
        until(self.healthy, 120, f"node {self.number}, whose log is {self.log}")

    def pid(self):
        """The process of the server."""
        return until(lambda: only_child(self.server.pid, pathlib.Path(self.program).name[:15]), 10, f"the server of node {self.number}")

    def healthy(self):
        if self.server.poll() is not None:
            raise RuntimeError(f"the server of node {self.number} ended:\n{self.tail()}")
        try:
            trust = ssl.create_default_context(cafile=self.data / "tls" / "authority.crt")
            with urllib.request.urlopen(self.url + "/health", timeout=5, context=trust) as reply:
                return reply.status in (200, 204)
        except (urllib.error.URLError, OSError):
            return False

    def metric(self, name):
        """A metric without labels, of the node's page."""
        with urllib.request.urlopen(f"http://{self.address}:{METRICS}/metrics", timeout=10) as page:
            return next(float(line.split()[1]) for line in page.read().decode().splitlines() if line.startswith(name + " "))

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def lose(self):
        """Ends the machine with all that runs there, as a failure of its power does."""
        if self.machine is not None:
            self.machine.kill()
            self.machine.wait()
            ended(self.server)
            bury(self.name)

    def stop(self):
        """Ends the server in good order, then the machine."""
        try:
            if self.server is not None:
                self.end()
        except subprocess.TimeoutExpired:
            pass
        self.lose()

    def end(self):
        """Ends the server in good order; its sandboxes go on."""
        if self.server.poll() is None and (pid := only_child(self.server.pid, pathlib.Path(self.program).name[:15])):
            os.kill(pid, signal.SIGTERM)
        self.server.wait(30)


class Cluster:
    """PostgreSQL, a bucket, and nodes."""

    def __init__(self, size=3, program=CAY, **settings):
        self.program = program
        self.nodes = [Node(self, n + 1) for n in range(size)]
        self.env = settings
        self.postgres = self.gateway = None
        self.variables = {}
        self.bucket = ""

    def __enter__(self):
        try:
            self.start(lambda text: print(f"▸ {text}", flush=True))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, say=lambda text: None):
        if running():
            raise RuntimeError("a cluster runs already: make cluster-down ends it")
        templates(say)
        clear()
        HOME.mkdir(parents=True, exist_ok=True)
        for log in HOME.glob("*.log"):
            log.unlink()
        RUN.mkdir(mode=0o700)
        PID.write_text(str(os.getpid()))
        bridge()
        say("PostgreSQL")
        self.start_postgres()
        say("the server of S3, whose build takes minutes the first time")
        self.start_bucket()
        for node in self.nodes:
            node.boot()
            plant(node)
        first = self.nodes[0]
        trust(first)
        say("node 1")
        first.cay("cluster", "init")
        first.start()
        first.cay("template", "wait", timeout=1200)
        until(lambda: json.loads(first.cay("--json", "cluster", "status")).get("lead"), 60, "a node leads")
        for node in self.nodes[1:]:
            say(f"node {node.number}")
            self.join(node)
        self.ready(1200)
        self.variables = json.loads(first.cay("--json", "env", "--new-key", "cluster"))

    def join(self, node):
        """Has a machine become a member, and starts its server."""
        other = next(n for n in self.nodes if n is not node)
        token = json.loads(other.cay("--json", "cluster", "token"))["token"]
        node.cay("cluster", "join", stdin=None, input=token)
        node.start()

    def ready(self, seconds):
        until(lambda: all(n["state"] == "ready" for n in self.status()), seconds, "all nodes are ready")

    def id(self, node):
        return next(n["nodeID"] for n in self.status() if n["address"] == f"{node.address}:{PEERS}")

    def status(self, by=None):
        return json.loads((by or self.nodes[0]).cay("--json", "cluster", "status"))["nodes"]

    def environment(self, node):
        """The variables that point an SDK at a node: its key, its address, and the
        authority of its certificate."""
        variables = {k: v for k, v in self.variables.items() if not k.endswith("_URL")}
        return {**variables, "E2B_API_URL": node.url, "E2B_SANDBOX_URL": node.url}

    def start_postgres(self):
        programs = [p.parent for p in pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")]
        if not programs:
            raise RuntimeError("PostgreSQL is missing: scripts/setup test-host installs it")
        programs = self.programs = max(programs, key=lambda path: int(path.parent.name))
        DATABASE.mkdir(mode=0o700)
        password = secrets.token_urlsafe(18)
        (DATABASE / "password").write_text(password)
        for path in DATABASE, DATABASE / "password":
            shutil.chown(path, "postgres", "postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": DATABASE}
        data = DATABASE / "data"
        run(programs / "initdb", "--no-sync", "--auth=scram-sha-256", "--username=cay", "--encoding=UTF8", "--locale=C.UTF-8",
            f"--pwfile={DATABASE / 'password'}", "-D", data, **user)
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write(f"host all all {NET}.0/24 scram-sha-256\n")
        self.postgres = child(programs / "postgres", "-D", data, "-k", DATABASE, "-c", f"listen_addresses={NET}.1",
                              "-c", "port=5432", log=HOME / "postgres.log", **user)
        self.env["CAY_DATABASE_URL"] = f"postgres://cay:{password}@{NET}.1:5432/postgres?sslmode=disable"
        answers = [programs / "pg_isready", "-h", f"{NET}.1", "-p", "5432"]
        until(lambda: subprocess.run(answers, check=False, stdout=subprocess.DEVNULL).returncode == 0, 30, "PostgreSQL answers")

    def start_bucket(self):
        """The bucket of a real server of S3 where that can be built and CLUSTER_BUCKET is
        not directory, else a directory."""
        root = HOME / "bucket"
        (root / "cay").mkdir(parents=True, mode=0o700)
        if not gateway():
            self.bucket = self.env["CAY_BUCKET"] = str(root / "cay")
            return
        secret = secrets.token_urlsafe(18)
        self.gateway = child(GATEWAY, "--port", f"{NET}.1:7480", "posix", root, log=HOME / "bucket.log",
                             env={**os.environ, "ROOT_ACCESS_KEY": "cay", "ROOT_SECRET_KEY": secret})
        self.bucket = "s3://cay/cluster"
        self.env.update(CAY_BUCKET=self.bucket, AWS_ENDPOINT_URL_S3=f"http://{NET}.1:7480", AWS_REGION="us-east-1",
                        AWS_ACCESS_KEY_ID="cay", AWS_SECRET_ACCESS_KEY=secret)

    def stop(self):
        for node in self.nodes:
            node.stop()
        ended(self.gateway)
        if self.postgres is not None and self.postgres.poll() is None:
            self.postgres.send_signal(signal.SIGINT)  # its fast shutdown
            self.postgres.wait(30)
        clear()


def templates(say):
    """Builds the templates that Cay brings where the end-to-end tests have them."""
    say("templates, which take minutes the first time")
    run(sys.executable, ROOT / "test" / "e2e" / "run.py", "templates", env=os.environ)


def plant(node):
    """Gives a node the templates as links: snapshots and images never change. The
    authorities, which templates trust, come to those that join with their token."""
    node.data.mkdir(mode=0o755)  # kernels of sandboxes start from it as another user
    run("cp", "-al", *[TEMPLATES / part for part in ("snapshots", "images", "builds")], node.data)


def trust(node):
    """Gives a node that joins no other the authorities that templates trust."""
    run("cp", "-a", TEMPLATES / "authority", TEMPLATES / "tls", node.data)


def gateway():
    """Builds versitygw, once; whether there is one."""
    if os.environ.get("CLUSTER_BUCKET") == "directory":
        return False
    if not GATEWAY.exists():
        try:
            run("go", "build", "-C", ROOT / "test" / "bucket", "-o", GATEWAY, "github.com/versity/versitygw/cmd/versitygw")
        except (RuntimeError, OSError) as error:
            print(f"versitygw cannot be built, so the bucket is a directory: {error}", file=sys.stderr)
    return GATEWAY.exists()


def bridge():
    run("ip", "link", "add", NAME, "type", "bridge")
    run("ip", "address", "add", f"{NET}.1/24", "dev", NAME)
    run("ip", "link", "set", NAME, "up")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run("nft", f'add table ip {NAME}; add chain ip {NAME} out {{ type nat hook postrouting priority srcnat; }}; '
               f'add rule ip {NAME} out ip saddr {NET}.0/24 oifname != "{NAME}" masquerade')


def running():
    """The process that has a cluster here, or None."""
    try:
        pid = int(PID.read_text())
        ours = b"test/cluster" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and pid != os.getpid()
        return pid if ours else None
    except (OSError, ValueError):
        return None


def cgroups(name):
    """The cgroups of machines, by a pattern of their names, in every hierarchy."""
    root = pathlib.Path("/sys/fs/cgroup")
    return {p.resolve() for pattern in (name, f"*/{name}") for p in root.glob(pattern)}


def bury(name):
    """Waits until the killed processes of machines are gone, of which some are frozen,
    and removes their cgroups."""
    def gone():
        try:
            for group in cgroups(name):
                for state in group.rglob("freezer.state"):
                    state.write_text("THAWED")
            for group in cgroups(name):
                for inner in sorted(group.rglob("*/"), reverse=True):
                    inner.rmdir()
                group.rmdir()
        except OSError:  # a process of it dies, or a cgroup goes meanwhile
            return False
        return True

    until(gone, 60, f"the end of the processes in the cgroups {name}")


def clear():
    """Removes all that a cluster leaves, but its logs."""
    links = [p.name for p in pathlib.Path("/sys/class/net").glob(f"{NAME}*")]
    for command in *[["ip", "link", "delete", link] for link in links], ["nft", "delete", "table", "ip", NAME]:
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    bury(f"{NAME}n*")
    for path in DATABASE, RUN, HOME / "bucket", *HOME.glob("node*/"):
        shutil.rmtree(path, ignore_errors=True)
    PID.unlink(missing_ok=True)
