"""E2B's own command line, unmodified: its `template` commands."""

import json
import os
import subprocess
import sys
import uuid

import pytest

import world

E2B = world.ROOT / "build" / "sdk" / "cli" / "node_modules" / "@e2b" / "cli" / "dist" / "index.js"


@pytest.fixture
def e2b(tmp_path):
    """Runs the command line in a directory and home of its own."""

    def run(*args, code=0):
        env = {**os.environ, "HOME": str(tmp_path), "NO_UPDATE_NOTIFIER": "1"}
        done = subprocess.run(["node", str(E2B), *args], cwd=tmp_path, env=env, text=True, timeout=300,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == code, done.stdout
        return done.stdout

    return run


def test_templates_from_create_to_delete(e2b, tmp_path, create):
    name = "c" + uuid.uuid4().hex[:12]
    (tmp_path / "app.txt").write_text(name)
    dockerfile = tmp_path / "e2b.Dockerfile"
    dockerfile.write_text(f"FROM e2bdev/base\nRUN echo {name} > /etc/made\nCOPY app.txt /srv/app/\nWORKDIR /srv/app\n")
    log = e2b("template", "create", name, "--cmd", "echo up > /tmp/up; exec sleep infinity", "--ready-cmd", "test -f /tmp/up",
              "--cpu-count", "1", "--memory-mb", "512")
    assert f"RUN echo {name}" in log and "Uploaded 'app.txt'" in log and f"template {name} finished" in log, log
    sbx = create(name)
    assert sbx.commands.run("cat /etc/made app.txt /tmp/up; pwd; id -un").stdout == f"{name}\n{name}up\n/srv/app\nuser\n"

    assert "Published as" in e2b("template", "publish", name, "--yes")
    listed = next(t for t in json.loads(e2b("template", "list", "--format", "json")) if name in t["aliases"])
    assert (listed["buildStatus"], listed["cpuCount"], listed["memoryMB"], listed["public"]) == ("ready", 1, 512, True)
    e2b("template", "unpublish", name, "--yes")

    dockerfile.write_text("FROM e2bdev/base\nRUN echo why >&2; exit 3\n")
    log = e2b("template", "create", name, code=1)
    assert "failed to run command 'echo why >&2; exit 3': exit status 3\nwhy" in log, log
    assert "use it" in e2b("template", "delete", name, "--yes", code=1)
    sbx.kill()
    e2b("template", "delete", name, "--yes")


def test_what_init_and_migrate_write_builds(e2b, tmp_path, create):
    """The programs that it writes are run as they are, but for TypeScript's way to name a file."""
    name = "m" + uuid.uuid4().hex[:12]
    old, new = tmp_path / "old", tmp_path / f"{name}-new"
    old.mkdir()
    (old / "app.txt").write_text(name)
    (old / "e2b.Dockerfile").write_text(f"FROM e2bdev/base\nENV A=1\nRUN echo {name} > /etc/made\nCOPY app.txt /srv/app/\nWORKDIR /srv/app\n")
    (old / "e2b.toml").write_text(
        f'template_id = "none"\ntemplate_name = "{name}"\ndockerfile = "e2b.Dockerfile"\n'
        'start_cmd = "sh -c \'echo up > /tmp/up; exec sleep infinity\'"\nready_cmd = "test -f /tmp/up"\ncpu_count = 1\nmemory_mb = 512\n')
    assert "Migration completed" in e2b("template", "migrate", "--path", str(old), "--language", "python-sync")
    assert "initialized successfully" in e2b("template", "init", "--name", new.name, "--language", "typescript")
    (new / "node_modules").symlink_to(world.ROOT / "build" / "sdk" / "js" / "node_modules")
    for file in "template", "build.prod":
        text = (new / f"{file}.ts").read_text()
        (new / f"{file}.mjs").write_text(text.replace("from './template'", "from './template.mjs'"))
    start = lambda where, *args: subprocess.Popen(args, cwd=where, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for program in [start(old, sys.executable, "build_prod.py"), start(new, "node", "build.prod.mjs")]:
            log, _ = program.communicate(timeout=300)
            assert program.returncode == 0 and "Build finished" in log, log
        sbx = create(name)
        assert sbx.commands.run("cat /etc/made app.txt /tmp/up; echo $A; pwd").stdout == f"{name}\n{name}up\n1\n/srv/app\n"
        info = sbx.get_info()
        assert (info.cpu_count, info.memory_mb) == (1, 512)
        sbx.kill()
        sbx = create(new.name)
        assert sbx.commands.run("id -un").stdout == "user\n"
        sbx.kill()
    finally:
        for made in name, new.name:
            subprocess.run([world.CAY, "template", "delete", made], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
