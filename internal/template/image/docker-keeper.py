#!/usr/bin/python3 -I
"""Keeps what Docker's containers lose in a sandbox.

A restore (a create, resume, fork or rollback) brings memory and processes back,
but of network devices the sandbox's own alone: bridges, veth pairs and rules of
the packet filter are gone. This service makes them anew, as Docker made them, so
that containers go on. And it holds containers to their memory, which gVisor counts
and does not bound.
"""

import http.client
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

SOCKET = "/run/docker.sock"
DEFAULT = "docker0"  # the bridge of the one network without a name server
BRIDGES = (DEFAULT, "br-")  # how names of bridges begin
MEMORY = "/sys/fs/cgroup/memory"
IDLE, BUSY = 1.0, 0.2  # seconds between two looks; BUSY while a container has a limit


class Connection(http.client.HTTPConnection):
    """A connection to Docker's socket."""

    def __init__(self):
        super().__init__("docker", timeout=30)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def ask(path):
    docker = Connection()
    try:
        docker.request("GET", path)
        answer = docker.getresponse()
        body = json.load(answer)
        if answer.status != 200:
            raise OSError(f"{path}: {body}")
        return body
    finally:
        docker.close()


def run(*command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        say(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.returncode == 0


def say(text):
    print(text, file=sys.stderr, flush=True)


def bridges_there():
    return {name for _, name in socket.if_nameindex() if name.startswith(BRIDGES)}


def uplink():
    """The address by which the sandbox reaches others: another one after each restore."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return probe.getsockname()[0]


def translate():
    """Has connections of containers leave in the sandbox's name."""
    address = uplink()
    rules = [f"-A POSTROUTING -o eth0 -p {proto} -j SNAT --to-source {address}" for proto in ("tcp", "udp")]
    run("iptables-legacy-restore", "--noflush", text="\n".join(["*nat", *rules, "COMMIT", ""]))


def bridge_of(network):
    return network["Options"].get("com.docker.network.bridge.name") or "br-" + network["Id"][:12]


def build(network):
    """Makes the bridge of a network."""
    name = bridge_of(network)
    lines = [f"link add {name} type bridge"]
    for config in network["IPAM"]["Config"] or []:
        subnet = ipaddress.ip_network(config["Subnet"])
        if subnet.version == 4:
            lines.append(f"addr add {config.get('Gateway') or subnet[1]}/{subnet.prefixlen} dev {name}")
    run("ip", "-batch", "-", text="\n".join([*lines, f"link set {name} up", ""]))


# Prints those of some ports of 127.0.0.11 that are taken.
TAKEN = """
import socket, sys
for port in sys.argv[2:]:
    with socket.socket(socket.AF_INET, int(sys.argv[1])) as s:
        try:
            s.bind(("127.0.0.11", int(port)))
        except OSError:
            print(port)
"""


def resolver(pid):
    """Leads questions of a container to the name server that Docker has in it."""
    inside = ["nsenter", "-t", str(pid), "-n"]
    rules = []
    for proto, kind in (("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)):
        with open(f"/proc/{pid}/net/{proto}") as f:  # of all containers, as gVisor has it
            addresses = [line.split()[1].partition(":") for line in f]
        ports = [str(int(port, 16)) for host, _, port in addresses if host == "0B00007F"]
        taken = subprocess.run([*inside, sys.executable, "-I", "-c", TAKEN, str(int(kind)), *ports], capture_output=True, text=True, check=True).stdout
        rules += [f"-A OUTPUT -d 127.0.0.11 -p {proto} --dport 53 -j DNAT --to-destination 127.0.0.11:{port}" for port in taken.split()[:1]]
    run(*inside, "iptables-legacy-restore", "--noflush", text="\n".join(["*nat", *rules, "COMMIT", ""]))


def plug(container, bridges):
    """Gives a container its interfaces in the networks that have a bridge."""
    state = ask(f"/containers/{container}/json")
    pid = state["State"]["Pid"]
    ends = [e for e in state["NetworkSettings"]["Networks"].values() if e["IPAddress"] and e["NetworkID"] in bridges]
    if not pid or not ends or interfaces(pid) > 1:
        return
    outside, inside = [], []
    for i, end in enumerate(ends):
        host = "veth" + end["EndpointID"][:7]
        outside += [f"link add {host} type veth peer name eth{i} netns /proc/{pid}/ns/net",
                    f"link set {host} master {bridges[end['NetworkID']]}", f"link set {host} up"]
        inside += [f"addr add {end['IPAddress']}/{end['IPPrefixLen']} dev eth{i}", f"link set eth{i} up"]
    gateway = next((e["Gateway"] for e in ends if e["Gateway"]), "")
    if gateway:
        inside.append(f"route replace default via {gateway}")
    if any(bridges[end["NetworkID"]] != DEFAULT for end in ends):
        resolver(pid)
    if run("ip", "-batch", "-", text="\n".join([*outside, ""])):
        run("nsenter", "-t", str(pid), "-n", "ip", "-force", "-batch", "-", text="\n".join([*inside, ""]))


def interfaces(pid):
    """How many a process sees, loopback among them."""
    with open(f"/proc/{pid}/net/dev") as f:
        return sum(":" in line for line in f)


def rebuild():
    began = time.monotonic()
    translate()
    wanted = urllib.parse.quote(json.dumps({"driver": ["bridge"]}))
    networks = ask("/networks?filters=" + wanted)
    here = bridges_there()
    for network in sorted(networks, key=bridge_of, reverse=True):  # docker0 first
        if bridge_of(network) not in here:
            build(network)
    bridges = {network["Id"]: bridge_of(network) for network in networks}
    containers = ask("/containers/json")
    for container in containers:
        plug(container["Id"], bridges)
    say(f"made {len(bridges)} networks of {len(containers)} containers anew in {time.monotonic() - began:.2f} s")


def number(path):
    with open(path) as f:
        return int(f.read())


def bound():
    """Ends the largest process of each container that has more memory than it may;
    reports whether any has a limit."""
    limited = False
    try:
        names = os.listdir(MEMORY + "/docker")
        all_there_is = number(MEMORY + "/memory.limit_in_bytes")  # that of containers without a limit
    except OSError:
        return False
    for group in (os.path.join(MEMORY, "docker", name) for name in names):
        try:
            limit = number(group + "/memory.limit_in_bytes")
            if limit >= all_there_is:
                continue
            limited = True
            if number(group + "/memory.usage_in_bytes") > limit:
                end_largest(group, limit)
        except (OSError, ValueError):
            continue  # a file that is none of a container's, or one that has just ended
    return limited


def end_largest(group, limit):
    with open(group + "/cgroup.procs") as f:
        pids = [int(line) for line in f]
    if pids:
        pid = max(pids, key=resident)
        say(f"container {os.path.basename(group)[:12]} has more than {limit >> 20} MB of memory: process {pid} is ended")
        os.kill(pid, signal.SIGKILL)


def resident(pid):
    try:
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def ready():
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"READY=1", "\0" + path[1:] if path[0] == "@" else path)


def serve():
    translate()
    there = bridges_there()  # the unit begins after Docker's: there is one, unless Docker was told to have none
    lost = False
    ready()
    while True:
        time.sleep(BUSY if bound() else IDLE)
        try:
            here = bridges_there()
            lost = lost or bool(there) and not here
            if lost:
                rebuild()
                lost, here = False, bridges_there()
            there = here
        except (OSError, http.client.HTTPException, subprocess.SubprocessError, KeyError, ValueError) as e:
            say(f"the networks could not be made, and are tried again: {e}")


serve()
