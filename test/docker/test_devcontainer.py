"""Development containers, by what E2B's SDK has for them."""

import uuid

import e2b
import pytest

import cayv1

FILES = {
    "devcontainer.json": '{"name": "app", "build": {"dockerfile": "Dockerfile"}, "remoteUser": "root", "containerEnv": {"GREETING": "hello"}, "postCreateCommand": "echo made >/made"}',
    "Dockerfile": "FROM IMAGE\nRUN echo built >/built\n",
}


@pytest.fixture
def folder(image):
    """A template of devcontainer with a project in /srv/app."""
    template = e2b.Template().from_template("devcontainer").set_user("root").run_cmd("mkdir -p /srv/app/.devcontainer")
    for name, text in FILES.items():
        template = template.run_cmd(f"cat >/srv/app/.devcontainer/{name} <<'END'\n{text.replace('IMAGE', image)}\nEND")
    return template


def test_a_development_container(folder):
    name = "t-" + uuid.uuid4().hex[:12]
    e2b.Template.build(folder.beta_dev_container_prebuild("/srv/app").set_user("user").beta_set_dev_container_start("/srv/app"), name, cpu_count=2, memory_mb=2048)
    box = e2b.Sandbox.create(name, timeout=1800)
    try:
        def inside(command):
            return box.commands.run(f"sh /devcontainer.sh sh -c '{command}'", timeout=120).stdout.strip()

        assert inside("echo $GREETING; cat /built /made; pwd").splitlines() == ["hello", "built", "made", "/workspaces/app"]
        inside("echo x >/workspaces/app/note")
        assert box.files.read("/srv/app/note") == "x\n"  # the folder is the sandbox's own
        box.pause()
        e2b.Sandbox.connect(box.sandbox_id, timeout=1800)
        assert inside("cat /made /workspaces/app/note").splitlines() == ["made", "x"]
    finally:
        box.kill()
        cayv1.delete_template(name)
