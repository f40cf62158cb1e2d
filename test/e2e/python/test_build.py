"""Templates built with the SDK's builder: sync, async, and everything that goes wrong."""

import asyncio
import io
import json
import os
import shlex
import subprocess
import tarfile
import urllib.error
import urllib.request
import uuid

import e2b
import pytest
from e2b import AsyncTemplate, Sandbox, Template, wait_for_file, wait_for_url
from e2b_code_interpreter import Sandbox as CodeInterpreter

RUN = uuid.uuid4().hex  # in first steps that must not be cached from an earlier run


@pytest.fixture
def name():
    """Makes names of templates, which are removed after the test's sandboxes.

    A test that makes sandboxes must ask for this, or for build, first.
    """
    made = []

    def make():
        made.append("t-" + uuid.uuid4().hex[:12])
        return made[-1]

    yield make
    for alias in made:
        call("DELETE", f"/templates/{alias}")


@pytest.fixture
def build(name):
    """Builds a template and returns its name and the log's messages."""

    def make(template, alias=None, **kw):
        lines = []
        alias = alias or name()
        Template.build(template, alias, on_build_logs=lambda e: lines.append(e.message), **{"cpu_count": 1, "memory_mb": 512, **kw})
        return alias, lines

    return make


def call(method, path, body=None, data=None):
    """Plain REST, for what the SDK has no method for."""
    url = path if path.startswith("http") else os.environ["E2B_API_URL"] + path
    headers = {"X-API-Key": os.environ["E2B_API_KEY"]}
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text) if text else None


@pytest.fixture
def context(tmp_path):
    """A directory to copy from, with what is awkward to copy."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text("a")
    (tmp_path / "folder" / "sub" / "b.txt").write_text("b")
    (tmp_path / "folder" / "link").symlink_to("a.txt")
    (tmp_path / "app.py").write_text("print('app')")
    (tmp_path / "folder" / "ignored.log").write_text("not this")
    (tmp_path / ".dockerignore").write_text("**/*.log\n")
    return tmp_path


def steps(context, last="one"):
    return (
        Template(file_context_path=context)
        .from_template("base")
        .set_envs({"RUN": RUN, "GREETING": "hi there", "MORE": "$PATH:/opt/more"})
        .run_cmd("id -un > ~/who; sudo sh -c 'id -un > /opt/root'; sudo chmod 4755 /opt/root")
        .copy("folder", "dest")
        .copy("app.py", "/opt/main.py", user="root", mode=0o750)
        .copy("folder/*", "/opt/glob/")
        .set_user("worker")
        .set_workdir("/srv/work")
        .run_cmd(f"rm -rf ~/x; echo $GREETING > where; pwd >> where; id -un >> where; echo {last} > /tmp/last")
        .set_start_cmd("echo started > /tmp/started; exec sleep 1000000", wait_for_file("/tmp/started"))
    )


def test_build_and_build_again(build, context, create):
    alias, lines = build(steps(context))
    assert not any("CACHED" in line for line in lines), lines
    sbx = create(alias)
    run = lambda cmd, **kw: sbx.commands.run(cmd, **kw).stdout
    assert run("cat /srv/work/where") == "hi there\n/srv/work\nworker\n"
    assert run("cat /home/user/who /opt/root; stat -c %a /opt/root") == "user\nroot\n4755\n"
    assert run("id -un; pwd; echo $GREETING; echo $MORE") == \
        "worker\n/srv/work\nhi there\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/more\n"
    listing = run("cd /home/user/dest && find . -mindepth 1 -printf '%p %y %u %l\\n' | sort")
    assert listing == "./a.txt f user \n./link l user a.txt\n./sub d user \n./sub/b.txt f user \n"
    assert run("stat -c '%U %a' /opt/main.py; cat /opt/glob/sub/b.txt; readlink /opt/glob/link") == "root 750\nba.txt\n"
    assert run("pgrep -c sleep") == "1\n"
    # Files that the steps made are in the read-only root: a fresh sandbox has written none of them.
    assert int(run("df --output=used -k / | tail -1")) < 1024
    info = sbx.get_info()
    assert (info.cpu_count, info.memory_mb) == (1, 512)

    # Booted from its files it runs the start command again, as the user of the template.
    sbx.pause(mode="filesystem")
    sbx = e2b.Sandbox.connect(sbx.sandbox_id)
    assert run("ps -o user= -C sleep") == "worker\n"

    _, lines = build(steps(context), alias)
    assert any("CACHED [finalize]" in line for line in lines), lines
    _, lines = build(steps(context, "two"), alias)
    ran = [line for line in lines if "RUN" in line or "COPY" in line or "[builder" in line]
    assert [("CACHED" in line) for line in ran] == [True] * 7 + [False], lines
    assert create(alias).commands.run("cat /tmp/last; cat /home/user/dest/a.txt; rm /home/user/dest/a.txt", user="root").stdout == "two\na"


def test_copy_of_many_files(build, create, tmp_path):
    """Many files become a layer on the host; steps and sandboxes see them as they see few."""
    for i in range(1100):
        (tmp_path / "many" / str(i % 10)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "many" / str(i % 10) / f"f{i}").write_text(f"{i} {RUN}")
    look = "cd /srv/link; find . -type f | wc -l; cat 3/f13; echo; stat -c '%U:%G %a' 3/f13 3; readlink -f .; id -un; echo $A"
    alias, lines = build(
        Template(file_context_path=tmp_path).from_template("base")
        .run_cmd("mkdir -p /srv/real && ln -s real /srv/link", user="root")
        .copy("many", "/srv/link", user="root", mode=0o640)
        .set_envs({"A": "1"}).set_user("user").set_workdir("/srv/link")
        .run_cmd(f"({look}) > ~/seen"))
    want = f"1100\n13 {RUN}\nroot:root 640\nroot:root 750\n/srv/real\n"
    sbx = create(alias)
    # The files cannot be read by the user of the template, so they are looked at as root.
    assert sbx.commands.run(look, user="root").stdout == want + "root\n1\n"
    assert sbx.commands.run("tail -n 2 ~/seen; pwd -P").stdout == "user\n1\n/srv/real\n"


def test_child_of_a_built_template(build, create):
    parent, _ = build(Template().from_template("base").set_envs({"A": "1"}).run_cmd("echo p > ~/p; sudo rm /usr/bin/file"))
    child, _ = build(Template().from_template(parent).set_envs({"B": "$A-2"}).run_cmd("cat ~/p; echo c > ~/c"))
    sbx = create(child)
    assert sbx.commands.run("cat ~/p ~/c; echo $A $B; ls /usr/bin/file 2>/dev/null | wc -l").stdout == "p\nc\n1 1-2\n0\n"


def test_an_inherited_start_command_keeps_its_context(build, create):
    """A child runs its parent's start command as the parent's user, in its directory, with its variables."""
    seen = "echo $(id -un) $(pwd) $WHO > /tmp/seen"
    parent, lines = build(
        Template().from_template("base").set_envs({"WHO": "parent"}).set_user("worker").set_workdir("/srv/parent")
        .set_start_cmd(f"{seen}; echo it serves; exec sleep 1000000", wait_for_file("/tmp/seen")))
    assert "[start] [stdout]: it serves" in lines, lines
    assert any(line.startswith("[finalize] Waiting for template to be ready: ") for line in lines), lines
    assert "[finalize] Template is ready" in lines, lines
    child, lines = build(Template().from_template(parent).set_envs({"WHO": "child"}).set_user("user").set_workdir("/opt/child"))
    grandchild, _ = build(Template().from_template(child).set_user("root").run_cmd("true"))
    for alias, own in [(child, "user /opt/child child\n"), (grandchild, "root /opt/child child\n")]:
        sbx = create(alias)
        run = lambda cmd: sbx.commands.run(cmd).stdout
        assert run("cat /tmp/seen") == "worker /srv/parent parent\n"
        assert run("echo $(id -un) $(pwd) $WHO") == own
        sbx.files.remove("/tmp/seen", user="root")
        sbx.pause(mode="filesystem")
        sbx = e2b.Sandbox.connect(sbx.sandbox_id)
        assert run("cat /tmp/seen") == "worker /srv/parent parent\n"


@pytest.fixture
def authority(tmp_path):
    """A certificate authority and a server's certificate by it, as an operator makes them."""
    openssl = lambda *args: subprocess.run(["openssl", *args], cwd=tmp_path, check=True, capture_output=True)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", f"/CN=own {RUN}")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "new.csr", "-subj", "/CN=localhost")
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost")
    openssl("x509", "-req", "-in", "new.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem", "-days", "2", "-extfile", "names")
    return tmp_path


def test_added_certificates_are_trusted(build, create, authority):
    """A COPY is enough: what makes the certificate known is run at the end, in children and in later builds too."""
    serve = ("import http.server, ssl; s = http.server.HTTPServer(('localhost', 8443), http.server.SimpleHTTPRequestHandler); "
             "c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain('/srv/cert.pem', '/srv/key.pem'); "
             "s.socket = c.wrap_socket(s.socket, server_side=True); s.serve_forever()")
    files = lambda: (
        Template(file_context_path=authority).from_template("base")
        .copy("cert.pem", "/srv/", user="root").copy("key.pem", "/srv/", user="root", mode=0o644))
    trusting = lambda: files().copy("ca.crt", "/usr/local/share/ca-certificates/own.crt", user="root")
    def fetch(alias):
        sbx = create(alias)
        sbx.commands.run(f"cd /srv && exec python3 -c {shlex.quote(serve)}", background=True)
        curl = "curl -sS -o /dev/null -w %{http_code} --retry 20 --retry-delay 1 --retry-connrefused https://localhost:8443/cert.pem"
        python = "python3 -c \"import urllib.request as r; print(r.urlopen('https://localhost:8443/cert.pem').status)\""
        try:
            return sbx.commands.run(f"{curl} && {python}").stdout
        except e2b.CommandExitException as e:
            return e.stderr
    stranger, _ = build(files())
    assert "certificate" in fetch(stranger)
    alias, lines = build(trusting())
    assert any("trusting the certificates" in line for line in lines), lines
    assert fetch(alias) == "200200\n"
    child, lines = build(Template().from_template(alias).run_cmd("true"))
    assert not any("trusting the certificates" in line for line in lines), lines
    assert fetch(child) == "200200\n"
    _, lines = build(trusting(), alias)
    assert any("CACHED [finalize]" in line for line in lines) and not any("trusting the certificates" in line for line in lines), lines
    _, lines = build(trusting().run_cmd("echo more > /tmp/more"), alias)
    assert fetch(alias) == "200200\n"


def test_child_of_a_sandbox(build, name, create):
    """A snapshot of a sandbox is a template like any other: its files are there, and steps see them."""
    parent, _ = build(Template().from_template("base").set_envs({"A": "1"}).run_cmd("echo p > ~/p"))
    sbx = create(parent)
    sbx.commands.run("echo s > ~/s; rm ~/p; ln ~/s ~/t; sudo rm /usr/bin/file; head -c 3000000 /dev/urandom > ~/big; md5sum ~/big > ~/sum")
    saved = sbx.create_snapshot().snapshot_id
    try:
        child, _ = build(Template().from_template(saved).set_envs({"B": "$A-2"}).run_cmd("cat ~/s > ~/c; md5sum -c ~/sum"))
        made = create(child).commands.run("ls ~; ls /usr/bin/file 2>/dev/null; stat -c %h ~/t; md5sum -c ~/sum; cat ~/c; echo $A $B; id -un")
        assert made.stdout.split() == ["big", "c", "s", "sum", "t", "2", "/home/user/big:", "OK", "s", "1", "1-2", "user"], made.stdout
    finally:
        call("DELETE", f"/templates/{saved}")


def test_force(build):
    flow = lambda last: Template().from_template("base").run_cmd(f"echo {RUN}").run_cmd(last)
    alias, _ = build(flow("echo 2"))
    _, lines = build(flow("echo 2"), alias, skip_cache=True)
    assert not any("CACHED" in line for line in lines), lines
    half = Template().from_template("base").run_cmd(f"echo {RUN}").skip_cache().run_cmd("echo 2")
    _, lines = build(half, alias)
    assert [("CACHED" in line) for line in lines if "RUN" in line] == [True, False], lines


def test_images_that_are_ours(build, create):
    alias, _ = build(Template().from_image("e2bdev/base").run_cmd("echo ours > ~/ours"))
    assert create(alias).commands.run("cat ~/ours; id -un").stdout == "ours\nuser\n"


@pytest.mark.parametrize("user", ["", "USER user\n"])
def test_start_command_of_the_interpreter(build, create, tmp_path, user):
    """The custom template of E2B's articles, word for word."""
    (tmp_path / "Dockerfile").write_text(f"FROM e2bdev/code-interpreter:latest\nRUN pip install cowsay\n{user}")
    template = Template().from_dockerfile(str(tmp_path / "Dockerfile")).set_start_cmd(
        "/root/.jupyter/start-up.sh", wait_for_url("http://localhost:49999/health"))
    alias, _ = build(template)
    sandbox = create(alias, kind=CodeInterpreter)
    execution = sandbox.run_code("import cowsay\ncowsay.cow('moo')")
    assert execution.error is None and "moo" in "".join(execution.logs.stdout)
    assert sandbox.commands.run("pgrep -c sleep").stdout.strip() == "1", "the start command stays"


def fails(build, template, text, alias):
    with pytest.raises(e2b.exceptions.BuildException) as failure:
        build(template, alias)
    assert text in str(failure.value), str(failure.value)
    return failure


def test_failed_steps_say_which_and_keep_what_serves(build, create):
    alias, _ = build(Template().from_template("base").run_cmd("echo good > ~/state"))
    base = lambda: Template().from_template("base").run_cmd("true")
    fails(build, base().run_cmd("echo why >&2; exit 3"), "failed to run command 'echo why >&2; exit 3': exit status 3\nwhy", alias)
    fails(build, base().run_cmd("whoami", user="root123"),
          "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'", alias)
    fails(build, Template().from_template("not-there"), "not found", alias)
    fails(build, Template().from_image("nobody.invalid/nothing:1"), "nobody.invalid/nothing:1", alias)
    fails(build, base().set_start_cmd("exit 7", wait_for_file("/never")), "the start command ended before the template was ready: exit status 7", alias)
    assert create(alias).commands.run("cat ~/state").stdout == "good\n"
    status, template = call("GET", f"/templates/{alias}")
    assert status == 200 and sorted(b["status"] for b in template["builds"]) == ["error"] * 5 + ["ready"]
    failed = [b for b in template["builds"] if b["status"] == "error"]
    reasons = [call("GET", f"/templates/{template['templateID']}/builds/{b['buildID']}/status")[1]["reason"] for b in failed]
    assert sorted(r["step"] for r in reasons) == ["2", "2", "base", "base", "finalize"]


def test_archives_that_are_wrong(name, eventually):
    good = io.BytesIO()
    with tarfile.open(fileobj=good, mode="w:gz") as tar:
        entry = tarfile.TarInfo("f")
        entry.size = 200_000
        tar.addfile(entry, io.BytesIO(os.urandom(200_000)))
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/cron.d/f"))
    cases = {"damaged": good.getvalue()[:100_000], "outside": evil.getvalue(), "never uploaded": None, "no archive": b"nothing"}
    for what, data in cases.items():
        _, made = call("POST", "/v3/templates", {"name": name()})
        template, build_id, digest = made["templateID"], made["buildID"], uuid.uuid4().hex * 2
        status, link = call("GET", f"/templates/{template}/files/{digest}")
        assert status == 201 and link["present"] is False
        if data is not None:
            assert call("PUT", link["url"], data=data)[0] == 200
            assert call("PUT", link["url"] + "0", data=data)[0] == 403
        step = {"type": "COPY", "args": [".", "/opt/", "", ""], "filesHash": digest}
        assert call("POST", f"/v2/templates/{template}/builds/{build_id}", {"fromTemplate": "base", "steps": [step]})[0] == 202
        state = eventually(lambda: (s := call("GET", f"/templates/{template}/builds/{build_id}/status")[1])["status"] != "building" and s, 300)
        assert state["status"] == "error" and state["reason"]["step"] == "1", (what, state)
        # A damaged one is not taken for the archive again.
        assert call("GET", f"/templates/{template}/files/{digest}")[1]["present"] is (what == "outside"), what
        assert call("DELETE", f"/templates/{template}")[0] == 204


def test_requests_that_are_wrong(name):
    for body, text in [
        ({"name": "x", "cpuCount": 64}, "CPU count must be at most 32"),
        ({"name": "x", "cpuCount": 3}, "CPU count must be 1 or an even number"),
        ({"name": "x", "memoryMB": 1023}, "Memory must be divisible by 2"),
        ({"name": "no spaces"}, "is no name"),
        ({"name": "x:"}, "invalid tag"),
        ({}, "name: is required"),
    ]:
        status, error = call("POST", "/v3/templates", body)
        assert status == 400 and text in error["message"], (body, status, error)
    assert call("POST", "/v3/templates", {"name": "base"})[0] == 403
    _, made = call("POST", "/v3/templates", {"name": name()})
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    assert call("POST", path, {})[0] == 400
    assert call("POST", path, {"fromTemplate": "base", "steps": [{"type": "EXEC", "args": ["x"]}]})[0] == 400
    assert call("POST", path.replace(made["buildID"], str(uuid.uuid4())), {"fromTemplate": "base"})[0] == 404
    assert call("DELETE", f"/templates/{made['templateID']}")[0] == 204


def test_tags(build, create):
    alias, _ = build(Template().from_template("base").run_cmd("echo 1 > ~/v"))
    with pytest.raises(e2b.exceptions.SandboxException):
        Sandbox.create(f"{alias}:v1")
    assert Template.assign_tags(f"{alias}:default", "v1").tags == ["v1"]
    build(Template().from_template("base").run_cmd("echo 2 > ~/v"), f"{alias}:v2", tags=["latest"])
    version = lambda tag: create(alias + tag).commands.run("cat ~/v").stdout.strip()
    assert [version(""), version(":default"), version(":v1"), version(":v2"), version(":latest")] == ["1", "1", "1", "2", "2"]
    Template.assign_tags(f"{alias}:v2", ["default", "v1"])
    assert [version(""), version(":v1")] == ["2", "2"]
    assert sorted(tag.tag for tag in Template.get_tags(alias)) == ["default", "latest", "v1", "v2"]
    Template.remove_tags(alias, ["v2", "latest"])
    assert sorted(tag.tag for tag in Template.get_tags(alias)) == ["default", "v1"]
    with pytest.raises(e2b.exceptions.TemplateException):
        Template.remove_tags(alias, "default")
    with pytest.raises(e2b.exceptions.TemplateException):
        Template.assign_tags(f"{alias}:never", "v3")
    assert call("DELETE", f"/templates/{alias}")[0] == 400  # sandboxes run
    assert call("PATCH", f"/v2/templates/{alias}", {"public": True})[0] == 200
    assert call("GET", f"/templates/{alias}")[1]["public"] is True


def test_a_template_with_named_tags_only(build, create):
    """It is listed with the size and the state of its newest build; its bare name starts nothing."""
    alias = "t-" + uuid.uuid4().hex[:12]
    build(Template().from_template("base").run_cmd("true"), f"{alias}:v1")
    try:
        build(Template().from_template("base").run_cmd("true"), f"{alias}:v2", memory_mb=1024)
        listed = [t for t in call("GET", "/templates")[1] if alias in t["aliases"]][0]
        one = call("GET", f"/templates/{alias}")[1]
        for t in (listed, one):
            assert (t["cpuCount"], t["memoryMB"], t["buildStatus"], t["buildCount"]) == (1, 1024, "ready", 2), t
            assert t["buildID"] == one["builds"][0]["buildID"] and t["envdVersion"] and t["diskSizeMB"], t
        create(f"{alias}:v2")
        with pytest.raises(e2b.exceptions.SandboxException):
            Sandbox.create(alias)
    finally:
        assert call("DELETE", f"/templates/{alias}")[0] in (204, 400)


def test_exists_and_background(name, eventually):
    alias = name()
    assert not Template.exists(alias)
    info = Template.build_in_background(Template().from_template("base").run_cmd("echo background"), alias)
    status = eventually(lambda: (s := Template.get_build_status(info)).status.value != "building" and s, 300)
    assert status.status.value == "ready"
    assert any("background" in entry.message for entry in status.log_entries)
    assert Template.exists(alias)
    _, logs = call("GET", f"/templates/{info.template_id}/builds/{info.build_id}/logs?direction=backward&limit=1")
    assert logs["logs"][0]["message"].startswith("Build finished")
    assert call("DELETE", f"/templates/{alias}")[0] == 204
    assert not Template.exists(alias)


def test_async_and_at_once(name, create):
    one, two = name(), name()

    async def both():
        flow = lambda n: AsyncTemplate().from_template("base").run_cmd(f"echo {n} > ~/n")
        await asyncio.gather(*(AsyncTemplate.build(flow(n), n, cpu_count=1, memory_mb=512) for n in (one, two)))

    asyncio.run(both())
    assert [create(n).commands.run("cat ~/n").stdout.strip() for n in (one, two)] == [one, two]
