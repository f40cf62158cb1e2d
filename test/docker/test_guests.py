"""Guests that use what a template with Docker gives them, as root: none reaches the host or
another sandbox, and none but itself is hurt."""

import json
import os
import signal
import socket
import subprocess
import threading
import time

import e2b
import pytest

import cayv1
import engines

CAPABILITIES = {12: "NET_ADMIN", 13: "NET_RAW", 21: "SYS_ADMIN"}


def root(box, command, timeout=120, **kw):
    return box.commands.run(command, user="root", timeout=timeout, **kw)


@pytest.fixture(scope="module")
def neighbour():
    """A sandbox without Docker that notes what reaches it."""
    box = e2b.Sandbox.create("base", timeout=1800)
    box.files.write("/tmp/listen.py", (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('', 7000))\n"
        "while True:\n  m, who = s.recvfrom(2000)\n  open('/tmp/heard', 'a').write(f'{who} {m}\\n')\n"))
    box.commands.run("python3 /tmp/listen.py", background=True, timeout=0)
    yield box
    assert box.commands.run("cat /tmp/heard 2>/dev/null; echo fine").stdout == "fine\n"
    box.kill()


@pytest.fixture(scope="module")
def heard():
    """Notes what reaches the host at port 7000 of any address."""
    out = []
    sockets = []
    for family in (socket.AF_INET, socket.AF_INET6):
        s = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind(("", 7000))
        sockets.append(s)

        def listen(s=s):
            while True:
                try:
                    message, who = s.recvfrom(2000)
                except OSError:
                    return
                out.append((who, message))

        threading.Thread(target=listen, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:  # it does listen
        s.sendto(b"own", ("127.0.0.1", 7000))
    yield out
    for s in sockets:
        s.close()


def address(box):
    return json.loads(box.commands.run("ip -j -4 addr show dev eth0").stdout)[0]["addr_info"][0]["local"]


def of_the_host():
    text = subprocess.run(["ip", "-j", "addr"], check=True, capture_output=True, text=True).stdout
    return [a["local"] for link in json.loads(text) for a in link.get("addr_info", []) if a["family"] == "inet" and a["scope"] != "host"]


def bounding(box):
    line = root(box, "grep CapBnd /proc/self/status").stdout
    return int(line.split()[1], 16)


def test_capabilities(create):
    plain, docker = create("base"), create()
    beyond = bounding(docker) & ~bounding(plain)
    assert {n for n in range(64) if beyond >> n & 1} == set(CAPABILITIES)
    assert bounding(plain) & ~bounding(docker) == 0
    assert "permission denied" in plain.commands.run("mount -t tmpfs none /mnt 2>&1; ls /sys/fs/cgroup", user="root").stdout.splitlines()[0]


# Datagrams in the name of others, from a raw socket that writes the header itself.
FORGE = r"""
import socket, struct, sys
def packet(source, target, text):
    udp = struct.pack("!HHHH", 7000, 7000, 8 + len(text), 0) + text
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target))
    return head + udp
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
sent = 0
for target in sys.argv[1].split(","):
    for source in sys.argv[2].split(","):
        for _ in range(3):
            try:
                s.sendto(packet(source, target, b"forged"), (target, 0))
                sent += 1
            except OSError as e:
                print(target, source, e)
print("sent", sent)
"""


def test_forged_sources(create, neighbour, heard):
    box = create()
    box.files.write("/tmp/forge.py", FORGE)
    targets = [address(neighbour), *of_the_host()]
    sources = [address(neighbour), "10.228.0.1", "127.0.0.1", "8.8.8.8", address(box), *of_the_host()[:1]]
    out = root(box, f"python3 /tmp/forge.py {','.join(targets)} {','.join(sources)}").stdout
    assert "sent 0" not in out, out
    # The same with an address taken, so that the guest's own stack answers for it.
    for taken in (address(neighbour), "10.228.0.1", "8.8.8.8"):
        root(box, f"ip addr add {taken}/32 dev eth0 2>&1 || true")
    root(box, "for t in %s; do echo taken | timeout 2 nc -u -w1 -s 8.8.8.8 $t 7000; done; true" % " ".join(targets))
    assert [message for _, message in heard if message != b"own"] == []


def test_packet_sockets_and_ipv6(create, neighbour, heard):
    box = create()
    run = root(box, r"""python3 - <<'EOF'
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0))
arp = b"\xff" * 6 + b"\x02\xca\0\0\0\1" + b"\x08\x06\0\1\x08\0\6\4\0\2" + b"\x02\xca\0\0\0\1" + socket.inet_aton("10.228.0.1") + b"\xff" * 6 + socket.inet_aton("10.228.0.1")
try:
    print("sent", s.send(arp))
except OSError as e:
    print("refused", e)
EOF""")
    assert "refused" in run.stdout, run.stdout
    text = root(box, "ip -6 addr add fd00::2/64 dev eth0; ip -6 addr add fe80::2/64 dev eth0; ip -6 route add default dev eth0; ip -6 addr").stdout
    assert "eth0" in text
    root(box, "for a in fe80::1%eth0 fd00::1 ff02::1%eth0; do echo six | timeout 2 nc -6 -u -w1 $a 7000; done; true")
    assert [message for _, message in heard if message != b"own"] == []


def test_the_host_stays_closed(create):
    box = create()
    server = socket.create_server(("", 0))
    port = server.getsockname()[1]
    server.settimeout(1)
    root(box, "ip route add 192.0.2.0/24 dev eth0; ip addr add 192.0.2.1/24 dev eth0; true")
    for target in (*of_the_host(), "169.254.169.254"):
        run = root(box, f"timeout 4 nc -z -w3 {target} {port} && echo open || echo closed")
        assert run.stdout.strip() == "closed", target
    with pytest.raises(TimeoutError):
        server.accept()
    server.close()


MOUNTS = ["/.cay", "/etc", "/proc", "/sys", "/dev", "/run", "/tmp"]


@pytest.mark.parametrize("over", MOUNTS)
def test_mounts_over_what_others_read(create, neighbour, over):
    """A guest may spoil its own sandbox. Every verb on it ends, and none tells of the host."""
    box = create()
    root(box, f"mount -t tmpfs none {over} && echo spoilt >{over}/passwd; mkdir -p {over}/x", timeout=60)
    for verb in (lambda: box.files.read("/etc/passwd"), box.pause, lambda: e2b.Sandbox.connect(box.sandbox_id, timeout=900),
                 lambda: box.commands.run("cat /etc/hostname", timeout=30)):
        try:
            told = verb()
        except Exception as e:
            told = str(e)
        assert "/var/lib" not in str(told)
    box.kill()
    assert neighbour.commands.run("echo fine").stdout == "fine\n"


def test_no_file_system_of_the_host(create):
    box = create()
    out = root(box, "mkdir -p /m; for t in ext4 xfs erofs nfs cifs 9p virtiofs overlay sysfs proc; do mount -t $t none /m 2>/dev/null && ls /m | head -n3 && umount /m; done; "
                    "mount --bind / /m && ls /m | wc -l; cat /proc/1/root/etc/hostname; ls /proc/1/root/..").stdout
    assert "cay" in out.split()
    assert not any(name in out.split() for name in ("work", "host", "lost+found"))


FLOODS = {
    "rules": "(echo '*filter'; for i in $(seq 20000); do echo \"-A INPUT -s 10.$((i/250%250)).$((i%250)).1 -j DROP\"; done; echo COMMIT) | iptables-legacy-restore",
    "bridges": "for i in $(seq 1500); do echo link add b$i type bridge; done | ip -force -batch - ",
    "pairs": "for i in $(seq 1500); do echo link add v$i type veth peer name w$i; done | ip -force -batch -",
    "namespaces": "for i in $(seq 500); do ip netns add n$i || break; done",
    "mounts": "for i in $(seq 3000); do mount -t tmpfs none /mnt || break; done",
    "cgroups": "for i in $(seq 3000); do mkdir /sys/fs/cgroup/memory/c$i || break; done",
    "processes": "timeout 60 python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
}


@pytest.mark.parametrize("what", FLOODS)
def test_floods(create, neighbour, what):
    box = create()
    try:
        root(box, FLOODS[what] + "; true", timeout=240, request_timeout=260)
    except Exception as e:
        print(f"{what}: {e}")
    try:
        print(what, root(box, "echo alive", timeout=60, request_timeout=60).stdout)
    except Exception as e:
        print(f"{what}: then {e}")
    assert neighbour.commands.run("echo fine").stdout == "fine\n"
    box.kill()


def processes(server, box):
    """Those of the host that a sandbox has, by what they do."""
    killer = engines.Killer(server, None)
    return {what: pid for pid, what, instance in killer.processes() if killer.owner(instance) == box.sandbox_id}


def test_a_crash_of_the_sentry(create, docker, neighbour, server):
    """The kernel of one sandbox with containers faults: that one ends with its cause,
    leaves nothing on the host, and the others go on."""
    other = create()
    root(docker, "docker run -d --name one box sleep 1000; docker run -d -m 64m --name two box sleep 1000")
    os.kill(processes(server, docker)["boot"], signal.SIGSEGV)
    deadline = time.monotonic() + 60
    while processes(server, docker) or any(docker.sandbox_id in path.read_text() for path in server.data.glob("instances/*/spec.json")):
        assert time.monotonic() < deadline, "something of it is left"
        time.sleep(0.2)
    assert not docker.is_running(request_timeout=30)
    assert cayv1.call("GET", f"/sandboxes/{docker.sandbox_id}/end")["reason"] == "engine_crash"
    assert neighbour.commands.run("echo fine").stdout == "fine\n"
    assert root(other, "docker ps -q").stdout == ""


def test_a_loop_of_bridges(create, neighbour):
    """A storm of broadcasts inside ends no one but its sandbox."""
    box = create()
    try:
        root(box, "ip link add a type bridge; ip link add b type bridge; for i in 1 2; do ip link add p$i type veth peer name q$i; ip link set p$i master a; ip link set q$i master b; "
                  "ip link set p$i up; ip link set q$i up; done; ip addr add 10.9.9.1/24 dev a; ip link set a up; ip link set b up; ping -c2 -W1 10.9.9.7; true", timeout=60, request_timeout=90)
    except Exception as e:
        print(e)
    assert neighbour.commands.run("echo fine").stdout == "fine\n"
    box.kill()
