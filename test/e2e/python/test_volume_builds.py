"""Template builds that mount volumes, by `cay template build` and over REST."""

import os
import uuid

import e2b
import pytest

import world
from test_build import call


@pytest.fixture(scope="module")
def server():
    server = world.Server()
    server.env.update({name: os.environ[name] for name in ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL") if name in os.environ})
    return server


@pytest.fixture
def name(server):
    name = f"vb-{uuid.uuid4().hex[:8]}"
    yield name
    call("DELETE", f"/templates/{name}")


@pytest.fixture
def volume():
    made = e2b.Volume.create(f"vb-{uuid.uuid4().hex[:8]}")
    yield made
    e2b.Volume.destroy(made.volume_id)


# COPY writes to where the volume is for RUN: it goes to the template.
DOCKERFILE = """\
FROM e2bdev/base
USER root
COPY own /mnt/data/own
RUN cp /mnt/data/in /made && test ! -e /mnt/data/own && date +%N >> /mnt/data/runs && sync
RUN ! touch /srv/fixed/x && ls /srv/fixed > /listed && cd /new/dir && cp deep ../../fetched
WORKDIR /new/dir
"""


def test_what_lies_on_a_volume_is_no_part_of_the_template(server, name, volume, tmp_path):
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "own").write_text("of the template\n")
    volume.make_dir("/sub")
    volume.write_file("/sub/deep", "below\n")
    mounts = ["--volume", f"{volume.name}:/mnt/data", "--volume", f"{volume.name}/sub:/new/dir", "--volume", f"{volume.name}:/srv/fixed:ro"]
    for turn in "first", "second":
        volume.write_file("/in", turn)
        done = server.cay("template", "build", str(tmp_path), "-t", name, *mounts, timeout=600)
        assert not [line for line in done.stderr.splitlines() if "CACHED" in line and "RUN" in line], done.stderr
        assert turn == "first" or "COPY" in "".join(line for line in done.stderr.splitlines() if "CACHED" in line), done.stderr
        box = e2b.Sandbox.create(name, timeout=300)
        try:
            told = box.commands.run("cat /made /mnt/data/own; ls -A /mnt/data /srv/fixed /new/dir; cat /listed /fetched; pwd", user="root")
        finally:
            box.kill()
        assert told.stdout.splitlines() == [
            turn + "of the template", "/mnt/data:", "own", "", "/new/dir:", "", "/srv/fixed:", "in", "runs", "sub", "below", "/new/dir",
        ]
    assert len(volume.read_file("/runs").splitlines()) == 2
    assert not volume.exists("/own")


def test_a_volume_in_use_and_one_that_cannot_be(name, volume, eventually):
    _, made = call("POST", "/v3/templates", {"name": name})
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    body = {
        "fromTemplate": "base",
        "steps": [{"type": "RUN", "args": ["touch /mnt/began && until [ -e /mnt/go ]; do sleep 0.2; done"]}],
        "volumeMounts": [{"name": volume.name, "path": "/mnt"}, {"name": "none-of-ours", "path": "/opt"}],
    }
    status, refused = call("POST", path, body)
    assert status == 400 and refused["message"].startswith("volumeMounts[1].name"), refused
    body["volumeMounts"].pop()
    assert call("POST", path, body)[0] == 202
    eventually(lambda: volume.exists("/began"), 300)
    status, refused = call("DELETE", f"/volumes/{volume.volume_id}")
    assert status == 409 and made["buildID"] in refused["message"], refused
    volume.write_file("/go", "")
    state = lambda: call("GET", f"/templates/{made['templateID']}/builds/{made['buildID']}/status")[1]
    done = eventually(lambda: (s := state())["status"] != "building" and s, 300)
    assert done["status"] == "ready", done
