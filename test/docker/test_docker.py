"""The rows of docs/use/inside.md that want a template with Docker."""

import os
import re
import signal
import time
import urllib.request
import uuid

import e2b
import pytest

import cayv1
from conftest import IMAGE


def output(box, command, user="user", timeout=120):
    return box.commands.run(command, user=user, timeout=timeout).stdout.strip()


def get(box, port, path="/"):
    """Asks a published port as a stranger does, through the server's."""
    request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + path, headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read().decode().strip()


def eventually(probe, seconds):
    """Calls until the result is true; how long that took."""
    begun = time.monotonic()
    while True:
        try:
            if probe():
                return time.monotonic() - begun
        except Exception as e:
            failure = e
        else:
            failure = None
        assert time.monotonic() - begun < seconds, f"not true after {seconds} s: {failure}"
        time.sleep(0.1)


def test_a_new_sandbox_runs_containers_at_once(docker):
    begun = time.monotonic()
    assert output(docker, "docker run --rm box echo hello") == "hello"
    print(f"docker run: {time.monotonic() - begun:.2f} s")
    assert output(docker, "docker info -f '{{.Driver}} {{.CgroupVersion}}'") == "overlay2 1"
    assert output(docker, "docker run -d --name one box sleep 1000 >/dev/null; docker exec one echo inside; docker logs one; docker rm -f one") == "inside\none"


def test_the_first_command_finds_the_network(create):
    for _ in range(3):
        assert "docker0" in output(create(), "docker version >/dev/null; cat /proc/net/dev")


def test_builds_with_buildkit(docker):
    docker.files.write("/home/user/app/Dockerfile", (
        "FROM box\nRUN echo one >/one && echo two >/two\nRUN rm /one\nCOPY note /note\nENV WORD=env\n"
        "FROM box AS last\nCOPY --from=0 /two /note /\nCMD [\"cat\", \"/two\", \"/note\"]\n"))
    docker.files.write("/home/user/app/note", "copied\n")
    log = docker.commands.run("docker build -t app app 2>&1", timeout=300).stdout
    assert "#" in log and "naming to docker.io/library/app" in log  # BuildKit's words
    assert output(docker, "docker run --rm app") == "two\ncopied"
    first = output(docker, "docker build -q --target 0 -t first app 2>/dev/null || docker build -q -t first app")
    assert first.startswith("sha256:")
    docker.files.write("/home/user/scratch/Dockerfile", "FROM scratch\nCOPY busybox /bin/sh\nENTRYPOINT [\"/bin/sh\", \"-c\", \"echo from scratch\"]\n")
    assert output(docker, "cp /bin/busybox scratch && docker build -qt scratch scratch >/dev/null && docker run --rm scratch") == "from scratch"


def test_pull_by_the_rules_of_egress(create, image):
    assert output(create(), f"docker run --rm {image}") == "two"
    name = image.partition(":")[0]
    allowed = create(network={"deny_out": ["0.0.0.0/0"], "allow_out": [name]})
    assert output(allowed, f"docker pull -q {image} && docker run --rm {image}").splitlines()[-1] == "two"
    closed = create(network={"deny_out": ["0.0.0.0/0"], "allow_out": ["other.example"]})
    with pytest.raises(e2b.CommandExitException):
        closed.commands.run(f"docker pull -q {image}", timeout=120)


def test_a_removed_file_stays_removed(docker):
    docker.files.write("/home/user/app/Dockerfile", "FROM box\nRUN rm /www/index.html && rm -r /www && mkdir /www\n")
    assert output(docker, "docker build -qt app app >/dev/null && docker run --rm app ls /www") == ""


def test_published_ports(docker):
    output(docker, "docker run -d -p 8080:80 box httpd -f -h /www")
    eventually(lambda: get(docker, 8080, "/index.html") == "served", 20)
    output(docker, "docker run -d --network host box httpd -f -p 8081 -h /www")
    eventually(lambda: get(docker, 8081, "/index.html") == "served", 20)


def test_containers_reach_the_internet_and_each_other(docker):
    # The name server of the sandbox answers a container: packets go out and come back.
    server = output(docker, "sed -n 's/^nameserver //p' /etc/resolv.conf | head -n1")
    told = docker.commands.run(f"docker run --rm box nslookup name.invalid {server} 2>&1; true", timeout=60).stdout
    assert "NXDOMAIN" in told or "can't find" in told, told
    output(docker, "docker network create net && docker run -d --name web --network net box httpd -f -h /www")
    eventually(lambda: output(docker, "docker run --rm --network net box wget -qO- http://web/index.html") == "served", 20)


def test_memory_limits_bite(docker):
    hog = "docker run --name hog -m 64m box sh -c 'x=$(head -c 300000000 /dev/zero | cat -v); echo survived'"
    ended = docker.commands.run(hog + "; docker inspect -f '{{.State.ExitCode}}' hog", timeout=120).stdout
    assert "survived" not in ended and ended.split()[-1] in ("137", "2", "1")
    assert "memory" in output(docker, "journalctl -u docker-keeper -o cat -n 50", "root")
    assert output(docker, "docker run --rm -m 64m box echo small") == "small"


COMPOSE = """
version: "3"
services:
  web:
    image: box
    command: httpd -f -h /www
    ports: ["9090:80"]
  ask:
    image: box
    command: sh -c 'until wget -qO- http://web/index.html; do sleep 0.2; done; sleep 1000'
    depends_on: [web]
"""


def test_compose(docker):
    docker.files.write("/home/user/app/docker-compose.yml", COMPOSE)
    output(docker, "cd app && docker-compose up -d 2>&1", timeout=300)
    eventually(lambda: get(docker, 9090, "/index.html") == "served", 20)
    eventually(lambda: "served" in output(docker, "cd app && docker-compose logs ask"), 20)
    docker.pause()
    e2b.Sandbox.connect(docker.sandbox_id, timeout=1800)
    print(f"compose answers {eventually(lambda: get(docker, 9090, '/index.html') == 'served', 10):.2f} s after the resume")
    eventually(lambda: output(docker, "cd app && docker-compose exec -T ask wget -qO- http://web/index.html") == "served", 10)  # by name
    output(docker, "cd app && docker-compose down 2>&1")


def test_after_pause_resume_fork_and_rollback(docker):
    output(docker, "docker run -d --name bridged -p 8080:80 box sh -c 'echo $$RANDOM >/www/id; exec httpd -f -h /www'")
    output(docker, "docker run -d --name host --network host box httpd -f -p 8081 -h /www")
    eventually(lambda: get(docker, 8080, "/index.html") == "served", 20)
    eventually(lambda: get(docker, 8081, "/index.html") == "served", 20)
    started = output(docker, "docker inspect -f '{{.State.StartedAt}}' bridged host")
    node = cayv1.checkpoint(docker)

    def goes_on(box, what):
        assert get(box, 8081, "/index.html") == "served", what  # at once
        took = eventually(lambda: get(box, 8080, "/index.html") == "served", 10)
        print(f"{what}: bridged after {took:.2f} s")
        assert output(box, "docker exec bridged echo in") == "in"
        assert output(box, "docker inspect -f '{{.State.StartedAt}}' bridged host") == started, what  # the same processes
        assert output(box, "docker run --rm box echo new") == "new"

    docker.pause()
    e2b.Sandbox.connect(docker.sandbox_id, timeout=1800)
    goes_on(docker, "resume")
    fork, = docker.fork()
    try:
        goes_on(fork, "fork")
        goes_on(docker, "source of the fork")
    finally:
        fork.kill()
    cayv1.rollback(docker, node)
    goes_on(docker, "rollback")


# Sends a line over one connection each time that it is asked, and tells the answer.
ASKER = """
import socket, sys, time
while True:
    try:
        c = socket.create_connection((sys.argv[1], 7000), 30).makefile("rw")
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
for _ in range(3):
    open("/tmp/ask").read()
    c.write("still\\n"); c.flush()
    open("/tmp/say", "w").write(c.readline())
"""


def test_connections_go_on_while_a_checkpoint_is_taken(docker):
    docker.files.write("/tmp/asker.py", ASKER)
    output(docker, "docker run -d --name echo box sh -c 'busybox mkfifo /f; cat /f | busybox nc -l -p 7000 >/f'; mkfifo /tmp/ask /tmp/say")
    address = output(docker, "docker inspect -f '{{.NetworkSettings.IPAddress}}' echo")
    docker.commands.run(f"python3 /tmp/asker.py {address}", background=True, timeout=0)
    say = "timeout 60 sh -c 'echo >/tmp/ask; cat /tmp/say'"
    assert output(docker, say) == "still"
    cayv1.checkpoint(docker)
    assert output(docker, say) == "still"
    fork, = docker.fork()
    fork.kill()
    assert output(docker, say) == "still"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_containers_outlive_their_server(docker, server, end):
    """A server that is killed, and one that makes room for the next release."""
    output(docker, "docker run -d --name stays -p 8080:80 box httpd -f -h /www")
    paused = e2b.Sandbox.create("docker", timeout=1800)
    try:
        started = output(docker, "docker inspect -f '{{.State.StartedAt}}' stays")
        paused.pause()
        server.process.send_signal(end)
        server.process.wait()
        server.start(templates=["base"])
        assert get(docker, 8080, "/index.html") == "served"
        assert output(docker, "docker inspect -f '{{.State.StartedAt}}' stays") == started
        assert output(docker, "docker run --rm box echo new") == "new"
        docker.pause()
        for box in (docker, paused):
            e2b.Sandbox.connect(box.sandbox_id, timeout=1800)
        eventually(lambda: get(docker, 8080, "/index.html") == "served", 10)
        assert "docker0" in output(paused, "docker ps >/dev/null; cat /proc/net/dev")
    finally:
        paused.kill()


def test_containers_outlive_a_containerd_that_stalls_or_ends(docker):
    output(docker, "docker run -d --name stays box sleep 1000")
    main = lambda: output(docker, "systemctl show -p MainPID --value containerd")
    started, first = output(docker, "docker inspect -f '{{.State.StartedAt}}' stays"), main()
    stalled = f"kill -STOP {first}; timeout -s KILL 12 docker run --rm box true >/dev/null 2>&1; echo $?; kill -CONT {first}"
    assert output(docker, stalled, "root") == "137"
    assert output(docker, "docker run --rm box echo hello") == "hello"
    assert main() == first
    output(docker, f"kill -9 {first}", "root")
    eventually(lambda: main() not in (first, "0"), 20)
    eventually(lambda: output(docker, "docker run --rm box echo hello") == "hello", 30)
    assert output(docker, "docker exec stays echo in; docker inspect -f '{{.State.StartedAt}}' stays") == f"in\n{started}"


# A raw socket hears the echo that it asks for.
RAW = """python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout(10)
s.sendto(bytes([8, 0, 0xf7, 0xff, 0, 0, 0, 0]), ('127.0.0.1', 0))
while s.recv(100)[20] != 0: pass
print('raw')"
"""


def test_mounts_cgroups_and_networks_of_root(create):
    """Root of such a sandbox has them beside Docker; a restore brings back all but networks."""
    box = create()
    sleeper = output(box, "mount -t tmpfs none /mnt && echo kept >/mnt/f; mkdir /sys/fs/cgroup/memory/mine; sleep 1000 >/dev/null 2>&1 & "
                          "echo $! >/sys/fs/cgroup/memory/mine/cgroup.procs; echo $!", "root")
    kept = f"cat /mnt/f /sys/fs/cgroup/memory/mine/cgroup.procs; {RAW}"
    assert output(box, kept, "root").split() == ["kept", sleeper, "raw"]
    network = "ip link add b0 type bridge; ip link add v0 type veth peer name v1 && ip link set v0 master b0; iptables-legacy -t nat -A POSTROUTING -o eth0 -p udp -j ACCEPT; "
    told = "grep -c '^ *[bv]0:' /proc/net/dev; iptables-legacy -t nat -S POSTROUTING | grep -c ACCEPT$"
    assert output(box, network + told, "root").split() == ["2", "2"]  # the rule, and the policy of the chain
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=1800)
    assert output(box, kept, "root").split() == ["kept", sleeper, "raw"]
    assert output(box, f"{told}; true", "root").split() == ["0", "1"]
    assert output(box, network + told, "root").split() == ["2", "2"]


def test_containers_have_volumes_of_the_sandbox(create):
    volume = e2b.Volume.create(f"docker-{uuid.uuid4().hex[:8]}")
    try:
        box = create(volume_mounts={"/mnt/data": volume})
        output(box, IMAGE)
        output(box, "docker run -d --name writer -v /mnt/data:/data box sh -c 'while echo x >>/data/lines; do sleep 0.2; done'")
        output(box, "docker run --rm -v /mnt/data:/data box sh -c 'echo once >/data/note'")
        assert volume.read_file("/note") == "once\n"
        volume.write_file("/told", "outside")
        assert output(box, "docker exec writer cat /data/told") == "outside"
        box.pause()
        e2b.Sandbox.connect(box.sandbox_id, timeout=1800)
        assert output(box, "docker exec writer cat /data/told") == "outside"
        lines = lambda: len(volume.read_file("/lines"))
        before = lines()
        eventually(lambda: lines() > before, 20)
        box.kill()
    finally:
        e2b.Volume.destroy(volume.volume_id)


def test_a_start_from_files_keeps_images(docker):
    output(docker, "docker run -d --name stays --restart always -p 8080:80 box httpd -f -h /www")
    docker.pause()
    e2b.Sandbox.connect(docker.sandbox_id, timeout=1800, on_resume="reboot")
    eventually(lambda: "box" in output(docker, "docker images"), 60)
    assert output(docker, "docker run --rm box echo hello") == "hello"
    eventually(lambda: get(docker, 8080, "/index.html") == "served", 60)


def test_diff_knows_the_store(docker):
    before = cayv1.checkpoint(docker)
    output(docker, "docker create --name made box true && docker cp /etc/hostname made:/copied && echo x >/home/user/beside")
    paths = cayv1.changes(docker, before)
    assert "/home/user/beside" in paths
    assert any(re.fullmatch("/var/lib/docker/overlay2/[0-9a-f]+/diff/copied", path) for path in paths), sorted(paths)


def test_the_store_ends_where_half_of_the_disk_does(docker):
    size = lambda path: int(output(docker, f"df --output=size -BM {path} | tail -n1").rstrip("M"))
    assert size("/") == size("/var/lib/docker") == 5120
    full = docker.commands.run("docker run --rm box dd if=/dev/zero of=/big bs=1M count=6000 2>&1; echo", timeout=600).stdout
    assert "No space left on device" in full
    # A container that fills it keeps it full: nothing else is hurt, and its removal is a cure.
    full = docker.commands.run("docker run --name full box dd if=/dev/zero of=/big bs=1M count=6000 2>&1; echo", timeout=600).stdout
    assert "No space left on device" in full
    refused = docker.commands.run("docker run --rm box echo hello 2>&1 || true", timeout=120).stdout
    assert "no space left on device" in refused.lower(), refused
    output(docker, "echo kept >/home/user/note")
    docker.pause()
    e2b.Sandbox.connect(docker.sandbox_id, timeout=1800)
    assert output(docker, "cat /home/user/note; docker ps -a --format '{{.Names}}'") == "kept\nfull"
    output(docker, "docker rm full")
    assert output(docker, "docker run --rm box echo hello") == "hello"
