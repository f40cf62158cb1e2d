"""Builds that would never end, or fill the disk: each says which step, why, and leaves nothing behind."""

import uuid

import e2b
import pytest

import world


@pytest.fixture(scope="module")
def server():
    """The server, which test_down ended, once more and with short limits: longer than a machine stands still."""
    server = world.Server()
    server.cay("down")
    server.env.update(CAY_BUILD_STEP_TIMEOUT="7s", CAY_BUILD_READY_TIMEOUT="6s")
    server.start()
    yield server
    server.cay("down")
    server.process.wait()


def test_limits_of_builds(server, create):
    name = "l" + uuid.uuid4().hex[:12]
    build = lambda template: e2b.Template.build(template, name, cpu_count=1, memory_mb=512, on_build_logs=lambda e: log.append(e.message))
    base = lambda: e2b.Template().from_template("base")
    log = []
    build(base().set_envs({"STATE": "good"}))
    images = lambda: sorted(p.name for p in (server.data / "images").iterdir())
    snapshots = lambda: sorted(p.name for p in (server.data / "snapshots").iterdir())
    before = images(), snapshots()
    for template, says in [
        (base().run_cmd("true").run_cmd("echo begun; sleep 100000"), "the step took longer than 7s"),
        (base().run_cmd("true").run_cmd("echo begun; fallocate -l 11G ~/big"), "No space left on device"),
        (base().set_start_cmd("echo begun; sleep 100000", "false"), "the ready command did not succeed within 6s"),
    ]:
        log.clear()
        with pytest.raises(e2b.BuildException) as failure:
            build(template)
        assert says in str(failure.value)
        assert any("begun" in line for line in log) and any(line.startswith("Build failed: ") for line in log), log
    assert create(name).commands.run("echo $STATE").stdout == "good\n"
    assert list((server.data / "building").iterdir()) == []
    assert (images(), snapshots()) == before
    server.cay("template", "delete", name, check=False)
