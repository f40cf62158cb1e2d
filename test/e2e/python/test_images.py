"""Templates from images of registries and archives, and from Dockerfiles."""

import json
import os
import shutil
import subprocess
import uuid

import e2b
import pytest

import registry
import world

BUSYBOX = shutil.which("busybox")
pytestmark = pytest.mark.skipif(not BUSYBOX, reason="busybox-static is not installed: scripts/setup all")


@pytest.fixture(scope="module")
def server():
    """A private registry with one image, which no data directory has seen yet."""
    host, _, port = world.Server().registry.rpartition(":")
    r = registry.Registry(host, int(port), password="sesame")
    r.image = r.add("team/tiny:1", registry.tiny(BUSYBOX), User="root",
                    Env=["FLAVOUR=sweet", f"ONCE={uuid.uuid4()}", "PATH=/opt/tiny:/usr/bin:/bin"])
    r.foreign = r.add("team/foreign:1", [registry.layer(("etc",), ("etc/os-release", b"ID=plan9\n", 0o644))])
    yield r
    r.close()


def cay(*args, check=True, **kw):
    return subprocess.run([str(world.CAY), *args], check=check, text=True, capture_output=True, timeout=300,
                          stdin=subprocess.DEVNULL, **kw)


@pytest.fixture
def name():
    """A template's name that is deleted afterwards, if it was built."""
    name = "t" + uuid.uuid4().hex[:10]
    yield name
    cay("template", "delete", name, check=False)


SHOW = "cat /greeting; ls /old; stat -c %a:%h /usr/bin/raised; echo $FLAVOUR $PATH; id -un; pwd"


def test_an_image_of_a_private_registry(server, name, create):
    log = []
    template = e2b.Template().from_image(server.image, username="robot", password="sesame").run_cmd("echo made > made")
    e2b.Template.build(template, name, on_build_logs=log.append)
    box = create(name)
    assert box.commands.run(SHOW).stdout == "twokept\n4755:2\nsweet /opt/tiny:/usr/bin:/bin\nuser\n/home/user\n"
    assert box.commands.run("cat made; grep CapEff /proc/self/status").stdout == f"made\nCapEff:\t{0:016x}\n"
    assert any('["bin/busybox"] lose theirs' in line.message for line in log), log
    assert not any("sesame" in line.message for line in log)


@pytest.mark.parametrize("what, says", [
    (dict(image="team/tiny:1", username="robot", password="wrong"), "credentials are wrong"),
    (dict(image="team/none:1", username="robot", password="sesame"), "has no image"),
    (dict(image="team/foreign:1", username="robot", password="sesame"), "ID='plan9' is not supported"),
])
def test_images_that_cannot_be_used(server, name, what, says):
    template = e2b.Template().from_image(**{**what, "image": f"{server.host}/{what['image']}"})
    with pytest.raises(e2b.BuildException, match=says):
        e2b.Template.build(template, name)


def test_registries_of_private_networks_are_closed(name):
    with pytest.raises(e2b.BuildException, match="private network"):
        e2b.Template.build(e2b.Template().from_image("127.0.0.1:1/x:1"), name)


DOCKERFILE = """
FROM tiny-e2e:1 AS build
RUN echo built > /out && mkdir /dir && echo deep > /dir/f
FROM tiny-e2e:1
ARG WHO=nobody
COPY --from=build /out /dir/ /data/
COPY --chmod=640 *.txt /data/
COPY <<END /data/inline
for $WHO
END
ADD packed.tar.gz /data/
RUN <<END
echo "$WHO" > /data/arg
END
ENV A=1 B="$FLAVOUR/x"
USER root
WORKDIR /data
CMD sleep infinity
HEALTHCHECK CMD test -e /data/arg
"""


def test_a_dockerfile_of_two_stages(tmp_path, name, create):
    archive = tmp_path / "tiny.tar"
    archive.write_bytes(registry.saved("tiny-e2e:1", registry.tiny(BUSYBOX), Env=["FLAVOUR=sweet"]))
    cay("image", "import", str(archive))
    try:
        listed = json.loads(cay("--json", "image", "list").stdout)
        assert [i["imported"] for i in listed if i["names"] == ["index.docker.io/library/tiny-e2e:1"]] == [True]
        context = tmp_path / "context"
        context.mkdir()
        (context / "Dockerfile").write_text(DOCKERFILE)
        (context / ".dockerignore").write_text("secret.txt\n")
        (context / "a.txt").write_text("a")
        (context / "secret.txt").write_text("s")
        (tmp_path / "packed").write_text("p")
        subprocess.run(["tar", "-czf", context / "packed.tar.gz", "-C", tmp_path, "packed"], check=True)

        cay("template", "build", str(context), "-t", name, "--build-arg", "WHO=me")
        box = create(name)
        run = lambda line: box.commands.run(line).stdout
        assert run("cd /data && ls && cat out f a.txt inline packed arg && stat -c %a a.txt") == (
            "a.txt\narg\nf\ninline\nout\npacked\n" "built\ndeep\nafor me\npme\n640\n")
        assert run("echo $A $B; id -un; pwd; ps | grep -c '[s]leep infinity'") == "1 sweet/x\nroot\n/data\n1\n"

        again = cay("template", "build", str(context), "-t", name, "--build-arg", "WHO=me")
        assert "CACHED [finalize] snapshot" in again.stderr
        cay("template", "tag", name, "v1", "v2")
        cay("template", "tag", "-d", name, "v2")
        assert create(f"{name}:v1").commands.run("cat arg").stdout == "me\n"
        assert cay("sandbox", "create", f"{name}:v2", check=False).returncode != 0
        for public, options in (True, []), (False, ["-d"]):
            cay("template", "publish", name, *options)
            told = json.loads(cay("--json", "template", "info", name).stdout)
            assert told["public"] is public and told["diskUse"]["ownBytes"] > 0, told
        assert "private\n" in cay("template", "info", name).stdout
        assert not [t for t in json.loads(cay("--json", "template", "list").stdout) if "-stage-" in str(t["names"])]
    finally:
        cay("image", "rm", "tiny-e2e:1")


@pytest.mark.parametrize("text, says", [
    ("FROM e2bdev/base\nRUNN x", "line 2"),
    ("FROM e2bdev/base\nCOPY none /x", "line 2"),
    ("FROM e2bdev/base\nRUN exit 3", "exit status 3"),
    ("FROM scratch\nCOPY x /", "line 1"),
])
def test_dockerfiles_that_fail(tmp_path, name, text, says):
    (tmp_path / "Dockerfile").write_text(text)
    done = cay("template", "build", str(tmp_path), "-t", name, check=False)
    assert done.returncode == 1
    assert says in done.stderr


def test_collecting_keeps_what_the_next_build_begins_with(server, name, eventually):
    template = lambda: e2b.Template().from_image(server.image, username="robot", password="sesame").run_cmd(f"echo {name}")
    build = lambda: e2b.Template.build(template(), name, on_build_logs=log.append)
    log = []
    build()
    use = json.loads(cay("template", "info", name, "--json").stdout)["diskUse"]
    assert use["ownBytes"] > 1_000_000, use
    cay("template", "delete", name)
    eventually(lambda: world.Server().leads().cay("gc", check=False).returncode == 0, 300)  # it waits for other tests' builds
    log.clear()
    build()
    lines = [line.message for line in log]
    assert any("CACHED" in line for line in lines) and not any("making a root" in line for line in lines), lines


def test_a_template_travels_as_one_file(server, name, create, tmp_path):
    template = e2b.Template().from_image(server.image, username="robot", password="sesame").set_envs({"MADE": "there"}) \
        .run_cmd(f"echo {name} > ~/made; ln ~/made ~/second").set_start_cmd("echo up > /tmp/up; exec sleep infinity", "test -f /tmp/up")
    e2b.Template.build(template, name, cpu_count=1, memory_mb=512)
    file = tmp_path / "t.cay"
    cay("template", "export", name, "-o", str(file))
    cay("template", "delete", name)
    told = cay("template", "import", str(file))
    assert "Build finished" in told.stderr
    box = create(name)
    shown = box.commands.run(SHOW + "; cat made; stat -c %h second; cat /tmp/up; echo $MADE; pgrep -c sleep || ps | grep -c 'sleep infinit[y]'")
    assert shown.stdout == f"twokept\n4755:2\nsweet /opt/tiny:/usr/bin:/bin\nuser\n/home/user\n{name}\n2\nup\nthere\n1\n"
    assert (box.get_info().cpu_count, box.get_info().memory_mb) == (1, 512)
    box.kill()
    # One that is damaged is seen, and what is there still serves.
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    for damaged in data, data[:-1000]:
        file.write_bytes(damaged)
        failed = cay("template", "import", str(file), check=False)
        assert failed.returncode == 1 and "damaged" in failed.stderr, failed.stderr
    assert create(name).commands.run("cat ~/made").stdout == name + "\n"
