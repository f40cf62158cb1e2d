"""Secrets of a step: seen by it, and kept by nothing."""

import hashlib
import os
import stat
import subprocess
import time
import uuid

import pytest

import world

DOCKERFILE = """
FROM e2bdev/base
RUN --mount=type=secret,id=token,required --mount=type=secret,id=token,env=TOKEN --mount=type=secret,id=lacks \\
    --mount=type=secret,id=file,target=/etc/app/pip.conf,uid=1000,mode=0440 \\
    [ "$(sha256sum </run/secrets/token)" = "$(printf %s "$TOKEN" | sha256sum)" ] && [ ! -e /run/secrets/lacks ] && \\
    [ "$(stat -Lc %u:%a /etc/app/pip.conf)" = 1000:440 ] && sha256sum </etc/app/pip.conf >/seen # NAME
RUN [ -z "$TOKEN" ] && [ ! -e /run/secrets ] && [ ! -e /etc/app ] && [ ! -e /dev/shm/.cay-secrets ]
"""


@pytest.fixture
def build(tmp_path):
    name = "s" + uuid.uuid4().hex[:12]
    cay = lambda *args: subprocess.run([str(world.CAY), "template", *args], text=True, capture_output=True, timeout=300,
                                       stdin=subprocess.DEVNULL, env={**os.environ, "TOKEN_HERE": run.token})

    def run(text, *secrets):
        (tmp_path / "Dockerfile").write_text(text)
        return cay("build", "--verbose", "-t", name, *[f"--secret={s}" for s in secrets], str(tmp_path))

    run.name, run.token = name, uuid.uuid4().hex
    yield run
    cay("delete", name)


def written(path):
    """When a regular file was, or 0 for what is gone or none."""
    try:
        st = path.lstat()
    except OSError:
        return 0
    return st.st_mtime if stat.S_ISREG(st.st_mode) else 0


def test_secrets_leave_no_trace(build, create, tmp_path):
    server, begun = world.Server().leads(), time.time() - 1
    token, content = build.token, uuid.uuid4().hex
    seen = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "pip.conf").write_text(content)
    secrets = ["id=token,env=TOKEN_HERE", f"id=file,src={tmp_path}/pip.conf"]
    text = DOCKERFILE.replace("NAME", build.name)
    first = build(text, *secrets)
    assert first.returncode == 0, first.stderr
    assert create(build.name).commands.run("cat /seen").stdout.split()[0] == seen
    # A secret's value is no part of the key: with another it is the same build, as Docker has it.
    build.token = uuid.uuid4().hex
    again = build(text, *secrets)
    assert "CACHED [finalize]" in again.stderr, again.stderr

    # Layers with their keys, root images, snapshots with their memory, records, logs.
    new = [p for p in world.files_of(server.data) if not p.is_relative_to(server.data / "trees") and written(p) > begun]
    new += server.logs() + server.records()
    values = [seen, token, build.token, content]
    found = subprocess.run(["grep", "-aoFH", *[f"-e{v}" for v in values], *map(str, new)], capture_output=True, text=True).stdout
    assert "/layers/packs/" in found and "/images/" in found, found  # what the step wrote is where the secret would be
    assert {line.rpartition(":")[2] for line in found.split()} == {seen}, found
    assert not any(v in first.stderr + again.stderr for v in values[1:])


def test_secrets_that_lack(build):
    failed = build(DOCKERFILE)
    assert failed.returncode != 0 and "line 3: the secret token is required" in failed.stderr, failed.stderr
    failed = build(DOCKERFILE, "id=token,env=NOT_SET_ANYWHERE")
    assert "NOT_SET_ANYWHERE is not set" in failed.stderr, failed.stderr
    failed = build("FROM e2bdev/base\nRUN --mount=type=secret,id=token,target=/etc/passwd true", "id=token,env=TOKEN_HERE")
    assert failed.returncode != 0 and "something is there" in failed.stderr, failed.stderr
    assert build.token not in failed.stderr
